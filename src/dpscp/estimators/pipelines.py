"""Prediction sets and intervals of an estimator at the end of a scikit-learn Pipeline.

``Pipeline`` forwards ``predict`` and ``predict_proba`` to its last step, and no other method.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp.estimators.classifier import PrivateConformalClassifier
from dpscp.estimators.regressor import PrivateConformalRegressor

Step = TypeVar("Step", PrivateConformalClassifier, PrivateConformalRegressor)


def predict_set(pipeline: Any, X: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Predict labels and prediction sets through a fitted Pipeline.

    Parameters
    ----------
    pipeline : Pipeline that ends with a PrivateConformalClassifier, or such a classifier
    X : array or frame with n rows
        As in ``pipeline.predict``.

    Returns
    -------
    labels : array of shape (n,)
    sets : bool array of shape (n, n_classes, n_levels)
        See ``PrivateConformalClassifier.predict_set``. Whether steps that learn from records voided the promises is in
        ``pipeline[-1].ledger_`` and ``pipeline[-1].certificate_``.
    """
    estimator, rows = _find_last_step(pipeline, X, PrivateConformalClassifier, "predict_set")
    return estimator.predict_set(rows)


def predict_interval(pipeline: Any, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predict targets and prediction intervals through a fitted Pipeline.

    Parameters
    ----------
    pipeline : Pipeline that ends with a PrivateConformalRegressor, or such a regressor
    X : array or frame with n rows
        As in ``pipeline.predict``.

    Returns
    -------
    predictions : array of shape (n,)
    intervals : array of shape (n, 2, n_levels)
        See ``PrivateConformalRegressor.predict_interval``; for the promises, ``predict_set``.
    """
    estimator, rows = _find_last_step(pipeline, X, PrivateConformalRegressor, "predict_interval")
    return estimator.predict_interval(rows)


def _find_last_step(pipeline: Any, X: Any, kind: type[Step], method: str) -> tuple[Step, Any]:
    """Return the last step of nested pipelines, and the rows as it sees them; refuse another kind of step."""
    from sklearn.pipeline import Pipeline

    while isinstance(pipeline, Pipeline):
        X = pipeline[:-1].transform(X) if len(pipeline) > 1 else X
        pipeline = pipeline[-1]
    if not isinstance(pipeline, kind):
        raise TypeError(f"{method} needs a {kind.__name__} as last step, got {type(pipeline).__name__}")
    return pipeline, X
