"""Evaluate a released model privately, and monitor its coverage."""

from dpscp.deployment.evaluation import PrivateEstimate, PrivateEvaluation, evaluate
from dpscp.deployment.monitoring import CoverageMonitor, MonitorStep
from dpscp.deployment.publish import model_card, registry_entry, registry_yaml
from dpscp.deployment.recalibration import recalibrate
from dpscp.deployment.risk import control_risk
from dpscp.report.statement import privacy_statement, statement_markdown, statement_schema
from dpscp.report.verdict import Verdict, judge

__all__ = [
    "CoverageMonitor",
    "MonitorStep",
    "PrivateEstimate",
    "PrivateEvaluation",
    "Verdict",
    "control_risk",
    "evaluate",
    "judge",
    "model_card",
    "privacy_statement",
    "recalibrate",
    "registry_entry",
    "registry_yaml",
    "statement_markdown",
    "statement_schema",
]
