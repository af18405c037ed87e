"""The entry of a registry and the model card: what a release knows, and what is named as open."""

import numpy as np
import pytest
import yaml

import dpscp as dp
from dpscp.cli.main import main
from dpscp.deployment import model_card, registry_entry, registry_yaml

# The required fields and the choices of schemas/deployments-schema.yaml of the registry's data, 2026.
REQUIRED = ("name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region")
CHOICES = {
    ("basic", "data_product_type"): ("Summary statistics", "Machine learning model"),
    ("dp_variant", "variant_name"): ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
    ("deployment_model", "model_name"): ("Local", "Central", "Shuffle", "Federated", "Varies"),
    ("deployment_model", "release_type"): ("One release", "Many releases"),
    ("deployment_model", "data_source_type"): ("Static", "Dynamic"),
    ("deployment_model", "access_type"): ("Interactive", "Non-interactive"),
}
SECTIONS = {
    *("basic", "dp_variant", "privacy_loss", "deployment_model", "accounting", "implementation", "administrative")
}


@pytest.fixture(scope="module")
def model():
    X = np.random.default_rng(0).uniform(-1, 1, (1500, 2))
    options = {"epsilon": 1.0, "delta": 1e-6, "classes": [0, 1], "feature_bounds": (-1, 1), "n_records": 1500}
    return dp.PrivateConformalClassifier(**options).fit(X, (X[:, 0] > 0).astype(int))


def test_an_entry_has_the_fields_and_choices_of_the_registry(model):
    statement = model.statement(metadata={"responsible": 'City clinic: "A"', "purpose": "triage"})
    entry = yaml.safe_load(registry_yaml(statement))
    assert entry == registry_entry(statement)
    assert set(entry) == {"url_slug", "status", "tier", "deployment"}
    found = entry["deployment"]
    assert set(found) == SECTIONS
    assert all(found["basic"][name] for name in (*REQUIRED, "publication_date"))
    assert all(found[section][name] in choices for (section, name), choices in CHOICES.items())
    assert found["basic"]["data_curators"] == ['City clinic: "A"']
    assert found["basic"]["name"].startswith("OPEN: ")
    assert found["privacy_loss"]["privacy_parameters"] == {"epsilon": statement["privacy"]["epsilon"], "delta": 1e-6}
    assert found["dp_variant"]["unprotected_quantities"] == "Computed without noise: nothing."


def test_a_release_without_privacy_is_not_registered():
    with pytest.warns(dp.SeededWarning):
        scores = dp.calibrate(
            np.linspace(0, 1, 500), epsilon=1.0, delta=1e-6, score_range=(0, 1), held_out=True, random_state=0
        )
    with pytest.raises(ValueError, match="not private: the noise came from a seed"):
        registry_entry(scores.statement())


def test_a_model_card_has_a_header_and_the_verdict(model):
    _, header, text = model_card(model.statement()).split("---\n", 2)
    assert yaml.safe_load(header)["pipeline_tag"] == "tabular-classification"
    assert "# A classification model with prediction sets" in text
    assert "**privacy strength**: strong. Epsilon 1.000 is at most 1" in text


def test_the_command_writes_one_of_the_forms(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model.save("m.dpscp")
    assert main(["statement", "m.dpscp", "--registry", "-o", "entry.yaml", "--responsible", "City clinic"]) == 0
    entry = yaml.safe_load((tmp_path / "entry.yaml").read_text())
    assert entry["deployment"]["basic"]["data_curators"] == ["City clinic"]
    assert main(["statement", "m.dpscp", "--model-card"]) == 0
    assert "library_name" in capsys.readouterr().out
    assert main(["statement", "m.dpscp", "--model-card", "--markdown"]) == 1
    assert "choose one of --markdown, --model-card" in capsys.readouterr().err
