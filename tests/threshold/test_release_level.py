"""What one release covers: the bound against other ways to compute it, and against releases of the library's search."""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from dpscp.threshold import (
    CountedSize,
    KnownSize,
    NoisySize,
    private_quantile,
    release_level,
    release_miss_bound,
    release_offset,
)

SEARCH = {"alpha": 0.1, "count_noise": 5.0, "steps": 10}


def by_order_statistics(n, level, rank_target, count_noise, steps):
    """E over the largest noise M of P(Beta(k, n + 1 - k) < level), k = ceil(rank_target - M)."""

    def at(m):
        k = math.ceil(rank_target - count_noise * m)
        below = 1.0 if k <= 0 else 0.0 if k > n else special.betainc(k, n + 1 - k, level)
        return below * steps * np.exp(stats.norm.logpdf(m) + (steps - 1) * special.log_ndtr(m))

    # the order statistic changes where rank_target - count_noise * m is an integer
    jumps = np.arange(math.floor(rank_target - 9 * count_noise), math.ceil(rank_target + 9 * count_noise) + 1)
    ends = np.sort((rank_target - jumps) / count_noise)
    return sum(integrate.fixed_quad(np.vectorize(at), a, b, n=12)[0] for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("n", [3, 30, 300])
@pytest.mark.parametrize(("level", "offset"), [(0.9, 4.0), (0.85, 0.0), (0.7, 9.3)])
@pytest.mark.parametrize(("count_noise", "steps"), [(0.7, 12), (5.0, 8)])
@pytest.mark.covering
def test_bound_is_the_average_over_order_statistics(n, level, offset, count_noise, steps):
    bound = release_miss_bound(
        level, KnownSize(n), alpha=0.1, offset=offset, count_noise=count_noise, steps=steps, confidence=0.9
    )
    assert bound == pytest.approx(
        by_order_statistics(n, level, 0.9 * (n + 1) + offset, count_noise, steps), abs=2e-7, rel=1e-6
    )


def test_few_or_no_scores():
    # none: covered only if nothing is accepted, at any level
    empty = release_miss_bound(0.5, KnownSize(0), offset=2.0, **SEARCH)
    assert empty == pytest.approx(1 - special.ndtr(2.9 / 5) ** 10, abs=1e-9)
    assert release_level(0.95, KnownSize(0), offset=2.0, **SEARCH) == 0.0
    assert release_level(0.95, KnownSize(0), offset=50.0, **SEARCH) > 0.9999


@pytest.mark.parametrize(("released", "size_noise"), [(300.0, 8.0), (37.4, 4.0)])
@pytest.mark.parametrize(("level", "offset"), [(0.86, 7.0), (0.9, 20.0)], ids=["few are worst", "many are worst"])
def test_noisy_size_is_at_least_every_possible_size(released, size_noise, level, offset):
    """At each n within reach the bound is at least the average over the noise of the size, and not far above."""
    size = NoisySize(released, size_noise)
    bound = release_miss_bound(level, size, offset=offset, **SEARCH)
    y, weights = np.polynomial.hermite_e.hermegauss(40)
    worst = 0.0
    for n in range(math.ceil(released - size.reach(0.95)), math.floor(released + size.reach(0.95)) + 1):
        moved = [offset + 0.4 * size_noise * float(v) for v in y]
        values = [release_miss_bound(level, KnownSize(n), offset=c, **SEARCH) for c in moved]
        worst = max(worst, float(weights @ values) / math.sqrt(2 * math.pi))
    assert worst + 0.001 - 1e-9 <= bound <= worst + 0.001 + 0.02


SIZES = st.one_of(
    st.integers(0, 400).map(KnownSize),
    st.builds(CountedSize, st.integers(1, 60), st.floats(0.05, 1.0)),
    st.builds(NoisySize, st.floats(-20, 400), st.floats(0.5, 20)),
)


@settings(max_examples=15, deadline=None)
@given(
    SIZES, st.floats(0.02, 0.6), st.floats(0.3, 30), st.integers(1, 20), st.floats(0.05, 0.98), st.floats(0.51, 0.999)
)
def test_offset_and_level_keep_their_confidence(size, alpha, count_noise, steps, level, confidence):
    search = {"alpha": alpha, "count_noise": count_noise, "steps": steps}
    offset = release_offset(confidence, size, level=level, **search)
    bound = {"confidence": confidence, **search}
    assert release_miss_bound(level, size, offset=offset, **bound) <= 1 - confidence
    # the offset, which may be negative, is the smallest but for its rounding
    less = offset - 0.01 * max(1.0, count_noise)
    assert release_miss_bound(level, size, offset=less, **bound) > 1 - confidence
    if isinstance(size, NoisySize):
        return  # its level depends on the released number: see below
    assert release_level(confidence, size, offset=offset, **search) >= level - 5e-5
    lower = offset - abs(offset) / 2
    promised = release_level(confidence, size, offset=lower, **search)
    assert promised <= release_level(confidence, size, offset=offset, **search)
    assert promised == 0 or release_miss_bound(promised, size, offset=lower, **bound) <= 1 - confidence
    if 1e-3 < promised < 0.999:
        assert release_miss_bound(promised + 2e-4, size, offset=lower, **bound) > 1 - confidence


def test_what_the_stronger_promise_costs():
    """The numbers of the theory: ranks at alpha .1, noise 5, confidence .95."""
    found = [release_offset(0.95, KnownSize(n), level=0.9, **SEARCH) for n in (100, 1000, 5000)]
    assert [round(c) for c in found] == [14, 23, 42]


def test_the_low_end_of_the_size_is_not_the_worst():
    """What the stronger promise needs grows with n, so taking n at its low quantile is wrong."""
    size = NoisySize(300.0, 20.0)
    low = release_offset(0.95, KnownSize(math.ceil(300 - size.reach(0.95))), level=0.9, **SEARCH)
    assert release_offset(0.95, size, level=0.9, **SEARCH) > low + 2
    assert release_miss_bound(0.9, size, offset=low, **SEARCH) > 0.06


def level_of(released, size_noise, offset):
    """The level that is stated once a size was released."""
    return release_level(0.95, NoisySize(released, size_noise, 0.01), offset=offset, **SEARCH)


@pytest.mark.parametrize(("n", "least"), [(40, 0.015), pytest.param(300, 0.044, marks=pytest.mark.slow)])
def test_the_level_after_a_released_size_fails_as_often_as_it_may(n, least):
    """P(a release covers less than the level it states), averaged over the noise of the size, for the worst scores."""
    draws, noise, offset = np.linspace(-4, 4, 21), 12.0, 6.0
    weights = stats.norm.pdf(draws) / stats.norm.pdf(draws).sum()
    levels = [level_of(n + noise * y, noise, offset) for y in draws.tolist()]
    offsets = offset + (0.5 - SEARCH["alpha"]) * noise * draws
    fails = [
        release_miss_bound(level, KnownSize(n), **SEARCH | {"offset": aimed}) if level > 0 else 0.0
        for level, aimed in zip(levels, offsets.tolist(), strict=True)
    ]
    assert least <= weights @ fails <= 0.05


@pytest.mark.parametrize(
    "wrong",
    [
        {"confidence": 1.0},
        {"level": 0.0},
        {"alpha": 1.0},
        {"count_noise": 0.0},
        {"steps": 0},
    ],
)
def test_wrong_numbers_are_refused(wrong):
    arguments = {"confidence": 0.95, "level": 0.9, **SEARCH} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        release_offset(arguments.pop("confidence"), KnownSize(100), **arguments)
    for made in (
        lambda: KnownSize(-1),
        lambda: CountedSize(0, 0.5),
        lambda: CountedSize(9, 1.5),
        lambda: NoisySize(9, 0),
    ):
        with pytest.raises(ValueError, match="must"):
            made()


# ---- releases of the library's search


LEVEL, HAIR = 0.9, 1e-4


def smooth(u):
    return u


def tied(u):
    return np.ceil(u * 20) / 20


def atom_just_below(u):
    """Nine tenths less a hair lie on one point: releasing it covers less than .9, and this attains the bound."""
    return np.where(u < LEVEL - HAIR, 0.3, u)


def staircase(u):
    """Atoms on both sides of the level, finer towards it."""
    gaps = np.array([0.2, 0.1, 0.05, 0.02, 0.01, 0.003, HAIR, -0.003, -0.01, -0.03])
    return (1 + np.searchsorted(LEVEL - gaps, u)) / 12


LAWS = {law.__name__: law for law in (smooth, tied, atom_just_below, staircase)}


def share_below(law, *, releases, n=1500, seed=0, **options):
    """How many of the releases cover less than the level; what each covers is known, because the law is."""
    rng = np.random.default_rng(seed)
    shared = {"alpha": 1 - LEVEL, "count_noise": 3.0, "steps": 8, "score_range": (0, 1)}
    released = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeded, and sometimes at the end of the range
        for _ in range(releases):
            seed = int(rng.integers(2**32))
            found = private_quantile(law(rng.uniform(size=n)), random_state=seed, **shared, **options)
            released.append(found.threshold if found.is_finite else 2.0)
    quantiles = law(np.linspace(0, 1, 100_001)[1:] - 5e-6)
    covered = np.searchsorted(quantiles, released, side="right") / len(quantiles)
    return float(np.mean(covered < LEVEL - HAIR / 2))


def allowed(releases, sign=1):
    return 0.05 + sign * 4 * math.sqrt(0.05 * 0.95 / releases)


def offset_for(n=1500):
    return release_offset(0.95, KnownSize(n), level=LEVEL, alpha=1 - LEVEL, count_noise=3.0, steps=8)


@pytest.mark.parametrize("law", list(LAWS))
def test_with_the_offset_19_of_20_releases_cover_the_level(law, is_quick):
    releases = 60 if is_quick else 120
    share = share_below(LAWS[law], releases=releases, rank_buffer=offset_for(), correction="none")
    assert share <= allowed(releases)


@pytest.mark.parametrize("law", ["smooth", "atom_just_below", "staircase"])
def test_without_it_more_than_one_in_twenty_falls_below(law, is_quick):
    releases = 60 if is_quick else 120
    assert share_below(LAWS[law], releases=releases) > allowed(releases)


@pytest.mark.slow
@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("n", [60, 1500])
def test_with_the_offset_19_of_20_releases_cover_the_level_many_releases(law, n):
    share = share_below(LAWS[law], releases=4000, n=n, seed=1, rank_buffer=offset_for(n), correction="none")
    assert share <= allowed(4000)
    if law == "atom_just_below" and n == 1500:  # the bound is not slack: here one in twenty does fall below
        assert share >= allowed(4000, sign=-1) - 0.005  # the offset is rounded up to a whole rank


@pytest.mark.slow
@pytest.mark.parametrize("law", ["smooth", "atom"])
def test_releases_with_a_private_size_cover_the_level_that_each_states(law):
    """The library's search of 300 scores whose number is released with noise; atoms at both ends are the worst law."""
    releases, rng, missed = 300, np.random.default_rng(3), 0
    shared = {"alpha": 0.1, "count_noise": 5.0, "steps": 8, "score_range": (0, 1), "size_noise": 9.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeded
        for seed in range(releases):
            ranks = rng.uniform(size=300)
            scores = ranks if law == "smooth" else np.where(ranks < 0.8415, 0.0, 1.0)
            found = private_quantile(scores, random_state=seed, **shared)
            stated = found.aim.level_of_one_release(0.95, found.offset - found.aim.mean_rise)
            covered = found.threshold if law == "smooth" else 0.8415
            missed += found.is_finite and covered < stated
    assert missed <= stats.binom.isf(1e-3, releases, 0.05)
    assert law == "smooth" or missed >= stats.binom.ppf(1e-3, releases, 0.03)  # the statement is not too careful
