"""The estimators: from rows to private prediction sets with one call.

    rows -> public bounds -> private training -> scores -> private thresholds -> prediction sets

A fitted estimator holds parameters, thresholds, the ledger, the certificate and public facts. Nothing in it grows with
the number of records.
"""

from os import PathLike
from typing import Any, TypeVar

from dpscp.data.model_files import read_file, restore_parameters
from dpscp.estimators.classifier import PrivateConformalClassifier
from dpscp.estimators.fitted import FittedEstimator
from dpscp.estimators.multilabel import PrivateMultilabelClassifier
from dpscp.estimators.regressor import PrivateConformalRegressor

__all__ = [
    "PrivateConformalClassifier",
    "PrivateConformalRegressor",
    "PrivateMultilabelClassifier",
    "load",
    "predict_interval",
    "predict_set",
]

_KINDS: dict[str, type[FittedEstimator]] = {
    kind.__name__: kind for kind in (PrivateConformalClassifier, PrivateConformalRegressor, PrivateMultilabelClassifier)
}
Step = TypeVar("Step", PrivateConformalClassifier, PrivateConformalRegressor)


def load(path: str | PathLike[str], module: Any = None) -> Any:
    """Load the estimator that ``save`` wrote; nothing in the file is executed.

    Parameters
    ----------
    path : str or path
    module : torch.nn.Module, optional
        Required for a model that is a torch module, and refused for any other: a module of the saved architecture. Its
        own parameters are not used. It is copied, and must have the names, shapes and number types of the file and the
        same outputs on synthetic rows.

    Returns
    -------
    PrivateConformalClassifier, PrivateConformalRegressor or PrivateMultilabelClassifier
        It predicts. A file does not contain the caller's mechanism, module or functions (of groups, scores and
        populations), so ``fit`` is refused until they are set again. An estimator of the recipe (``estimator=None``)
        without such functions can be fitted again at once.

    Raises
    ------
    ValueError
        For a file that is not of dpscp, truncated, altered or of a newer version, and for a module of another
        architecture.
    """
    header, arrays = read_file(path)
    try:
        estimator = _KINDS[header["class"]](**restore_parameters(header["parameters"]))
        estimator._restore(header, arrays, module)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"the file cannot be loaded: {error}") from None
    return estimator


def predict_set(pipeline: Any, X: Any) -> Any:
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
        See ``PrivateConformalClassifier.predict_set``. ``pipeline[-1].ledger_`` and ``pipeline[-1].certificate_`` state
        whether steps that learn from records voided the promises.
    """
    estimator, rows = _find_last_step(pipeline, X, PrivateConformalClassifier, "predict_set")
    return estimator.predict_set(rows)


def predict_interval(pipeline: Any, X: Any) -> Any:
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
    """Return the last step of nested pipelines, and the rows as it sees them.

    Refuses another kind of step.
    """
    from sklearn.pipeline import Pipeline

    while isinstance(pipeline, Pipeline):
        X = pipeline[:-1].transform(X) if len(pipeline) > 1 else X
        pipeline = pipeline[-1]
    if not isinstance(pipeline, kind):
        raise TypeError(f"{method} needs a {kind.__name__} as last step, got {type(pipeline).__name__}")
    return pipeline, X
