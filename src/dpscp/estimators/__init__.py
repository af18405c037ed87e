"""The estimators: from rows to private prediction sets with one call.

    rows -> public bounds -> private training -> scores -> private thresholds -> prediction sets

A fitted estimator holds parameters, thresholds, the ledger, the certificate and public facts. Nothing in it grows with
the number of records.
"""

from dpscp.estimators.classifier import PrivateConformalClassifier
from dpscp.estimators.files import load
from dpscp.estimators.multilabel import PrivateMultilabelClassifier
from dpscp.estimators.pipelines import predict_interval, predict_set
from dpscp.estimators.regressor import PrivateConformalRegressor

__all__ = [
    "PrivateConformalClassifier",
    "PrivateConformalRegressor",
    "PrivateMultilabelClassifier",
    "load",
    "predict_interval",
    "predict_set",
]
