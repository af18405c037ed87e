"""No records are as good as one: where their number is private, an error would reveal the only record with certainty.

Each case is an answer for the first n of the same records. The answers for n = 0 and n = 1 must be of the same kind.
"""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

import dpscp as dp
from dpscp.cli.main import main
from dpscp.training import DPSGD, ObjectivePerturbation, OutputPerturbation

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning", "ignore::dpscp.HintWarning")

N = 2_000
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).clip(-4, 4)
Y = (X[:, 0] > 0).astype(int)
T = X[:, 1].clip(-3, 3)
LABELS = np.column_stack([Y, 1 - Y, X[:, 1] > 0]).astype(int)
IDS = np.arange(N) // 2
PREFIT = FrozenEstimator(LogisticRegression().fit(X, Y))
BUDGET = {"epsilon": 2.0, "delta": 1e-5}
PUBLIC = {**BUDGET, "classes": [0, 1], "feature_bounds": (-4, 4), "n_records": N, "accountant": "rdp"}
SPENT = {"epsilon": 1.0, "delta": 1e-5}
SCORES = {**SPENT, "score_range": (-4, 4), "held_out": True}
LOSSES = {**SPENT, "alpha": 0.1, "thresholds": [1, 2, 3]}
SCHEMA = {
    "target": "y",
    "task": "classification",
    "classes": ["0", "1"],
    "columns": {
        "a": {"type": "numeric", "bounds": [-4, 4]},
        "b": {"type": "categorical", "categories": ["u", "v"]},
    },
}


def sign(rows):
    return (rows[:, 1] > 0).astype(int)  # fails without a row of three columns


def fit(n, *, persons=None, **options):
    classifier = dp.PrivateConformalClassifier(**PUBLIC | {"estimator": DPSGD(steps=3)} | options)
    return classifier.fit(X[:n], Y[:n], persons=None if persons is None else persons[:n])


