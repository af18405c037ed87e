"""Reading back a saved estimator."""

from os import PathLike

from dpscp import persistence
from dpscp.conformal.classifier import PrivateConformalClassifier
from dpscp.conformal.regressor import PrivateConformalRegressor

__all__ = ["load"]


def load(path: str | PathLike[str]) -> PrivateConformalClassifier | PrivateConformalRegressor:
    """The estimator that ``save`` wrote; nothing in the file is executed.

    Raises ``ValueError`` for a file that is foreign, truncated, altered, or written by a newer version.
    """
    header, arrays = persistence.read_file(path)
    kinds = {c.__name__: c for c in (PrivateConformalClassifier, PrivateConformalRegressor)}
    try:
        kind = kinds[header["class"]]
        estimator = kind(**header["parameters"])
        estimator._restore(header, arrays)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"the file cannot be loaded: {error}") from None
    return estimator
