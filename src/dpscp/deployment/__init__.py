"""Evaluate a released model privately, and monitor its coverage."""

from dpscp.deployment.evaluation import PrivateEstimate, PrivateEvaluation, evaluate
from dpscp.deployment.monitoring import CoverageMonitor, MonitorStep

__all__ = ["CoverageMonitor", "MonitorStep", "PrivateEstimate", "PrivateEvaluation", "evaluate"]