def fit_persons(n, ids=IDS, **options):
    return fit(n, persons=ids, n_records=None, n_persons=N // 2, rows_per_person=2, **options)


def regress(n, y=T, **options):
    public = {name: value for name, value in PUBLIC.items() if name != "classes"}
    return dp.PrivateConformalRegressor(**public | {"y_bounds": (-3, 3)} | options).fit(X[:n], y[:n])


def fit_labels(n, *, persons=None, **options):
    public = {"epsilon": 2.0, "feature_bounds": (-4, 4), "accountant": "rdp"}
    return dp.PrivateMultilabelClassifier(**public | options).fit(X[:n], LABELS[:n], persons=persons)


def frame(n):
    return pd.DataFrame({"a": X[:n, 0], "b": np.array(["u", "v"])[Y[:n]], "y": Y[:n].astype(str), "id": IDS[:n]})


def fit_table(table, **declared):
    declared = declared or {"n_records": N}
    return dp.PrivateConformalClassifier(**BUDGET, accountant="rdp").fit(
        table, "y", schema=dp.Schema.from_dict(SCHEMA | declared)
    )


def fit_persons_of_table(table):
    return fit_table(table, person="id", rows_per_person=2, n_persons=N // 2)


def written(n, folder, ending):
    path = folder / f"{n}.{ending}"
    (frame(n).to_csv if ending == "csv" else frame(n).to_parquet)(path, index=False)
    return path


def in_polars(n):
    polars = pytest.importorskip("polars")
    return polars.DataFrame(frame(n).to_dict("list"), schema_overrides={"a": polars.Float64, "id": polars.Int64})


def in_arrow(n):
    arrow = pytest.importorskip("pyarrow")
    return arrow.Table.from_pandas(frame(n), preserve_index=False)


def in_dask_frame(n):
    return pytest.importorskip("dask.dataframe").from_pandas(frame(n).drop(columns="id"), npartitions=1)


def fit_source(n, n_blocks):
    return dp.PrivateConformalClassifier(**PUBLIC).fit(dp.sources.ArraySource(X[:n], Y[:n], n_blocks=n_blocks))


def fit_torch(n):
    torch = pytest.importorskip("torch")
    options = {name: value for name, value in PUBLIC.items() if name != "feature_bounds"}
    model = dp.PrivateConformalClassifier(torch.nn.Linear(3, 2), **options)
    return model.fit(torch.tensor(X[:n], dtype=torch.float32), torch.tensor(Y[:n]))


PRIORS = dp.Population.from_class_priors({0: 0.3, 1: 0.7}, {0: 0.5, 1: 0.5})
FITS = {
    "recipe": lambda n: fit(n, estimator=None),
    **{
        name: lambda n, name=name: fit(n, guarantee=name)
        for name in ("split", "universal", "corrected", "asymptotic", "finite")
    },
    "stability": lambda n: fit(n, estimator=OutputPerturbation(classes=(0, 1)), guarantee="stability"),
    "private bounds": lambda n: fit(n, estimator=None, feature_bounds="private"),
    "unit rows": lambda n: fit(n, estimator=None, feature_bounds=None),
    "groups": lambda n: fit(n, groups=dp.Groups(sign, values=[0, 1])),
    "overlapping groups": lambda n: fit(n, groups=dp.Groups([sign, lambda rows: 1 - sign(rows)], values=[[0, 1]] * 2)),
    "groups by label": lambda n: fit(n, groups="label"),
    "evaluation": lambda n: fit(n, evaluation_fraction=0.2),
    "raps": lambda n: fit(n, conformity_score="raps"),
    "own score": lambda n: fit(n, conformity_score=lambda p: np.stack([1 - row for row in p])),
    "other classes": lambda n: fit(n, guarantee="split", population=PRIORS),
    "a ratio of mean 1": lambda n: fit(
        n, guarantee="split", population=dp.Population(lambda rows: 1 + 0.1 * rows[:, 1], bound=1.5, normalized=True)
    ),
    "two levels": lambda n: fit(n, confidence_level=[0.8, 0.9]),
    "one release": lambda n: fit(n, guarantee="split", release_confidence=0.9),
    "seed": lambda n: fit(n, random_state=0),
    "DPSGD": lambda n: fit(n, estimator=DPSGD(hidden=(8,), steps=20, sampling_rate=0.01)),
    "objective": lambda n: fit(n, estimator=ObjectivePerturbation()),
    "prefit": lambda n: dp.PrivateConformalClassifier(dp.Prefit(PREFIT), **BUDGET, n_records=N).fit(X[:n], Y[:n]),
    "persons": fit_persons,
    "persons in a list": lambda n: fit_persons(n, ids=IDS.tolist()),
    "persons, evaluation": lambda n: fit_persons(n, evaluation_fraction=0.2, guarantee="split"),
    "persons without ids": lambda n: fit(n, rows_per_person=2, guarantee="split"),
    "regression": regress,
    "regression, private bounds": lambda n: regress(n, y_bounds="private", feature_bounds="private"),
    "regression, score chosen": lambda n: regress(n, conformity_score="auto"),
    "regression, evaluation": lambda n: regress(n, evaluation_fraction=0.2),
    "several targets": lambda n: regress(n, y=np.column_stack([T, T]), y_bounds=((-3, 3), (-4, 4))),
    "quantile pair": lambda n: regress(n, conformity_score="cqr"),
    "labels": lambda n: fit_labels(n, n_records=N),
    "labels, discoveries": lambda n: fit_labels(n, n_records=N, loss="false_discoveries"),
    "labels, persons": lambda n: fit_labels(n, n_persons=N, rows_per_person=2, persons=IDS[:n]),
    "frame": lambda n: fit_table(frame(n)),
    "frame with persons": lambda n: fit_persons_of_table(frame(n)),
    "polars": lambda n: fit_table(in_polars(n)),
    "arrow": lambda n: fit_table(in_arrow(n)),
    "dask frame": lambda n: fit_table(in_dask_frame(n)),
    "one block": lambda n: fit_source(n, 1),
    "three blocks": lambda n: fit_source(n, 3),
    "torch": fit_torch,
}


@pytest.fixture(scope="module")
def released():
    return {
        "classification": fit(N),
        "regression": regress(N),
        "groups": fit(N, groups=dp.Groups(sign, values=[0, 1])),
        "persons": fit_persons(N),
        "prefit": FITS["prefit"](N),
    }


def same_kind(answer):
    """Answer for no record and for one; no warning of NumPy, which would reveal that a mean is of nothing."""
    kinds = []
    for n in (0, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            kinds.append(describe(answer(n)))
    assert kinds[0] == kinds[1]


def describe(answer):
    """What is public about an answer, whatever the records are."""
    ledger = getattr(answer, "ledger_", None) or answer.ledger
    threshold = getattr(answer, "threshold_", getattr(answer, "threshold", None))
    certificate = getattr(answer, "certificate_", getattr(answer, "certificate", None))
    facts = {name for name in ledger.public_facts if name != "full_sets"}
    promise = None if certificate is None else (certificate.target, certificate.guarantee)
    stages = [(entry.stage, str(entry.event)) for entry in ledger.entries]
    return type(answer), np.shape(threshold), promise, facts, stages


@pytest.mark.parametrize("name", FITS)
def test_fits_with_a_declared_number(name):
    same_kind(FITS[name])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("make", [fit_table, fit_persons_of_table])
def test_fits_of_files(make, ending, tmp_path):
    same_kind(lambda n: make(written(n, tmp_path, ending)))


KINDS = ["classification", "regression", "groups", "persons", "prefit"]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_and_batches_of_a_monitor(released, kind):
    estimator, truth = released[kind], T if kind == "regression" else Y
    persons = IDS if kind == "persons" else None
    same_kind(lambda n: dp.evaluate(estimator, X[:n], truth[:n], persons=some(persons, n), **SPENT))
    monitor = dp.CoverageMonitor(estimator, **SPENT, tolerated=0.2)
    same_kind(lambda n: monitor.update(X[:n], truth[:n], some(persons, n)))
    assert monitor.n_batches == 2
    assert np.isfinite(monitor.evidence).all()


def some(persons, n):
    return None if persons is None else persons[:n]


@pytest.mark.parametrize("kind", KINDS)
def test_recalibrations(released, kind):
    estimator, truth = released[kind], T if kind == "regression" else Y
    persons = IDS if kind == "persons" else None
    same_kind(lambda n: dp.recalibrate(estimator, X[:n], truth[:n], persons=some(persons, n), n_records=500, **SPENT))


TABLE = np.tile(np.array([1.0, 0.5, 0.0]), (N, 1))
OWN = {
    "scores": lambda n: dp.calibrate(X[:n, 0], n_records=500, **SCORES),
    "scores in a list": lambda n: dp.calibrate(X[:n, 0].tolist(), n_records=500, **SCORES),
    "scores in a stream": lambda n: dp.calibrate(iter([X[:n, 0]]), n_records=500, **SCORES),
    "a stream without parts": lambda n: dp.calibrate(iter([X[:1, 0]][:n]), n_records=500, **SCORES),
    "scores in chunks": lambda n: dp.calibrate(lambda: [X[:n, 0]], n_records=500, **SCORES),
    "scores of persons": lambda n: dp.calibrate(X[:n, 0], persons=IDS[:n], n_persons=500, rows_per_person=2, **SCORES),
    "scores of groups": lambda n: dp.calibrate(
        X[:n, 0], groups=dp.Groups(Y[:n], values=[0, 1]), n_records=500, **SCORES
    ),
    "scores of others": lambda n: dp.calibrate(
        X[:n, 0], population=dp.Population(np.ones(n), bound=1.5), n_records=500, **SCORES
    ),
    "losses": lambda n: dp.control_risk(TABLE[:n], n_records=500, **LOSSES),
    "losses of persons": lambda n: dp.control_risk(
        TABLE[:n], persons=IDS[:n], n_persons=500, rows_per_person=2, **LOSSES
    ),
    "losses of groups": lambda n: dp.control_risk(
        TABLE[:n], groups=dp.Groups(Y[:n], values=[0, 1]), n_records=500, **LOSSES
    ),
    "losses as a function": lambda n: dp.control_risk(
        lambda t: np.clip(1 - t / np.linspace(0.1, 1, N)[:n], 0, 1),
        threshold_range=(0, 1),
        n_records=500,
        alpha=0.1,
        **SPENT,
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_own_scores_and_losses(name):
    same_kind(OWN[name])


def test_a_quantile_of_nothing():
    for n in (0, 1):
        found = dp.private_quantile(X[:n, 0], alpha=0.1, score_range=(-4, 4), mu=1, n_records=500)
        assert found.n_records == 500


def test_a_counted_and_published_number_is_at_least_one(tmp_path):
    """Where the number is published anyway, an error is no leak, and a table without a record is a mistake."""
    table = written(0, tmp_path, "csv")
    for call in (
        lambda: fit(0, n_records=None),
        lambda: fit(0, persons=IDS, n_records=None, rows_per_person=2),
        lambda: fit_table(table, n_records=None),
        lambda: fit_labels(0),
    ):
        with pytest.raises(ValueError, match=r"at least one record is required|n_records must be"):
            call()
    with pytest.raises(ValueError, match="at least one score is required"):
        dp.calibrate(np.empty(0), **SCORES)
    with pytest.raises(ValueError, match="n_records"):
        dp.control_risk(TABLE[:0], **LOSSES)
    with pytest.raises(ValueError, match="scores are empty"):
        dp.private_quantile(np.empty(0), alpha=0.1, score_range=(0, 1), mu=1)


def test_commands_take_a_table_with_a_header_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame(N).drop(columns="id").to_csv("full.csv", index=False)
    Path("schema.toml").write_text(dp.Schema.from_dict(SCHEMA | {"n_records": N}).to_toml())
    spend = ["--epsilon", "1", "--delta", "1e-6"]
    assert main(["fit", "full.csv", "--schema", "schema.toml", *spend, "-o", "full.dpscp"]) == 0
    for n in (0, 1):
        new = pd.DataFrame({"a": [0.5], "b": ["u"], "y": ["1"]})[:n]
        new.to_csv(f"{n}.csv", index=False)
        for words in (
            ["fit", f"{n}.csv", "--schema", "schema.toml", *spend, "-o", f"{n}.dpscp"],
            ["evaluate", "full.dpscp", f"{n}.csv", *spend],
            ["monitor", "full.dpscp", f"{n}.csv", "--state", f"{n}.json", "--tolerated", "0.2"],
            ["recalibrate", "full.dpscp", f"{n}.csv", *spend, "--n", "400", "-o", f"new{n}.dpscp"],
            ["predict", "full.dpscp", f"{n}.csv", "-o", f"predicted{n}.csv"],
        ):
            assert main(words) == 0, (words, capsys.readouterr())
