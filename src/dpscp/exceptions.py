"""The errors and warnings that carry a meaning of their own; every other mistake is a ValueError or TypeError."""

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
    """A privacy target cannot be met: the message states the target, what is possible, and what to change."""


class UnsupportedEventError(ValueError):
    """An accountant cannot account for an event."""


class GuaranteeWarning(UserWarning):
    """A promise is weaker than the caller may expect (vacuous certificate, threshold at the end of its range)."""


class HintWarning(UserWarning):
    """Every promise holds, and a public number that the caller may know would make the sets smaller."""


class ReuseWarning(GuaranteeWarning):
    """Records were used before in this process, without one budget store for all uses: the costs add up."""


class SeededWarning(GuaranteeWarning):
    """The run used a seed: it can be repeated by anybody who knows the seed, so it is not private."""
