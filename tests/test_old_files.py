"""Files that version 0.1.0 wrote load for good, and mean what they meant.

``files_0_1`` was written by that version (three seeded fits on made-up records, two ledgers, a budget store) together
with what it answered, in ``expected.json``. None of these files is ever written again.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import dpscp as dp

OLD = Path(__file__).parent / "files_0_1"
EXPECTED = json.loads((OLD / "expected.json").read_text())
ROWS = np.array(EXPECTED["rows"])


def test_a_classifier_of_0_1_loads_and_predicts_as_then():
    loaded = dp.load(OLD / "classifier.dpscp")
    labels, sets = loaded.predict_set(ROWS)
    assert labels.tolist() == EXPECTED["labels"]
    assert sets.tolist() == EXPECTED["sets"]
    assert loaded.certificate_.coverage == EXPECTED["coverage"]
    assert loaded.ledger_.epsilon(1e-5) == pytest.approx(EXPECTED["epsilon"], rel=1e-6)
    assert not loaded.ledger_.is_private  # the fit was seeded
    assert "seed" in str(loaded.ledger_).lower()


def test_a_grouped_classifier_of_0_1_loads_and_predicts_as_then():
    assert dp.load(OLD / "grouped.dpscp").predict_set(ROWS)[1].tolist() == EXPECTED["grouped_sets"]


def test_a_regressor_of_0_1_loads_and_predicts_as_then():
    prediction, intervals = dp.load(OLD / "regressor.dpscp").predict_interval(ROWS)
    # another processor's BLAS may round the last digits of a float32 model differently
    np.testing.assert_allclose(prediction, EXPECTED["prediction"], rtol=1e-5)
    np.testing.assert_allclose(intervals, EXPECTED["intervals"], rtol=1e-5)


def test_every_file_of_0_1_saves_again(tmp_path):
    for old in sorted(OLD.glob("*.dpscp")):
        loaded = dp.load(old)
        loaded.save(tmp_path / old.name)
        again = dp.load(tmp_path / old.name)
        np.testing.assert_array_equal(again.threshold_, loaded.threshold_)
        assert again.ledger_ == loaded.ledger_
        assert again.certificates_ == loaded.certificates_


def test_ledgers_of_0_1_load_and_cost_what_they_cost():
    split = dp.Ledger.from_json((OLD / "ledger.json").read_text())
    assert split.epsilon(1e-5) == pytest.approx(EXPECTED["epsilon"], rel=1e-6)
    plain = dp.Ledger.from_json((OLD / "ledger_plain.json").read_text())
    assert plain.epsilon(1e-5) == pytest.approx(EXPECTED["mixed_epsilon"], rel=1e-6)
    assert [entry.stage for entry in plain.entries] == ["training", "calibration"]


def test_a_budget_store_of_0_1_opens_with_what_was_spent(tmp_path):
    path = tmp_path / "study.budget"
    shutil.copy(OLD / "study.budget", path)
    store = dp.BudgetStore.open(path)
    assert store.remaining(1e-5) == pytest.approx(EXPECTED["store_remaining"], rel=1e-3)
