"""A study's total privacy budget in one SQLite file that several processes and many months can share.

    BudgetStore.create("study.budget", epsilon=3.0, delta=1e-6, dataset="clinic 2025")     # once
    store = BudgetStore.open("study.budget", dataset="clinic 2025")                        # from then on
    clf.fit(X, y, budget=store)                                                            # reserves, trains, commits
    store.remaining()

A total belongs to one set of records. The file carries a name for it, given once by ``create``; whoever spends repeats
the name, so that a fit on other records is not charged here by mistake, nor a missing file replaced by a fresh total.

Before a fit uses a record it *reserves* what it is going to spend; after it has finished it *commits* what it spent. A
reservation without a commit counts as spent: whoever kills a fit half-way has still looked at the records. A
reservation is written in one transaction that first takes the only write lock and then adds everything up, so two
processes can never both get the last share.

The file only grows: the database refuses to change or delete a line, each line carries the digest of the one before,
and all digests are checked whenever the file is read. The order is the line number and never the clock. What the file
cannot do is protect itself from its owner: a copy or an older backup knows nothing of what was spent since.
"""

import errno
import json
import math
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from os import PathLike
from typing import Any

from dp_accounting.dp_event import DpEvent

from dpscp._base.checks import check_probability
from dpscp._base.format import format_epsilon, format_number, format_remaining_epsilon
from dpscp.exceptions import BudgetError
from dpscp.privacy import Budget, Ledger
from dpscp.privacy.events import require_event
from dpscp.privacy.rules import SequenceRule, Share
from dpscp.privacy.store_log import Account, Line, slack_of

__all__ = ["BudgetStore", "Line", "Reservation"]

_FORMAT = "dpscp-budget"
# Version 1 had no name of the data set; such a file stays valid, and spending from it repeats none. Version 3 says by
# which rule shares are added up; the filter decides on earlier files too, with its default slack.
_VERSION = 3
_READABLE = (1, 2, 3)
# "DPSB" in SQLite's application_id: `file study.budget` and a foreign database tell themselves apart.
_APPLICATION_ID = 0x44505342
_LOCK_SECONDS = 60.0

_SEEDED = (
    "a budget store pays for private runs only, and the noise of this one comes from a seed: use random_state=None (no "
    "--seed), or run it without the store and release nothing of it"
)
_GROUPED = (
    "a budget store adds up what one record or one person with ids costs, and this ledger is about several records at "
    "once without ids: fit with persons=..., or run it without the store"
)

_SCHEMA = (
    "CREATE TABLE lines (line INTEGER PRIMARY KEY CHECK (line >= 0), kind TEXT NOT NULL CHECK (kind IN "
    "('budget', 'reserve', 'commit')), reservation TEXT NOT NULL, written TEXT NOT NULL, note TEXT NOT NULL, "
    "content TEXT NOT NULL, digest TEXT NOT NULL, UNIQUE (kind, reservation))",
    "CREATE TRIGGER no_update BEFORE UPDATE ON lines BEGIN SELECT RAISE(ABORT, 'lines are never changed'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON lines BEGIN SELECT RAISE(ABORT, 'lines are never deleted'); END",
    # INSERT OR REPLACE deletes without asking the trigger above
    "CREATE TRIGGER in_order BEFORE INSERT ON lines WHEN NEW.line IS NOT (SELECT COALESCE(MAX(line), -1) + 1 FROM "
    "lines) OR EXISTS (SELECT 1 FROM lines WHERE kind = NEW.kind AND reservation = NEW.reservation) "
    "BEGIN SELECT RAISE(ABORT, 'lines are only appended'); END",
)


@dataclass(frozen=True)
class Reservation:
    """A share that already counts as spent; ``commit`` replaces it by what really happened."""

    store: "BudgetStore"
    identity: str

    def commit(self, spent: Ledger | DpEvent, note: str | None = None) -> None:
        """See ``BudgetStore.commit``."""
        self.store.commit(self, spent, note)


