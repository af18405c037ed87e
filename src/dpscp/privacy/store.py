"""The total privacy budget of a study, in one SQLite file.

    BudgetStore.create("study.budget", epsilon=3.0, delta=1e-6, dataset="clinic 2025")     # once
    store = BudgetStore.open("study.budget", dataset="clinic 2025")                        # from then on
    clf.fit(X, y, budget=store)                                                            # reserves, trains, commits
    store.remaining()

Several processes can share the file, over months. A total belongs to one set of records, and ``create`` names that
set. Spending must repeat the name. So a fit on other records is not charged by mistake, and a missing file is not
replaced by a new total.

A fit *reserves* its cost before it uses a record. It *commits* what it spent after it has finished. A reservation
without a commit counts as spent, because an interrupted fit has used the records. A reservation is one transaction: it
takes the only write lock and then computes the total. So two processes can never both get the last share.

The file only grows. The database rejects changed or deleted lines. Each line has the digest of the line before, and all
digests are checked at every reading. The order is the line number, never the clock. The file cannot protect itself from
its owner: a copy or an older backup does not know what was spent later.
"""

import errno
import json
import math
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from os import PathLike
from typing import Any

from dp_accounting.dp_event import DpEvent

from dpscp._base.format import format_epsilon, format_number, format_remaining_epsilon
from dpscp.exceptions import BudgetError
from dpscp.privacy import Budget, Ledger, Relation
from dpscp.privacy.store_log import Account, Line, Share, next_line

__all__ = ["BudgetStore", "Line", "Reservation"]

_VERSION = 1
# "DPSB" in SQLite's application_id distinguishes a budget store from other databases.
_APPLICATION_ID = 0x44505342
_LOCK_SECONDS = 60.0
# The part of delta for what Gaussian noise does not cover. Measured on 1 to 10 fits: Gaussian noise alone needs none, a
# split with a small part needs more.
_SLACK_SHARE = 0.05

_READ_ONLY = (
    errno.EACCES,
    "the budget store cannot be written, so nothing can be spent; make the file and its folder writable",
)
_BUSY = (
    errno.ETIMEDOUT,
    f"another process has held the budget store for {_LOCK_SECONDS:g} s; wait for it and try again",
)
# What an error of SQLite is to the caller: its number, and what to do.
_ERRORS = {
    sqlite3.SQLITE_FULL: (
        errno.ENOSPC,
        "the disk is full: nothing was written; free some space and try again",
    ),
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_AUTH: _READ_ONLY,
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_CANTOPEN: (
        errno.EIO,
        "the budget store cannot be opened: check that its folder exists and is readable",
    ),
    sqlite3.SQLITE_IOERR: (
        errno.EIO,
        "writing the budget store failed: nothing was spent; check the disk and try again",
    ),
}

_SEEDED = (
    "a budget store accepts private runs only, but the noise of this run comes from a seed: use random_state=None (no "
    "--seed), or run it without the store and do not release its results"
)
_REPLACED = "a budget store is about adding or removing a record, but this ledger is about replacing one; remove budget"
_GROUPED = (
    "a budget store adds up the cost for one record or one person with ids, but this ledger is about several records "
    "at once without ids: fit with persons=..., or run it without the store"
)

_SCHEMA = (
    "CREATE TABLE lines (line INTEGER PRIMARY KEY CHECK (line >= 0), kind TEXT NOT NULL CHECK (kind IN "
    "('budget', 'reserve', 'commit')), reservation TEXT NOT NULL, written TEXT NOT NULL, note TEXT NOT NULL, "
    "content TEXT NOT NULL, digest TEXT NOT NULL, UNIQUE (kind, reservation))",
    "CREATE TRIGGER no_update BEFORE UPDATE ON lines BEGIN SELECT RAISE(ABORT, 'lines are never changed'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON lines BEGIN SELECT RAISE(ABORT, 'lines are never deleted'); END",
    # INSERT OR REPLACE deletes without calling the trigger above
    "CREATE TRIGGER in_order BEFORE INSERT ON lines WHEN NEW.line IS NOT (SELECT COALESCE(MAX(line), -1) + 1 FROM "
    "lines) OR EXISTS (SELECT 1 FROM lines WHERE kind = NEW.kind AND reservation = NEW.reservation) "
    "BEGIN SELECT RAISE(ABORT, 'lines are only appended'); END",
)


