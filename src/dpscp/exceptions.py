"""Define the errors and warnings with a meaning of their own.

Every other mistake is a ``ValueError`` or ``TypeError``.
"""

from sklearn.exceptions import NotFittedError

__all__ = [
    "BudgetError",
    "GuaranteeWarning",
    "HintWarning",
    "NotFittedError",
    "ReuseWarning",
    "SeededWarning",
    "UnsupportedEventError",
]


class BudgetError(ValueError):
    """Raised if a privacy target cannot be met.

    The message states the target, what is possible, and what to change.
    """


class UnsupportedEventError(ValueError):
    """An accountant cannot account for an event."""


class GuaranteeWarning(UserWarning):
    """Warns that a promise is weaker than the caller may expect.

    Examples: a vacuous certificate, a threshold at the end of its range.
    """


class HintWarning(UserWarning):
    """Warns that a public number could be declared to make the sets smaller.

    Every promise holds without it.
    """


class ReuseWarning(GuaranteeWarning):
    """Warns that records were used before without one store for all uses.

    The uses were in this process, and their costs add up.
    """


class SeededWarning(GuaranteeWarning):
    """Warns that the run used a seed, so it is not private.

    Anybody who knows the seed can repeat the run.
    """
