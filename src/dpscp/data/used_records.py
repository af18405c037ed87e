"""Recognize records that this process used before.

Each use of records spends its own epsilon and delta. No ledger adds up several uses; a budget store does. So a
use is compared with the earlier ones of this process: a fit, an evaluation, a batch of a monitor, a recalibration. A
table is remembered by keyed 64-bit digests of its rows, in any order; a large table by the digests below a limit. The
key is random for each process. Key and digests stay in memory: they are in no file, no pickle of a release and no repr.

If rows repeat, equal rows of two tables prove nothing. So two tables share records only if more digests are equal than
for a new table of the same population. The share of rows that occur once gives this number.

Privacy: a warning or an error here depends on records. It is for the curator who holds both tables, like every other
refusal of records, and must not be published. Tables with fewer than ``_FEWEST`` rows are never recognized, so
no single record decides alone.
"""

import hashlib
import os
import sys
import warnings
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp.data.sources.base import Block
from dpscp.exceptions import ReuseWarning

Digests = NDArray[np.uint64]

# The largest number of digests of one table, and of all tables.
_MOST_OF_A_TABLE, _MOST_IN_ALL = 1 << 17, 1 << 21
# The smallest number of rows of a table that is recognized, and of different rows of equal tables; two tables of one
# population hold each of so many rows equally often with a chance below a millionth. And the smallest number of digests
# of a sample.
_FEWEST, _SMALLEST_SAMPLE = 20, 8
# The share of equal rows that is needed beyond chance.
_SHARE = 0.1
_LARGEST = np.uint64((1 << 64) - 1)
_ADVICE = (
    "each fit spends its own epsilon and delta, and so does each evaluation, batch and recalibration. The costs add "
    "up, but no ledger adds them up. Pass the same dp.BudgetStore to every use of these records (budget=store)"
)
_KEY = os.urandom(32)


@dataclass(frozen=True)
class Sketch:
    """Digests of a table's rows, at most ``_MOST_OF_A_TABLE``; in memory only.

    ``limit`` is the largest digest that is kept; ``total`` the sum of all digests.
    """

    digests: Digests = field(repr=False)
    limit: np.uint64 = field(repr=False)
    size: int = field(repr=False)
    total: int = field(repr=False)

    @staticmethod
    def of_digests(digests: Digests, limit: np.uint64, size: int, total: int) -> "Sketch":
        """Return a sketch with at most the allowed number of digests."""
        if len(digests) > _MOST_OF_A_TABLE:
            limit = np.partition(digests, _MOST_OF_A_TABLE)[_MOST_OF_A_TABLE] - np.uint64(1)
            digests = digests[digests <= limit]
        return Sketch(digests, limit, size, total)

    def __add__(self, other: "Sketch") -> "Sketch":
        limit = min(self.limit, other.limit)
        both = np.concatenate([digests[digests <= limit] for digests in (self.digests, other.digests)])
        return Sketch.of_digests(both, limit, self.size + other.size, (self.total + other.total) % (1 << 64))

    def shares_records(self, known: "Sketch") -> bool:
        """Return whether this table has records of a known one, more than chance explains."""
        if min(self.size, known.size) < _FEWEST:
            return False
        limit = min(self.limit, known.limit)
        own, own_times = np.unique(self.digests[self.digests <= limit], return_counts=True)
        old, old_times = np.unique(known.digests[known.digests <= limit], return_counts=True)
        if (self.size, self.total) == (known.size, known.total) and len(old) >= _FEWEST:
            return True
        n_own, n_old = int(own_times.sum()), int(old_times.sum())
        if min(n_own, n_old) < _SMALLEST_SAMPLE:
            return False
        _, left, right = np.intersect1d(own, old, assume_unique=True, return_indices=True)
        shared = int(np.minimum(own_times[left], old_times[right]).sum())
        # the table with more repeated rows decides: rows of one group may repeat more often than rows of all groups
        repeated = 1 - min(int((old_times == 1).sum()) / n_old, int((own_times == 1).sum()) / n_own)
        return shared > (_SHARE + 2 * repeated * max(1.0, n_own / n_old)) * min(n_own, n_old)


