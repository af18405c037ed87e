"""Read records on a Dask cluster, in the workers that hold them.

Functions are sent to the blocks and totals come back: parameters of a model, sums of gradients, counts. Rows and scores
stay in the workers. The scheduler is the one that Dask uses: threads of this process, or a cluster with a client.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Self, TypeVar

import numpy as np

from dpscp._base.assumptions import DASK
from dpscp.data.schema import Schema
from dpscp.data.sources.base import Block, RecordSource, added, capture_error, for_block, hide_message, unwrap_results
from dpscp.data.sources.places import PersonRows, join_person_block, split_by_person
from dpscp.threshold.counts import is_dask_array

Total = TypeVar("Total")
# The number of pieces between partitions is the square of their number.
_MOST_PARTITIONS = 500
_WHERE = "the Dask collection"


class DaskSource(RecordSource):
    """Read records from Dask arrays or frames, in the workers that hold them.

    A block is a chunk of rows of ``X`` with the targets of the same rows. Columns are joined into one chunk. The
    workers keep what training reads at every step (``persist``). Together they need two to eight bytes of memory for
    each feature of each record. The blocks of a lost worker are computed again; they draw the same batches and spend
    nothing.

    Parameters
    ----------
    X : dask array of shape (n_records, n_features), or dask frame of numbers
    y : dask array of shape (n_records,) or (n_records, n_targets), or dask series
        It must have the same chunks of rows as ``X``.

    Assumes: the collections give the same rows each time they are computed. A frame with a shuffle, a sample without a
    seed or a changing database does not. Persist it, or write it to Parquet first. ``fit`` compares a keyed digest of
    each block between readings and refuses another content or order.

    Privacy: workers and scheduler see records, keys of batches and exact sums, as this process does. They belong inside
    the trusted side. Use encrypted connections (``distributed.Security``) where the network of the cluster is shared.
    """

    assumption = DASK

    def __init__(self, X: Any, y: Any) -> None:
        rows, targets = _chunks(X, 2), _chunks(y, 1, 2)
        if len(rows) != len(targets) and _is_array(X) and _is_array(y) and len(X) == len(y):
            targets = _chunks(y.rechunk({0: X.chunks[0]}), 1, 2)
        if len(rows) != len(targets):
            raise ValueError("X and y must have the same chunks of rows; rechunk or repartition one of them")
        parts = [(partial(_block, i), *part) for i, part in enumerate(zip(rows, targets, strict=True))]
        self._set(_fuse_tasks(parts), X.shape[1])

    @classmethod
    def of_frame(cls, frame: Any, schema: Schema) -> "DaskSource":
        """Build a source from a dask frame and a schema.

        If the schema declares persons, rows are sent once between workers, to the worker that gets all rows of their
        person.

        Parameters
        ----------
        frame : dask frame
        schema : Schema
            It declares features, target and, if any, the person column.

        Returns
        -------
        DaskSource
        """
        names = [name for name in schema.require_complete().column_names if name in frame.columns]
        given = list(frame[names].to_delayed())
        if schema.person is None:
            parts = _fuse_tasks([(partial(_block_from_frame, schema, i), part) for i, part in enumerate(given)])
        else:
            parts = _person_blocks(given, schema)
        return cls.__new__(cls)._set(parts, len(schema.feature_names))

    def _set(self, parts: list[tuple[Any, ...]], width: int) -> Self:
        """Set the blocks, as functions of Dask's pieces."""
        self._parts, self.width = parts, width
        return self

    def keep(self) -> "DaskSource":
        """Return the same blocks, computed once; they stay in the memory of the workers."""
        import dask

        kept = hide_message(lambda: dask.persist(*self._tasks()), _WHERE)
        return DaskSource.__new__(DaskSource)._set([(_identity, part) for part in kept], self.width)

    def sum(self, function: Callable[[Block], Total]) -> Total:
        """Return the total over the blocks in one round, see ``RecordSource``."""
        import dask

        result: Total = added(unwrap_results(hide_message(lambda: dask.compute(*self._tasks(function)), _WHERE)))
        return result

    def _tasks(self, *more: Callable[[Block], Any]) -> list[Any]:
        """Return one task for each block, to be computed where its rows are."""
        import dask

        functions = (*self._functions, *more)
        return [
            dask.delayed(
                partial(_run_functions, (make, *(for_block(f, i) for f in functions))), pure=False, traverse=False
            )(*part)
            for i, (make, *part) in enumerate(self._parts)
        ]


