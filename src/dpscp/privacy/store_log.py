"""The lines of a budget store and their meaning, without file access.

They state the total, the data set and what was spent. ``dpscp.privacy.store`` reads and writes the file.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dpscp._base.checks import check_probability
from dpscp._base.format import format_epsilon, format_number
from dpscp.exceptions import BudgetError
from dpscp.privacy.ledger import Budget, Ledger
from dpscp.privacy.rules import AdaptiveRule, SequenceRule, Share, StoreRule
from dpscp.privacy.units import join_units

_FIRST_DIGEST = "0" * 64
# Measured on 1 to 10 fits: Gaussian noise alone needs no slack, a split with a small part needs more.
_SLACK_SHARE = 0.05


@dataclass(frozen=True)
class Line:
    """One line of the file: the budget (line 0), a reservation, or its commit."""

    line: int
    kind: str
    reservation: str
    written: str
    note: str
    content: str
    digest: str

    def expected_digest(self, previous: str) -> str:
        """Return the digest that binds this line to all lines before it."""
        fields = [previous, self.line, self.kind, self.reservation, self.written, self.note, self.content]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


@dataclass(frozen=True)
class Account:
    """The lines of a store; each contains a digest of the line before."""

    lines: tuple[Line, ...] = ()

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]]) -> "Account":
        """Return the lines of the file; ``ValueError`` if a digest or line 0 is wrong."""
        lines = tuple(Line(*row) for row in rows)
        previous = _FIRST_DIGEST
        for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
            # SQLite accepts any type in any column: a damaged file may contain bytes instead of text
            texts = all(isinstance(value, str) for value in row[1:])
            if line.line != place or not texts or line.digest != line.expected_digest(previous):
                raise ValueError(f"the budget store was altered at line {place}; restore it from a backup")
            previous = line.digest
        if not lines or lines[0].kind != "budget":
            raise ValueError("the budget store was altered: it has no budget; restore it from a backup")
        return cls(lines)

    def next_line(self, kind: str, reservation: str, note: str, content: str) -> Line:
        """Return the next line with its digest."""
        last = self.lines[-1] if self.lines else Line(-1, "", "", "", "", "", _FIRST_DIGEST)
        # times must not decrease, even if the clock was set back
        written = max(datetime.now(UTC).isoformat(timespec="seconds"), last.written)
        line = Line(last.line + 1, kind, reservation, written, str(note), content, "")
        return replace(line, digest=line.expected_digest(last.digest))

    @property
    def _head(self) -> dict[str, Any]:
        try:
            content = json.loads(self.lines[0].content)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise ValueError("the budget store is damaged: its first line has no budget; restore it from a backup")
        return content

    @property
    def budget(self) -> Budget:
        """The total that was fixed when the store was created."""
        content = self._head
        try:
            return Budget(content["epsilon"], content["delta"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                "the budget store is damaged: its first line has no budget; restore it from a backup"
            ) from None

    @property
    def dataset(self) -> str:
        """The name of the records."""
        name = self._head.get("dataset")
        if not isinstance(name, str):
            raise ValueError(
                "the budget store is damaged: the name of its data set is not a text; restore it from a backup"
            )
        return name

    @property
    def rule(self) -> StoreRule:
        """The rule that decides whether a share fits."""
        content = self._head
        try:
            if "sequence" in content:
                return SequenceRule(self.budget, tuple(map(Ledger.from_dict, content["sequence"])))
            return AdaptiveRule(self.budget, check_probability("slack", content["slack"]))
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                "the budget store is damaged: its first line has no rule; restore it from a backup"
            ) from None

    def shares(self) -> dict[str, Share]:
        """Return each reservation with its commit, in the order of reservation."""
        found: dict[str, Share] = {}
        for line in self.lines[1:]:
            spent = Ledger.from_json(line.content)
            before = found.get(line.reservation)
            found[line.reservation] = Share(spent) if before is None else Share(before.reserved, spent)
        return found

    def ledger(self) -> Ledger:
        """Return commits, and reservations without a commit, as one ledger."""
        ledgers = [share.counted for share in self.shares().values()]
        entries = tuple(entry for ledger in ledgers for entry in ledger.entries)
        # each fit has its own facts, which would overwrite each other
        return Ledger(entries)

    def spent(self, delta: float | None = None) -> float:
        """Return epsilon of all shares at ``delta`` (default: the budget's)."""
        at = self.budget.delta if delta is None else check_probability("delta", delta)
        return self.rule.spent(tuple(self.shares().values()), at)

    def alone(self, line: Line) -> float:
        """Return the cost of one line alone, at the budget's delta."""
        return Ledger.from_json(line.content).epsilon(self.budget.delta)

    def require(self, identity: str, share: Share, trouble: str) -> None:
        """Raise ``BudgetError`` if ``share``, new or as a replacement, does not fit.

        Raise ``ValueError`` if it protects rows and the other shares protect persons with ids, or the reverse.
        """
        shares = self.shares() | {identity: share}
        join_units(other.counted.unit for other in shares.values())  # rows and persons are not added up
        try:
            self.rule.require(tuple(shares.values()), trouble)
        except BudgetError as error:
            raise BudgetError(
                f"{error} (spent so far: {format_epsilon(self.spent())} of {format_number(self.budget.epsilon)}); "
                "spend less, or start a new study with new records"
            ) from None


def slack_of(budget: Budget) -> float:
    """Return the default part of delta that a filter reserves."""
    return budget.delta * _SLACK_SHARE
