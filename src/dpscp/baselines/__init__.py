"""What the private estimators are compared with, behind one interface: the paper's three, published rivals, and the
classics of its S1.

``fit(X, y)``, then ``predict``, and ``predict_set`` (classification) or ``predict_interval`` (regression) with MAPIE's
shapes. ``DPSplit``, ``PrivatePredictionSets`` and ``DPCP`` are private; all the others are not, and their ledgers say
so.
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
