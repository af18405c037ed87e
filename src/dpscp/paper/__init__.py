"""Functions that only the statements and studies of the paper need.

No other package imports them from here. ``privacy``, ``guarantees`` and ``training`` export them too.
"""

from dpscp.guarantees.coverage_theorem import coverage_lower_bound, dpsgd_coverage, rank_buffer
from dpscp.guarantees.dpsgd_stability import (
    expected_gap_dpsgd_projection,
    expected_gap_dpsgd_smooth,
    stability_dpsgd_projection,
    stability_dpsgd_smooth,
)
from dpscp.privacy.canonical_noise import CanonicalNoise, canonical_noise, gaussian_noise, tulap_noise
from dpscp.training.coupling import CoupledRun, coupled_run

__all__ = [
    "CanonicalNoise",
    "CoupledRun",
    "canonical_noise",
    "coupled_run",
    "coverage_lower_bound",
    "dpsgd_coverage",
    "expected_gap_dpsgd_projection",
    "expected_gap_dpsgd_smooth",
    "gaussian_noise",
    "rank_buffer",
    "stability_dpsgd_projection",
    "stability_dpsgd_smooth",
    "tulap_noise",
]
