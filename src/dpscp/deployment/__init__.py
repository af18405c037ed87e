"""After the release: evaluate it privately, watch it for years, and control other losses than misses."""

from dpscp.deployment.evaluation import PrivateEstimate, PrivateEvaluation, evaluate
from dpscp.deployment.monitoring import CoverageMonitor, MonitorStep
from dpscp.deployment.statement import privacy_statement, statement_markdown, statement_schema

__all__ = [
    "CoverageMonitor",
    "MonitorStep",
    "PrivateEstimate",
    "PrivateEvaluation",
    "evaluate",
    "privacy_statement",
    "statement_markdown",
    "statement_schema",
]
