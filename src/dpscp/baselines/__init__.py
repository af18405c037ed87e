"""What the private estimators are compared with, behind one interface: the paper's three, and the classics of its S1.

``fit(X, y)``, then ``predict``, and ``predict_set`` (classification) or ``predict_interval`` (regression) with MAPIE's
shapes. ``DPSplit`` is private; all the others are not, and their ledgers say so.
"""

from dpscp.baselines.cross import CVPlus, JackknifePlus
from dpscp.baselines.full import FullConformal
from dpscp.baselines.threshold import DPSplit, NaiveFull, SplitConformal

__all__ = ["CVPlus", "DPSplit", "FullConformal", "JackknifePlus", "NaiveFull", "SplitConformal"]
