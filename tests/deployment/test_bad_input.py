"""Wrong input after the release: a clear error without anything of the records, and a store that stays as it was."""

import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp.training import DPSGD

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")

DELTA = 1e-5
SECRET = 0.123454321


def records(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, (X[:, 0] > 0).astype(int)


@pytest.fixture(scope="module")
def model():
    options = {"classes": [0, 1], "guarantee": "universal", "accountant": "rdp", "random_state": 0, "epsilon": 4.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dp.PrivateConformalClassifier(DPSGD(steps=5, learning_rate=1.0), **options).fit(*records(400))


X, Y = records(60, 1)
TABLE = {"thresholds": [0.2, 0.4], "n_records": 60}
OUTSIDE, RISING, MISSING = np.full((60, 2), 0.5), np.full((60, 2), 0.5), np.full((60, 2), 0.5)
OUTSIDE[7, 0], RISING[7, 1], MISSING[7, 0] = 1 + SECRET, 0.5 + SECRET / 2, np.nan
RATIO = {"population": dp.Population(np.append(np.ones(59), 2 + SECRET), bound=2.0)}


def monitor_of(model):
    return dp.CoverageMonitor(model, epsilon=0.5, delta=DELTA, tolerated=0.2)


def calibrated(**options):
    return dp.calibrate(np.full(60, 0.5), score_range=(0, 1), held_out=True, epsilon=1.0, delta=DELTA, **options)


BAD = {
    "losses outside [0, 1]": lambda _, s: dp.control_risk(OUTSIDE, epsilon=1.0, delta=DELTA, budget=s, **TABLE),
    "missing losses": lambda _, s: dp.control_risk(MISSING, epsilon=1.0, delta=DELTA, budget=s, **TABLE),
    "losses that rise": lambda _, s: dp.control_risk(RISING, epsilon=1.0, delta=DELTA, budget=s, **TABLE),
    "a table without records": lambda _, s: dp.control_risk(
        OUTSIDE[:0], epsilon=1.0, delta=DELTA, budget=s, thresholds=[0.2, 0.4]
    ),
    "a risk ratio above its bound": lambda _, s: dp.control_risk(
        np.zeros((60, 2)), epsilon=1.0, delta=DELTA, budget=s, **TABLE, **RATIO
    ),
    "a ratio above its bound": lambda *_: calibrated(**RATIO),  # takes no store
    "a ratio of a fit above its bound": lambda _, s: dp.PrivateConformalClassifier(
        classes=[0, 1], guarantee="split", population=dp.Population(lambda X: np.full(len(X), 2 + SECRET), bound=2.0)
    ).fit(X, Y, budget=s),
    "an evaluation with an unknown class": lambda m, s: dp.evaluate(m, X, Y + 7, epsilon=1.0, delta=DELTA, budget=s),
    "a batch with an unknown class": lambda m, s: monitor_of(m).update(X, Y + 7, budget=s),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_input_is_refused_and_nothing_is_spent(name, model, tmp_path):
    path = tmp_path / "study.budget"
    store = dp.BudgetStore.create(path, 5.0, DELTA, dataset="new records")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"\w+") as error:
        BAD[name](model, store)
    assert path.read_bytes() == before
    assert not store.ledger().entries
    text = str(error.value)
    assert "12345" not in text  # nothing of the records
    assert len(text) > 20


def test_a_batch_that_is_refused_changes_no_monitor(model):
    watched = monitor_of(model)
    watched.update(X, Y, batch="2026-01")
    state = watched.to_json()
    for rows, labels, name in ((X, Y + 7, None), (X, Y, "2026-01")):
        with pytest.raises(ValueError, match=r"classes|counted before"):
            watched.update(rows, labels, batch=name)
        assert watched.to_json() == state
