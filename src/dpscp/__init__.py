"""Differentially private models with valid prediction sets, from all the data."""

from typing import TYPE_CHECKING

from dpscp._base.lazy import lazy_exports

# imported now: a later import of the package of this name would replace the function
from dpscp.audit import audit as audit

__version__ = "1.0.0"

# The numerical libraries take a second to import: a name imports them on first use.
_MODULES = {
    "Budget": "dpscp.privacy",
    "BudgetError": "dpscp.exceptions",
    "BudgetStore": "dpscp.privacy.store",
    "Certificate": "dpscp.guarantees",
    "CoverageMonitor": "dpscp.deployment",
    "GuaranteeWarning": "dpscp.exceptions",
    "Groups": "dpscp.data.groups",
    "HintWarning": "dpscp.exceptions",
    "Ledger": "dpscp.privacy",
    "NotFittedError": "dpscp.exceptions",
    "Population": "dpscp.data.populations",
    "Prefit": "dpscp.training.prefit",
    "PrivateConformalClassifier": "dpscp.estimators",
    "PrivateConformalRegressor": "dpscp.estimators",
    "PrivateMultilabelClassifier": "dpscp.estimators",
    "PrivateModel": "dpscp.training.model",
    "PrivateQuantile": "dpscp.threshold",
    "ReuseWarning": "dpscp.exceptions",
    "Release": "dpscp.report.release",
    "RowNorm": "dpscp.data.feature_bounds",
    "Schema": "dpscp.data.schema",
    "SeededWarning": "dpscp.exceptions",
    "calibrate": "dpscp.deployment.calibrate",
    "check_table": "dpscp.data.table_check",
    "control_risk": "dpscp.deployment",
    "evaluate": "dpscp.deployment",
    "load": "dpscp.estimators",
    "plan": "dpscp.report.planning",
    "predict_interval": "dpscp.estimators",
    "predict_set": "dpscp.estimators",
    "private_quantile": "dpscp.threshold",
    "recalibrate": "dpscp.deployment",
    "sets": "dpscp.scores",
    "sources": "dpscp.data",
}
__all__ = [
    *_MODULES,
    "__version__",
    "audit",
    "guarantees",
    "metrics",
    "paper",
    "privacy",
    "scores",
    "threshold",
    "training",
]

if TYPE_CHECKING:
    from dpscp import guarantees as guarantees
    from dpscp import metrics as metrics
    from dpscp import paper as paper
    from dpscp import privacy as privacy
    from dpscp import scores as scores
    from dpscp import threshold as threshold
    from dpscp import training as training
    from dpscp.data import sources as sources
    from dpscp.data.feature_bounds import RowNorm as RowNorm
    from dpscp.data.groups import Groups as Groups
    from dpscp.data.populations import Population as Population
    from dpscp.data.schema import Schema as Schema
    from dpscp.data.table_check import check_table as check_table
    from dpscp.deployment import CoverageMonitor as CoverageMonitor
    from dpscp.deployment import control_risk as control_risk
    from dpscp.deployment import evaluate as evaluate
    from dpscp.deployment import recalibrate as recalibrate
    from dpscp.deployment.calibrate import calibrate as calibrate
    from dpscp.estimators import PrivateConformalClassifier as PrivateConformalClassifier
    from dpscp.estimators import PrivateConformalRegressor as PrivateConformalRegressor
    from dpscp.estimators import PrivateMultilabelClassifier as PrivateMultilabelClassifier
    from dpscp.estimators import load as load
    from dpscp.estimators import predict_interval as predict_interval
    from dpscp.estimators import predict_set as predict_set
    from dpscp.exceptions import BudgetError as BudgetError
    from dpscp.exceptions import GuaranteeWarning as GuaranteeWarning
    from dpscp.exceptions import HintWarning as HintWarning
    from dpscp.exceptions import NotFittedError as NotFittedError
    from dpscp.exceptions import ReuseWarning as ReuseWarning
    from dpscp.exceptions import SeededWarning as SeededWarning
    from dpscp.guarantees import Certificate as Certificate
    from dpscp.privacy import Budget as Budget
    from dpscp.privacy import Ledger as Ledger
    from dpscp.privacy.store import BudgetStore as BudgetStore
    from dpscp.report.planning import plan as plan
    from dpscp.report.release import Release as Release
    from dpscp.scores import sets as sets
    from dpscp.threshold import PrivateQuantile as PrivateQuantile
    from dpscp.threshold import private_quantile as private_quantile
    from dpscp.training.model import PrivateModel as PrivateModel
    from dpscp.training.prefit import Prefit as Prefit
else:
    __getattr__ = lazy_exports(_MODULES, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
