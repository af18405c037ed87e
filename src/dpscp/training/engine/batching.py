"""Hold the rows of a block as the engine reads them, and what a thread keeps between the steps of a run.

Training reads the transformed rows at every step, and transforming them again takes as long as the step or longer. So
they are kept, and of a large table they are most of a fit's memory: there a row becomes 16-bit integers times a float32
scale of its own. This is a function of that row alone, applied before any gradient: clipping, sums and noise do not see
it. Integers are rounded towards zero, so no row becomes longer than its bound (up to a few float32 roundings, which
`ROW_SLACK` covers).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.places import blocks_in_memory
from dpscp.training.engine.networks import fill_features, largest_entries, squared_norms
from dpscp.training.engine.padding import aligned_empty
from dpscp.training.labels import encode_targets, observed_labels

Made = TypeVar("Made")
# Of fewer numbers (64 MB in float32) the memory does not matter, and their bits stay those of earlier versions.
_LARGE_TABLE = 1 << 24
_LARGEST = np.iinfo(np.int16).max
# Numbers below this in a row that has no larger one become zero: their scale would not be a normal number.
_SMALLEST = 2.0**-100


@dataclass(frozen=True)
class EngineBlock(Block):
    """A block as the engine reads it, bias coordinate included.

    It exists only while training runs and is never stored.
    """

    squared_norms: Array = field(default_factory=lambda: np.empty(0), repr=False)
    """An input of every ghost norm."""
    scales: Array | None = field(default=None, repr=False)
    """Of rows that are integers, without a bias coordinate. None: the rows are as they are used."""


def build_engine_block(
    block: Block,
    *,
    loss: str,
    classes: tuple[Any, ...] | None,
    feature_bound: float | None,
    intercept: bool,
    dtype: str,
    short: bool,
) -> EngineBlock:
    """Convert the rows of a block part by part into one array, of 16 bits a number if they are ``short``."""
    n, width = len(block), block.width
    target = encode_targets(block.targets, loss, classes, dtype)
    rows = np.empty((n, width), dtype=np.int16) if short else aligned_empty((n, width + intercept), dtype)
    scales, norms = np.empty(n, dtype=dtype) if short else None, np.empty(n)
    for part, values in block.parts():
        features = rows[part] if scales is None else aligned_empty((len(values), width + intercept), dtype)
        fill_features(values, feature_bound, features[:, :width])
        features[:, width:] = 1
        if scales is not None:
            scales[part] = shorten_rows(features[:, :width], rows[part])
            # norms are those of the rows that training multiplies
            restore_rows(rows[part], scales[part], features)
        norms[part] = squared_norms(features)
    return EngineBlock(block.id, rows, target, block.persons, order=block.order, squared_norms=norms, scales=scales)


def is_large_table(n_rows: int, width: int) -> bool:
    """Return whether the rows of a table of this public size are kept in 16 bits."""
    return n_rows * width >= _LARGE_TABLE


def shorten_rows(values: Array, integers: NDArray[np.int16]) -> Array:
    """Write float32 rows as integers; return the float32 scale of each row."""
    scales = np.maximum(largest_entries(values), np.float32(_SMALLEST))
    scales /= np.float32(_LARGEST)
    # the cast cuts towards zero
    np.divide(values, scales[:, None], out=integers, casting="unsafe")
    return scales


def restore_rows(integers: NDArray[np.int16], scales: Array, out: Array) -> None:
    """Write integers times scales into ``out``, and 1 into the bias coordinate behind them, if it has one."""
    width = integers.shape[1]
    np.multiply(integers, scales[:, None], out=out[:, :width])
    out[:, width:] = 1


def observed_source_labels(source: RecordSource) -> list[Any]:
    """Return the labels of the records, which the caller declares public.

    Only of records in this process.
    """
    blocks = blocks_in_memory(source)
    if not blocks:
        raise ValueError("classes must be declared for records outside this process; pass classes=(...)")
    return observed_labels(np.concatenate([block.targets for block in blocks]))


class PerThread(Generic[Made]):
    """An object that a thread makes once and uses for all blocks of a run.

    Its memory contains records of the last block. So it goes with the run's last step, and with an error.
    """

    def __init__(self) -> None:
        self._here = threading.local()

    @contextmanager
    def of(self, key: Any, make: Callable[[], Made], *, last: bool) -> Iterator[Made]:
        """Return the object of this thread for the key."""
        if getattr(self._here, "key", None) != key:
            self._here.key, self._here.made = key, make()
        kept = False
        try:
            yield self._here.made
            kept = not last
        finally:
            if not kept:
                vars(self._here).clear()
