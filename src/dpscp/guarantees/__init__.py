"""Coverage guarantees, the formulas behind them, and the certificate."""

from dpscp.guarantees.certificate import Certificate, Terms
from dpscp.guarantees.formulas import (
    blackbox_floor,
    coverage_lower_bound,
    dpsgd_coverage,
    expected_gap_dpsgd_projection,
    minimax_miss_bound,
    overall_mu,
    rank_buffer,
    search_mu,
    stability_dpsgd_projection,
    stability_dpsgd_smooth,
    universal_alpha,
    universal_floor,
    value_buffer,
)
from dpscp.guarantees.registry import GUARANTEES, Guarantee, GuaranteeRequest, automatic, guarantee_of, register
from dpscp.guarantees.stability import (
    Stability,
    stability_dpsgd_fixed_normalizer,
    stability_objective_perturbation,
    stability_output_perturbation,
    stability_summary,
)
from dpscp.threshold import marginal_offset, marginal_rank_target, minimax_offset, union_noise_buffer

__all__ = [
    "GUARANTEES",
    "Certificate",
    "Guarantee",
    "GuaranteeRequest",
    "Stability",
    "Terms",
    "automatic",
    "blackbox_floor",
    "coverage_lower_bound",
    "dpsgd_coverage",
    "expected_gap_dpsgd_projection",
    "guarantee_of",
    "marginal_offset",
    "marginal_rank_target",
    "minimax_miss_bound",
    "minimax_offset",
    "overall_mu",
    "rank_buffer",
    "register",
    "search_mu",
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
