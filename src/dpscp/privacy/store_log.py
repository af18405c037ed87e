"""The lines of a budget store and what they say: a total, whose records it is for, and what was spent of it.

Pure: where the lines lie, and who may write, is the store's business (``dpscp.privacy.store``).
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dpscp._base.checks import check_probability
from dpscp._base.format import format_epsilon, format_number
from dpscp.exceptions import BudgetError
from dpscp.privacy.ledger import Budget, Ledger
from dpscp.privacy.rules import AdaptiveRule, CalibrationRule, SequenceRule, Share

_FIRST_DIGEST = "0" * 64
# Measured on 1 to 10 fits: Gaussian noise alone would want none, a split with a small part wants more.
_SLACK_SHARE = 0.05


@dataclass(frozen=True)
class Line:
    """One line of the file: the budget itself (line 0), a reservation, or the commit that replaces one."""

    line: int
    kind: str
    reservation: str
    written: str
    note: str
    content: str
    digest: str

    def expected_digest(self, previous: str) -> str:
        """The digest that binds this line to everything before it."""
        fields = [previous, self.line, self.kind, self.reservation, self.written, self.note, self.content]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


@dataclass(frozen=True)
class Account:
    """The lines of a store, each sealed by the last."""

    lines: tuple[Line, ...] = ()

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]]) -> "Account":
        """The rows of the file; ``ValueError`` unless the first is a budget and each is sealed by the last."""
        lines = tuple(Line(*row) for row in rows)
        previous = _FIRST_DIGEST
        for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
            # SQLite keeps any type in any column: a damaged file may hold bytes where a text was
            texts = all(isinstance(value, str) for value in row[1:])
            if line.line != place or not texts or line.digest != line.expected_digest(previous):
                raise ValueError(f"the budget store was altered at line {place}; restore it from a backup")
            previous = line.digest
        if not lines or lines[0].kind != "budget":
            raise ValueError("the budget store was altered: it has no budget; restore it from a backup")
        return cls(lines)

    def next_line(self, kind: str, reservation: str, note: str, content: str) -> Line:
        """The line that comes after these, sealed."""
        last = self.lines[-1] if self.lines else Line(-1, "", "", "", "", "", _FIRST_DIGEST)
        # a clock that went backwards must not make the file look out of order
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
            raise ValueError("the budget store is damaged: its first line holds no budget")
        return content

    @property
    def budget(self) -> Budget:
        """The total that was fixed when the store was created."""
        content = self._head
        try:
            return Budget(content["epsilon"], content["delta"])
        except (KeyError, TypeError, ValueError):
            raise ValueError("the budget store is damaged: its first line holds no budget") from None

    @property
    def dataset(self) -> str | None:
        """The name of the records that the total belongs to; None in a file of an earlier release."""
        name = self._head.get("dataset")
        if name is not None and not isinstance(name, str):
            raise ValueError("the budget store is damaged: its data set has no name")
        return name

    @property
    def rule(self) -> CalibrationRule:
        """What decides whether one more share fits; the filter in a file of an earlier release."""
        content = self._head
        try:
            if "sequence" in content:
                return SequenceRule(self.budget, tuple(map(Ledger.from_dict, content["sequence"])))
            return AdaptiveRule(self.budget, check_probability("slack", content.get("slack", slack_of(self.budget))))
        except (TypeError, ValueError):
            raise ValueError("the budget store is damaged: its first line holds no rule") from None

    def shares(self) -> dict[str, Share]:
        """Every reservation and the commit in its place, by its identity, in the order of the reservations."""
        found: dict[str, Share] = {}
        for line in self.lines[1:]:
            spent = Ledger.from_json(line.content)
            before = found.get(line.reservation)
            found[line.reservation] = Share(spent) if before is None else Share(before.reserved, spent)
        return found

    def ledger(self) -> Ledger:
        """Commits, and reservations without one, as one ledger in the order of the reservations."""
        total = Ledger()
        for share in self.shares().values():
            total = total.then(share.counted)
        # facts belong to one fit each and would overwrite one another
        return Ledger(total.entries, {}, total.seeded)

    def spent(self, delta: float | None = None) -> float:
        """Epsilon at ``delta`` (None: the budget's) of all shares, by the rule that decides."""
        at = self.budget.delta if delta is None else check_probability("delta", delta)
        return self.rule.spent(tuple(self.shares().values()), at)

    def alone(self, line: Line) -> float:
        """What a line costs by itself at the budget's delta: composition is not a sum."""
        ledger = Ledger.from_json(line.content)
        return math.inf if ledger.seeded else ledger.epsilon(self.budget.delta)

    def require(self, identity: str, share: Share, trouble: str) -> None:
        """``BudgetError`` if ``share``, new or in the place of the one of this identity, does not fit."""
        shares = self.shares() | {identity: share}
        try:
            self.rule.require(tuple(shares.values()), trouble)
        except BudgetError as error:
            raise BudgetError(
                f"{error} (now {format_epsilon(self.spent())} of {format_number(self.budget.epsilon)}); spend less, or "
                "start a new study with new records"
            ) from None


def slack_of(budget: Budget) -> float:
    """The part of delta that a filter sets aside where nothing else is said."""
    return budget.delta * _SLACK_SHARE
