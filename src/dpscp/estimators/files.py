"""Load a saved estimator."""

from os import PathLike
from typing import Any

from dpscp.data import model_files as persistence
from dpscp.estimators.classifier import PrivateConformalClassifier
from dpscp.estimators.multilabel import PrivateMultilabelClassifier
from dpscp.estimators.regressor import PrivateConformalRegressor

_KINDS = (PrivateConformalClassifier, PrivateConformalRegressor, PrivateMultilabelClassifier)


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
        It predicts. A file does not hold the caller's mechanism, module or functions (of groups, scores and
        populations), so ``fit`` is refused until they are set again; a fit of the recipe (``estimator=None``) without
        such functions needs nothing.

    Raises
    ------
    ValueError
        For a file that is not of dpscp, truncated, altered or of a newer version, and for a module of another
        architecture.
    """
    header, arrays = persistence.read_file(path)
    kinds = {c.__name__: c for c in _KINDS}
    try:
        kind = kinds[header["class"]]
        estimator = kind(**persistence.restore_parameters(header["parameters"]))
        estimator._restore(header, arrays, module)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"the file cannot be loaded: {error}") from None
    return estimator
