"""Private, honest uncertainty: differentially private models with valid prediction sets."""

from dpscp.exceptions import BudgetError, GuaranteeWarning, NotFittedError, SeededWarning

__all__ = ["BudgetError", "GuaranteeWarning", "NotFittedError", "SeededWarning"]
