"""A guarantee as a value: how a release earns its coverage promise.

Everything that differs from one guarantee to the next is a field here; strategy, calibration, planning, recipe, report
and command line ask the value and never its name. To add one: write its file, and a line in ``registry``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dpscp.guarantees.stability import Stability
from dpscp.privacy import Ledger
from dpscp.quantile.offsets import Correction, Rank

INVARIANT = "training does not depend on the order of the records, and everything it learned from them is in its event"
HELD_OUT = "the scored records were not used in training"


@dataclass(frozen=True)
class GuaranteeRequest:
    """What a guarantee is asked with, in public numbers: targets, what was spent before, a shift bound if known."""

    alphas: tuple[float, ...]
    spent: Ledger
    stability: Stability | None = None
    score_lipschitz: float | None = None


# The name of 0.3.
Asked = GuaranteeRequest


def _as_asked(asked: GuaranteeRequest) -> tuple[float, ...]:
    return asked.alphas


def _no_shift(asked: GuaranteeRequest) -> float:  # noqa: ARG001
    return 0.0


def _most_of_it(mu: float) -> float:  # noqa: ARG001
    return 0.9


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One way to promise coverage; ``name`` is what the public interface calls it.

    ``certified``: its target is proven in finite samples. ``held_out``: the threshold is found on records that training
    did not see, and each part may spend the whole budget. ``needs_stability``, ``needs_trajectory``: what training must
    bring. ``training_share`` is the part of mu^2 that training takes best, ``inner_levels`` the level to calibrate at
    for each target (0: none keeps it), ``shift`` what is added to the threshold. ``correction``, ``rank`` and
    ``rank_buffer`` are those of the search; ``releases_size``: where the number of scores is private, a noisy one is
    bought (Result G). ``more_room`` and ``no_level`` say what would help where only full sets keep the promise.

    Theory: section 6
    """

    name: str
    proof: str
    certified: bool
    held_out: bool = False
    needs_stability: bool = False
    needs_trajectory: bool = False
    correction: Correction = Correction.MINIMAX
    rank: Rank = Rank.CENTRED
    rank_buffer: float = 0.0
    releases_size: bool = True
    training_share: Callable[[float], float] = _most_of_it
    inner_levels: Callable[[GuaranteeRequest], tuple[float, ...]] = _as_asked
    shift: Callable[[GuaranteeRequest], float] = _no_shift
    more_room: str = "a larger alpha or a larger budget"
    no_level: str = "A larger alpha would help."

    def __post_init__(self) -> None:
        # names are accepted for both; a name that nobody knows is refused
        object.__setattr__(self, "correction", Correction.parse(self.correction))
        object.__setattr__(self, "rank", Rank.parse(self.rank))

    @property
    def assumption(self) -> str:
        """What it assumes of training, beside exchangeable records."""
        return HELD_OUT if self.held_out else INVARIANT
