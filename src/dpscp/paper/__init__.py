"""What only the paper's statements and studies need; the product imports nothing from here.

The rooms that these names belong to by subject (``privacy``, ``guarantees``, ``training``) answer for them too.
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
