"""Result H in training: a person with any number of rows moves every private sum by one record's sensitivity."""

from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpscp.data.persons import Persons, keep_rows
from dpscp.data.sources import Block
from dpscp.training import (
    DPSGD,
    OutputPerturbation,
    Preprocessed,
    PrivateCentering,
    PrivateStandardize,
    PublicBounds,
    SufficientStatistics,
    UnitNorm,
    corrected_outputs,
)
from dpscp.training.engine.gradients import CLIP_SLACK
from dpscp.training.engine.loop import Descent
from dpscp.training.mechanisms.perturbation import LinearRisk, ObjectivePerturbation
from dpscp.training.preprocessing.projections import PrivateWhitening
from dpscp.training.preprocessing.rescaled import PrivateTarget, ScaledTarget
from dpscp.training.preprocessing.steps import MOMENT_SENSITIVITY

K = 5
BOUNDS = (-2.0, 2.0)
TARGET = PrivateTarget(DPSGD(loss="huber", steps=3), BOUNDS)
SUMMARY = SufficientStatistics(feature_bound=1.5, y_bounds=BOUNDS, noise_multiplier=1.0)
CENTERING, STANDARDIZING, WHITENING = PrivateCentering(1.5), PrivateStandardize(-2.0, 2.0), PrivateWhitening(1.5)
HEAD = DPSGD(classes=(0, 1), noise_multiplier=1.0, clip_norm=0.3)
NET = DPSGD(hidden=(6,), classes=(0, 1), noise_multiplier=1.0, clip_norm=0.3)


