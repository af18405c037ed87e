"""Private, honest uncertainty: differentially private models with valid prediction sets, from all the data."""

from dpscp import baselines, guarantees, metrics, privacy, quantile, scores, sets, training
from dpscp.audit import audit
from dpscp.budget import BudgetStore
from dpscp.calibration import Calibration, calibrate
from dpscp.conformal import PrivateConformalClassifier, PrivateConformalRegressor, load
from dpscp.exceptions import BudgetError, GuaranteeWarning, NotFittedError, SeededWarning
from dpscp.guarantees import Certificate
from dpscp.planning import plan
from dpscp.privacy import Budget, Ledger
from dpscp.quantile import PrivateQuantile, private_quantile
from dpscp.schema import Schema
from dpscp.training.private_model import PrivateModel

__version__ = "0.2.0"

__all__ = [
    "Budget",
    "BudgetError",
    "BudgetStore",
    "Calibration",
    "Certificate",
    "GuaranteeWarning",
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
