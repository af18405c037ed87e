"""Coverage guarantees, the formulas behind them, and the certificate."""

from dpscp.guarantees.base import Guarantee, GuaranteeRequest
from dpscp.guarantees.certificate import Certificate
from dpscp.guarantees.coverage_theorem import coverage_lower_bound, dpsgd_coverage, rank_buffer
from dpscp.guarantees.dpsgd_stability import (
    expected_gap_dpsgd_projection,
    expected_gap_dpsgd_smooth,
    stability_dpsgd_projection,
    stability_dpsgd_smooth,
)
from dpscp.guarantees.formulas import (
    blackbox_floor,
    marginal_miss_bound,
    minimax_miss_bound,
    minimum_part_size,
    overall_mu,
    search_mu,
    smallest_useful_n,
    universal_alpha,
    universal_floor,
    value_buffer,
)
from dpscp.guarantees.registry import GUARANTEES, automatic, guarantee_of, register
from dpscp.guarantees.stability import (
    Stability,
    stability_dpsgd_fixed_normalizer,
    stability_objective_perturbation,
    stability_output_perturbation,
    stability_summary,
)
from dpscp.guarantees.terms import Terms
from dpscp.threshold import (
    CountedSize,
    KnownSize,
    NoisySize,
    counted_offset,
    expected_maximum,
    marginal_offset,
    marginal_rank_target,
    minimax_offset,
    release_level,
    release_miss_bound,
    release_offset,
    sized_offset,
    union_noise_buffer,
)

__all__ = [
    "GUARANTEES",
    "Certificate",
    "CountedSize",
    "Guarantee",
    "GuaranteeRequest",
    "KnownSize",
    "NoisySize",
    "Stability",
    "Terms",
    "automatic",
    "blackbox_floor",
    "counted_offset",
    "coverage_lower_bound",
    "dpsgd_coverage",
    "expected_gap_dpsgd_projection",
    "expected_gap_dpsgd_smooth",
    "expected_maximum",
    "guarantee_of",
    "marginal_miss_bound",
    "marginal_offset",
    "marginal_rank_target",
    "minimax_miss_bound",
    "minimax_offset",
    "minimum_part_size",
    "overall_mu",
    "rank_buffer",
    "register",
    "release_level",
    "release_miss_bound",
    "release_offset",
    "search_mu",
    "sized_offset",
    "smallest_useful_n",
    "stability_dpsgd_fixed_normalizer",
    "stability_dpsgd_projection",
    "stability_dpsgd_smooth",
    "stability_objective_perturbation",
    "stability_output_perturbation",
    "stability_summary",
    "union_noise_buffer",
    "universal_alpha",
    "universal_floor",
    "value_buffer",
]
