"""After the release: evaluate it privately, watch it for years, and control other losses than misses."""

from dpscp.deployment.evaluation import PrivateEstimate, PrivateEvaluation, evaluate
from dpscp.deployment.monitoring import CoverageMonitor, MonitorStep

__all__ = ["CoverageMonitor", "MonitorStep", "PrivateEstimate", "PrivateEvaluation", "evaluate"]
