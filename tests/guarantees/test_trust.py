"""Each thing that is taken on the caller's word is one sentence in the ledger, the certificate and the report."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

import dpscp as dp
from dpscp._base import assumptions as _trust
from dpscp._base.assumptions import Assumption
from dpscp.data.sources import ArraySource, Block
from dpscp.estimators.outer_steps import list_record_assumptions, list_training_assumptions
from dpscp.privacy import gaussian_event
from dpscp.report import html_report
from dpscp.training import DPSGD, Preprocessed, TorchDPSGD, UnitNorm

torch = pytest.importorskip("torch")
da = pytest.importorskip("dask.array")
data = torch.utils.data
N = 200
STATED = Assumption.stated("a word of the trainer")
# those about code and records of the caller come first in the module
_OF_CALLERS = itertools.takewhile(lambda item: item[0] != "EXCHANGEABLE", vars(_trust).items())
ASSUMED = {value for _, value in _OF_CALLERS if isinstance(value, Assumption)}


class OwnTraining(DPSGD):
    """A mechanism of the caller's."""


@dataclass(frozen=True)
class OwnNorm(UnitNorm):
    """A step of the caller's."""


class OwnData(data.Dataset):
    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, place):
        return self.X[place], self.y[place]


class OwnSource(ArraySource):
    """A source of the caller's."""


def sign(X):
    return X[:, 0] > 0


def own_score(probabilities):
    return 1 - probabilities


def table():
    X = np.random.default_rng(0).uniform(-1, 1, size=(N, 2))
    return X, (X[:, 0] > 0).astype(int)


def descent(kind=DPSGD):
    return kind(hidden=(), sampling_rate=1.0, steps=2, learning_rate=1.0, noise_multiplier=9.0)


def known_model():
    return dp.PrivateModel.from_outputs(
        lambda X: np.column_stack([-X[:, 0], X[:, 0]]),
        spent=gaussian_event(20.0),
        task="classification",
        n_features=2,
        classes=(0, 1),
    )


X, Y = table()
CASES = {
    "nothing": ((X, Y), {}, set()),
    "a group function": ((X, Y), {"groups": sign}, {_trust.GROUP_FUNCTION}),
    "a score": (
        (X, Y),
        {"conformity_score": own_score},
        {_trust.OWN_SCORE},
    ),
    "a mechanism": ((X, Y), {"estimator": descent(OwnTraining)}, {_trust.OWN_MECHANISM}),
    "a step": ((X, Y), {"estimator": Preprocessed((OwnNorm(),), descent())}, {_trust.OWN_STEP}),
    "a model": ((X, Y), {"estimator": known_model(), "guarantee": "universal"}, {_trust.PRIVATE_MODEL}),
    "a Dask array": (
        (da.from_array(X, chunks=(100, 2)), da.from_array(Y, chunks=100)),
        {},
        {_trust.DASK},
    ),
    "a source": ((OwnSource(X, Y, n_blocks=2),), {}, {_trust.OWN_SOURCE}),
    "a data set": ((OwnData(X, Y),), {}, {_trust.OWN_DATASET}),
    "tensors": ((data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),), {}, set()),
}


@pytest.mark.parametrize(("records", "changes", "expected"), CASES.values(), ids=CASES)
def test_each_thing_that_is_trusted_is_on_record(records, changes, expected):
    settings = {"estimator": descent(), "guarantee": "split", "epsilon": 8.0, "accountant": "rdp", "classes": [0, 1]}
    settings |= {"random_state": 0, "n_records": N} | changes
    if not isinstance(settings["estimator"], dp.PrivateModel):
        settings["feature_bounds"] = (-1, 1)
    model = dp.PrivateConformalClassifier(**settings).fit(*records)
    assert set(model.ledger_.assumptions) == expected
    assert set(dp.Ledger.from_json(model.ledger_.to_json()).assumptions) == expected
    assert set(model.certificate_.assumptions) & ASSUMED == expected


def test_the_report_shows_what_is_trusted():
    settings = {"guarantee": "split", "epsilon": 8.0, "accountant": "rdp", "classes": [0, 1], "feature_bounds": (-1, 1)}
    model = dp.PrivateConformalClassifier(descent(OwnTraining), random_state=0, n_records=N, **settings)
    page = html_report(model.fit(OwnData(X, Y))).replace("&#39;", "'")
    expected = {_trust.OWN_MECHANISM, _trust.OWN_DATASET}
    assert {value for value in ASSUMED if value.sentence in page} == expected


class Fixed:
    """A model that was trained elsewhere."""

    def predict(self, rows):
        return rows[:, 0]


def test_torch_modules_are_found_behind_every_wrapper():
    module = torch.nn.Linear(2, 2)
    training = TorchDPSGD(module, sampling_rate=0.5, steps=2, learning_rate=1.0)
    for estimator in (module, training, Preprocessed((UnitNorm(),), training)):
        assert list(list_training_assumptions(estimator)) == [_trust.TORCH_MODULE]
    assert list(list_training_assumptions(dp.Prefit(Fixed()))) == [_trust.PREFIT]
    both = Preprocessed((OwnNorm(),), training)
    assert list(list_training_assumptions(both)) == [_trust.OWN_STEP, _trust.TORCH_MODULE]
    assert list(list_training_assumptions(None)) == []
    assert list(list_record_assumptions([Block(0, X, Y)])) == []


def test_scores_from_elsewhere_are_on_record_once():
    settings = {"epsilon": 4, "delta": 1e-5, "score_range": (0, 1), "random_state": 0, "accountant": "rdp"}
    spent = dp.Ledger().add("training", gaussian_event(20.0)).assume(STATED)
    found = dp.calibrate(np.linspace(0, 1, 500), training=spent, **settings)
    assert found.ledger.assumptions == (STATED, _trust.OWN_SCORES)
    assert {STATED, _trust.OWN_SCORES} <= set(found.certificate.assumptions)
    again = dp.calibrate(np.linspace(0, 1, 500), training=found.ledger, **settings | {"epsilon": 8})
    assert again.ledger.assumptions.count(_trust.OWN_SCORES) == 1


def test_two_ledgers_together_keep_what_both_assume():
    first, second = dp.Ledger().assume(STATED), dp.Ledger().assume(_trust.DASK)
    assert set(first.then(second).assumptions) == {STATED, _trust.DASK}
    assert first.then(dp.Ledger()).assumptions == (STATED,)
