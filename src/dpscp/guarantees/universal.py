"""All records, any private training: privacy itself bounds what reusing the records can do.

Theory: Result B
"""

import math

from dpscp.guarantees.base import Guarantee, GuaranteeRequest
from dpscp.guarantees.formulas import universal_alpha


def _training_share(mu: float) -> float:
    """It falls with the budget: the more training may learn about one record, the wider the certified level."""
    return min(0.9, max(0.2, 0.3 / math.sqrt(mu)))


def _inner_levels(asked: GuaranteeRequest) -> tuple[float, ...]:
    tradeoff = asked.spent.tradeoff_function("add")
    return tuple(universal_alpha(a, tradeoff) for a in asked.alphas)


UNIVERSAL = Guarantee(
    name="universal",
    proof="Result B: privacy of training bounds what reusing its records can do",
    certified=True,
    training_share=_training_share,
    inner_levels=_inner_levels,
    # not a larger budget: training takes its share of it, and every bit of that raises the inner level
    more_room="a larger alpha, or less of the budget for training (a smaller train_share)",
    no_level="Training spends too much for this guarantee, however many records there are: give it less of the "
    "budget (more noise, a smaller train_share), raise alpha, or use guarantee='split', which does not pay for reuse.",
)
