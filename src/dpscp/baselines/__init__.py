"""Baselines to compare the private estimators with.

Each one has ``fit(X, y)``, ``predict``, and ``predict_set`` (classification) or ``predict_interval`` (regression) with
MAPIE's shapes. ``DPSplit``, ``PrivatePredictionSets`` and ``DPCP`` are private. The others are not, and their ledgers
say so.
"""

from dpscp.baselines.cross import CVPlus, JackknifePlus
from dpscp.baselines.exponential import DPCP, PrivatePredictionSets
from dpscp.baselines.full import FullConformal
from dpscp.baselines.threshold import DPSplit, NaiveFull, SplitConformal

__all__ = [
    "DPCP",
    "CVPlus",
    "DPSplit",
    "FullConformal",
    "JackknifePlus",
    "NaiveFull",
    "PrivatePredictionSets",
    "SplitConformal",
]
