"""Read records of a Spark frame, partition by partition in the executors.

A source must return the same rows in the same order when a partition is read again. Spark does not promise that: after
a shuffle, a lost partition may come back in another order, with other batches and other held-out records than those of
the ledger. So the frame is first written to Spark's checkpoint folder, and everything is read from there. If a written
partition is lost, the fit ends; it is never computed again.
"""

import pickle
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dpscp.data.schema import Schema
from dpscp.data.sources.base import Block, Failure, RecordSource, added, capture_error, hide_message, unwrap_results
from dpscp.data.sources.places import join_person_block, split_by_person
from dpscp.data.sources.tables import as_frame

Total = TypeVar("Total")
Functions = tuple[Callable[[Any], Any], ...]
# A total or a kept block goes through the JVM in pieces of at most 2^31 bytes.
_ANSWER, _PIECE_BYTES = "id long, place long, piece binary", 1 << 24


class SparkSource(RecordSource):
    """Read records from a Spark frame, in the executors that hold them.

    Blocks are the partitions of the frame: at most 2^25 records each, and a worker holds one at a time. Executors cache
    what training reads at every step (memory, then disk). The partitions of a lost executor are read again; they draw
    the same batches and spend nothing. Executors need this package.

    The columns in use are written to the checkpoint folder without encryption when the source is made. Spark removes
    them only with ``spark.cleaner.referenceTracking.cleanCheckpoints``.

    Parameters
    ----------
    frame : Spark frame
    schema : Schema
        It declares features, target and, if any, the person column.

    Raises: ValueError without ``spark.sparkContext.setCheckpointDir(folder)``. All executors must be able to read the
    folder, and it must be protected like the frame.

    Assumes: the same libraries on the same kind of processor in all executors.

    Privacy: driver and executors see records, keys of batches and exact sums. They belong inside the trusted side. Use
    encrypted connections (``spark.network.crypto.enabled``) where the network is shared.
    """

    is_fixed = True

    def __init__(self, frame: Any, schema: Schema) -> None:
        if frame.sparkSession.sparkContext.getCheckpointDir() is None:
            raise ValueError(
                "the frame needs a checkpoint folder; call spark.sparkContext.setCheckpointDir(folder) first, with a "
                "folder that all executors can read and that is protected like the records"
            )
        names = [name for name in schema.require_complete().column_names if name in frame.columns]
        # the schema reports a missing column, and Spark cannot process names with dots
        quoted = ["`" + name.replace("`", "``") + "`" for name in names]
        chosen = frame.select(*quoted).toDF(*map(str, range(len(names))))
        if schema.person in names:  # all rows of a person into one partition
            chosen = chosen.repartition(chosen.rdd.getNumPartitions(), str(names.index(schema.person)))
        written = hide_message(lambda: chosen.checkpoint(eager=True), "the Spark frame")
        self._frame, self.width, self._known = written, len(schema.feature_names), dict[str, list[int]]()
        self._functions = (partial(_block_from_partition, schema, names),)

    def keep(self) -> "SparkSource":
        """Return the same blocks, computed once and cached by the executors."""
        kept = copy(self)
        kept._frame = self._frame.mapInArrow(partial(_run_partition, self._functions), _ANSWER).persist()
        kept._functions = (_read_kept_block,)
        weakref.finalize(kept, _unpersist, kept._frame).atexit = False
        return kept

    def sum(self, function: Callable[[Block], Total]) -> Total:
        """Return the total over the blocks in one job, see ``RecordSource``."""
        answers = self._frame.mapInArrow(partial(_run_partition, (*self._functions, function)), _ANSWER).collect()
        totals: dict[int, Any] = {}
        for number in {row.id for row in answers}:
            pieces = sorted((row.place, bytes(row.piece)) for row in answers if row.id == number)
            totals[number] = _join_pieces(pieces)
        numbers = sorted(totals)
        if numbers != self._known.setdefault("ids", numbers):
            raise RuntimeError(
                "Spark returned results of other partitions than before; fit again on a frame that does not change"
            )
        result: Total = added(unwrap_results(totals[number] for number in numbers))
        return result


def _unpersist(frame: Any) -> None:
    with suppress(Exception):  # the session may have ended
        frame.unpersist()


def _run_partition(functions: Functions, batches: Iterable[Any]) -> Iterator[Any]:
    """Run the functions on one partition; yield the result as pickled bytes.

    An error is returned as a result, because Spark would log it.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    number = TaskContext.get().partitionId()

    def work() -> bytes:
        result: Any = (number, list(batches))
        for function in functions:
            result = function(result)
        return pickle.dumps(result)

    found = capture_error(work)
    packed = pickle.dumps(found) if isinstance(found, Failure) else found
    for start in range(0, len(packed), _PIECE_BYTES):
        piece = packed[start : start + _PIECE_BYTES]
        yield pa.RecordBatch.from_pydict({"id": [number], "place": [start], "piece": [piece]})


def _join_pieces(pieces: list[tuple[int, bytes]]) -> Any:
    """Return the result in these pieces; each must be present once."""
    ends = [place + len(piece) for place, piece in pieces]
    if [place for place, _ in pieces] != [0, *ends[:-1]]:
        raise RuntimeError("Spark lost or repeated a part of a result; fit again")
    return pickle.loads(b"".join(piece for _, piece in pieces))


def _block_from_partition(schema: Schema, names: list[str], given: tuple[int, list[Any]]) -> Block:
    """Return a partition as a block."""
    import pyarrow as pa

    number, batches = given
    if not sum(map(len, batches)):
        return Block(number, np.empty((0, len(schema.feature_names))), np.empty(0))
    frame = as_frame(pa.Table.from_batches(batches).rename_columns(names), schema)
    rows, targets, persons = schema.encode(frame)
    if persons is None:
        return Block(number, rows, targets)
    return join_person_block(number, split_by_person(rows, targets, persons, 1))


def _read_kept_block(given: tuple[int, list[Any]]) -> Block:
    """Rebuild a block from its cached pieces."""
    rows = [row for batch in given[1] for row in batch.to_pylist()]
    (block,) = unwrap_results([_join_pieces(sorted((row["place"], row["piece"]) for row in rows))])
    assert isinstance(block, Block)
    return block
