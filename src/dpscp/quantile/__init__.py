"""The quantile room: exact counts from any source, and the private threshold search."""

from dpscp.quantile.correction import expected_maximum, marginal_offset, marginal_rank_target, union_noise_buffer
from dpscp.quantile.counts import CountSource
from dpscp.quantile.search import (
    PrivateQuantile,
    default_steps,
    noisy_midpoint_quantile,
    private_quantile,
    rank_sensitivity,
    round_level,
)

__all__ = [
    "CountSource",
    "PrivateQuantile",
    "default_steps",
    "expected_maximum",
    "marginal_offset",
    "marginal_rank_target",
    "noisy_midpoint_quantile",
    "private_quantile",
    "rank_sensitivity",
    "round_level",
    "union_noise_buffer",
]
