"""Private, honest uncertainty: differentially private models with valid prediction sets, from all the data."""

from typing import TYPE_CHECKING

from dpscp._base.lazy import lazy_exports
from dpscp.audit import audit  # imported now: a later import of the package of this name would replace the function

if TYPE_CHECKING:
    from dpscp import guarantees, metrics, paper, privacy, scores, threshold, training
    from dpscp.data import sources
    from dpscp.data.feature_bounds import RowNorm
    from dpscp.data.groups import Groups
    from dpscp.data.populations import Population
    from dpscp.data.schema import Schema
    from dpscp.data.table_check import check_table
    from dpscp.deployment import CoverageMonitor, control_risk, evaluate, recalibrate
    from dpscp.deployment.calibrate import calibrate
    from dpscp.estimators import (
        PrivateConformalClassifier,
        PrivateConformalRegressor,
        PrivateMultilabelClassifier,
        load,
        predict_interval,
        predict_set,
    )
    from dpscp.exceptions import (
        BudgetError,
        GuaranteeWarning,
        HintWarning,
        NotFittedError,
        ReuseWarning,
        SeededWarning,
    )
    from dpscp.guarantees import Certificate
    from dpscp.privacy import Budget, Ledger
    from dpscp.privacy.store import BudgetStore
    from dpscp.report.planning import plan
    from dpscp.report.release import Release
    from dpscp.scores import sets
    from dpscp.threshold import PrivateQuantile, private_quantile
    from dpscp.training.model import PrivateModel
    from dpscp.training.prefit import Prefit
else:  # the numerical libraries take a second to import: a name imports them on first use
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
    __getattr__ = lazy_exports(_MODULES, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__version__ = "0.3.0"

__all__ = [
    "Budget",
    "BudgetError",
    "BudgetStore",
    "Certificate",
    "CoverageMonitor",
    "Groups",
    "GuaranteeWarning",
    "HintWarning",
    "Ledger",
    "NotFittedError",
    "Population",
    "Prefit",
    "PrivateConformalClassifier",
    "PrivateConformalRegressor",
    "PrivateModel",
    "PrivateMultilabelClassifier",
    "PrivateQuantile",
    "Release",
    "ReuseWarning",
    "RowNorm",
    "Schema",
    "SeededWarning",
    "__version__",
    "audit",
    "calibrate",
    "check_table",
    "control_risk",
    "evaluate",
    "guarantees",
    "load",
    "metrics",
    "paper",
    "plan",
    "predict_interval",
    "predict_set",
    "privacy",
    "private_quantile",
    "recalibrate",
    "scores",
    "sets",
    "sources",
    "threshold",
    "training",
]