def _run_functions(functions: Sequence[Callable[..., Any]], *parts: Any) -> Any:
    """Apply the functions one after another to the parts.

    Return the result, or the first error as a ``Failure``.
    """

    def work() -> Any:
        result = functions[0](*unwrap_results(parts))
        for function in functions[1:]:
            result = function(result)
        return result

    return capture_error(work)


def _person_blocks(given: list[Any], schema: Schema) -> list[tuple[Any, ...]]:
    """Return blocks of whole persons, kept by the workers.

    A lost block is rebuilt identically from the pieces in their order.
    """
    import dask

    if len(given) > _MOST_PARTITIONS:
        raise ValueError(
            f"a frame with person ids may have at most {_MOST_PARTITIONS} partitions, got {len(given)}; call "
            "frame.repartition(...) with fewer"
        )

    def task(function: Callable[..., Any], *parts: Any) -> Any:
        return dask.delayed(partial(_run_functions, (function,)), pure=False, traverse=False)(*parts)

    split = [task(partial(_split_frame, schema, len(given)), part) for part in given]
    blocks = [
        task(partial(_join_block, i), *(task(itemgetter(i), pieces) for pieces in split)) for i in range(len(given))
    ]
    return [(_identity, block) for block in hide_message(lambda: dask.persist(*blocks), _WHERE)]


def _split_frame(schema: Schema, count: int, frame: Any) -> list[PersonRows]:
    return split_by_person(*schema.encode(frame), count)


def _join_block(number: int, *pieces: PersonRows) -> Block:
    return join_person_block(number, pieces)


def _fuse_tasks(parts: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the same blocks, each built by one task.

    Without this, rows built by one worker and needed by another are sent over the network. Dask handles pieces that are
    already in the memory of workers, and pieces with common inputs (a shuffle, an array in this process).
    """
    from dask.optimization import cull

    graphs = []
    for _, *pieces in parts:
        whole = {key: task for piece in pieces for key, task in dict(piece.__dask_graph__()).items()}
        graphs.append(cull(whole, [piece.key for piece in pieces])[0])
    shared = len({key for graph in graphs for key in graph}) < sum(map(len, graphs))
    if shared or any(_is_on_workers(piece) for _, *pieces in parts for piece in pieces):
        return parts
    return [
        (partial(_compute_block, make, dict(graph), [piece.key for piece in pieces]),)
        for (make, *pieces), graph in zip(parts, graphs, strict=True)
    ]


def _compute_block(make: Callable[..., Block], graph: Any, keys: list[Any]) -> Block:
    import dask

    return make(*hide_message(lambda: dask.get(graph, keys), _WHERE))


def _is_on_workers(piece: Any) -> bool:
    """Return whether workers hold inputs of the piece in memory."""
    try:
        from distributed.client import futures_of
    except ImportError:  # pragma: no cover (the test environment has it)
        return False
    return bool(futures_of(piece))


def _identity(block: Block) -> Block:
    return block


def _block(number: int, rows: Any, targets: Any) -> Block:
    found, one_each = np.asarray(rows), np.asarray(targets)
    if found.dtype.kind not in "fiub":
        raise ValueError(
            "X must contain real numbers; encode other columns first, or use DaskSource.of_frame with a schema"
        )
    if len(found) != len(one_each):
        raise ValueError("X and y must have the same number of records in each chunk; rechunk one of them")
    return Block(number, found, one_each)


def _block_from_frame(schema: Schema, number: int, frame: Any) -> Block:
    rows, targets, _ = schema.encode(frame)
    return Block(number, rows, targets)


def _is_array(collection: Any) -> bool:
    return is_dask_array(collection)


def _chunks(collection: Any, *dimensions: int) -> list[Any]:
    """Return the chunks of a Dask array or frame, divided between rows only."""
    if collection.ndim not in dimensions:
        name, wanted = "X" if len(dimensions) == 1 else "y", " or ".join(map(str, dimensions))
        raise ValueError(f"{name} must have {wanted} dimensions, got {collection.ndim}")
    if _is_array(collection) and collection.ndim == 2 and len(collection.chunks[1]) > 1:
        collection = collection.rechunk({1: -1})
    return list(np.ravel(collection.to_delayed()))