@dataclass(frozen=True)
class Reservation:
    """A share that already counts as spent; ``commit`` replaces it."""

    store: "BudgetStore"
    identity: str

    def commit(self, spent: Ledger | DpEvent, note: str | None = None) -> None:
        """Replace the reservation by what was spent.

        Both events must be Gaussian for another cost to count: of other steps, a run may have looked at some and
        stopped. Then the reservation counts. After an error it stays, and the caller must not release anything.

        Parameters
        ----------
        spent : DpEvent or Ledger
        note : str, optional
            Default: the note of the reservation.

        Raises
        ------
        BudgetError
            If this is more than was reserved and does not fit.
        ValueError
            If the ledger is seeded, or the reservation is unknown or was committed before.
        """
        with self.store._transaction() as connection:
            account = _checked_account(connection)
            known = [line for line in account.lines if line.reservation == self.identity]
            if [line.kind for line in known] != ["reserve"]:
                raise ValueError(
                    "this reservation is not in the store, or it was committed before; reserve a new share"
                )
            note = known[0].note if note is None else note
            share = _as_ledger(spent, note)
            replaced = Share(account.shares[self.identity].reserved, share)
            trouble = "the run spent something else than it reserved; do not release its results"
            account.require(self.identity, replaced, trouble)
            _append(connection, next_line(account.lines, "commit", self.identity, note, share.to_json()))


