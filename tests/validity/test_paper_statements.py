"""The paper's statements by simulation: Lemma 1, the two failures of the midpoint rule, and the sharp floor.

Tolerances are four binomial standard errors of the stated probability.
"""

import math

import numpy as np
import pytest

from dpscp import private_quantile
from dpscp.guarantees import blackbox_floor, universal_alpha
from dpscp.paper import gaussian_noise, hard_instance_coverage, noisy_midpoint_quantile, tulap_noise
from dpscp.privacy import (
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
)
from dpscp.threshold import offsets

pytestmark = [
    pytest.mark.filterwarnings("ignore:no finite threshold:dpscp.GuaranteeWarning"),
    pytest.mark.usefixtures("fast_noise"),
]


def standard_errors(probability, trials, count=4):
    return count * math.sqrt(probability * (1 - probability) / trials)


class TestLemma1:
    """The union buffer: threshold >= S_(r + m) with probability at least 1 - beta [lem:one_sided_qhat]."""

    STEPS, BETA = 10, 0.2

    def failures(self, n, rank, *, trials, noise=0.5, buffer=2, alpha=0.1):
        """How often the threshold falls below S_(r + m) when r + m - 1 scores are 0 and the rest is at the end."""
        r = math.ceil((1 - alpha) * (n + 1) - 1e-9)
        scores = np.concatenate([np.zeros(r + buffer - 1), np.ones(n - r - buffer + 1)])
        below = 0
        for _ in range(trials):
            q = private_quantile(
                scores,
                alpha=alpha,
                score_range=(0, 1),
                count_noise=noise,
                steps=self.STEPS,
                correction="union",
                rank=rank,
                rank_buffer=buffer,
                failure_probability=self.BETA,
            )
            below += q.threshold < 1
        return below / trials

    # (n + 1)(1 - alpha) is an integer for 199, and .4 above one for 195
    @pytest.mark.parametrize("n", [195, 199])
    @pytest.mark.parametrize("rank", ["centered", "linear", "ceil"])
    @pytest.mark.parametrize("noise", [0.5, 20.0])
    @pytest.mark.covering
    def test_holds(self, n, rank, noise, is_quick):
        trials = 400 if is_quick else 800
        assert self.failures(n, rank, trials=trials, noise=noise) <= self.BETA + standard_errors(self.BETA, trials)

    def test_is_nearly_attained(self):
        """Every step meets a count of r + m - 1, so it fails with probability 1 - (1 - beta / N)^N: sharp."""
        trials, exact = 2000, 1 - (1 - self.BETA / self.STEPS) ** self.STEPS
        assert self.failures(199, "ceil", trials=trials, noise=20.0) >= exact - standard_errors(exact, trials)

    def test_fails_without_the_buffer(self, monkeypatch):
        monkeypatch.setattr(offsets, "union_noise_buffer", lambda *_: 0.0)
        trials = 400
        assert self.failures(199, "ceil", trials=trials, noise=20.0) > self.BETA + standard_errors(self.BETA, trials)


# The two examples of the Supplement's discussion of quantile estimation: scores, range, wanted order statistic.
TIE_JUMP = (np.array([0.0] * 5 + [10.0] * 8 + [11.0]), (0.0, 11.0), 10.0)
NO_TIES = (np.arange(1.0, 11.0), (1.0, 10.0), 9.0)


