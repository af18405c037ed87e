"""After the release: evaluate it privately, watch it for years, and control other losses than misses."""

from dpscp.deployment.evaluation import PrivateEstimate, PrivateEvaluation, evaluate
from dpscp.deployment.monitoring import CoverageMonitor, MonitorStep
from dpscp.deployment.risk import RiskControl, control_risk

__all__ = [
    "CoverageMonitor",
    "MonitorStep",
    "PrivateEstimate",
    "PrivateEvaluation",
    "RiskControl",
    "control_risk",
    "evaluate",
]
