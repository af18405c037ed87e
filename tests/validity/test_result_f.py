"""Results F and G on data: the game is played against the real search, and its outcome is computed exactly.

The n + 1 scores are fixed and one of them, drawn at random, is the new one: exchangeable, ties and atoms included. The
search's bar and noise are taken from the real code while it runs; given these, the probability of every path of the
search is known, so coverage is a number and needs no tolerance.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize, special, stats

from dpscp import Ledger, private_quantile
from dpscp.core.plan import Plan
from dpscp.core.problem import Problem
from dpscp.core.release import Counted, release_counts
from dpscp.core.tasks import OwnScores
from dpscp.privacy import Budget, gaussian_event, gdp_mu
from dpscp.privacy.pld import discrete_gaussian_cdf
from dpscp.threshold import CountedSize, offsets, search, sizes
from dpscp.threshold.counts import midpoint_tree
from dpscp.threshold.minimax import gap_grid, step_rises, worst_excess
from dpscp.threshold.sizes import counted_miss_bound

pytestmark = [
    pytest.mark.filterwarnings("ignore:no finite threshold:dpscp.GuaranteeWarning"),
    pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning"),
]
ALPHA = 0.1


def view_of(n, noise, steps, alpha=ALPHA, **more):
    """What the real search of n scores compares with: scale, base, bar; and the scale of its integer noise."""
    seen = []
    setting = {"score_range": (0, 1), "count_noise": noise, "steps": steps, "observer": seen.append, **more}
    q = private_quantile(np.zeros(n), alpha=alpha, **setting)
    return seen[0], q


def coverage(counts, view, sigma):
    """Exact coverage when ``counts`` (of all n + 1 scores, at the 2^N - 1 midpoints in order) are the data.

    ``counts`` has a last entry n + 1, the end of the range. The new score is any of the n + 1: a value in the cell that
    ends at point j is covered when the search returns point j or a later one.
    """
    points = len(counts)
    steps = points.bit_length() - 1
    masses = np.diff(counts, prepend=0)
    total = 0.0
    for cell in np.flatnonzero(masses):
        seen = counts[:-1] - (np.arange(points - 1) >= cell)  # the n others
        total += masses[cell] * ends(seen, steps, view, sigma)[cell:].sum()
    return total / counts[-1]


def ends(seen, steps, view, sigma):
    """How likely the search ends at each of the 2^N points, given the counts at all but the last of them."""
    reach = np.ones(1)
    for depth in range(steps):
        middles = (np.arange(2**depth) * 2 + 1) * 2 ** (steps - depth - 1) - 1
        short = view.bar + view.rises[depth] + view.base - view.scale * seen[middles]
        accept = 1 - discrete_gaussian_cdf(short - 1, sigma)
        reach = np.column_stack([reach * accept, reach * (1 - accept)]).ravel()
    return reach


def best_play(rises, start, spacing=1 / 16):
    """The gaps at the 2^N - 1 midpoints that an adversary on a grid chooses, from the smallest gap ``start``.

    ``rises``, one for each step, are what it must reach beyond the gap, in units of the noise.
    """
    gaps = gap_grid(spacing)
    gaps = np.concatenate([[start], gaps[gaps > start]])
    size = gaps.size
    value = np.tile(gaps[:, None], size)
    choices = []
    for rise in reversed(rises):
        accept = special.ndtr(-gaps - rise)
        left = np.where(np.triu(np.ones((size, size), bool)), (1 - accept) * value, -np.inf)
        later, choice = value.copy(), np.zeros((size, size), int)
        for h in range(size):
            options = left[: h + 1, : h + 1] + accept[: h + 1] * value[: h + 1, h]
            choice[: h + 1, h] = np.argmax(options, axis=1)
            later[: h + 1, h] = np.max(options, axis=1)
        value = later
        choices.append(choice)
    steps = len(rises)
    played = np.empty(2**steps - 1)

    def play(low, high, right, left, remaining):
        if remaining:
            middle = (low + high) // 2
            g = choices[remaining - 1][right, left]
            played[middle] = gaps[g]
            play(low, middle - 1, g, left, remaining - 1)
            play(middle + 1, high, right, g, remaining - 1)

    play(0, 2**steps - 2, 0, size - 1, steps)
    return played


def staircase(n, noise, view, q):
    """Counts of n + 1 scores whose gaps to the acceptance level are those of the best play."""
    level = (view.bar + view.base) / view.scale
    play = best_play(np.array(view.rises) / (view.scale * noise), (level - (n + 1)) / noise)
    counts = np.clip(np.floor(level - play * noise), 0, n + 1).astype(int)
    return np.append(np.maximum.accumulate(counts), n + 1)


# offsets below zero from seven steps down
HARD = [(2000, 40.0, 8), (5000, 25.0, 9), (300, 12.0, 7), (2000, 20.0, 4)]


@pytest.mark.parametrize(("n", "noise", "steps"), HARD)
def test_the_hardest_staircase_is_covered_and_only_just(n, noise, steps):
    view, q = view_of(n, noise, steps)
    found = coverage(staircase(n, noise, view, q), view, round(q.count_noise * view.scale))
    assert 1 - ALPHA <= found <= 1 - ALPHA + 0.002


@pytest.mark.parametrize(("n", "noise", "steps"), HARD)
def test_a_smaller_offset_breaks_it(monkeypatch, n, noise, steps):
    """Without the offset, and with that of one step less, the staircase made for it is covered too rarely."""
    honest = offsets.graded_offset
    for weaker, last in (
        (np.zeros, lambda *_: 0.0),
        (lambda steps: np.append(step_rises(steps - 1), 0.0), lambda a, n, s, steps: honest(a, n, s, steps - 1)),
    ):
        monkeypatch.setattr(offsets, "step_rises", weaker)
        monkeypatch.setattr(offsets, "graded_offset", last)
        view, q = view_of(n, noise, steps)
        found = coverage(staircase(n, noise, view, q), view, round(q.count_noise * view.scale))
        assert found < 1 - ALPHA - 1e-4


@pytest.mark.parametrize("rank", ["centered", "linear", "ceil"])
@pytest.mark.parametrize("n", [5, 20, 200, 5000])
@pytest.mark.covering
def test_random_staircases_ties_and_atoms_are_covered(n, rank):
    rng = np.random.default_rng(n)
    steps = 6
    for relative in (0.02, 0.1, 0.5):
        noise = max(0.3, relative * n)
        view, q = view_of(n, noise, steps, rank=rank)
        sigma = round(q.count_noise * view.scale)
        worst = staircase(n, noise, view, q)
        for _ in range(4):
            atoms = rng.integers(0, 2**steps, size=rng.integers(1, 12))
            drawn = np.bincount(rng.choice(atoms, size=n + 1), minlength=2**steps)
            smooth = np.bincount(rng.integers(0, 2**steps, size=n + 1), minlength=2**steps)
            shifted = np.append(np.clip(worst[:-1] + rng.integers(-n // 20 - 1, n // 20 + 1), 0, n + 1), n + 1)
            for counts in (np.cumsum(drawn), np.cumsum(smooth), shifted):
                assert coverage(counts, view, sigma) >= 1 - ALPHA


@pytest.mark.parametrize("n", [0, 5, 30, 150, 600])
def test_a_released_size_covers_at_every_size(monkeypatch, n):
    """Result G: average over the noise of the size, for staircases that are hard when the size is known."""
    noise, steps, size_noise = 6.0, 6, 9.0
    z = (np.arange(40) + 0.5) / 40
    draws = special.ndtri(z) * size_noise
    honest = sizes.release_size
    plays = [best_play(step_rises(steps), -ALPHA * (n + 1) / noise + offset, 1 / 8) for offset in (0.5, 2.0)]
    found = np.zeros(len(plays) + 1)
    for draw in draws:
        # the library's own release, with its noise replaced by a known one
        def at(size, scale, source, draw=draw):
            real, event = honest(size, scale, source)
            return replace(real, released=size + round(draw / real.size_unit) * real.size_unit), event

        monkeypatch.setattr(search, "release_size", at)
        view, q = view_of(n, noise, steps, size_noise=size_noise)
        sigma = round(q.count_noise * view.scale)
        target = (1 - q.alpha) * (n + 1)
        data = [
            np.append(np.clip(np.floor(target - (p - p.min()) * noise), 0, n + 1), n + 1).astype(int) for p in plays
        ]
        half = np.append(np.full(2**steps - 1, n // 2), n + 1)
        found += [coverage(np.maximum.accumulate(c), view, sigma) for c in (*data, half)]
    assert np.all(found / draws.size >= 1 - ALPHA)


# where leaving out the factor 1/(k + 1) costs most
DRAWN = {"alpha": 0.3, "n": 20, "part": 0.2, "noise": 5.0, "steps": 5}


def game_miss(alpha, n, part, noise, steps):
    """The miss rate of the library's own search on the worst scores for every size of the part, over the coins."""
    size, total = CountedSize(n, part), 0.0
    for k, mass in enumerate(stats.binom(n, part).pmf(np.arange(n + 1))):
        if mass < 1e-7:
            total += mass
            continue
        seen = []
        q = private_quantile(
            np.zeros(k),
            alpha=alpha,
            score_range=(0, 1),
            count_noise=noise,
            steps=steps,
            size=size,
            observer=seen.append,
        )
        level = (seen[0].bar + seen[0].base) / seen[0].scale
        rises = np.array(seen[0].rises) / (seen[0].scale * noise)
        play = best_play(rises, (level - (k + 1)) / noise, 1 / 8)
        counts = np.maximum.accumulate(np.clip(np.floor(level - play * noise), 0, k + 1).astype(int))
        sigma = round(q.count_noise * seen[0].scale)
        total += mass * (1 - coverage(np.append(counts, k + 1), seen[0], sigma))
    return total


