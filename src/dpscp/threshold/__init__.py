"""Exact counts from any source of scores, and the private threshold search."""

from dpscp.threshold.correction import expected_maximum, marginal_offset, marginal_rank_target, union_noise_buffer
from dpscp.threshold.counts import CountSource
from dpscp.threshold.minimax import graded_offset, minimax_offset, step_rises, worst_final_gap
from dpscp.threshold.offsets import Correction, Rank, rank_sensitivity, round_level
from dpscp.threshold.search import PrivateQuantile, default_steps, private_quantile
from dpscp.threshold.single_release import release_level, release_miss_bound, release_offset
from dpscp.threshold.sizes import (
    CountedSize,
    KnownSize,
    NoisySize,
    counted_offset,
    size_tail,
    sized_offset,
)

__all__ = [
    "Correction",
    "CountSource",
    "CountedSize",
    "KnownSize",
    "NoisySize",
    "PrivateQuantile",
    "Rank",
    "counted_offset",
    "default_steps",
    "expected_maximum",
    "graded_offset",
    "marginal_offset",
    "marginal_rank_target",
    "minimax_offset",
    "private_quantile",
    "rank_sensitivity",
    "release_level",
    "release_miss_bound",
    "release_offset",
    "round_level",
    "size_tail",
    "sized_offset",
    "step_rises",
    "union_noise_buffer",
    "worst_final_gap",
]
