"""scikit-learn's base classes, with types: its own have none, and an untyped base hides every typo from the checker."""

from typing import TYPE_CHECKING, Any, Self

__all__ = ["BaseEstimator", "ClassifierMixin", "RegressorMixin"]

if TYPE_CHECKING:

    class BaseEstimator:
        """What this package uses of scikit-learn's class."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """The constructor's parameters."""
            raise NotImplementedError

        def set_params(self, **params: Any) -> Self:
            """Change some of them."""
            raise NotImplementedError

    class ClassifierMixin:
        """Accuracy as ``score``."""

    class RegressorMixin:
        """R^2 as ``score``."""

else:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
