"""A guarantee as a value: how a release proves its coverage.

Everything that differs between guarantees is a field here. Other packages use the fields and never compare names. To
add a guarantee, write its module and add a line to ``registry``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dpscp._base.assumptions import HELD_OUT, INVARIANT, Assumption
from dpscp.guarantees.stability import Stability
from dpscp.privacy import Ledger
from dpscp.threshold.offsets import Correction, Rank


@dataclass(frozen=True)
class GuaranteeRequest:
    """The public numbers that a guarantee uses.

    Attributes
    ----------
    alphas : tuple of float
        The target miscoverages.
    spent : Ledger
        What was spent before the search.
    stability : Stability, optional
        A shift bound of training.
    score_lipschitz : float, optional
        The Lipschitz constant of the score in the parameters.
    """

    alphas: tuple[float, ...]
    spent: Ledger
    stability: Stability | None = None
    score_lipschitz: float | None = None


def _requested_levels(request: GuaranteeRequest) -> tuple[float, ...]:
    return request.alphas


def _no_shift(request: GuaranteeRequest) -> float:  # noqa: ARG001
    return 0.0


def _default_training_share(mu: float) -> float:  # noqa: ARG001
    return 0.9


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One way to prove coverage.

    Attributes
    ----------
    name : str
        The name in the public interface.
    proof : str
        The reason, for the certificate.
    certified : bool
        Whether the target is proven in finite samples.
    held_out : bool
        The threshold is computed from records that training did not use. Each part may then spend the whole budget.
    needs_stability, needs_trajectory : bool
        What training must provide.
    correction, rank, rank_buffer
        Those of the search.
    releases_size : bool
        Release a noisy number of scores if the exact one is private (Result G).
    training_share : callable
        Return the best part of mu^2 for training, from mu.
    inner_levels : callable
        Return the level to calibrate at for each target; 0 if none keeps the target.
    shift : callable
        Return what is added to the threshold.
    more_room, no_level : str
        The advice if only full sets keep the promise.

    Theory: Which one to use
    """

    name: str
    proof: str
    certified: bool
    held_out: bool = False
    needs_stability: bool = False
    needs_trajectory: bool = False
    correction: Correction = Correction.MINIMAX
    rank: Rank = Rank.CENTERED
    rank_buffer: float = 0.0
    releases_size: bool = True
    training_share: Callable[[float], float] = _default_training_share
    inner_levels: Callable[[GuaranteeRequest], tuple[float, ...]] = _requested_levels
    shift: Callable[[GuaranteeRequest], float] = _no_shift
    more_room: str = "a larger alpha or a larger budget"
    no_level: str = "A larger alpha would help."

    def __post_init__(self) -> None:
        # both may be given by name; unknown names raise
        object.__setattr__(self, "correction", Correction(self.correction))
        object.__setattr__(self, "rank", Rank(self.rank))

    @property
    def assumption(self) -> Assumption:
        """What it assumes about training, besides exchangeable records."""
        return HELD_OUT if self.held_out else INVARIANT