class BudgetStore:
    """The total budget of a study and everything spent from it, in one file.

    ``BudgetStore.create`` makes the file and refuses one that exists; ``BudgetStore.open`` and the plain constructor
    open it and never create: a missing file must not pass for an unspent total. ``epsilon`` and ``delta`` of the
    constructor are a check that the file holds this very total. ``dataset`` repeats the name that the file was created
    with; reading works without, spending does not. The object holds path and name only: it can be pickled and used from
    several processes at once.

    Promise: everything ever reserved and not replaced by a smaller commit is together (epsilon, delta)-DP for adding or
    removing one record, also where each fit was chosen by what earlier ones released (``sequence``: where it was not),
    whatever processes run at once and wherever they are killed. It holds for one set of records (the name is the user's
    word that it is the same one) and for releases that go through the store; copies of the file do not know of each
    other. Runs whose noise came from a seed are not private, so they are refused.

    Raises ``BudgetError`` when a share does not fit, ``ValueError`` for another name, a seeded run, or a file that is
    foreign, altered, damaged or too new, ``FileNotFoundError`` and ``FileExistsError`` where opening and creating are
    mixed up, ``PermissionError`` for a file that cannot be written, ``TimeoutError`` when another process holds the
    lock for a minute, ``OSError`` for a full disk. After any of them the file is as it was before the call.

    >>> import tempfile, os
    >>> from dpscp.privacy import gaussian_event
    >>> path = os.path.join(tempfile.mkdtemp(), "study.budget")
    >>> store = BudgetStore.create(path, epsilon=1.0, delta=1e-6, dataset="clinic 2025")
    >>> reservation = store.reserve(gaussian_event(8.0), note="first model")
    >>> reservation.commit(gaussian_event(10.0))
    >>> 0 < store.remaining() < 1, BudgetStore.open(path).ledger().entries[0].note
    (True, 'first model')

    Theory: docs/guarantees.md, the budget store
    """

    def __init__(
        self,
        path: str | PathLike[str],
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        dataset: str | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._repeated = dataset
        if (epsilon is None) != (delta is None):
            raise ValueError("give both epsilon and delta to check a store's total, or neither")
        wanted = None if epsilon is None or delta is None else Budget(epsilon, delta)
        if not os.path.exists(self.path):
            raise FileNotFoundError(
                f"no budget store at {self.path!r}; if it was moved, open it there; if the study is new, make it with "
                "BudgetStore.create(path, epsilon=..., delta=..., dataset=...) or 'dpscp budget create'"
            )
        account = self._read()
        existing = account.budget
        if wanted is not None and existing != wanted:
            raise ValueError(
                f"{self.path!r} exists with epsilon = {format_number(existing.epsilon)}, "
                f"delta = {format_number(existing.delta)}; open it without a budget, or take another path: a budget "
                "is never changed afterwards"
            )
        if dataset is not None:
            self._require_name(account)

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        epsilon: float,
        delta: float,
        *,
        dataset: str,
        sequence: Sequence[Ledger | DpEvent] | None = None,
        slack: float | None = None,
    ) -> "BudgetStore":
        """A new file with this total, for the records that ``dataset`` names; ``FileExistsError`` if there is a file.

        The name is public: it appears in ``summary`` and is repeated by everybody who spends. ``sequence`` declares
        every fit ahead, as events or ledgers in their order: such a total adds up more tightly, and refuses any other
        fit. ``slack`` is the part of delta (default: a twentieth) for what Gaussian noise does not cover; more of it
        helps steps of which only an epsilon and a delta are known.
        """
        budget = Budget(epsilon, delta)
        rule = _rule_content(budget, sequence, slack)
        if not isinstance(dataset, str) or not dataset.strip():
            raise ValueError(f"dataset must be a text that names the records, such as 'clinic 2025', got {dataset!r}")
        store = cls.__new__(cls)
        store.path, store._repeated = os.path.abspath(os.fspath(path)), dataset
        try:
            # claims the name in one step: of two processes that create at once, one is refused
            os.close(os.open(store.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        except FileExistsError:
            raise FileExistsError(
                errno.EEXIST,
                "there is a file already, which may hold what was spent: open it with BudgetStore.open, or take "
                "another path for a new study on new records",
                store.path,
            ) from None
        except OSError as error:
            raise OSError(
                error.errno, "the budget store cannot be made: check that its folder exists and may be used", store.path
            ) from None
        try:
            with store._transaction() as connection:
                _write_head(connection, budget, dataset, rule)
        except BaseException:
            if os.path.getsize(store.path) == 0:  # written in one piece: what has a length is a whole store
                os.unlink(store.path)
            raise
        return store

    @classmethod
    def open(cls, path: str | PathLike[str], *, dataset: str | None = None) -> "BudgetStore":
        """The store in an existing file; ``dataset`` repeats its name, which spending needs and reading does not."""
        return cls(path, dataset=dataset)

    def __repr__(self) -> str:
        return f"BudgetStore({self.path!r})"

    # ---- what is known

    @property
    def budget(self) -> Budget:
        """The total that was fixed when the file was created."""
        return self._read().budget

    @property
    def dataset(self) -> str | None:
        """The name of the records that the total belongs to; None in a file of an earlier release."""
        return self._read().dataset

    def lines(self) -> tuple[Line, ...]:
        """Everything in the file, in order, checked."""
        return self._read().lines

    def ledger(self) -> Ledger:
        """What counts as spent: every commit, and every reservation that was never committed."""
        return self._read().ledger()

    def spent(self, delta: float | None = None) -> float:
        """Epsilon of everything that counts as spent, at ``delta`` (default: the budget's), by the rule that decides.

        That rule allows fits that were chosen by what earlier ones released, so this is a little more than the epsilon
        of ``ledger()``, which holds for a sequence that was fixed ahead. What is promised is the total.
        """
        return self._read().spent(delta)

    def remaining(self, delta: float | None = None) -> float:
        """How far epsilon at ``delta`` (default: the budget's) lies below the total.

        Composition is not a sum, so this is a summary and not a price list: ``fits`` answers for one event.
        """
        account = self._read()
        return account.budget.epsilon - account.spent(delta)

    def fits(self, event: Ledger | DpEvent) -> bool:
        """Whether this could be reserved now; another process may be faster, so only ``reserve`` decides."""
        try:
            self._read().require("", Share(_as_ledger(event, "")), "the share does not fit")
        except BudgetError:
            return False
        return True

    def summary(self) -> str:
        """A few lines for a person: the total, what is spent, and every line of the file."""
        account = self._read()
        budget, ledger = account.budget, account.ledger()
        spent = account.spent()
        done = {line.reservation for line in account.lines if line.kind == "commit"}
        text = [f"data set: {account.dataset or 'not named'}"]
        if ledger.seeded:
            text.append("NOT private: an earlier release charged a seeded run here, which no budget covers")
        text += [
            f"budget: epsilon {format_number(budget.epsilon)} at delta {format_number(budget.delta)}",
            f"rule: {account.rule.words}",
            f"spent: epsilon {format_epsilon(spent)} by this rule; remaining "
            f"{format_remaining_epsilon(budget.epsilon - spent)}",
        ]
        for line in account.lines[1:]:
            state = " (never committed: counts as spent)" if line.kind == "reserve" else ""
            if line.kind == "commit" or line.reservation not in done:
                alone = format_epsilon(account.alone(line))
                text.append(f"{line.line}: {line.written} {line.kind} epsilon {alone} alone: {line.note}{state}")
        return "\n".join(text)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON values; None for an infinite epsilon, which JSON has not."""
        account = self._read()
        budget, ledger, rule = account.budget, account.ledger(), account.rule
        spent = account.spent()
        return {
            "path": self.path,
            "dataset": account.dataset,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "rule": rule.name,
            "spent": _finite(spent),
            "remaining": _finite(budget.epsilon - spent),
            "entries": ledger.to_dict()["entries"],
            "lines": [
                {"line": x.line, "kind": x.kind, "reservation": x.reservation, "written": x.written, "note": x.note}
                | ({} if x.kind == "budget" else {"epsilon": _finite(account.alone(x))})
                for x in account.lines
            ],
        }

    # ---- what is spent

    def require_spendable(self, *, seeded: bool) -> None:
        """``ValueError`` for a run that this store cannot pay for, whatever it costs: seeded, or for other records."""
        if seeded:
            raise ValueError(_SEEDED)
        self._require_name(self._read())

    def _require_name(self, account: Account) -> None:
        name = account.dataset
        if name is not None and self._repeated != name:
            given = "none was given" if self._repeated is None else f"got {self._repeated!r}"
            raise ValueError(
                f"dataset must be {name!r}, the name of the records that this total belongs to; {given}. If the fit is "
                "on these records, open the store with BudgetStore.open(path, dataset=...) or --dataset; other records "
                "have a store of their own"
            )

    def reserve(self, event: Ledger | DpEvent, note: str = "") -> Reservation:
        """Set a share aside before any record is used; ``BudgetError`` if it does not fit.

        The share counts as spent from now on, whatever happens to this process. A seeded ledger is refused.
        """
        share = _as_ledger(event, note)
        self.fits(share)  # accounting is cached: the lock below is then held for milliseconds only
        identity = uuid.uuid4().hex
        with self._transaction() as connection:
            account = _checked_account(connection)
            self._require_name(account)
            account.require(identity, Share(share), "the share does not fit")
            _append(connection, account.next_line("reserve", identity, note, share.to_json()))
        return Reservation(self, identity)

    def commit(self, reservation: Reservation, spent: Ledger | DpEvent, note: str | None = None) -> None:
        """Replace a reservation by what was spent; ``note=None`` keeps the reservation's note.

        Less than was reserved is counted as less for Gaussian releases only: how many other steps a run takes may have
        been decided by what it saw. If it is more than was reserved and no longer fits, ``BudgetError`` is raised; if
        it is seeded, ``ValueError``. The reservation then stays and the caller must not release anything.
        """
        with self._transaction() as connection:
            account = _checked_account(connection)
            known = [line for line in account.lines if line.reservation == reservation.identity]
            if [line.kind for line in known] != ["reserve"]:
                raise ValueError("this reservation is not in the store, or it was committed before")
            note = known[0].note if note is None else note
            share = _as_ledger(spent, note)
            replaced = Share(Ledger.from_json(known[0].content), share)
            account.require(reservation.identity, replaced, "the run spent other than it had reserved: release nothing")
            _append(connection, account.next_line("commit", reservation.identity, note, share.to_json()))

    # ---- the file

    def _read(self) -> Account:
        # a writer that was killed leaves a journal, and reading rolls it back: that needs the right to write
        with self._errors(), self._connection() as connection:
            return _checked_account(connection)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """The only write lock, taken before anything is read; all or nothing."""
        with self._errors(), self._connection() as connection:
            # every write reaches the disk, the folder's entry included, before the transaction counts
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        quoted = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        # never "rwc": a file that is not there must not be replaced by an empty one
        connection = sqlite3.connect(f"file:{quoted}?mode=rw", uri=True, timeout=_LOCK_SECONDS, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors as errors that say what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._explained(error) from None

    def _explained(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", None)
        primary = None if code is None else code & 0xFF
        if primary == sqlite3.SQLITE_FULL:
            return OSError(
                errno.ENOSPC, "the disk is full: nothing was written; free some space and try again", self.path
            )
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return PermissionError(
                errno.EACCES,
                "the budget store cannot be written, so nothing may be spent; make the file and its folder writable",
                self.path,
            )
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return TimeoutError(
                errno.ETIMEDOUT,
                f"another process has held the budget store for {_LOCK_SECONDS:g} s; wait for it and try again",
                self.path,
            )
        if primary == sqlite3.SQLITE_CANTOPEN:
            return OSError(
                errno.EIO, "the budget store cannot be opened: check that its folder exists and may be used", self.path
            )
        if primary == sqlite3.SQLITE_IOERR:
            return OSError(
                errno.EIO, "writing the budget store failed: nothing was spent; check the disk and try again", self.path
            )
        return ValueError(
            f"{self.path!r} is not a budget store, or it is damaged ({error}); restore it from a backup and treat "
            "everything since that backup as spent"
        )


def _rule_content(
    budget: Budget, sequence: Sequence[Ledger | DpEvent] | None, slack: float | None
) -> dict[str, object]:
    """The rule of a new store as line 0 holds it; ``BudgetError`` for a sequence that does not fit."""
    if sequence is None:
        part = slack_of(budget) if slack is None else check_probability("slack", slack)
        if part >= budget.delta:
            raise ValueError(f"slack must be below delta = {format_number(budget.delta)}, got {format_number(part)}")
        return {"slack": part}
    if slack is not None:
        raise ValueError("give a sequence or a slack, not both: a declared sequence needs none")
    # a plan: whether a trial run that it comes from was seeded does not matter
    planned = [_as_ledger(replace(s, seeded=False) if isinstance(s, Ledger) else s, "") for s in sequence]
    return {"sequence": [ledger.to_dict() for ledger in SequenceRule.declare(budget, planned).sequence]}


def _write_head(connection: sqlite3.Connection, budget: Budget, dataset: str, rule: dict[str, object]) -> None:
    """Tables, triggers and line 0 of a new file."""
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    content = {"format": _FORMAT, "version": _VERSION, "epsilon": budget.epsilon, "delta": budget.delta}
    _append(connection, Account().next_line("budget", "", "", json.dumps({**content, "dataset": dataset, **rule})))


def _checked_account(connection: sqlite3.Connection) -> Account:
    """All lines, with the file and every digest checked."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    if not tables:
        raise ValueError(
            "the budget store is empty: if its creation was interrupted, delete the file and create it again; if it "
            "ever held anything, restore it from a backup"
        )
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise ValueError("this SQLite file is not a budget store")
    if version not in _READABLE:
        raise ValueError(f"the budget store has version {version}, this release reads up to {_VERSION}: update dpscp")
    # digests cannot tell that the last lines are missing; a page that lost them does not match its index
    if connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise ValueError(
            "the budget store is damaged; restore it from a backup and treat everything since that backup as spent"
        )
    rows = connection.execute(
        "SELECT line, kind, reservation, written, note, content, digest FROM lines ORDER BY line"
    ).fetchall()
    return Account.of_rows(rows)


def _as_ledger(event: Ledger | DpEvent, note: str) -> Ledger:
    """What a caller wants to spend as a ledger without facts; ``ValueError`` if it is seeded."""
    if isinstance(event, Ledger):
        if event.seeded:
            raise ValueError(_SEEDED)
        if event.rows > 1:
            raise ValueError(_GROUPED)
        return Ledger(event.entries)
    return Ledger().add("release", require_event(event), note)


def _append(connection: sqlite3.Connection, line: Line) -> None:
    connection.execute("INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(line))


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
