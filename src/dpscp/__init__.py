"""Private, honest uncertainty: differentially private models with valid prediction sets, from all the data."""

from typing import TYPE_CHECKING

from dpscp._elsewhere import held_by
from dpscp.audit import audit  # now: later, importing the room of this name would put the room in its place

if TYPE_CHECKING:
    from dpscp import baselines, guarantees, metrics, privacy, quantile, scores, sets, training
    from dpscp.budget import BudgetStore
    from dpscp.calibration import Calibration, calibrate
    from dpscp.conformal import PrivateConformalClassifier, PrivateConformalRegressor, load
    from dpscp.deployment import CoverageMonitor, evaluate
    from dpscp.exceptions import BudgetError, GuaranteeWarning, HintWarning, NotFittedError, SeededWarning
    from dpscp.guarantees import Certificate
    from dpscp.planning import plan
    from dpscp.privacy import Budget, Ledger
    from dpscp.quantile import PrivateQuantile, private_quantile
    from dpscp.schema import Schema
    from dpscp.training.private_model import PrivateModel
else:  # the numerical libraries below take a second to import: a name brings them in when it is asked for
    _HOLDERS = {
        "Budget": "dpscp.privacy",
        "BudgetError": "dpscp.exceptions",
        "BudgetStore": "dpscp.budget",
        "Calibration": "dpscp.calibration",
        "Certificate": "dpscp.guarantees",
        "CoverageMonitor": "dpscp.deployment",
        "GuaranteeWarning": "dpscp.exceptions",
        "HintWarning": "dpscp.exceptions",
        "Ledger": "dpscp.privacy",
        "NotFittedError": "dpscp.exceptions",
        "PrivateConformalClassifier": "dpscp.conformal",
        "PrivateConformalRegressor": "dpscp.conformal",
        "PrivateModel": "dpscp.training.private_model",
        "PrivateQuantile": "dpscp.quantile",
        "Schema": "dpscp.schema",
        "SeededWarning": "dpscp.exceptions",
        "calibrate": "dpscp.calibration",
        "evaluate": "dpscp.deployment",
        "load": "dpscp.conformal",
        "plan": "dpscp.planning",
        "private_quantile": "dpscp.quantile",
    }
    __getattr__ = held_by(_HOLDERS, __name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__version__ = "0.3.0"

__all__ = [
    "Budget",
    "BudgetError",
    "BudgetStore",
    "Calibration",
    "Certificate",
    "CoverageMonitor",
    "GuaranteeWarning",
    "HintWarning",
    "Ledger",
    "NotFittedError",
    "PrivateConformalClassifier",
    "PrivateConformalRegressor",
    "PrivateModel",
    "PrivateQuantile",
    "Schema",
    "SeededWarning",
    "__version__",
    "audit",
    "baselines",
    "calibrate",
    "evaluate",
    "guarantees",
    "load",
    "metrics",
    "plan",
    "privacy",
    "private_quantile",
    "quantile",
    "scores",
    "sets",
    "training",
]