class TestNoisyMidpoint:
    """The midpoint rule falls below the order statistic it looks for; the right-endpoint rule does not."""

    ALPHA, BETA, TRIALS = 0.2, 0.1, 600

    def below(self, example, rule, trials=TRIALS, **setting):
        scores, score_range, wanted = example
        return np.mean(
            [
                rule(scores, alpha=self.ALPHA, score_range=score_range, steps=20, **setting).threshold < wanted
                for _ in range(trials)
            ]
        )

    @pytest.mark.parametrize(("example", "noise"), [(TIE_JUMP, 8.0), (NO_TIES, 6.0)], ids=["tie jump", "no ties"])
    def test_falls_below_far_too_often(self, example, noise):
        midpoint = self.below(example, noisy_midpoint_quantile, count_noise=noise)
        union = self.below(
            example,
            private_quantile,
            count_noise=noise,
            correction="union",
            rank="ceil",
            failure_probability=self.BETA,
        )
        assert union <= self.BETA + standard_errors(self.BETA, self.TRIALS)
        # more often than the coverage level could bear, even if every other outcome covered everything
        assert midpoint > 0.3 + standard_errors(0.3, self.TRIALS)

    @pytest.mark.parametrize(
        ("extra", "example", "noise"), [(10.0, TIE_JUMP, 8.0), (9.5, NO_TIES, 6.0)], ids=["tie jump", "no ties"]
    )
    def test_coverage_on_average(self, extra, example, noise):
        """One of the scores, at random, is the new one: Result A covers at .8, the midpoint rule does not."""
        scores, score_range, _ = example
        everything = np.append(scores, extra)
        rng, trials = np.random.default_rng(9), 600
        covered = {"midpoint": 0, "marginal": 0}
        for _ in range(trials):
            mixed = rng.permutation(everything)
            setting = {"alpha": self.ALPHA, "score_range": score_range, "count_noise": noise, "steps": 20}
            covered["midpoint"] += mixed[-1] <= noisy_midpoint_quantile(mixed[:-1], **setting).threshold
            q = private_quantile(mixed[:-1], **setting)
            covered["marginal"] += mixed[-1] <= q.threshold or not q.is_finite
        slack = standard_errors(self.ALPHA, trials)
        assert covered["marginal"] / trials >= 1 - self.ALPHA - slack
        assert covered["midpoint"] / trials < 1 - self.ALPHA - slack


CASES = {
    "gaussian": (gaussian_tradeoff(0.5), gaussian_noise(0.5)),
    "gaussian, strong": (gaussian_tradeoff(0.1422), gaussian_noise(0.1422)),
    "pure": (epsilon_delta_tradeoff(0.5, 0.0), tulap_noise(0.5)),
    "approximate": (epsilon_delta_tradeoff(1.0, 0.02), tulap_noise(1.0, 0.02)),
}


class TestSharpFloor:
    """The hard instance of [thm:dp_gap_two_sides]: a noisy histogram over far more cells than records."""

    ALPHA, N, TRIALS = 0.1, 50, 200_000
    GAMMA = 0.001

    def coverage(self, noise, alpha, *, with_test_record):
        """P(count of the test record's cell + noise >= F^-1(alpha) + 1)."""
        return hard_instance_coverage(
            noise,
            alpha,
            n_records=self.N,
            gap=self.GAMMA,
            draws=self.TRIALS,
            generator=np.random.default_rng(1),
            is_member=with_test_record,
        )

    @pytest.mark.parametrize("case", list(CASES))
    def test_floor_is_attained(self, case):
        f, noise = CASES[case]
        floor = blackbox_floor(self.ALPHA, f)
        slack = standard_errors(self.ALPHA, self.TRIALS)
        assert self.coverage(noise, self.ALPHA, with_test_record=True) >= 1 - self.ALPHA - slack
        actual = self.coverage(noise, self.ALPHA, with_test_record=False)
        slack = standard_errors(floor, self.TRIALS)
        assert floor - slack <= actual <= floor + self.GAMMA + slack
        assert actual < 1 - self.ALPHA - slack

    @pytest.mark.parametrize("case", list(CASES))
    def test_inner_level_restores_the_target(self, case):
        f, noise = CASES[case]
        inner = universal_alpha(self.ALPHA, f)
        actual = self.coverage(noise, inner, with_test_record=False)
        slack = standard_errors(self.ALPHA, self.TRIALS)
        assert 1 - self.ALPHA - slack <= actual <= 1 - self.ALPHA + self.GAMMA + slack
