"""An officer decides about a release: reads two editions, the statement and the entry, and has where to sign."""

import json

import numpy as np
import pandas as pd
import yaml

import dpscp as dp
from dpscp.cli import main

COLUMNS = {"income": {"type": "numeric", "bounds": [0, 200_000]}, "age": {"type": "numeric", "bounds": [0, 110]}}


def loans(n, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"income": rng.gamma(3.0, 15_000, n).round(2), "age": rng.uniform(18, 90, n).round()})
    return frame.assign(default=np.where(frame.income + 20_000 * rng.normal(size=n) < 30_000, "yes", "no"))


def test_an_officer_reads_and_signs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    loans(2000, 0).to_csv("loans.csv", index=False)
    loans(800, 1).to_csv("new.csv", index=False)
    schema = dp.Schema.from_dict(
        {"task": "classification", "target": "default", "classes": ["no", "yes"], "n_records": 2000, "columns": COLUMNS}
    )
    (tmp_path / "loans.toml").write_text(schema.to_toml())
    fit = "fit loans.csv --schema loans.toml --epsilon 50 --delta 0.01 --purpose scoring --responsible"
    assert main([*fit.split(" "), "B. Officer"]) == 0
    assert "A delta this large" in capsys.readouterr().err

    # the public edition says how weak the protection is, that nobody measured, and where to sign
    assert main(["report", "model.dpscp", "-o", "public.html"]) == 0
    shown = capsys.readouterr().out
    assert "privacy strength:    WEAK." in shown
    assert "usefulness:          not measured." in shown
    page = (tmp_path / "public.html").read_text()
    assert "Public edition" in page
    assert "B. Officer" in page
    assert "would permit publishing one random record" in page
    assert page.index("Signature") > page.index("What this does not protect")

    # the internal edition has a banner
    assert main(["report", "model.dpscp", "-o", "internal.html", "--evaluate", "new.csv"]) == 0
    page = (tmp_path / "internal.html").read_text()
    assert page.index("Internal edition: contains numbers computed without noise") < page.index('id="verdict"')

    # a budget of its own makes the evaluation private, and the page public again
    assert main(["budget", "create", "new.budget", "--epsilon", "1", "--delta", "1e-5", "--dataset", "new"]) == 0
    private = ["report", "model.dpscp", "-o", "private.html", "--evaluate", "new.csv", "--epsilon"]
    paid = ["--delta", "1e-6", "--budget", "new.budget", "--dataset", "new"]
    assert main([*private, "0.8", *paid]) == 0
    page = (tmp_path / "private.html").read_text()
    assert "Public edition" in page
    assert "Labeled records that the fit did not use evaluated this release with noise" in page
    assert "computed without noise" not in page
    assert main([*private, "0.8", *paid]) == 3  # the store has no more
    assert main(["report", "model.dpscp", "-o", "none.html", "--epsilon", "1"]) == 1

    # the statement and the entry of the registry name who is responsible
    capsys.readouterr()
    assert main(["statement", "model.dpscp", "--json"]) == 0
    statement = json.loads(capsys.readouterr().out)
    assert (statement["declared"]["responsible"], statement["declared"]["purpose"]) == ("B. Officer", "scoring")
    assert statement["verdict"]["privacy"]["grade"] == "weak"
    assert statement["privacy"]["mu"] > 1
    assert not statement["verdict"]["has_exact_numbers"]
    assert main(["statement", "model.dpscp", "--registry"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["deployment"]["basic"]["intended_use"] == "scoring"
