"""All records and any private training: privacy bounds the effect of reuse.

Theory: Result B
"""

import math

from dpscp.guarantees.base import Guarantee, GuaranteeRequest
from dpscp.guarantees.formulas import universal_alpha


def _training_share(mu: float) -> float:
    """Return training's share, which falls with the budget.

    The more training may learn about one record, the higher the inner level must be.
    """
    return min(0.9, max(0.2, 0.3 / math.sqrt(mu)))


def _inner_levels(request: GuaranteeRequest) -> tuple[float, ...]:
    tradeoff = request.spent.tradeoff_function("add")
    return tuple(universal_alpha(a, tradeoff) for a in request.alphas)


UNIVERSAL = Guarantee(
    name="universal",
    proof="Result B: the privacy of training bounds the effect of reusing its records",
    certified=True,
    training_share=_training_share,
    inner_levels=_inner_levels,
    # not a larger budget: training takes a share of it, which raises the inner level
    more_room="a larger alpha, or less of the budget for training (a smaller train_share)",
    no_level="Training spends too much for this guarantee, however many records there are. Give training less of the "
    "budget (more noise, a smaller train_share), raise alpha, or use guarantee='split', where reuse costs nothing.",
)
