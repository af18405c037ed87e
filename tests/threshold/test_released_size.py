"""Result G: the rule for a released size holds for every true size, and the obvious rules do not."""

import numpy as np
import pytest
from scipy import special

from dpscp import private_quantile
from dpscp.privacy import IntegerSource, discrete_gaussian_event, lattice_noise
from dpscp.privacy.events import possible_histories
from dpscp.privacy.pld import discrete_gaussian_cdf
from dpscp.threshold import KnownSize, NoisySize, minimax_offset, sized_offset, worst_final_gap
from dpscp.threshold.sizes import release_size, size_tail

pytestmark = pytest.mark.filterwarnings("ignore:no finite threshold:dpscp.GuaranteeWarning")

DRAWS = np.linspace(-6, 6, 1201)  # of the size's noise, in standard deviations; masses of the cells about them
WEIGHTS = np.diff(special.ndtr(np.concatenate([[-np.inf], (DRAWS[1:] + DRAWS[:-1]) / 2, [np.inf]])))


def miss_bound(n, alpha, offset_at, size_noise, noise, steps):
    """The largest miss rate of a search of n scores whose offset is ``offset_at`` the released size."""
    drawn = DRAWS * size_noise
    knots = np.linspace(drawn[0], drawn[-1], 61)
    offsets = np.interp(drawn, knots, [offset_at(n + y) for y in knots]) + (0.5 - alpha) * drawn
    room = alpha * (n + 1)
    excess = noise * worst_final_gap((offsets - room) / noise, steps) - offsets
    return float(WEIGHTS @ np.clip(alpha + excess / (n + 1), 0, 1))


def setting(mu, share, steps):
    """Noise of the size and of each count when the size gets ``share`` of mu^2."""
    return 1 / (mu * share**0.5), 0.5 * (steps / (1 - share)) ** 0.5 / mu


@pytest.mark.parametrize("alpha", [0.1, 0.7])
def test_integer_noise_of_the_size_is_normal_noise_moved_by_one_unit(alpha):
    """The size may be smaller by the unit, and the rank that the size sets is off by it."""
    size_noise, noise = setting(0.5, 0.1, 8)
    for unit in (1.0, 30.0):
        moved = sized_offset(alpha, 200.0, size_noise, noise, 8, size_unit=unit)
        plain = sized_offset(alpha, 200.0 - unit, size_noise, noise, 8)
        assert moved == pytest.approx(plain + abs(0.5 - alpha) * unit, rel=1e-12)


@pytest.mark.parametrize(
    ("alpha", "mu", "share", "steps"),
    [(0.1, 0.3, 0.12, 8), (0.1, 1.0, 0.05, 12), (0.01, 0.1, 0.15, 12), (0.45, 4.0, 0.02, 8), (0.8, 0.3, 0.1, 8)],
)
def test_the_rule_holds_for_every_size(alpha, mu, share, steps):
    size_noise, noise = setting(mu, share, steps)
    used = alpha - size_tail(alpha)

    def rule(released):
        return sized_offset(used, released, size_noise, noise, steps)

    for n in (0, 5, 20, 60, 200, 1000):
        assert miss_bound(n, used, rule, size_noise, noise, steps) <= alpha + 5e-5


def test_large_samples_pay_nothing_on_average():
    steps = 12
    size_noise, noise = setting(0.3, 0.12, steps)
    known = minimax_offset(0.1, 2000, noise, steps)
    assert known - 0.01 <= sized_offset(0.1, 2000, size_noise, noise, steps) <= 1.02 * known
    # and small groups far less than a search that must hold without knowing the size
    assert sized_offset(0.1, 200, size_noise, noise, steps) < 0.6 * minimax_offset(0.1, 0, noise, steps)


def test_the_charged_tail_is_the_tail_of_the_integer_noise():
    """P(Y > reach) of the integer noise is at most what is charged to alpha."""
    for size_noise in (0.5, 3.0, 40.0, 9000.0):
        noise = lattice_noise(size_noise)
        with pytest.warns(Warning, match="NOT private"):
            size, event = release_size(50, noise, IntegerSource(1))
        assert event == noise.event(1)
        for alpha in (0.3, 0.1, 0.001):
            tail = size_tail(alpha)
            reach = size.size_noise * float(-special.ndtri(tail)) + size.size_unit
            assert 1 - discrete_gaussian_cdf(np.floor(reach * noise.scale), noise.sigma) <= tail


SCORES = np.random.default_rng(0).uniform(size=400)
SETTING = {"alpha": 0.1, "score_range": (0.0, 1.0), "count_noise": 5.0, "steps": 10}


class TestPrivateQuantile:
    def test_the_release_is_in_the_event_once(self):
        first = private_quantile(SCORES, **SETTING, size_noise=8.0)
        again = private_quantile(SCORES, **SETTING, size=first.aim.size)
        counts = [sum(h.values()) for h in possible_histories(first.event)]
        assert counts == [11]
        size = first.aim.size
        noise = lattice_noise(8.0)
        assert (size.size_noise, size.size_unit) == (noise.count_noise, 1 / noise.scale)
        assert size.size_noise == pytest.approx(8.0, rel=1e-3)
        assert discrete_gaussian_event(noise.sigma, noise.scale) in possible_histories(first.event)[0]
        assert [sum(h.values()) for h in possible_histories(again.event)] == [10]
        assert again.aim.size == size
        assert first.alpha == again.alpha == pytest.approx(0.1 - 1e-4)

    def test_the_number_that_was_declared_changes_nothing(self):
        found = [
            private_quantile(SCORES, **SETTING, size_noise=8.0, n_records=n, random_state=3).threshold
            for n in (None, 100, 400, 10_000)
        ]
        assert len(set(found)) == 1

    def test_an_empty_part_is_searched_like_any_other(self):
        q = private_quantile(np.empty(0), **SETTING, size_noise=8.0)
        assert isinstance(q.aim.size, NoisySize)

    @pytest.mark.parametrize(
        ("bad", "word"),
        [
            ({"rank": "linear"}, "centered"),
            ({"correction": "marginal"}, "minimax"),
            ({"size": KnownSize(5)}, "not both"),
            ({"size_noise": 0.0}, "size_noise"),
        ],
    )
    def test_refusals(self, bad, word):
        with pytest.raises(ValueError, match=word):
            private_quantile(SCORES, **SETTING | {"size_noise": 8.0} | bad)
        first = private_quantile(SCORES, **SETTING, size_noise=8.0)
        with pytest.raises(ValueError, match="not both"):
            private_quantile(SCORES, **SETTING, size_noise=8.0, size=first.aim.size)


@pytest.mark.parametrize("wrong", [(-1, None), (5, -1), (400, 500)])
def test_a_known_size_is_a_number_and_at_least_its_least(wrong):
    with pytest.raises(ValueError, match=r"n must|least must"):
        KnownSize(*wrong)
