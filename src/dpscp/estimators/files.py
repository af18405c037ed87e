"""Reading back a saved estimator."""

from os import PathLike
from typing import Any

from dpscp.data import model_files as persistence
from dpscp.estimators.classifier import PrivateConformalClassifier
from dpscp.estimators.regressor import PrivateConformalRegressor


def load(path: str | PathLike[str], module: Any = None) -> PrivateConformalClassifier | PrivateConformalRegressor:
    """The estimator that ``save`` wrote; nothing in the file is executed.

    ``module`` is needed for a model that is a torch module, and refused for any other: a ``torch.nn.Module`` of the
    architecture that was saved, whose own parameters do not matter. It is copied; names, shapes and kinds of numbers
    must be those of the file, and so must its outputs on made-up rows with the file's parameters.

    Raises ``ValueError`` for a file that is foreign, truncated, altered, or written by a newer version, and for a
    module of another architecture.
    """
    header, arrays = persistence.read_file(path)
    kinds = {c.__name__: c for c in (PrivateConformalClassifier, PrivateConformalRegressor)}
    try:
        kind = kinds[header["class"]]
        estimator = kind(**header["parameters"])
        estimator._restore(header, arrays, module)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"the file cannot be loaded: {error}") from None
    return estimator
