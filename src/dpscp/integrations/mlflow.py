"""Log and load fitted estimators as MLflow models (flavor "python_function").

Needs the extra ``dpscp[mlflow]``.

A logged model is the file of ``estimator.save``, which has no pickle and no record. It predicts the columns of
``predict_columns``: ``prediction`` with ``set`` and ``set_size``, or with ``lower`` and ``upper``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpscp.estimators import load
from dpscp.report.statement import statement_markdown

_FILE = "model.dpscp"


def log_model(estimator: Any, name: str = "model", **options: Any) -> Any:
    """Log a fitted estimator in the active run of MLflow.

    The run gets the statement as JSON and Markdown, and tags with epsilon, delta, the proven coverage and the digest of
    the release.

    Parameters
    ----------
    estimator : PrivateConformalClassifier, PrivateConformalRegressor or PrivateMultilabelClassifier
    name : str
        The name of the model in the run.
    options
        Passed on to ``mlflow.pyfunc.log_model``, such as ``registered_model_name``.

    Returns
    -------
    mlflow.models.model.ModelInfo

    Privacy: what is logged is the release and its statement; nothing is computed from records.
    """
    mlflow = _library()
    statement = estimator.statement()
    with _described(estimator) as parts:
        found = mlflow.pyfunc.log_model(name=name, **parts, **options)
    mlflow.set_tags(parts["metadata"])
    mlflow.log_dict(statement, f"{name}-statement.json")
    mlflow.log_text(statement_markdown(statement), f"{name}-statement.md")
    return found


def save_model(estimator: Any, path: str | PathLike[str], **options: Any) -> None:
    """Write a fitted estimator as an MLflow model into a new folder.

    Parameters
    ----------
    estimator : PrivateConformalClassifier, PrivateConformalRegressor or PrivateMultilabelClassifier
    path : str or path
        The folder.
    options
        Passed on to ``mlflow.pyfunc.save_model``.
    """
    mlflow = _library()
    with _described(estimator) as parts:
        mlflow.pyfunc.save_model(path=path, **parts, **options)


def load_model(uri: str) -> Any:
    """Return the estimator of a logged model, with ledger and certificates.

    Parameters
    ----------
    uri : str
        As MLflow writes it: ``runs:/ID/model``, ``models:/NAME/1``, or the path of a folder. A caller without dpscp
        habits uses ``mlflow.pyfunc.load_model(uri).predict(frame)`` instead.

    Returns
    -------
    estimator
    """
    mlflow = _library()
    folder = Path(mlflow.artifacts.download_artifacts(uri))
    return load(folder / mlflow.models.Model.load(str(folder)).flavors["python_function"]["data"])


def _library() -> Any:
    try:
        import mlflow
    except ImportError:
        raise ImportError("MLflow is missing; install it with pip install 'dpscp[mlflow]'") from None
    return mlflow


@contextmanager
def _described(estimator: Any) -> Iterator[dict[str, Any]]:
    """Yield the MLflow arguments that describe an estimator in a temporary file."""
    ledger, delta = estimator.ledger_, float(estimator.delta)
    facts = {
        "dpscp.epsilon": ledger.epsilon(delta),
        "dpscp.delta": delta,
        "dpscp.neighbors": ledger.neighbors,
        "dpscp.is_private": ledger.is_private,
        "dpscp.coverage": estimator.certificate_.coverage,
        "dpscp.digest": estimator.digest(),
    }
    with TemporaryDirectory() as folder:
        estimator.save(Path(folder, _FILE))
        load(Path(folder, _FILE))  # a torch module has no code in its file: refused here, and not by who loads it
        yield {
            "loader_module": __name__,
            "data_path": str(Path(folder, _FILE)),
            "signature": _signature(estimator),
            "metadata": facts,
            "pip_requirements": [f"dpscp[tables]=={version('dpscp')}"],
        }


def _signature(estimator: Any) -> Any:
    """Return the columns that predictions need, or None without a schema."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, Schema

    if estimator.schema_ is None:
        return None
    any_number: Any = AnyType()  # type: ignore[no-untyped-call]  # MLflow tells whole numbers from others
    columns = [
        ColSpec("string" if column.type == "categorical" else any_number, column.name)
        for column in estimator.schema_.feature_columns
    ]
    return ModelSignature(inputs=Schema([*columns]))


class _Predictor:
    """Predict frames for MLflow."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def predict(self, model_input: Any, params: Any = None) -> Any:  # noqa: ARG002 (MLflow passes it)
        """Return the columns of ``predict_columns`` as a frame with the index of the rows."""
        import pandas as pd

        return pd.DataFrame(self._estimator.predict_columns(model_input), index=getattr(model_input, "index", None))


def _load_pyfunc(path: str) -> _Predictor:
    """Return what MLflow predicts with; MLflow calls it by this name."""
    return _Predictor(load(path))
