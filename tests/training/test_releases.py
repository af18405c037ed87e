"""Everything that private training learns from records leaves through a release that its event holds.

The strongest test of a wire is to cut it: with every noisy release replaced by numbers of its own, two data sets must
give the very same result. What still differs came another way, without noise and without an entry in the ledger.
"""

import numpy as np
import pytest

from dpscp.privacy import gaussian_event
from dpscp.privacy.events import possible_histories
from dpscp.training import (
    DPSGD,
    Mechanism,
    OutputPerturbation,
    Preprocessed,
    PrivateCentering,
    PrivateStandardize,
    PublicBounds,
    SufficientStatistics,
    UnitNorm,
)
from dpscp.training.engine.networks import DenseModel, Loss, Network
from dpscp.training.engine.noise import gaussian_release
from dpscp.training.preprocessing.projections import PrivateWhitening
from dpscp.training.preprocessing.rescaled import PrivateTarget


@pytest.fixture
def cut(everywhere):
    """Releases say nothing of what they are asked about."""

    def numbers_of_its_own(exact, noise_std, *_):
        size = np.shape(exact)
        return noise_std * np.random.default_rng(sum(size)).normal(size=size)

    everywhere("gaussian_release", numbers_of_its_own)


def data_sets(d=3):
    """Two that have nothing in common, their sizes included."""
    rng = np.random.default_rng(0)
    small, large = rng.uniform(0, 0.4, size=(30, d)), rng.uniform(-2, -1, size=(80, d))
    return (small, small[:, 0]), (large, np.sign(large[:, 1] + 1.5))


class Inner(Mechanism):
    """A mechanism that keeps what it sees and releases a model that depends on nothing."""

    noise_multiplier = 5.0

    def __init__(self):
        self.rows = self.targets = self.n_records = None

    @property
    def event(self):
        return gaussian_event(5.0)

    def calibrated(self, epsilon, delta, *, accountant="pld"):  # noqa: ARG002
        return self

    def train_on(self, run):
        self.rows, self.targets, self.n_records = np.array(run.rows), np.array(run.targets), run.n_records
        network = Network((run.source.width, 1))
        parameters = np.linspace(-1, 1, network.n_parameters)
        return run.result(DenseModel(network, Loss("squared"), parameters))


PRIVATE_STEPS = [
    PrivateCentering(noise_multiplier=3.0),
    PrivateStandardize(-3.0, 3.0, noise_multiplier=3.0),
    PrivateWhitening(noise_multiplier=3.0),
]


# so few records that bounds on what noise can resolve act, and so many that they do not
@pytest.mark.parametrize("n_records", [3, 10_000])
@pytest.mark.parametrize("step", PRIVATE_STEPS, ids=lambda s: type(s).__name__)
def test_nothing_of_the_records_passes_a_step_but_through_its_release(step, n_records, cut):
    one, two = (step.fit(X, n_records=n_records, rng=np.random.default_rng(0)) for X, _ in data_sets())
    assert one.config() == two.config()
    assert one.arrays().keys() == two.arrays().keys()
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, two.arrays()[name])


@pytest.mark.parametrize("step", PRIVATE_STEPS, ids=lambda s: type(s).__name__)
def test_a_step_does_depend_on_the_records_through_its_release(step):
    one, two = (step.fit(X, n_records=50, rng=np.random.default_rng(0)) for X, _ in data_sets())
    assert any(not np.array_equal(array, two.arrays()[name]) for name, array in one.arrays().items())


MECHANISMS = [
    PrivateTarget(Inner(), (-3.0, 3.0), noise_multiplier=3.0),
    # so much noise and so few records that bringing the moments back to their public length acts
    SufficientStatistics(1.0, (-3.0, 3.0), noise_multiplier=50.0),
    OutputPerturbation(loss="huber", y_bounds=(-3.0, 3.0), noise_multiplier=3.0),
]


@pytest.mark.parametrize("n_records", [3, 10_000])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_nothing_of_the_records_passes_a_mechanism_but_through_its_release(mechanism, n_records, cut):
    one, two = (mechanism.train(X, y, random_state=0, n_records=n_records) for X, y in data_sets())
    np.testing.assert_array_equal(one.model.arrays()["parameters"], two.model.arrays()["parameters"])
    assert one.model.config() == two.model.config()
    assert one.event == two.event
    assert one.stability == two.stability
    assert one.public_facts == two.public_facts


def test_every_private_part_is_in_the_event():
    steps = (
        UnitNorm(),
        PrivateCentering(noise_multiplier=11.0),
        PrivateStandardize(-1.0, 1.0, noise_multiplier=12.0),
        PrivateWhitening(noise_multiplier=13.0),
    )
    inner = Preprocessed(steps, DPSGD(loss="huber", steps=4, noise_multiplier=14.0))
    mechanism = PrivateTarget(inner, (-1.0, 1.0), noise_multiplier=15.0)
    expected = {gaussian_event(noise): 4 if noise == 14.0 else 1 for noise in (11.0, 12.0, 13.0, 14.0, 15.0)}
    X, y = data_sets()[0]
    for event in (mechanism.event, mechanism.train(X, y, random_state=0, n_records=30).event):
        assert possible_histories(event) == [expected]


def test_the_public_number_of_records_reaches_every_step():
    counted = []

    class Counting(PrivateCentering):
        def release(self, total, *, n_records, rng):
            counted.append(n_records)
            return super().release(total, n_records=n_records, rng=rng)

    (X, y), _ = data_sets()
    step, inner = Counting(noise_multiplier=3.0), Inner()
    Preprocessed((step, step), inner).train(X, y, random_state=0, n_records=777)
    assert [*counted, inner.n_records] == [777, 777, 777]
    PrivateTarget(inner, noise_multiplier=3.0).train(X, y, random_state=0, n_records=778)
    assert inner.n_records == 778


def test_training_sees_what_prediction_sees():
    (X, y), _ = data_sets()
    inner = Inner()
    steps = (PublicBounds(0.1, 0.3), PrivateCentering(noise_multiplier=9.0))
    trained = Preprocessed(steps, inner).train(X, y, random_state=0, n_records=30)
    np.testing.assert_array_equal(inner.rows, trained.model.transform(X))
    assert not np.allclose(inner.rows, X)


# ---- scales


def test_the_scale_that_is_asked_for_reaches_the_generator():
    class Listening:
        def normal(self, loc, scale, size):
            asked.append((loc, scale, size))
            return np.zeros(size)

    asked = []
    gaussian_release(np.ones((2, 3)), 0.7, Listening())
    assert asked == [(0.0, 0.7, (2, 3))]
