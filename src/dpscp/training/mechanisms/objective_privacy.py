"""The privacy of objective perturbation, as a Gaussian event.

The mechanism releases theta = argmin sum_i loss_i(theta) + strength / 2 * ||theta||^2 + <b, theta> with
Gaussian b of standard deviation s. Add one record with features x, ||x|| <= B, and let c(theta) be the
value of b that makes theta the minimizer without the record (a bijection); with the record it is c -
g(theta), g its gradient. Only the part of b along x is moved, so condition on the rest. What is left is a
map T = identity + displacement h on ``rank`` coordinates, and the two laws are N(0, s^2) for c and for
T(c). With mu = (gradient bound) / s:

* ||h|| <= mu (in units of s), and h is Lipschitz with constant ``expansion`` = smoothness / strength (in
  several coordinates, expansion / (1 - expansion) seen from the other side), so h = h(0) + something at
  most that times the noise: <noise, h> is one Gaussian of size at most mu plus a small quadratic;
* the determinant of T lies in [1, exp(log_determinant)], and helps in one of the two directions;
* for two classes h keeps its sign, and the privacy loss is at most max(0, mu Z + mu^2 / 2) +
  log_determinant: a Gaussian mechanism's, up to the last term. (The half-normal, and with it the factor 2
  in delta, that the general analysis of Redberg, Koskela and Wang (2023) pays is not needed.)

``dominating_mu`` returns a mu' such that the Gaussian mechanism of parameter mu' has at least the privacy
profile that follows, for every epsilon >= 0 and both directions. That is domination in the sense of privacy
loss distributions, so the event composes like any Gaussian event, under every accountant.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special, stats

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_nonnegative, check_positive
from dpscp.exceptions import BudgetError

_REACH = 8.5  # noise beyond this many standard deviations is handled by the analytic tail
_CELLS = 1500
_TAIL_CELLS = 120
_LARGEST_MU = 50.0


@dataclass(frozen=True)
class ObjectiveLoss:
    """What bounds the privacy loss of one added record.

    See the module's text for the letters.

    ``mu`` is gradient bound over noise standard deviation, ``expansion`` is smoothness over penalty
    strength, ``log_determinant`` bounds the log of the Jacobian, ``rank`` counts the directions the record
    can push in, and ``one_sided`` says that the sign of the push is fixed (two classes).

    Paper: Remark on private training [remark: dp mech stab]
    """

    mu: float
    expansion: float
    log_determinant: float
    rank: int = 1
    one_sided: bool = False

    def __post_init__(self) -> None:
        check_positive("mu", self.mu)
        check_nonnegative("expansion", self.expansion)
        check_nonnegative("log_determinant", self.log_determinant)
        check_count("rank", self.rank)
        if self.one_sided and self.rank != 1:
            raise ValueError("one_sided needs rank 1; a sign is fixed in one dimension only")
        if self.rank > 1 and self.expansion >= 1:
            raise BudgetError("the penalty must exceed the smoothness of one record's loss; raise the penalty")

    def profile(self, epsilon: FloatArray) -> FloatArray:
        """Return an upper bound on delta(epsilon) for adding and removing a record.

        ``epsilon`` is at least 0.
        """
        if self.one_sided:
            return self._one_sided_profile(epsilon)
        losses, masses = self._atoms()
        order = np.argsort(losses)
        losses, masses = losses[order], masses[order]
        # suffix sums give E[(1 - exp(epsilon - loss))_+] at any epsilon
        heavy = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
        light = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)
        first = np.searchsorted(losses, epsilon, side="right")
        inside = heavy[first] - np.exp(epsilon) * light[first]
        missing = 2 * special.ndtr(-_REACH) + (special.ndtr(-_REACH) if self.rank > 1 else 0.0)
        # the factor covers the rounding of the suffix sums
        return np.asarray(np.minimum(1.0, np.maximum(inside, 0.0) * (1 + 1e-9) + missing + 1e-15))

    def log_tail(self, epsilon: FloatArray) -> FloatArray:
        """Return the log of a bound on delta(epsilon) that holds far in the tail.

        It stays sharp where ``profile`` is below rounding.
        """
        radius = np.maximum(0.0, (epsilon - self.log_determinant) / self.mu - self.mu / 2)
        return np.asarray(stats.chi2.logsf(radius**2, self.rank))

    def _one_sided_profile(self, epsilon: FloatArray) -> FloatArray:
        beyond = np.asarray(epsilon, dtype=np.float64) - self.log_determinant
        before = np.minimum(beyond, 0.0)
        inside = -np.expm1(before) + np.exp(before) * _gaussian_profile(np.zeros(1), self.mu)
        return np.where(beyond >= 0, _gaussian_profile(np.maximum(beyond, 0.0), self.mu), inside)

    def _atoms(self) -> tuple[FloatArray, FloatArray]:
        """Return values and masses of a finite law above the privacy loss.

        The law is stochastically larger.
        """
        mu = self.mu
        pull = self.expansion if self.rank == 1 else self.expansion / (1 - self.expansion)
        edges = np.linspace(-_REACH, _REACH, _CELLS + 1)
        along = np.diff(special.ndtr(edges))
        if self.rank == 1:
            across, weight = np.zeros(1), np.ones(1)
        else:
            law = stats.chi2(self.rank - 1)
            # finer towards the tail; the upper end of each cell stands for the cell
            survival = np.geomspace(1.0, special.ndtr(-_REACH), _TAIL_CELLS + 1)
            across, weight = law.isf(survival[1:]), -np.diff(survival)

        squared = edges[:, None] ** 2 + across[None, :]
        capped = mu**2 / 2 + mu * np.sqrt(squared)
        push = mu * edges[:, None] + mu**2 / 2
        free = pull * squared + np.where(edges[:, None] >= 0, push, np.maximum(pull**2 * squared / 2, push))
        # capped and free are convex on either side of 0 (an edge, the number of cells being even), so on a cell
        # each is at most its larger end value, and their minimum at most the smaller of these two
        ends = np.minimum(np.maximum(capped[:-1], capped[1:]), np.maximum(free[:-1], free[1:]))
        masses = along[:, None] * weight[None, :]
        return (ends + self.log_determinant).ravel(), masses.ravel()


def _gaussian_profile(epsilon: FloatArray, mu: float) -> FloatArray:
    # gdp_delta for arrays; absolute error about 1e-16
    second = np.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
    return np.asarray(np.maximum(0.0, special.ndtr(mu / 2 - epsilon / mu) - second))


@lru_cache(maxsize=256)
def dominating_mu(loss: ObjectiveLoss) -> float:
    """Return the smallest mu' whose Gaussian mechanism dominates the loss.

    It is exact to 0.2 % and never too small.

    Between the points of the epsilon grid both profiles are bracketed by their monotonicity, so the
    comparison holds at every epsilon >= 0, not only on the grid.

    Theory: Fact 8
    """
    good = loss.mu
    while not _dominates(good, loss):
        good *= 1.5
        if good > _LARGEST_MU:
            raise BudgetError(
                "objective perturbation has no useful privacy at this noise and penalty; raise noise_multiplier or the "
                "penalty"
            )
    bad = loss.mu
    while good / bad > 1 + 1e-4:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if _dominates(middle, loss) else (good, middle)
    return good


def _dominates(candidate: float, loss: ObjectiveLoss) -> bool:
    if candidate <= loss.mu:
        return False
    # fine where the comparison is decided; beyond the last point everything is below 1e-300
    top = loss.log_determinant + 40 * candidate + candidate**2
    middle = min(top, loss.log_determinant + 9 * candidate)
    grid = np.concatenate([np.linspace(0, middle, 20_000), np.linspace(middle, top, 2000)[1:]])
    left, right = grid[:-1], grid[1:]
    ours = loss.profile(left)
    gauss = _gaussian_profile(right, candidate)
    covered = ours <= gauss
    # deep in the tail compare logarithms: delta(e) >= (1 - exp(-t)) P(loss > e + t) for the Gaussian, any t
    t = candidate / 5
    floor = math.log(-math.expm1(-t)) + special.log_ndtr(candidate / 2 - (right + t) / candidate)
    covered |= loss.log_tail(left) <= floor
    return bool(np.all(covered))


def largest_mu(target: float, make_loss: Callable[[float], ObjectiveLoss]) -> float:
    """Return the largest mu (to 0.1 %) whose dominating mu is within target.

    BudgetError if there is none.

    The value returned was itself put through ``dominating_mu`` and found within the target.
    """
    # slightly lower, because the search of dominating_mu stops 0.01 % above the smallest value that passes
    aim = target / (1 + 2e-4)

    def fits(mu: float) -> bool:
        try:
            return _dominates(aim, make_loss(mu))
        except BudgetError:
            return False

    good, bad = aim / 64, aim
    if not fits(good):
        raise BudgetError(
            "no amount of noise meets this budget at this penalty, because its Jacobian term alone costs too much; "
            "raise the penalty or the budget"
        )
    while bad / good > 1 + 1e-3:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    while dominating_mu(make_loss(good)) > target:
        good /= 1.001
    return good
