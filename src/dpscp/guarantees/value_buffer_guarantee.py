"""All records, training with a shift bound: one record moves every score by a bounded amount.

Theory: Result C
"""

from dpscp.guarantees.base import Guarantee, GuaranteeRequest
from dpscp.guarantees.formulas import value_buffer
from dpscp.guarantees.stability import Stability


def _known(asked: GuaranteeRequest) -> tuple[Stability, float]:
    lipschitz = asked.score_lipschitz
    if asked.stability is not None and lipschitz is None:
        lipschitz = asked.stability.score_lipschitz
    if asked.stability is None or lipschitz is None:
        raise ValueError(
            "guarantee='stability' needs a training mechanism with a stability bound and a score with a Lipschitz "
            "constant; without them use 'universal' or 'split'"
        )
    return asked.stability, lipschitz


def _inner_levels(asked: GuaranteeRequest) -> tuple[float, ...]:
    bound, _ = _known(asked)
    # without a finite buffer there is no level, as when delta_n uses up alpha
    return tuple(0.0 if bound.is_vacuous else a - bound.delta_n for a in asked.alphas)


def _shift(asked: GuaranteeRequest) -> float:
    bound, lipschitz = _known(asked)
    return 0.0 if bound.is_vacuous else value_buffer(lipschitz, bound.shift_bound)


STABILITY = Guarantee(
    name="stability",
    proof="Result C: one record moves every score by a bounded amount",
    certified=True,
    needs_stability=True,
    inner_levels=_inner_levels,
    shift=_shift,
    no_level="The stability bound of training leaves no level at this alpha: use guarantee='universal' or 'split', "
    "which need no such bound.",
)
