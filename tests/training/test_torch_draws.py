"""Draws of a module belong to one record each, and come from torch's secret generators.

A batch goes through the module in blocks. A draw that the records of a block share is another one in the next block, so
a record in front moves other records to other draws: it moves a sum by many clip norms.
"""

import random

import numpy as np
import pytest

from dpscp import BudgetStore, PrivateConformalClassifier
from dpscp.training.torch.random_state import draws_by_row
from dpscp.training.torch.trainer import OpacusTraining

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
nn = torch.nn


class Own(nn.Module):
    """A head behind a function of the rows, in training mode."""

    def __init__(self, function):
        super().__init__()
        self.function, self.head = function, nn.Linear(6, 2)

    def forward(self, rows):
        return self.head(self.function(rows) if self.training else rows)


def training(function):
    return OpacusTraining(Own(function), classes=(0, 1), sampling_rate=1.0, steps=2, noise_multiplier=1.0)


def seeds_and_drops(rows):
    torch.manual_seed(0)
    return nn.functional.dropout(rows, 0.5)


def forks_and_drops(rows):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.functional.dropout(rows, 0.5)


def seeds_alone(rows):
    torch.manual_seed(0)
    return rows


def restores_the_state(rows):
    state = torch.get_rng_state()
    rows = nn.functional.dropout(rows, 0.5)
    torch.set_rng_state(state)
    return nn.functional.dropout(rows, 0.5)


def seeds_python(rows):
    random.seed(0)
    return rows + rows.mean(0) if random.random() < 0.001 else rows


SHARED, SET, OWN = "all records of a batch share", "sets the state", "Generator of its own"
OTHER = r"Python's random or|changed its own state .*global random"
REFUSED = {
    "mask of all records": (lambda rows: rows * torch.bernoulli(torch.full((1, 6), 0.5)), SHARED),
    "stochastic depth of a batch": (lambda rows: rows + rows * torch.empty([1, 1]).bernoulli_(0.5), SHARED),
    "rare mixing": (lambda rows: rows + rows.mean(0) if torch.rand([]) < 0.001 else rows, SHARED),
    "random order": (lambda rows: rows + 0.1 * rows[torch.randperm(len(rows))], SHARED),
    "noise on weights": (lambda rows: rows + 0.1 * torch.randn(6), SHARED),
    "seed and dropout": (seeds_and_drops, SET),
    "seed in a fork": (forks_and_drops, SET),
    "seed without a draw": (seeds_alone, SET),
    "the same draws twice": (restores_the_state, SET),
    "rare mixing by random": (lambda rows: rows + rows.mean(0) if random.random() < 0.001 else rows, OTHER),
    "rare mixing by random with a seed": (seeds_python, OTHER),
    "noise of NumPy": (lambda rows: rows + 0.1 * torch.from_numpy(np.random.randn(*rows.shape)).to(rows), OTHER),
    "own generator": (
        lambda rows: rows + 1e-9 * torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)).to(rows),
        OWN,
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_draws_that_are_shared_or_not_secret_are_refused_before_anything_is_spent(kind, tmp_path):
    function, words = REFUSED[kind]
    store = BudgetStore.create(tmp_path / "store", 4.0, 1e-2, dataset="synthetic")
    before = (tmp_path / "store").read_bytes()
    settings = {"epsilon": 2.0, "delta": 1e-3, "classes": [0, 1], "n_records": 300}
    with pytest.raises(ValueError, match=words):
        PrivateConformalClassifier(Own(function), **settings).fit(
            np.random.default_rng(5).normal(size=(300, 6)), np.arange(300) % 2, budget=store
        )
    assert (tmp_path / "store").read_bytes() == before


def test_draws_of_a_loss_are_looked_at_too():
    def loss(outputs, target):
        return nn.functional.cross_entropy(outputs, target, reduction="none") * torch.rand(1)

    mechanism = OpacusTraining(nn.Linear(6, 2), loss, classes=(0, 1), sampling_rate=1.0, steps=2, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=SHARED):
        mechanism.check((6,))


def test_draws_for_each_record_are_taken():
    training(lambda rows: rows * torch.empty(len(rows), 1).bernoulli_(0.5)).check((6,))
    training(lambda rows: rows + 0.1 * torch.randn_like(rows)).check((6,))


def test_a_row_has_the_same_draws_alone_and_in_a_batch():
    def draw(keys):
        with draws_by_row(keys):
            return torch.rand(len(keys), 3)

    torch.testing.assert_close(draw([5])[0], draw([2, 7, 5])[2], rtol=0, atol=0)


def test_the_generators_of_python_and_numpy_stay_where_they_were():
    before = random.getstate(), np.random.get_state()[1].tolist()
    training(lambda rows: nn.functional.dropout(rows, 0.5)).check((6,))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_layers_that_draw_in_training_alone_are_taken():
    training(nn.RReLU().forward).check((6,))
    module = nn.Sequential(nn.Linear(6, 5), nn.RReLU(), nn.Linear(5, 2))
    OpacusTraining(module, classes=(0, 1), sampling_rate=1.0, steps=2, noise_multiplier=1.0).check((6,))


@pytest.mark.parametrize(("is_training", "calls"), [(None, 1), (True, 1), (False, 0)])
def test_a_dropout_without_the_argument_train_counts_as_a_draw(is_training, calls):
    with draws_by_row(range(4)) as mode:
        torch.native_dropout(torch.ones(4, 6), 0.5, is_training)
    assert mode.calls == calls
