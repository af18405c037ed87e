"""Evaluate a released model privately, and monitor its coverage."""

from dpscp.deployment.evaluation import PrivateEstimate, PrivateEvaluation, evaluate
from dpscp.deployment.monitoring import CoverageMonitor, MonitorStep
from dpscp.deployment.recalibration import recalibrate
from dpscp.deployment.risk import control_risk
from dpscp.deployment.statement import privacy_statement, statement_markdown, statement_schema

__all__ = [
    "CoverageMonitor",
    "MonitorStep",
    "PrivateEstimate",
    "PrivateEvaluation",
    "control_risk",
    "evaluate",
    "privacy_statement",
    "recalibrate",
    "statement_markdown",
    "statement_schema",
]
