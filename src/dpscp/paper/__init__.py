"""The paper's system, by the names and labels of the paper.

- Algorithm 1: ``DPSCP``: variants "F" (DP-SCP-F) and "A" (DP-SCP-A)
- Algorithm 2, Lemma 1: ``buffered_quantile``, ``union_noise_buffer``
- Algorithm 3: ``DPSGD`` (with a fixed public normalizer), ``coupled_run``
- Algorithm 4: ``noisy_midpoint_quantile``
- Lemma 2, Theorem 1: ``search_mu``, ``overall_mu``
- Theorem 2, Corollary 1: ``blackbox_floor``, ``hard_instance_coverage``, ``canonical_noise``
- Theorem 3: ``rank_buffer``, ``coverage_lower_bound``
- Lemma 3: ``stability_dpsgd_projection``, ``expected_gap_dpsgd_projection``
- Theorem 4: ``stability_dpsgd_smooth``
- Corollary 2: ``dpsgd_coverage``
- Section 6: ``DPSplit``, ``NaiveFull``, ``SplitConformal``
- Supplement S1: ``FullConformal``, ``JackknifePlus``, ``CVPlus``

Methods have ``fit(X, y)``, ``predict``, and ``predict_set`` (classification) or ``predict_interval`` (regression) with
MAPIE's shapes. ``DPSCP`` and ``DPSplit`` are private. The others are not, and their ledgers say so.
"""

from dpscp.guarantees import (
    blackbox_floor,
    coverage_lower_bound,
    dpsgd_coverage,
    expected_gap_dpsgd_projection,
    overall_mu,
    rank_buffer,
    search_mu,
    stability_dpsgd_projection,
    stability_dpsgd_smooth,
    union_noise_buffer,
)
from dpscp.paper.coupling import CoupledRun, coupled_run
from dpscp.paper.cross import CVPlus, JackknifePlus
from dpscp.paper.floor import CanonicalNoise, canonical_noise, gaussian_noise, hard_instance_coverage, tulap_noise
from dpscp.paper.full import FullConformal
from dpscp.paper.search import buffered_quantile, noisy_midpoint_quantile
from dpscp.paper.split import NaiveFull, SplitConformal
from dpscp.paper.system import DPSCP, DPSplit
from dpscp.training import DPSGD

__all__ = [
    "DPSCP",
    "DPSGD",
    "CVPlus",
    "CanonicalNoise",
    "CoupledRun",
    "DPSplit",
    "FullConformal",
    "JackknifePlus",
    "NaiveFull",
    "SplitConformal",
    "blackbox_floor",
    "buffered_quantile",
    "canonical_noise",
    "coupled_run",
    "coverage_lower_bound",
    "dpsgd_coverage",
    "expected_gap_dpsgd_projection",
    "gaussian_noise",
    "hard_instance_coverage",
    "noisy_midpoint_quantile",
    "overall_mu",
    "rank_buffer",
    "search_mu",
    "stability_dpsgd_projection",
    "stability_dpsgd_smooth",
    "tulap_noise",
    "union_noise_buffer",
]
