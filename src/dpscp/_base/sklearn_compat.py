"""Typed stand-ins for the base classes of scikit-learn.

Those have no types, and an untyped base class hides errors from the type checker.
"""

from typing import TYPE_CHECKING, Any, Self

__all__ = ["BaseEstimator", "ClassifierMixin", "RegressorMixin"]

if TYPE_CHECKING:

    class BaseEstimator:
        """The part of scikit-learn's class that this package uses."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """Return the parameters of the constructor."""
            raise NotImplementedError

        def set_params(self, **params: Any) -> Self:
            """Change some parameters."""
            raise NotImplementedError

    class ClassifierMixin:
        """Accuracy as ``score``."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return the accuracy of ``predict``."""
            raise NotImplementedError

    class RegressorMixin:
        """R^2 as ``score``."""

        def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
            """Return R^2 of ``predict``."""
            raise NotImplementedError

else:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
