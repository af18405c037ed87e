"""The estimators: one call from rows to private prediction sets. The only place where the rooms are wired together.

    rows -> public bounds -> private training -> scores -> private thresholds -> prediction sets

A fitted estimator holds parameters, thresholds, the ledger, the certificate and public facts, and nothing whose size
grows with the records.
"""

from dpscp.estimators.classifier import PrivateConformalClassifier
from dpscp.estimators.files import load
from dpscp.estimators.regressor import PrivateConformalRegressor

__all__ = ["PrivateConformalClassifier", "PrivateConformalRegressor", "load"]