@dataclass(frozen=True)
class RowDigests:
    """Make the sketch of a block, in the process that has the block.

    The key belongs to the trusted side.
    """

    key: bytes = field(default=_KEY, repr=False)

    def __call__(self, block: Block) -> Sketch:
        """Return the sketch of all rows of a block."""
        digests = np.empty(len(block), dtype=np.uint64)
        for part, rows in block.parts():
            digests[part] = self._of_rows(np.asarray(rows, dtype=np.float64).reshape(len(rows), -1))
        return Sketch.of_digests(digests, _LARGEST, len(digests), int(digests.sum(dtype=np.uint64)))

    def _of_rows(self, rows: FloatArray) -> Digests:
        """Return a digest of each row: a random product of its numbers."""
        stream = hashlib.shake_256(self.key).digest(8 * rows.shape[1])
        factors = np.frombuffer(stream, dtype="<u8") | np.uint64(1)
        bits = (rows + 0.0).view(np.uint64)  # 0 and -0 are equal
        bits ^= bits >> np.uint64(32)  # numbers with few digits end in zero bits
        digests: Digests = bits @ factors
        digests ^= digests >> np.uint64(29)
        digests *= factors[0] if len(factors) else np.uint64(1)
        return digests ^ (digests >> np.uint64(32))


def sketch_rows(rows: Any) -> Sketch:
    """Return the sketch of rows in memory.

    It is empty for a table without numbers.
    """
    table = np.asarray(rows)
    if table.ndim < 2 or table.dtype.kind not in "fiub":
        table = np.empty((0, 1))
    return RowDigests()(Block(0, table, np.empty(len(table))))


# Each use: the sketch of its records, whether it is private, and the model of a fit with the digest of its parameters.
_USES: list[tuple[Sketch, bool, "weakref.ref[Any] | None", str | None]] = []


def remember_use(sketch: Sketch, *, is_private: bool, model: Any = None, parameters: str | None = None) -> None:
    """Remember that records were used; forget the oldest tables if there are too many."""
    _USES.append((sketch, is_private, None if model is None else weakref.ref(model), parameters))
    while len(_USES) > 1 and sum(len(known.digests) for known, *_ in _USES) > _MOST_IN_ALL:
        del _USES[0]


def has_trained(sketch: Sketch, model: Any, parameters: str | None) -> bool:
    """Return whether this model's fit is known to have used some of the records."""
    for known, _, used, own in _USES.copy():
        is_its_fit = used is not None and used() is model
        is_its_file = parameters is not None and parameters == own
        if (is_its_fit or is_its_file) and sketch.shares_records(known):
            return True
    return False


def warn_if_used(sketch: Sketch, what: str, *, stacklevel: int) -> None:
    """Warn if a use in this process is known to have used some of the records."""
    if any(is_private and sketch.shares_records(known) for known, is_private, *_ in list(_USES)):
        warnings.warn(
            f"{what} records that this process used before: {_ADVICE}", ReuseWarning, stacklevel=stacklevel + 1
        )


def warn_if_refit(sketch: Sketch, *, stacklevel: int) -> None:
    """Warn about a fit inside a search, or on records that were used before.

    The folds of a search of scikit-learn overlap.
    """
    if _is_inside_search():
        warnings.warn(
            "this fit runs inside a search or cross-validation of scikit-learn. The folds overlap, and the scores on "
            f"the other folds are not private; {_ADVICE}; in scikit-learn params={{'budget': store}} or fit(..., "
            "budget=store), with error_score='raise'",
            ReuseWarning,
            stacklevel=stacklevel + 1,
        )
    else:
        warn_if_used(sketch, "fit was called with", stacklevel=stacklevel + 1)


def _is_inside_search() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection."):
            return True
        frame = frame.f_back
    return False