def test_the_worst_scores_for_every_size_are_covered_and_only_just():
    miss = game_miss(**DRAWN)
    assert DRAWN["alpha"] - 0.03 <= miss <= DRAWN["alpha"]  # counts are integers, gaps are not


def mean_of_the_game(offset, alpha, n, part, noise, steps):
    """sum_k Bin(k) W_k, the mean final gap without the factor 1/(k + 1)."""
    k = np.arange(n + 1)
    start = (offset + (0.5 - alpha) * (part * n - k) - alpha * (k + 1)) / noise
    gains = noise * worst_excess(start, steps, graded=True) - alpha * (k + 1)
    return stats.binom(n, part).pmf(k) @ gains


def test_without_the_factor_for_the_size_the_level_is_not_kept(monkeypatch):
    """A gap counts for more in a small part: E[Gamma] <= 0 alone gives up coverage."""
    wrong = optimize.brentq(lambda c: mean_of_the_game(c, **DRAWN), -50, 50)
    numbers = CountedSize(DRAWN["n"], DRAWN["part"]), wrong, DRAWN["noise"], DRAWN["steps"]
    assert counted_miss_bound(DRAWN["alpha"], *numbers, graded=True) > DRAWN["alpha"] + 0.015
    honest = game_miss(**DRAWN)
    monkeypatch.setattr(offsets, "counted_offset", lambda *_, **__: wrong)
    assert game_miss(**DRAWN) > honest + 0.01


