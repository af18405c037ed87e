"""Steps and mechanisms that are for rows of one width."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class FixedWidth(Protocol):
    """A step or mechanism that may have one number for each feature."""

    @property
    def input_width(self) -> int | None:
        """Return the number of columns that it is for; None for rows of any width."""


def check_width(mechanism: object, width: int) -> None:
    """Refuse a mechanism that is for rows of another width."""
    if isinstance(mechanism, FixedWidth) and mechanism.input_width not in (None, width):
        raise ValueError(
            f"{type(mechanism).__name__} is for rows of {mechanism.input_width} features, but X has {width}; pass "
            f"n_features={width}"
        )
