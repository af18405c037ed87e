"""Costs of events: the issue's numbers, independent accountants, and exact enumeration of the discrete Gaussian."""

import math
import warnings

import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    UnsupportedDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from scipy import special

from dpscp.exceptions import UnsupportedEventError
from dpscp.privacy import (
    approximate_dp_event,
    as_accountant,
    compose,
    count_noise,
    delta_of,
    discrete_gaussian_event,
    dpsgd_event,
    epsilon_of,
    gaussian_event,
    gdp_delta,
    gdp_epsilon,
    is_private,
    lattice_noise,
    non_private_event,
    parallel,
    tradeoff_of,
)
from dpscp.privacy.events import possible_histories
from dpscp.privacy.pld import PLD, discrete_gaussian_cdf
from dpscp.privacy.rdp import OPACUS_ORDERS

DELTA = 1e-5
PAPER_TRAINING = dpsgd_event(2.890625, 1 / 428, 6420)


def prv_bracket(history, delta=DELTA, eps_error=0.004):
    """(lower, upper) bounds on the exact epsilon by Opacus' PRV accountant, an independent method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prv = pytest.importorskip("opacus.accountants").PRVAccountant()
        # a rate of 1 divides by zero there; one part in 10^12 below it moves delta by less than 10^-12
        prv.history = [(noise, min(rate, 1 - 1e-12), steps) for noise, rate, steps in history]
        delta_error = delta / 1000
        lower, _, upper = prv._get_dprv(eps_error, delta_error).compute_epsilon(delta, delta_error, eps_error)
    return lower, upper


def assert_in_bracket(epsilon, history, delta=DELTA):
    """Ours is an upper bound on the exact value, and at most the promised 2e-4 of rounding above it."""
    lower, upper = prv_bracket(history, delta)
    assert lower <= epsilon <= upper + 2e-4


# ---- the numbers of the issue


@pytest.mark.parametrize(("epsilon", "rdp", "tight"), [(0.5, 34.29, 31.45), (1.0, 18.09, 16.68), (2.0, 9.61, 8.92)])
def test_count_noise_of_the_search_alone(epsilon, rdp, tight):
    assert count_noise(epsilon, DELTA, steps=20, accountant="rdp") == pytest.approx(rdp, abs=0.02)
    noise = count_noise(epsilon, DELTA, steps=20)
    assert noise == pytest.approx(tight, abs=0.1)
    assert_in_bracket(epsilon_of(lattice_noise(noise).event(20), DELTA), [(noise, 1.0, 20)])


def test_training_event_of_the_paper():
    assert epsilon_of(PAPER_TRAINING, DELTA, "rdp") == pytest.approx(0.245, abs=0.001)
    assert_in_bracket(epsilon_of(PAPER_TRAINING, DELTA), [(2.890625, 1 / 428, 6420)])


def test_count_noise_after_the_papers_training():
    assert count_noise(0.5, DELTA, 20, PAPER_TRAINING, accountant="rdp") == pytest.approx(39.98, abs=0.05)
    noise = count_noise(0.5, DELTA, 20, PAPER_TRAINING)
    assert noise == pytest.approx(35.66, abs=0.15)
    whole = compose(PAPER_TRAINING, lattice_noise(noise).event(20))
    assert_in_bracket(epsilon_of(whole, DELTA), [(2.890625, 1 / 428, 6420), (noise, 1.0, 20)])


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"), [(1.1, 0.02, 1000, 1e-5), (0.8, 0.1, 30, 1e-6), (5.0, 0.3, 200, 1e-4)]
)
def test_sampled_training_agrees_with_another_accountant(noise, rate, steps, delta):
    assert_in_bracket(epsilon_of(dpsgd_event(noise, rate, steps), delta), [(noise, rate, steps)], delta)


def test_renyi_mode_is_opacus_accounting():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rdp = pytest.importorskip("opacus.accountants").RDPAccountant()
        assert tuple(rdp.DEFAULT_ALPHAS) == OPACUS_ORDERS
        rdp.history = [(2.890625, 1 / 428, 6420), (40.0, 1.0, 20)]
        theirs = rdp.get_epsilon(DELTA)
    ours = epsilon_of(compose(PAPER_TRAINING, gaussian_event(40.0, 20)), DELTA, "rdp")
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_renyi_profile_is_dp_accountings():
    event = compose(dpsgd_event(1.3, 0.05, 40), discrete_gaussian_event(20, 1, 4))
    theirs = RdpAccountant(OPACUS_ORDERS)
    theirs.compose(dpsgd_event(1.3, 0.05, 40)).compose(gaussian_event(20.0, 4))
    expected = [theirs.get_delta(float(e)) for e in EPSILONS]
    np.testing.assert_allclose(delta_of(event, EPSILONS, "rdp"), expected, rtol=1e-12)


# ---- the discrete Gaussian against brute force


def exact_discrete_deltas(sigma, sensitivity, count, epsilons):
    """Hockey-stick divergences of the composed mechanism, by direct convolution of probabilities.

    The joint loss is a function of the sum of the outputs, whose law is the ``count``-fold convolution.
    """
    reach = 40 * sigma + 2
    one = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    one /= one.sum()
    law = one
    for _ in range(count - 1):
        law = np.convolve(law, one)
    total = np.arange(law.size) - law.size // 2
    loss = sensitivity * (count * sensitivity - 2 * total) / (2 * sigma**2)
    return np.array([math.fsum(law * np.maximum(0, -np.expm1(np.minimum(e - loss, 0)))) for e in epsilons])


EPSILONS = np.array([0.0, 0.01, 0.1, 0.37, 1.0, 2.2, 5.0])


@pytest.mark.covering
@pytest.mark.parametrize("count", [1, 2, 3, 20])
@pytest.mark.parametrize(("sigma", "sensitivity"), [(1, 1), (2, 1), (3, 2), (5, 1), (5, 7), (40, 3)])
def test_discrete_gaussian_loss_against_enumeration(sigma, sensitivity, count):
    exact = exact_discrete_deltas(sigma, sensitivity, count, EPSILONS)
    ours = delta_of(discrete_gaussian_event(sigma, sensitivity, count), EPSILONS)
    # 1e-14 is the noise of 64-bit Fourier transforms; above, the buckets of 1e-4 cost that share at most
    assert np.all(ours >= exact - 1e-14)
    assert np.all(ours <= exact * (1 + 5e-4) + 1e-14)


@pytest.mark.parametrize("sigma", [3, 999, 1000, 4096, 10**7])
def test_discrete_gaussian_distribution_function(sigma):
    x = np.unique(np.round(np.linspace(-8, 8, 41) * sigma))
    if sigma < 10**6:
        support = np.arange(-40 * sigma, 40 * sigma + 1)
        weights = np.exp(-((support / sigma) ** 2) / 2)
        below = np.cumsum(weights) / weights.sum()
        expected = below[(x + 40 * sigma).astype(int)]
    else:  # the sum is a trapezoid integral: it differs from the normal law by less than a float can show
        expected = special.ndtr((x + 0.5) / sigma)
    got = discrete_gaussian_cdf(x, sigma)
    np.testing.assert_allclose(got, expected, rtol=2e-12, atol=1e-15)
    np.testing.assert_allclose(got + discrete_gaussian_cdf(-x - 1, sigma), 1.0, atol=3e-15)


@pytest.mark.parametrize(
    ("sigma", "sensitivity"), [(1, 300), pytest.param(1, 30, marks=pytest.mark.slow), (2000, 200_000)]
)
def test_hardly_any_noise_is_accounted_with_finite_numbers_and_memory(sigma, sensitivity):
    # losses of thousands overflow exp and would need 10^8 buckets of the usual width
    spent = epsilon_of(discrete_gaussian_event(sigma, sensitivity, 20), DELTA)
    assert spent == pytest.approx(gdp_epsilon(DELTA, sensitivity / sigma * math.sqrt(20)), rel=1e-3)


# ---- composition


def test_gaussians_are_exact():
    event = compose(gaussian_event(3.0, 4), gaussian_event(5.0), dpsgd_event(2.0, 1, 3))
    mu = math.sqrt(4 / 9 + 1 / 25 + 3 / 4)
    assert epsilon_of(event, DELTA) == gdp_epsilon(DELTA, pytest.approx(mu).expected)
    assert delta_of(event, 0.7) == pytest.approx(gdp_delta(0.7, mu), rel=1e-12)


def test_continuous_noise_counts_beside_other_events():
    # training by full-batch descent, then the search: at this scale the integer noise is Gaussian to nine digits
    mixed = compose(gaussian_event(12.0, 40), lattice_noise(10.0, 0.5).event(20), dpsgd_event(30.0, 1, 10))
    mu = math.sqrt(40 / 144 + 20 / 400 + 10 / 900)
    exact = gdp_epsilon(DELTA, mu)
    assert exact - 1e-6 <= epsilon_of(mixed, DELTA) <= exact + 2e-4
    sampled = compose(dpsgd_event(1.2, 0.05, 100), gaussian_event(8.0, 30))
    assert_in_bracket(epsilon_of(sampled, DELTA), [(1.2, 0.05, 100), (8.0, 1.0, 30)])


def test_parallel_costs_the_worst_part_and_not_the_sum():
    a, b = dpsgd_event(1.5, 0.02, 200), discrete_gaussian_event(4096, 200, 12)
    alone = [epsilon_of(a, DELTA), epsilon_of(b, DELTA)]
    assert epsilon_of(parallel(a, b), DELTA) == max(alone)
    assert epsilon_of(compose(a, b), DELTA) > 1.05 * max(alone)
    np.testing.assert_array_equal(
        delta_of(parallel(a, b), EPSILONS), np.maximum(delta_of(a, EPSILONS), delta_of(b, EPSILONS))
    )


def test_parallel_inside_sequential_takes_the_worst_history():
    train, weak, strong = gaussian_event(3.0), gaussian_event(1.0), gaussian_event(9.0)
    nested = compose(train, parallel(strong, compose(weak, parallel(strong, weak))))
    worst = math.sqrt(1 / 9 + 1 + 1)  # training, weak, weak
    assert epsilon_of(nested, DELTA) == pytest.approx(gdp_epsilon(DELTA, worst), rel=1e-12)
    two_stages = compose(parallel(weak, strong), parallel(strong, weak))
    # the parts of the two stages need not be the same: a record may meet the weak one twice
    assert epsilon_of(two_stages, DELTA) == pytest.approx(gdp_epsilon(DELTA, math.sqrt(2)), rel=1e-12)


def test_repeated_parallel_is_refused():
    both = parallel(gaussian_event(1.0), gaussian_event(2.0))
    with pytest.raises(ValueError, match="parallel event cannot be repeated"):
        epsilon_of(SelfComposedDpEvent(both, 2), DELTA)
    assert epsilon_of(SelfComposedDpEvent(both, 1), DELTA) == epsilon_of(gaussian_event(1.0), DELTA)


def test_too_many_combinations_are_bounded_by_profiles():
    fit = parallel(dpsgd_event(40.0, 0.1, 50), discrete_gaussian_event(4096 * 20, 2048, 10))
    exact = epsilon_of(compose(*[fit] * 4), DELTA)
    # an upper bound, and a close one: the grid of 1e-3 costs far less than a thousandth
    assert exact <= PLD.bound([fit] * 4).epsilon(DELTA) <= exact * 1.001
    beside = compose(*[fit] * 3, gaussian_event(20.0))
    assert epsilon_of(beside, DELTA) <= PLD.bound([fit] * 3 + [gaussian_event(20.0)]).epsilon(DELTA)

    different = [parallel(gaussian_event(20.0 + i), gaussian_event(40.0 + i)) for i in range(7)]
    worst = math.sqrt(sum((20.0 + i) ** -2 for i in range(7)))
    assert gdp_epsilon(DELTA, worst) <= epsilon_of(compose(*different), DELTA) <= gdp_epsilon(DELTA, worst) * 1.001
    assert delta_of(compose(*different), 0.5) == pytest.approx(gdp_delta(0.5, worst), rel=0.01)
    assert not as_accountant("rdp").supports(compose(*different))
    with pytest.raises(UnsupportedEventError, match="combinations"):
        epsilon_of(compose(*different), DELTA, "rdp")
    with pytest.raises(UnsupportedEventError, match="combinations"):
        epsilon_of(parallel(compose(*different), gaussian_event(2.0)), DELTA)


def test_the_same_split_fitted_often_costs_the_worst_number_of_visits_to_each_part():
    # neither part is worse in general: which history is the worst depends on all of them
    train, count = dpsgd_event(1.0, 0.02, 100), gaussian_event(6.0, 10)
    fits = 5
    histories = [compose(*[train] * k, *[count] * (fits - k)) for k in range(fits + 1)]
    worst = max(epsilon_of(h, DELTA) for h in histories)
    assert epsilon_of(compose(*[parallel(train, count)] * fits), DELTA) == pytest.approx(worst, rel=1e-9)
    assert len(possible_histories(compose(*[parallel(train, count)] * fits))) == fits + 1


def test_other_basic_events():
    known = approximate_dp_event(0.5, 1e-6)
    assert delta_of(known, 0.5) == pytest.approx(1e-6, rel=1e-6)
    assert epsilon_of(known, 1e-7) == math.inf
    assert 0.99 < epsilon_of(compose(known, known), 3e-6) <= 1.0 + 1e-3
    for nothing in (compose(), parallel(), SelfComposedDpEvent(gaussian_event(1.0), 0)):
        assert epsilon_of(nothing, DELTA) == 0 == delta_of(nothing, 0.0)


def test_events_that_an_accountant_cannot_bound_are_refused():
    with pytest.raises(UnsupportedEventError, match=r"accountant='rdp' cannot account for ApproximateDpEvent; .*'pld'"):
        epsilon_of(approximate_dp_event(0.5), DELTA, "rdp")
    for event in (discrete_gaussian_event(10), dpsgd_event(1.0, 0.1, 2)):
        assert all(as_accountant(name).supports(event) for name in ("pld", "rdp"))
    for unknown in (UnsupportedDpEvent(), PoissonSampledDpEvent(0.1, discrete_gaussian_event(1))):
        assert not any(as_accountant(name).supports(unknown) for name in ("pld", "rdp"))
        with pytest.raises(UnsupportedEventError, match=r"Unsupported|Poisson"):
            epsilon_of(unknown, DELTA)


# ---- steps without privacy


@pytest.mark.parametrize(
    "event",
    [
        non_private_event(),
        GaussianDpEvent(0.0),
        PoissonSampledDpEvent(0.1, GaussianDpEvent(0.0)),
        PoissonSampledDpEvent(0.1, NonPrivateDpEvent()),
        ComposedDpEvent([gaussian_event(1.0), SelfComposedDpEvent(NonPrivateDpEvent(), 3)]),
        parallel(gaussian_event(1.0), non_private_event()),
    ],
    ids=repr,
)
def test_a_step_without_privacy_costs_everything(event):
    assert not is_private(event)
    for accountant in ("pld", "rdp"):
        assert epsilon_of(event, DELTA, accountant) == math.inf
        assert delta_of(event, 3.0, accountant) == 1
    assert np.all(tradeoff_of(event)(np.linspace(0, 1, 5)) == 0)


@pytest.mark.parametrize(
    "event",
    [
        GaussianDpEvent(-1.0),
        GaussianDpEvent(math.nan),
        SelfComposedDpEvent(GaussianDpEvent(1.0), -5),
        ComposedDpEvent([gaussian_event(1.0, 10), SelfComposedDpEvent(GaussianDpEvent(1.0), -5)]),
        PoissonSampledDpEvent(1.5, GaussianDpEvent(1.0)),
    ],
    ids=repr,
)
def test_impossible_events_are_refused(event):
    with pytest.raises(ValueError, match=r"must be|not in"):
        epsilon_of(event, DELTA)


def test_not_an_event():
    for wrong in (None, 1.0, "gaussian", {"type": "gaussian"}):
        with pytest.raises(TypeError, match="DpEvent"):
            epsilon_of(wrong, DELTA)
        with pytest.raises(TypeError, match="DpEvent"):
            compose(gaussian_event(1.0), wrong)
        with pytest.raises(TypeError, match="DpEvent"):
            parallel(wrong)
    with pytest.raises((TypeError, ValueError)):
        epsilon_of(MixtureOfGaussiansDpEvent(1.0, [1.0], [1.0]), DELTA)


# ---- the profile


@pytest.mark.parametrize(
    "event",
    [PAPER_TRAINING, discrete_gaussian_event(40, 1, 20), gaussian_event(3.0), approximate_dp_event(1.0, 1e-7)],
    ids=["dpsgd", "discrete", "gaussian", "approximate"],
)
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_delta_and_epsilon_are_inverse(event, accountant):
    if accountant == "rdp" and event == approximate_dp_event(1.0, 1e-7):
        return
    for delta in (1e-3, 1e-5, 1e-6):
        epsilon = epsilon_of(event, delta, accountant)
        assert delta_of(event, epsilon, accountant) <= delta * (1 + 1e-6) + 1e-15
        if epsilon > 0:
            assert delta_of(event, epsilon * 0.98, accountant) > delta * 0.999


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_bad_delta(bad):
    with pytest.raises(ValueError, match="delta must"):
        epsilon_of(gaussian_event(1.0), bad)


def test_bad_accountant_and_direction():
    with pytest.raises(ValueError, match="accountant must be one of"):
        epsilon_of(gaussian_event(1.0), DELTA, "prv")
    with pytest.raises(ValueError, match="accountant must be one of"):
        delta_of(gaussian_event(1.0), 1.0, "moments")
    with pytest.raises(ValueError, match="direction must be one of"):
        delta_of(gaussian_event(1.0), 1.0, direction="sideways")


# ---- trade-off functions of events

X = np.linspace(0, 1, 401)
CURVES = {
    "dpsgd": dpsgd_event(0.9, 0.05, 60),
    "discrete": discrete_gaussian_event(3, 2, 2),
    "mixed": compose(dpsgd_event(1.0, 0.1, 20), lattice_noise(8.0, 0.5).event(12)),
    "parallel": parallel(dpsgd_event(0.9, 0.05, 60), discrete_gaussian_event(3, 2, 2)),
    "approximate": approximate_dp_event(0.8, 1e-3),
    "gaussian": gaussian_event(1.3),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("direction", ["both", "add", "remove"])
@pytest.mark.covering
def test_tradeoff_is_a_tradeoff_function(name, direction):
    f = tradeoff_of(CURVES[name], direction=direction)(X)
    assert np.all((f >= 0) & (f <= 1 - X + 1e-12))
    assert np.all(np.diff(f) <= 1e-12)
    assert np.all(np.diff(f, 2) >= -1e-12)


@pytest.mark.parametrize("name", CURVES)
def test_one_direction_is_never_worse_than_both(name):
    both, add, remove = (tradeoff_of(CURVES[name], direction=d)(X) for d in ("both", "add", "remove"))
    assert np.all(add >= both - 1e-12)
    assert np.all(remove >= both - 1e-12)
    if name in ("dpsgd", "mixed"):  # subsampling is asymmetric: Result B gains by asking one direction
        assert np.max(add - both) > 1e-3


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("direction", ["both", "add", "remove"])
@pytest.mark.covering
def test_tradeoff_agrees_with_the_profile(name, direction):
    event = CURVES[name]
    f = tradeoff_of(event, direction=direction)
    fine = np.linspace(0, 1, 20_001)
    values = f(fine)
    for epsilon in (0.0, 0.3, 1.1, 2.0):
        # delta is the convex conjugate of f: sup over tests of P(A) - e^eps Q(A)
        conjugate = np.max(1 - values - math.exp(epsilon) * fine)
        delta = delta_of(event, epsilon, direction=direction)
        assert delta - 1e-3 <= conjugate <= delta + 1e-3


def test_add_direction_of_one_sampled_step_is_the_neyman_pearson_curve():
    noise, rate = 0.8, 0.3
    # without the record: N(0, noise^2); with it: a mixture. The best test rejects the mixture for small outputs.
    cut = np.linspace(-3, 4, 200)
    without = special.ndtr(cut / noise)
    with_record = (1 - rate) * without + rate * special.ndtr((cut - 1) / noise)
    event = dpsgd_event(noise, rate, 1)
    add = tradeoff_of(event, direction="add")
    assert np.all(add(with_record) <= 1 - without + 1e-9)
    np.testing.assert_allclose(add(with_record), 1 - without, atol=2e-4)
    remove = tradeoff_of(event, direction="remove")
    np.testing.assert_allclose(remove(1 - without), with_record, atol=2e-4)
    assert np.max(np.abs(add(with_record) - remove(with_record))) > 0.02


def test_discrete_gaussian_tradeoff_is_the_neyman_pearson_curve():
    sigma, sensitivity = 3, 2
    support = np.arange(-200, 201)
    p = np.exp(-((support / sigma) ** 2) / 2)
    q = np.exp(-(((support - sensitivity) / sigma) ** 2) / 2)
    p, q = p / p.sum(), q / q.sum()
    alarm, miss = 1 - np.cumsum(p), np.cumsum(q)  # reject p for large outputs: the corners of the exact curve
    f = tradeoff_of(discrete_gaussian_event(sigma, sensitivity))
    alarm = np.clip(alarm, 0, 1)
    assert np.all(f(alarm) <= miss + 1e-9)
    np.testing.assert_allclose(f(alarm), miss, atol=2e-5)


def test_gaussian_tradeoffs_are_exact_and_compose():
    mu = math.sqrt(1 / 4 + 2 / 9)
    f = tradeoff_of(compose(gaussian_event(2.0), gaussian_event(3.0, 2)))
    np.testing.assert_allclose(f(X), special.ndtr(-special.ndtri(X) - mu), rtol=1e-12)
    worst = tradeoff_of(parallel(gaussian_event(2.0), gaussian_event(3.0)))
    np.testing.assert_allclose(worst(X), special.ndtr(-special.ndtri(X) - 0.5), rtol=1e-12)
    np.testing.assert_allclose(tradeoff_of(compose())(X), 1 - X)


@pytest.mark.parametrize(("releases", "mu"), [(200, 1.0), (2000, 1.0), (2000, 0.2)])
def test_losses_are_not_below_the_exact_cost_at_tiny_deltas(releases, mu):
    """Fourier transforms lose 2e-17 of delta a release; integer noise this fine costs what Gaussian noise does."""
    sigma = 4096 * 50
    sensitivity = round(sigma * mu / math.sqrt(releases))
    event = discrete_gaussian_event(sigma, sensitivity, releases)
    level = math.sqrt(releases) * sensitivity / sigma
    for delta in (1e-10, 1e-11, 1e-12, 1e-14, 1e-17):
        exact = gdp_epsilon(delta, level)
        assert exact <= epsilon_of(event, delta) < 1.05 * exact
        assert delta_of(event, exact) >= delta