def mean_overshoot(law, width, fine_near, n=3000, epsilon=1.0):
    """How far above the level a search of n scores of a law on (0, width) covers on average, computed exactly."""
    mu = gdp_mu(epsilon, 1e-5)
    seen = []
    q = private_quantile(
        np.zeros(n), alpha=ALPHA, score_range=(0, width), mu=mu, fine_near=fine_near, observer=seen.append
    )
    points = midpoint_tree(0.0, width, q.steps, seen[0].halving)[1:]
    counts = np.append(np.floor((n + 1) * law.cdf(points[:-1])), n + 1)
    return fast_coverage(counts, seen[0], round(q.count_noise * seen[0].scale)) - (1 - ALPHA)


class TestGrid:
    """What the place of the thresholds costs: nothing that a wide public range could change."""

    @pytest.mark.parametrize("law", [stats.halfnorm(), stats.expon()], ids=["normal", "laplace"])
    def test_residuals_in_a_range_that_is_far_too_wide(self, law):
        tight = np.mean([mean_overshoot(law, width, 0.0) for width in (6, 8, 10)])
        wide = np.mean([mean_overshoot(law, 100 * width, 0.0) for width in (6, 8, 10)])
        even = np.mean([mean_overshoot(law, 100 * width, None) for width in (6, 8, 10)])
        assert 0 <= wide <= tight + 0.0005
        assert even > wide + 0.004  # what the grid alone would cost

    def test_scores_of_a_model_that_is_nearly_sure(self):
        law = stats.beta(0.05, 100)  # nine of ten below .0005
        assert 0 <= mean_overshoot(law, 1.0, (0.0, 1.0)) <= 0.002
        assert mean_overshoot(law, 1.0, None) > 0.003


