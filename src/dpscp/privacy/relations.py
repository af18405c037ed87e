"""The neighboring relation: between which two tables a privacy promise holds."""

from collections.abc import Iterable
from enum import StrEnum

__all__ = ["Relation"]


class Relation(StrEnum):
    """Between which two tables a step is private.

    A promise for adding or removing one unit implies one for replacing one unit, at the cost of two: the old one is
    removed, and the new one is added. The other direction has no proof.
    """

    ADD_OR_REMOVE = "add or remove one"
    """One unit is in one of the two tables only."""
    REPLACE_ONE = "replace one"
    """Both tables have the same number of units, and one unit differs. The step may use their true number."""

    @property
    def steps(self) -> int:
        """How many units are added or removed on the way from one table to the other."""
        return 2 if self is Relation.REPLACE_ONE else 1

    @staticmethod
    def joined(relations: "Iterable[Relation]") -> "Relation":
        """Return the relation of a composition: steps about a replacement make the whole one about a replacement."""
        return Relation.REPLACE_ONE if Relation.REPLACE_ONE in set(relations) else Relation.ADD_OR_REMOVE
