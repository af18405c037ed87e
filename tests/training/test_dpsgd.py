"""The DP-SGD engine against autograd and textbook updates, and its randomness against the laws it promises."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy import stats

from dpscp import BudgetError, SeededWarning
from dpscp.privacy import Ledger, dpsgd_event
from dpscp.training import DPSGD, Mechanism
from dpscp.training.engine.gradients import CLIP_SLACK
from dpscp.training.engine.loop import Descent, poisson_batches
from dpscp.training.engine.noise import GridNoise

TAIL = 1e-6  # chance that a correct implementation fails one statistical check

PAPER_MODELS = {
    "housing": (DPSGD(hidden=(32, 16), loss="squared", momentum=0.9), 8, None),
    "blood": (DPSGD(loss="cross_entropy", classes=tuple(range(8)), clip_norm=0.7), 512, 8),
    "synthetic": (DPSGD(hidden=(16, 16), classes=tuple(range(5)), activation="tanh", momentum=0.9), 10, 5),
}


def problem(d, n_classes, n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = X[:, 0] + rng.normal(size=n) if n_classes is None else rng.integers(0, n_classes, n)
    return X, y


def torch_twin(mechanism, network):
    import torch

    layers, flat = [], network.initial(mechanism.init_seed, mechanism.init_scale)
    for depth, layer in enumerate(network.layers(flat)):
        linear = torch.nn.Linear(layer.shape[1] - 1, layer.shape[0], dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(layer[:, :-1]))
            linear.bias.copy_(torch.tensor(layer[:, -1]))
        layers.append(linear)
        if depth < len(network.shapes) - 1:
            layers.append(torch.nn.ReLU() if mechanism.activation == "relu" else torch.nn.Tanh())
    return torch.nn.Sequential(*layers)


def torch_loss(loss):
    import torch.nn.functional as functional

    return {
        "cross_entropy": lambda z, y: functional.cross_entropy(z, y, reduction="sum"),
        "logistic": lambda z, y: functional.binary_cross_entropy_with_logits(z[:, 0], y.to(z), reduction="sum"),
        "squared": lambda z, y: ((z[:, 0] - y) ** 2).sum(),
        "huber": lambda z, y: functional.huber_loss(z[:, 0], y, reduction="sum"),
        "pinball": lambda z, y: sum(
            functional.relu(y - z[:, i]).mul(q).sum() + functional.relu(z[:, i] - y).mul(1 - q).sum()
            for i, q in enumerate((0.05, 0.95))
        ),
    }[loss]


CASES = [
    *[(name, *PAPER_MODELS[name]) for name in PAPER_MODELS],
    ("logistic", DPSGD(loss="logistic", classes=(0, 1), clip_norm=0.8), 6, 2),
    ("huber", DPSGD(hidden=(7,), activation="tanh", loss="huber"), 6, None),
    ("pinball", DPSGD(hidden=(7, 5, 3), loss="pinball"), 6, None),
    ("many units", DPSGD(hidden=(40,), classes=(0, 1, 2)), 3, 3),
]


@pytest.mark.parametrize(("name", "mechanism", "d", "n_classes"), CASES, ids=[c[0] for c in CASES])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clipped_sum_equals_per_sample_gradients(name, mechanism, d, n_classes, dtype):
    torch = pytest.importorskip("torch")
    from torch.func import functional_call, grad, vmap

    mechanism = replace(mechanism, noise_multiplier=0.0, dtype=dtype, init_scale=1.0)
    X, y = problem(d, n_classes)
    setup = mechanism.prepare(X, y)
    descent = Descent(setup)
    module = torch_twin(mechanism, setup.network)
    parameters = dict(module.named_parameters())

    def one(p, x, t):
        return torch_loss(mechanism.loss)(functional_call(module, p, x[None]), t[None])

    batch = np.arange(0, 300, 2)
    per_sample = vmap(grad(one), (None, 0, 0))(
        {k: v.detach() for k, v in parameters.items()}, torch.tensor(X[batch]), torch.tensor(y[batch])
    )
    names = [key.removesuffix(".weight") for key in per_sample if key.endswith(".weight")]
    gradients = np.concatenate(
        [
            torch.cat([per_sample[f"{k}.weight"], per_sample[f"{k}.bias"][..., None]], dim=2).reshape(len(batch), -1)
            for k in names
        ],
        axis=1,
    )
    norms = np.linalg.norm(gradients, axis=1)
    expected = (gradients * np.minimum(1, mechanism.clip_norm / norms)[:, None]).sum(0)
    # the clip must act on some records for the comparison to mean anything
    assert (norms > mechanism.clip_norm).any()
    got = descent.clipped_sum(batch)
    assert np.linalg.norm(got - expected) <= (1e-5 if dtype == "float32" else 2e-13) * np.linalg.norm(expected)


@pytest.mark.parametrize("name", PAPER_MODELS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e18, 1e30])
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(name, scale):
    """Also records that overflow float32 on the way: they count as zero and leave the sum finite."""
    mechanism, d, k = PAPER_MODELS[name]
    X, y = problem(d, k, n=40)
    X = np.concatenate([X, scale * np.random.default_rng(5).normal(size=(1, d))])
    y = np.append(y, y[0] if k else scale)
    setup = replace(mechanism, noise_multiplier=0.0, init_scale=3.0).prepare(X, y)
    descent = Descent(setup)
    with np.errstate(all="ignore"):
        joined = descent.clipped_sum(np.arange(41)).copy()
        without = descent.clipped_sum(np.arange(40)).copy()
    assert np.isfinite(joined).all()
    assert np.linalg.norm(joined - without) <= mechanism.clip_norm * (1 + 1e-5)


def test_poisson_inclusion():
    """Every record in every step with probability q, independently over records and steps."""
    n, q, steps = 60, 0.13, 40_000
    stream = poisson_batches(np.random.default_rng(3), n, q)
    masks = np.zeros((steps, n), dtype=bool)
    for mask in masks:
        mask[next(stream)] = True
    assert inclusion_fails(masks, q) == []


def inclusion_fails(masks, q):
    """Names of the properties that the masks violate, each with level TAIL."""
    steps, n = masks.shape
    var = q * (1 - q)
    centered = masks - q
    failed = []
    per_record = centered.sum(0) ** 2 / (steps * var)
    total_fails = not TAIL / 4 < stats.chi2.cdf(per_record.sum(), n) < 1 - TAIL / 4
    if total_fails or stats.chi2.sf(per_record.max(), 1) < TAIL / (2 * n):
        failed.append("rate")
    sizes = np.bincount(masks.sum(1), minlength=n + 1)
    expected = stats.binom.pmf(np.arange(n + 1), n, q) * steps
    keep = expected >= 10
    observed = np.append(sizes[keep], sizes[~keep].sum())
    wanted = np.append(expected[keep], expected[~keep].sum())
    if stats.chi2.sf(((observed - wanted) ** 2 / wanted).sum(), len(wanted) - 1) < TAIL:
        failed.append("size")
    z = stats.norm.isf(TAIL / 4)
    neighbors = (centered[:, 1:] * centered[:, :-1]).sum() / (var * math.sqrt(steps * (n - 1)))
    in_time = (centered[1:] * centered[:-1]).sum() / (var * math.sqrt((steps - 1) * n))
    failed += [name for name, value in (("records", neighbors), ("steps", in_time)) if abs(value) > z]
    return failed


def test_poisson_batches_cross_blocks_and_high_rates():
    for n, q in ((100_000, 0.9), (3, 1e-4), (50_000, 0.3)):
        stream = poisson_batches(np.random.default_rng(0), n, q)
        batches = [next(stream) for _ in range(8)]
        total = sum(map(len, batches))
        assert stats.binom.cdf(total, 8 * n, q) > TAIL
        assert stats.binom.sf(total - 1, 8 * n, q) > TAIL
        for batch in batches:
            assert (np.diff(batch) > 0).all()
            assert len(batch) == 0 or (batch[0] >= 0 and batch[-1] < n)


def test_noise_scale_on_empty_batches():
    """No record at all: every step still moves, by Gaussian noise of exactly the promised scale."""
    sigma, clip, rate, steps = 3.0, 0.5, 0.7, 400
    mechanism = DPSGD(
        classes=(0, 1, 2), sampling_rate=0.25, steps=steps, learning_rate=rate, clip_norm=clip,
        noise_multiplier=sigma, dtype="float64", keep_trajectory=True,
    )  # fmt: skip
    trained = mechanism.train(np.empty((0, 9)), np.empty(0, dtype=int), n_records=200, random_state=1)
    moves = np.diff(trained.trajectory.iterates, axis=0) / rate
    sums = moves * 0.25 * 200
    assert (np.abs(moves) > 0).any(axis=1).all()
    z = sums / (sigma * clip)
    total = (z**2).sum()
    assert TAIL < stats.chi2.cdf(total, z.size) < 1 - TAIL
    assert stats.kstest(z.ravel(), "norm").pvalue > TAIL
    # a scale 5 % off is rejected by the same test
    assert not TAIL < stats.chi2.cdf(total * 1.05**2, z.size) < 1 - TAIL


@pytest.mark.parametrize("sampling_rate", [1.0, 0.5])
def test_each_step_adds_the_noise_of_the_event(sampling_rate):
    """One step on rows of zeros is noise alone: 100,000 coordinates show a scale that is two percent off."""
    mechanism = DPSGD(
        classes=(0, 1),
        steps=1,
        learning_rate=1.0,
        sampling_rate=sampling_rate,
        noise_multiplier=3.0,
        clip_norm=0.5,
        fit_intercept=False,
    )
    moved = mechanism.train(np.zeros((4, 50_000)), [0, 1, 0, 1], random_state=0, n_records=10).model.parameters
    in_units = moved.astype(float) * sampling_rate * 10 / (3.0 * 0.5)
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], in_units.size)
    assert low < in_units @ in_units < high
    assert 0.98**2 * in_units.size < low  # the test would notice
    assert mechanism.event == dpsgd_event(3.0, sampling_rate, 1)


def test_batches_are_sampled_at_the_rate_of_the_event():
    """Each record has a feature of its own, so one step without noise shows who was in the batch."""
    n, rate = 400, 0.6
    mechanism = DPSGD(
        classes=(0, 1), steps=1, sampling_rate=rate, noise_multiplier=0.0, fit_intercept=False, learning_rate=1.0
    )
    layers = mechanism.train(np.eye(n), np.zeros(n, dtype=int), random_state=0, n_records=n).model.layers
    drawn = np.count_nonzero(layers[0].any(axis=0))
    low, high = stats.binom.ppf([1e-7, 1 - 1e-7], n, rate)
    assert low <= drawn <= high < n


def test_released_sums_lie_on_the_grid():
    """The low bits of a noisy sum do not depend on the sum: it is a whole number of grid steps."""
    X, y = problem(6, None)
    mechanism = DPSGD(loss="squared", sampling_rate=0.5, steps=1, learning_rate=1.0, noise_multiplier=2.0)
    setup = mechanism.prepare(X, y)
    descent = Descent(setup)
    noise = GridNoise(np.random.default_rng(0), setup.network.n_parameters).next().copy()
    descent.step(np.arange(100), noise)
    steps = -descent.parameters * setup.normalizer / descent.grid
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)
    assert np.abs(steps).max() > 1e4
    # the noise is 2^20 steps, and it is scaled to the sensitivity with the rounding of the sum
    assert descent.grid == pytest.approx(2.0 * mechanism.clip_norm * (1 + CLIP_SLACK) / 2**20, rel=1e-12)


def test_normalizer_is_public():
    """The size of a batch never enters: the same records count the same next to others."""
    X, y = problem(5, None, n=100)
    mechanism = DPSGD(
        loss="squared", sampling_rate=0.5, steps=1, learning_rate=1.0, noise_multiplier=0.0, dtype="float64"
    )
    totals = []
    for batch in (np.arange(10), np.arange(10, 40), np.arange(40)):
        setup = mechanism.prepare(X, y, n_records=80)
        descent = Descent(setup)
        descent.step(batch, None)
        totals.append(descent.parameters)
    np.testing.assert_allclose(totals[0] + totals[1], totals[2], rtol=1e-12)
    assert setup.normalizer == 40


def reference_updates(mechanism, gradients, curvature=0.0):
    """The textbook update rules, one gradient at a time; with a curvature each gradient answers to the parameters."""
    theta = np.zeros(gradients.shape[1])
    velocity, second, path = np.zeros_like(theta), np.zeros_like(theta), []
    for t, given in enumerate(gradients):
        g, rate = given + np.broadcast_to(curvature, len(gradients))[t] * theta, mechanism.learning_rates[t]
        if mechanism.optimizer == "adam":
            b1, b2, eps = 0.9, 0.999, 1e-8
            velocity = b1 * velocity + (1 - b1) * g
            second = b2 * second + (1 - b2) * g**2
            theta = theta - rate * (velocity / (1 - b1 ** (t + 1))) / (np.sqrt(second / (1 - b2 ** (t + 1))) + eps)
        else:
            velocity = mechanism.momentum * velocity + g
            theta = theta - rate * velocity
        if mechanism.radius is not None:
            theta = theta * min(1, mechanism.radius / np.linalg.norm(theta))
        path.append(theta)
    share = mechanism.averaging or 1 / len(path)
    return np.mean(path[-math.ceil(share * len(path)) :], axis=0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"optimizer": "adam"},
        {"optimizer": "adam", "averaging": 0.31},
        {"schedule": "linear", "averaging": 1.0, "momentum": 0.5},
        {"radius": 0.3, "momentum": 0.9, "averaging": 0.5},
    ],
    ids=str,
)
def test_update_rules(settings):
    mechanism = DPSGD(loss="squared", steps=17, learning_rate=0.2, noise_multiplier=0.0, dtype="float64", **settings)
    gradients = np.random.default_rng(0).normal(size=(17, 4))
    descent = Descent(mechanism.prepare(np.empty((0, 3)), np.empty(0), n_records=1))
    for g in gradients:
        descent._update(g * descent.normalizer, None)
    np.testing.assert_allclose(descent.released(), reference_updates(mechanism, gradients), rtol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.8}, {"averaging": 0.4, "schedule": "linear", "momentum": 0.5}])
def test_influence_weights_are_the_derivative(settings):
    mechanism = DPSGD(loss="squared", steps=9, learning_rate=0.2, noise_multiplier=0.0, **settings)
    gradients = np.zeros((9, 1))
    for curvature in (np.zeros(9), np.linspace(0.1, 2.0, 9)):
        for t, weight in enumerate(mechanism.influence_weights(curvature)):
            one = gradients.copy()
            one[t] = 1.0
            assert -reference_updates(mechanism, one, curvature)[0] == pytest.approx(weight, rel=1e-10)


def test_event_is_known_before_the_data():
    sampled = DPSGD(sampling_rate=0.01, steps=40, noise_multiplier=1.5)
    assert sampled.event == SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), 40)
    assert DPSGD(steps=40, noise_multiplier=1.5).event == SelfComposedDpEvent(GaussianDpEvent(1.5), 40)
    assert isinstance(DPSGD(noise_multiplier=0.0).event, NonPrivateDpEvent)
    assert DPSGD().event is None
    with pytest.raises(ValueError, match="calibrated"):
        DPSGD().train(np.zeros((3, 1)), [0, 1, 0])


@pytest.mark.parametrize("sampling_rate", [1.0, 0.05])
def test_calibrated_ends_within_the_budget(sampling_rate):
    mechanism = DPSGD(sampling_rate=sampling_rate, steps=100).calibrated(1.0, 1e-5)
    spent = Ledger().add("training", mechanism.event).epsilon(1e-5)
    assert 0.99 < spent <= 1.0
    assert isinstance(mechanism, Mechanism)
    with pytest.raises(BudgetError):
        mechanism.calibrated(1e-12, 1e-30)


def test_seeds_and_public_facts():
    X, y = problem(4, 3, n=60)
    mechanism = DPSGD(sampling_rate=0.3, steps=20, noise_multiplier=1.0)
    with pytest.warns(SeededWarning):
        first = mechanism.train(X, y, random_state=3)
    again = mechanism.train(X, y, random_state=3)
    fresh, other = mechanism.train(X, y, n_records=50), mechanism.train(X, y, n_records=50)
    np.testing.assert_array_equal(first.model.parameters, again.model.parameters)
    assert (fresh.model.parameters != other.model.parameters).any()
    assert first.is_seeded
    assert not fresh.is_seeded
    assert first.taken_from_data == ("n_records", "classes")
    assert fresh.taken_from_data == ("classes",)
    assert fresh.public_facts["n_records"] == 50
    assert fresh.public_facts["classes"] == (0, 1, 2)
    assert fresh.trajectory is None


def test_feature_bound_is_enforced_in_training_and_prediction():
    X, y = problem(4, 3, n=80)
    bound = 1.5
    mechanism = DPSGD(sampling_rate=0.5, steps=15, noise_multiplier=1.0, classes=(0, 1, 2), feature_bound=bound)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    clipped = X * np.minimum(1, bound / norms)
    one, two = mechanism.train(X, y, random_state=0).model, mechanism.train(clipped, y, random_state=0).model
    np.testing.assert_allclose(one.parameters, two.parameters, atol=1e-5)
    np.testing.assert_allclose(one.outputs(X), one.outputs(clipped), atol=1e-5)
    rows = one.rows(1e30 * X)
    assert np.linalg.norm(rows[:, :-1].astype(float), axis=1).max() <= bound
    assert (rows[:, -1] == 1).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"feature_bound": 0.0}, {"feature_bound": -1}, {"clip_norm": 0}, {"steps": 0}, {"sampling_rate": 1.5},
        {"loss": "hinge"}, {"momentum": 1.0}, {"optimizer": "adam", "momentum": 0.5}, {"averaging": "ema"},
        {"averaging": 0.0}, {"hidden": (0,)}, {"hidden": 5}, {"hidden": "relu"}, {"radius": -1.0}, {"dtype": "float16"},
        {"classes": (1, 1)}, {"classes": (1,)}, {"classes": "ab"}, {"loss": "logistic", "classes": (1, 2, 3)},
        {"loss": "squared", "classes": (1, 2)}, {"quantiles": (0.0, 1.0)}, {"loss": "pinball", "quantiles": ()},
        {"learning_rate": 0}, {"noise_multiplier": -1.0},
        {"init_scale": -1.0}, {"delta_n": 0.0}, {"schedule": "step"},
    ],
    ids=str,
)  # fmt: skip
def test_bad_constants_are_refused(settings):
    with pytest.raises((ValueError, TypeError), match=next(iter(settings))):
        DPSGD(**settings)


def test_divergence_is_reported():
    X, y = problem(4, None)
    mechanism = DPSGD(loss="squared", learning_rate=1e38, momentum=0.9, steps=400, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="diverged"):
        mechanism.train(1e6 * X, y, random_state=0)