def outlined(guarantee, alphas, spent, n, *, epsilon=1.0, part=1.0, mu=None, fine_near=None, **more):
    """The plan of a search of scores, without its noise."""
    given = {
        "task": OwnScores((0.0, 1.0), fine_near),
        "budget": Budget(epsilon, 1e-5),
        "alphas": alphas,
        "n_records": n,
    }
    return Plan.outline(Problem(guarantee=guarantee, **given | more), spent, part=part, mu=mu)


def searched(plan, groups, **more):
    """The release of the scores of each group."""
    return release_counts(plan, lambda: Counted(groups, plan.spent), **more)


class TestCalibrate:
    """What a user of held-out scores gets: the promise, and little more than it."""

    @pytest.mark.parametrize(("epsilon", "most"), [(1.0, 0.9022), (0.5, 0.9038)])
    def test_three_thousand_even_scores(self, epsilon, most):
        n = 3000
        seen = []
        plan = outlined("split", (ALPHA,), Ledger(), n, epsilon=epsilon, n_found=True).with_noise()
        t = searched(plan, [np.zeros(n)], observer=seen.append)
        (q,) = t.quantiles
        cells = 2**q.steps
        counts = np.floor(np.arange(1, cells + 1) / cells * (n + 1)).astype(int)
        assert 1 - ALPHA <= fast_coverage(counts, seen[0], round(q.count_noise * seen[0].scale)) <= most

    @pytest.mark.parametrize("declared", [0.8, 1.2])
    @pytest.mark.parametrize("kind", ["universal", "split", "groups"])
    @pytest.mark.covering
    def test_a_wrong_declaration_costs_no_coverage(self, kind, declared):
        """n_records off by a fifth either way: the released size decides, not the declaration."""
        n, trials = 1000, 40
        rng = np.random.default_rng(6)
        spent = Ledger() if kind == "split" else Ledger().add("training", gaussian_event(2 / gdp_mu(2.0, 1e-5)))
        name = "split" if kind == "split" else "universal"
        groups = range(2) if kind == "groups" else None
        plan = outlined(name, (ALPHA,), spent, round(declared * n), epsilon=2.0, group_values=groups).with_noise()
        covered = []
        for _ in range(trials):
            scores = rng.uniform(size=n)
            parts = [scores] if groups is None else [scores[:300], scores[300:]]
            covered.extend(np.minimum(searched(plan, parts).threshold[:, 0], 1))
        level = 1 - plan.inner[0]  # what the scores themselves are covered at
        assert np.mean(covered) >= level - 4 * np.std(covered) / len(covered) ** 0.5


def fast_coverage(counts, view, sigma):
    """``coverage`` where taking the new score out changes little from cell to cell: with all n + 1 counted.

    The search on all n + 1 scores ends at or below the one on n, so this is a lower bound, off by one rank at most.
    """
    return float(ends(counts[:-1], len(counts).bit_length() - 1, view, sigma) @ counts) / counts[-1]