def persons_of(given, *, alike, seed=0):
    """Twelve ordinary persons of 1 to 4 rows, then one with this many extreme rows (0: nobody)."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, 12)
    X, ids = rng.normal(size=(sizes.sum(), 3)), np.repeat(np.arange(12), sizes)
    y = rng.integers(0, 2, len(X))
    extreme = np.full((given, 3), 50.0) if alike else 50.0 * rng.normal(size=(given, 3))
    X, ids = np.concatenate([X, extreme]), np.concatenate([ids, np.full(given, 99)])
    y = np.concatenate([y, np.zeros(given, dtype=int) if alike else rng.integers(0, 2, given)])
    kept, persons = keep_rows(ids, n_rows=len(X), rows_per_person=K, random_state=seed)
    return X[kept], y[kept], persons


def clipped_sum(mechanism):
    def total(X, y, persons):
        setup = mechanism.prepare(X, y, n_records=12, persons=persons)
        with threadpool_limits(1), np.errstate(all="ignore"):
            descent = Descent(setup)
            # far from the start, so that gradients of a net are long
            descent._fast += np.linspace(-1, 1, len(descent._fast)).astype(descent._fast.dtype)
            return np.array(descent.clipped_sum(None))

    return total


def flat_moments(X, y, persons):
    gram, cross = SUMMARY.moments(X, 4.0 * y - 2.0, persons.weights)
    row, target = SUMMARY.bounds
    return np.concatenate([gram.ravel() / row**2, cross / (row * target)])


SUMS = {
    "centering": (lambda X, _, p: CENTERING.part_moments(X, p.weights), CENTERING.bound),
    "scale": (lambda X, _, p: STANDARDIZING.part_moments(X, p.weights).ravel(), STANDARDIZING.sensitivity(3)),
    "second moment": (lambda X, _, p: WHITENING.part_moments(X, p.weights), 1.0),
    "target": (lambda X, y, p: TARGET.moments(Block(0, X, 4.0 * y - 2.0, p)), MOMENT_SENSITIVITY),
    "summary": (flat_moments, np.sqrt(2.0)),
    "clipped gradients of a head": (clipped_sum(HEAD), HEAD.clip_norm * (1 + CLIP_SLACK)),
    "clipped gradients of a net": (clipped_sum(NET), NET.clip_norm * (1 + CLIP_SLACK)),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_person_moves_every_private_sum_by_one_sensitivity(name):
    """Brute force: 1, k and 100 extreme rows, all alike and all different; all alike reaches the bound."""
    total, sensitivity = SUMS[name]
    longest = 0.0
    for given in (1, K, 100):
        for alike in (True, False):
            moved = np.linalg.norm(total(*persons_of(given, alike=alike)) - total(*persons_of(0, alike=alike)))
            assert moved <= sensitivity * (1 + 1e-12), (given, alike)
            longest = max(longest, moved)
    assert longest >= 0.9 * sensitivity  # a test with room to spare would not see a forgotten weight


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "huber"])
def test_a_person_moves_the_gradient_of_a_penalized_risk_by_one_bound(loss):
    risk = LinearRisk(loss, 1.5, 2 if loss == "cross_entropy" else 1, 1.0, 0.5)
    theta = np.linspace(-3, 3, 3 * risk.n_outputs)

    def gradient(X, y, persons):
        rows = X * np.minimum(1, 1.5 / np.linalg.norm(X, axis=1))[:, None]
        return risk.value_and_gradient(theta, rows, y, np.zeros_like(theta), persons.weights)[1]

    for given in (1, K, 100):
        for alike in (True, False):
            moved = gradient(*persons_of(given, alike=alike)) - gradient(*persons_of(0, alike=alike))
            assert np.linalg.norm(moved) <= risk.head.gradient_bound * (1 + 1e-12)


STEPS = (
    UnitNorm(),
    PrivateCentering(1.0, 3.0),
    PublicBounds(-2, 2),
    PrivateStandardize(-1, 1, 3.0),
    PrivateWhitening(2.0, 3.0),
)
MECHANISMS = {
    "head": DPSGD(classes=(0, 1), noise_multiplier=1.0, steps=4),
    "sampled net": DPSGD(hidden=(6,), classes=(0, 1), noise_multiplier=1.0, steps=4, sampling_rate=0.3),
    "preprocessed": Preprocessed(STEPS, DPSGD(classes=(0, 1), noise_multiplier=1.0, steps=4)),
    "private target": replace(TARGET, mechanism=replace(TARGET.mechanism, noise_multiplier=1.0), noise_multiplier=2.0),
    "scaled target": ScaledTarget(DPSGD(loss="squared", steps=3, noise_multiplier=1.0), BOUNDS),
    "output perturbation": OutputPerturbation(classes=(0, 1), noise_multiplier=1.0),
    "summary": SUMMARY,
}  # fmt: skip


def numbers(trained):
    return np.concatenate([np.ravel(a) for _, a in sorted(trained.model.arrays().items())])


@pytest.mark.parametrize("name", MECHANISMS)
def test_repeating_a_persons_only_row_changes_nothing(name):
    """k equal rows of weight 1/k are one row; sampled batches draw the person, not each of the rows."""
    X, y, _ = persons_of(0, alike=True)
    twice = Persons(np.arange(0, 2 * len(X) + 1, 2), 2)
    one = MECHANISMS[name].train(X, y, random_state=1, n_records=20)
    two = MECHANISMS[name].train(X.repeat(2, axis=0), y.repeat(2), random_state=1, n_records=20, persons=twice)
    np.testing.assert_allclose(numbers(one), numbers(two), rtol=2e-3, atol=2e-3)


def test_batches_draw_whole_persons():
    X, y, persons = persons_of(100, alike=False)
    setup = replace(HEAD, sampling_rate=0.4).prepare(X, y, n_records=12, persons=persons)
    steps = setup.draw_steps(np.random.default_rng(0))
    for _ in range(50):
        rows = persons.rows_of(next(steps)[1])
        drawn = np.unique(np.searchsorted(persons.offsets, rows, side="right") - 1)
        assert sorted(rows) == sorted(np.concatenate([np.arange(*persons.offsets[[j, j + 1]]) for j in drawn] or [[]]))
    assert setup.normalizer == 0.4 * 12


def test_a_mechanism_that_cannot_says_so_before_anything_is_released():
    X, y, persons = persons_of(0, alike=True)
    own = ObjectivePerturbation(classes=(0, 1), noise_multiplier=1.0)
    behind = Preprocessed((PrivateCentering(1.0, 3.0),), own)
    assert not own.trains_persons
    assert not behind.trains_persons
    for mechanism in (behind, own):
        with pytest.raises(TypeError, match="cannot train on persons"):
            mechanism.train(X, y, n_records=20, persons=persons)


def test_persons_of_other_rows_are_refused():
    X, y, persons = persons_of(0, alike=True)
    for mechanism in MECHANISMS.values():
        with pytest.raises(ValueError, match="persons must have as many rows"):
            mechanism.train(X[:-1], y[:-1], n_records=20, persons=persons)


def test_the_correction_removes_the_whole_person():
    """Against training without the person's rows: short steps, so that the first-order shift is nearly all of it."""
    X, y, persons = persons_of(3, alike=False)
    X = np.clip(X, -2, 2)
    mechanism = DPSGD(
        classes=(0, 1), noise_multiplier=0.01, steps=6, learning_rate=0.02, clip_norm=0.8, dtype="float64",
        keep_trajectory=True,
    )  # fmt: skip
    trained = mechanism.train(X, y, random_state=0, n_records=12, persons=persons)
    corrected = corrected_outputs(trained.model, trained.trajectory, X, y, persons=persons)
    row_wise = corrected_outputs(trained.model, trained.trajectory, X, y)
    plain = trained.model.outputs(X)
    for j in range(persons.count):
        drawn = np.arange(persons.count) != j
        rows, others = persons.part(drawn)
        without = mechanism.train(X[rows], y[rows], random_state=0, n_records=12, persons=others).model
        true = without.outputs(X[~rows]) - plain[~rows]
        np.testing.assert_allclose(corrected[~rows] - plain[~rows], true, rtol=0.1, atol=2e-4)
        if persons.sizes[j] == 1:
            np.testing.assert_array_equal(corrected[~rows], row_wise[~rows])
    several = np.repeat(persons.sizes > 1, persons.sizes)
    assert not np.allclose(corrected[several], row_wise[several], rtol=0.1, atol=2e-4)


