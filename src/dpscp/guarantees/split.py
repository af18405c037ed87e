"""Held-out records for the threshold: for any model and any training.

Theory: Result E
"""

from dpscp.guarantees.base import Guarantee


def _whole_budget(mu: float) -> float:  # noqa: ARG001
    return 1.0


SPLIT = Guarantee(
    name="split",
    proof="Result E: the threshold was computed from records that training did not use",
    certified=True,
    held_out=True,
    training_share=_whole_budget,
    more_room="a larger alpha, a larger budget or a larger held-out part",
)
