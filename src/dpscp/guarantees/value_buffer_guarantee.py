"""All records, with training that has a shift bound.

One record moves every score by a bounded amount.

Theory: Result C
"""

from dpscp.guarantees.base import Guarantee, GuaranteeRequest
from dpscp.guarantees.formulas import value_buffer
from dpscp.guarantees.stability import Stability


def _require_bounds(request: GuaranteeRequest) -> tuple[Stability, float]:
    lipschitz = request.score_lipschitz
    if request.stability is not None and lipschitz is None:
        lipschitz = request.stability.score_lipschitz
    if request.stability is None or lipschitz is None:
        raise ValueError(
            "guarantee='stability' needs a training mechanism with a stability bound and a score with a Lipschitz "
            "constant; use 'universal' or 'split' instead"
        )
    return request.stability, lipschitz


def _inner_levels(request: GuaranteeRequest) -> tuple[float, ...]:
    bound, _ = _require_bounds(request)
    # without a finite buffer there is no level, and neither if delta_n exceeds alpha
    return tuple(0.0 if bound.is_vacuous else a - bound.delta_n for a in request.alphas)


def _shift(request: GuaranteeRequest) -> float:
    bound, lipschitz = _require_bounds(request)
    return 0.0 if bound.is_vacuous else value_buffer(lipschitz, bound.shift_bound)


STABILITY = Guarantee(
    name="stability",
    proof="Result C: one record moves every score by a bounded amount",
    certified=True,
    needs_stability=True,
    inner_levels=_inner_levels,
    shift=_shift,
    no_level="The stability bound of training leaves no level at this alpha. Use guarantee='universal' or 'split', "
    "which need no such bound.",
)