def test_torch_modules_train_on_persons():
    """One row a person is the row-level run; k equal rows are one; a person's integers stay within one clip norm."""
    torch = pytest.importorskip("torch")
    trainer = pytest.importorskip("dpscp.torch.trainer")
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    X, y, _ = persons_of(100, alike=True)
    for rate in (1.0, 0.4):
        mechanism = trainer.TorchDPSGD(module, classes=(0, 1), steps=3, sampling_rate=rate, noise_multiplier=1.0)
        kept, single = keep_rows(range(len(X)), n_rows=len(X), rows_per_person=2, random_state=1)
        rows = mechanism.train(X, y, random_state=1, n_records=20)
        same = mechanism.train(X[kept], y[kept], random_state=1, n_records=20, persons=single)
        np.testing.assert_array_equal(numbers(rows), numbers(same))
        twice = Persons(np.arange(0, 2 * len(X) + 1, 2), 2)
        two = mechanism.train(X.repeat(2, axis=0), y.repeat(2), random_state=1, n_records=20, persons=twice)
        np.testing.assert_allclose(numbers(rows), numbers(two), rtol=1e-4, atol=1e-4)
    # the rows of one person together move the parameters by one clip norm
    one = trainer.TorchDPSGD(module, "squared", 1.0, 1, 1.0, clip_norm=0.3, noise_multiplier=0.0)
    alone = Persons(np.array([0, K]), K)
    after = one.train(np.full((K, 3), 30.0), np.full(K, -99.0), n_records=1, persons=alone).model
    start = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    length = float(np.linalg.norm(np.concatenate([v.ravel() for v in after.arrays().values()]) - start))
    assert 0.3 * (1 - 1e-4) <= length <= 0.3 * (1 + 1e-4)
