"""Private, honest uncertainty: differentially private models with valid prediction sets, from all the data."""

from dpscp import guarantees, metrics, privacy, quantile, scores, sets, training
from dpscp.calibration import Calibration, calibrate
from dpscp.exceptions import BudgetError, GuaranteeWarning, NotFittedError, SeededWarning
from dpscp.guarantees import Certificate
from dpscp.privacy import Budget, Ledger
from dpscp.quantile import PrivateQuantile, private_quantile

__all__ = [
    "Budget",
    "BudgetError",
    "Calibration",
    "Certificate",
    "GuaranteeWarning",
    "Ledger",
    "NotFittedError",
    "PrivateQuantile",
    "SeededWarning",
    "calibrate",
    "guarantees",
    "metrics",
    "privacy",
    "private_quantile",
    "quantile",
    "scores",
    "sets",
    "training",
]