class BudgetStore:
    """The total budget of a study and everything spent from it, in one file.

    ``BudgetStore.create`` makes the file and fails if it exists. ``BudgetStore.open`` and the constructor open it and
    never create it: a missing file must not count as an unspent total. The object holds the path and the name only, so
    it can be pickled and used by several processes at once.

    Parameters
    ----------
    path : str or path
    dataset : str, optional
        The name that the file was created with. Spending needs it, reading does not.

    Privacy: all reservations, each replaced by its commit, are together (epsilon, delta)-DP for adding or removing one
    record (or one person with ids). This holds if each fit is chosen by the results of earlier fits. It holds for all
    processes at once and wherever they are stopped.

    Assumes: the name always denotes the same records; every release goes through this one file, not through a copy of
    it.

    Raises
    ------
    BudgetError
        If a share does not fit.
    ValueError
        For another name, a seeded run, or a file that is not a store, altered, damaged or of another version.
    OSError
        ``FileNotFoundError``, ``FileExistsError``, ``PermissionError``, ``TimeoutError`` (another process holds the
        lock for a minute), or a full disk. After any error the file is as it was before the call.

    >>> import tempfile, os
    >>> from dpscp.privacy import gaussian_event
    >>> path = os.path.join(tempfile.mkdtemp(), "study.budget")
    >>> store = BudgetStore.create(path, epsilon=1.0, delta=1e-6, dataset="clinic 2025")
    >>> reservation = store.reserve(gaussian_event(8.0), note="first model")
    >>> reservation.commit(gaussian_event(10.0))
    >>> 0 < store.remaining() < 1, BudgetStore.open(path).ledger().entries[0].note
    (True, 'first model')

    Theory: The budget store
    """

    def __init__(self, path: str | PathLike[str], *, dataset: str | None = None) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._repeated = dataset
        if not os.path.exists(self.path):
            raise FileNotFoundError(
                f"there is no budget store at {self.path!r}. If it was moved, open it at its new path. If the study is "
                "new, create it with BudgetStore.create(path, epsilon=..., delta=..., dataset=...) or 'dpscp budget "
                "create'"
            )
        account = self._read()
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
    ) -> "BudgetStore":
        """Create a file with this total; ``FileExistsError`` if there is a file.

        Parameters
        ----------
        path : str or path
        epsilon, delta : float
        dataset : str
            A public name for the records. ``summary`` shows it, and spending must repeat it.

        Returns
        -------
        BudgetStore
        """
        budget = Budget(epsilon, delta)
        if not isinstance(dataset, str) or not dataset.strip():
            raise ValueError(
                f"dataset must be a text that names the records, for example 'clinic 2025', got {dataset!r}"
            )
        store = cls.__new__(cls)
        store.path, store._repeated = os.path.abspath(os.fspath(path)), dataset
        try:
            # one atomic step: of two processes that create the file at once, one fails
            os.close(os.open(store.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        except FileExistsError:
            raise FileExistsError(
                errno.EEXIST,
                "the file exists and may contain what was spent: open it with BudgetStore.open, or use another path "
                "for a new study on new records",
                store.path,
            ) from None
        except OSError as error:
            raise OSError(
                error.errno,
                "the budget store cannot be created: check that its folder exists and is writable",
                store.path,
            ) from None
        try:
            with store._transaction() as connection:
                _write_head(connection, budget, dataset)
        except BaseException:
            if os.path.getsize(store.path) == 0:  # written in one transaction: a file with content is complete
                os.unlink(store.path)
            raise
        return store

    @classmethod
    def open(cls, path: str | PathLike[str], *, dataset: str | None = None) -> "BudgetStore":
        """Open the store in an existing file.

        Parameters
        ----------
        path : str or path
        dataset : str, optional
            The name of the records. Spending needs it, reading does not.

        Returns
        -------
        BudgetStore
        """
        return cls(path, dataset=dataset)

    def __repr__(self) -> str:
        return f"BudgetStore({self.path!r})"

    # ---- what is known

    @property
    def budget(self) -> Budget:
        """The total that was fixed when the file was created."""
        return self._read().budget

    @property
    def dataset(self) -> str:
        """The name of the records."""
        return self._read().dataset

    def lines(self) -> tuple[Line, ...]:
        """Return all lines of the file, in order and checked.

        Returns
        -------
        tuple of Line
        """
        return self._read().lines

    def ledger(self) -> Ledger:
        """Return what counts as spent: commits, and reservations without a commit.

        Returns
        -------
        Ledger
        """
        return self._read().ledger()

    def spent(self, delta: float | None = None) -> float:
        """Return epsilon of everything that counts as spent, by the rule of the store.

        The rule allows fits that are chosen by the results of earlier fits. So this is slightly more than the epsilon
        of ``ledger()``, which assumes a sequence that was fixed in advance. The promise is about the total.

        Parameters
        ----------
        delta : float, optional
            Default: that of the budget.

        Returns
        -------
        float
        """
        return self._read().spent(delta)

    def remaining(self, delta: float | None = None) -> float:
        """Return the total epsilon less the epsilon that is spent.

        Composition is not a sum, so this is only a summary: ``fits`` decides about one event.

        Parameters
        ----------
        delta : float, optional
            Default: that of the budget.

        Returns
        -------
        float
        """
        account = self._read()
        return account.budget.epsilon - account.spent(delta)

    def fits(self, event: Ledger | DpEvent) -> bool:
        """Return whether this could be reserved now.

        Another process may reserve first, so only ``reserve`` decides.

        Parameters
        ----------
        event : DpEvent or Ledger

        Returns
        -------
        bool
        """
        try:
            self._read().require("", Share(_as_ledger(event, "")), "the share does not fit")
        except BudgetError:
            return False
        return True

    def summary(self) -> str:
        """Return a summary as text: the total, what is spent, and every line."""
        account = self._read()
        budget, spent = account.budget, account.spent()
        done = {line.reservation for line in account.lines if line.kind == "commit"}
        text = [f"data set: {account.dataset}"]
        text += [
            f"budget: epsilon {format_number(budget.epsilon)} at delta {format_number(budget.delta)}",
            f"rule: each fit may be chosen by the results of earlier fits (slack {account.slack:g} of delta)",
            f"spent: epsilon {format_epsilon(spent)} by this rule; remaining "
            f"{format_remaining_epsilon(budget.epsilon - spent)}",
        ]
        for line in account.lines[1:]:
            state = " (not committed: counts as spent)" if line.kind == "reserve" else ""
            if line.kind == "commit" or line.reservation not in done:
                alone = format_epsilon(account.alone(line))
                text.append(f"{line.line}: {line.written} {line.kind} epsilon {alone} alone: {line.note}{state}")
        if len(account.lines) > 1:
            text.append(
                f"Each epsilon alone is at delta {format_number(budget.delta)}, that of the store. A use with another "
                "delta has another epsilon here for the same noise."
            )
        return "\n".join(text)

    def to_dict(self) -> dict[str, Any]:
        """Return ``summary`` as plain JSON values; None for an infinite epsilon."""
        account = self._read()
        budget, spent = account.budget, account.spent()
        return {
            "path": self.path,
            "dataset": account.dataset,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "slack": account.slack,
            "spent": _finite(spent),
            "remaining": _finite(budget.epsilon - spent),
            "entries": account.ledger().to_dict()["entries"],
            "lines": [
                {"line": x.line, "kind": x.kind, "reservation": x.reservation, "written": x.written, "note": x.note}
                | ({} if x.kind == "budget" else {"epsilon": _finite(account.alone(x))})
                for x in account.lines
            ],
        }

    # ---- what is spent

    def require_spendable(self, *, seeded: bool) -> None:
        """Raise ``ValueError`` for a run that this store can never pay for.

        These are seeded runs and runs on other records.
        """
        if seeded:
            raise ValueError(_SEEDED)
        self._require_name(self._read())

    def _require_name(self, account: Account) -> None:
        name = account.dataset
        if self._repeated != name:
            given = "none was given" if self._repeated is None else f"got {self._repeated!r}"
            raise ValueError(
                f"dataset must be {name!r}, the name of the records of this store; {given}. If the fit uses these "
                "records, open the store with BudgetStore.open(path, dataset=...) or --dataset. If not, use the store "
                "of those records"
            )

    def reserve(self, event: Ledger | DpEvent, note: str = "") -> Reservation:
        """Reserve a share before any record is used.

        The share counts as spent from now on, whatever happens to this process.

        Parameters
        ----------
        event : DpEvent or Ledger
            A seeded ledger is rejected.
        note : str

        Returns
        -------
        Reservation

        Raises
        ------
        BudgetError
            If the share does not fit.
        """
        share = _as_ledger(event, note)
        self.fits(share)  # fill the cache of the accountant, so that the lock below is held for milliseconds only
        identity = uuid.uuid4().hex
        with self._transaction() as connection:
            account = _checked_account(connection)
            self._require_name(account)
            account.require(identity, Share(share), "the share does not fit")
            _append(connection, next_line(account.lines, "reserve", identity, note, share.to_json()))
        return Reservation(self, identity)

    # ---- the file

    def _read(self) -> Account:
        # a writer that was killed leaves a journal, which the next reader rolls back: this needs write permission
        with self._errors(), self._connection() as connection:
            return _checked_account(connection)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Take the only write lock before anything is read; commit all or nothing."""
        with self._errors(), self._connection() as connection:
            # every write, including that of the directory entry, reaches the disk before the transaction ends
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
        # never "rwc": a missing file must not be replaced by an empty one
        connection = sqlite3.connect(f"file:{quoted}?mode=rw", uri=True, timeout=_LOCK_SECONDS, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of SQLite into errors that say what to do."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in _ERRORS:
                number, message = _ERRORS[code & 0xFF]
                # of the subclass of its number: PermissionError, TimeoutError
                raise OSError(number, message, self.path) from None
            raise ValueError(
                f"{self.path!r} is not a budget store, or it is damaged ({error}); restore it from a backup and treat "
                "everything since that backup as spent"
            ) from None


def _write_head(connection: sqlite3.Connection, budget: Budget, dataset: str) -> None:
    """Write tables, triggers and line 0 of a new file."""
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    slack = _SLACK_SHARE * budget.delta
    content = {"epsilon": budget.epsilon, "delta": budget.delta, "dataset": dataset, "slack": slack}
    _append(connection, next_line((), "budget", "", "", json.dumps(content)))


def _checked_account(connection: sqlite3.Connection) -> Account:
    """Return all lines after a check of the file and of every digest."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    if not tables:
        raise ValueError(
            "the budget store is empty: if its creation was interrupted, delete the file and create it again; if it "
            "was ever used, restore it from a backup"
        )
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise ValueError("this SQLite file is not a budget store; check the path")
    if version != _VERSION:
        raise ValueError(
            f"the budget store has version {version}, but this release reads version {_VERSION} only; use the release "
            "of dpscp that wrote it"
        )
    # digests do not show that the last lines are missing; a page that lost lines does not match its index
    if connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        raise ValueError(
            "the budget store is damaged; restore it from a backup and treat everything since that backup as spent"
        )
    rows = connection.execute(
        "SELECT line, kind, reservation, written, note, content, digest FROM lines ORDER BY line"
    ).fetchall()
    return Account.of_rows(rows)


def _as_ledger(event: Ledger | DpEvent, note: str) -> Ledger:
    """Return what a caller wants to spend as a ledger without facts.

    Raises ``ValueError`` for a seeded ledger.
    """
    if isinstance(event, Ledger):
        if event.seeded:
            raise ValueError(_SEEDED)
        if event.rows > 1:
            raise ValueError(_GROUPED)
        if event.relation is not Relation.ADD_OR_REMOVE:
            raise ValueError(_REPLACED)
        return Ledger(event.entries)
    return Ledger().add("release", event, note)


def _append(connection: sqlite3.Connection, line: Line) -> None:
    connection.execute("INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(line))


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
