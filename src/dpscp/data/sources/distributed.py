"""Read the records of all processes of a ``torch.distributed`` group.

Every process has its own records and calls the same ``fit``. Process 0 leads: it alone draws noise, reserves budget and
decides. It sends functions to the others, and each sums over its own blocks. Process 0 adds the totals of all blocks in
the order of their ids, so they equal, bit by bit, the totals of the same blocks in one process. The outcome, a result
or an error, is sent to every process.
"""

import pickle
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from dpscp._base.assumptions import PROCESSES
from dpscp.data.sources.base import (
    ArraySource,
    Block,
    Failure,
    RecordSource,
    added,
    capture_error,
    unwrap_results,
)

Total = TypeVar("Total")
Functions = tuple[Callable[[Block], Any], ...]


class DistributedSource(RecordSource):
    """Read the records of all processes of a ``torch.distributed`` group.

    The default group must be initialized. Every process makes the source from its own records and then calls the same::

        estimator.fit(DistributedSource(X_here, y_here))
        trained = source.lead(lambda: mechanism.train_source(source, n_records=n))

    The arguments of process 0 apply (its seed, its budget store); warnings and progress appear there. Every process
    gets the same fitted attributes, or the same error. If a process ends early, the fit of all others fails, at the
    latest after the timeout of the group. Then no model is fitted, and the reserved budget is spent. Messages are bytes
    in CPU memory, so a ``"gloo"`` group is made beside an ``"nccl"`` group.

    Parameters
    ----------
    X : array or CPU tensor of shape (n_records, n_features), or RecordSource
        The rows of this process alone, or a source of this process such as the ``TableSource`` of its part of the
        files.
    y : array or CPU tensor of shape (n_records,)
        One target for each row; None for a source.
    n_blocks : int
        The number of blocks in this process.

    Raises: ValueError for a source with person ids, because rows of one person may be in several processes.

    Assumes: a record is in one process only. For results equal to the last bit to those of one process with the same
    blocks: the same libraries, the same number of threads and the same kind of processor in every process.

    Privacy: processes see records, keys of batches and exact sums. They, and the network between them, belong inside
    the trusted side.
    """

    assumption = PROCESSES

    def __init__(self, X: Any, y: Any = None, *, n_blocks: int = 1) -> None:
        def own() -> tuple[RecordSource, int]:
            source = X if isinstance(X, RecordSource) else ArraySource(X, y, n_blocks=n_blocks)
            return source, source.sum(_count_block)

        self._group = _Group()
        here = capture_error(own)
        # every process gets an error of any of them, so none waits for a process that has ended
        description = here if isinstance(here, Failure) else (here[0].width, here[1])
        shapes = unwrap_results(self._group.gather_all(description))
        if len({width for width, _ in shapes}) > 1:
            raise ValueError("X must have the same number of columns in every process")
        assert not isinstance(here, Failure)
        before = sum(count for _, count in shapes[: self._group.rank])
        self._group.kept[0] = here[0].map(partial(_shift_id, before))
        self.width, self._number = here[0].width, 0

    @property
    def is_leading(self) -> bool:
        """Return whether process 0 leads now and the others serve it."""
        return self._group.is_leading

    def lead(self, work: Callable[[], Total]) -> Total:
        """Run ``work`` in process 0 while the others serve; return its outcome in all.

        ``work`` may use this source.
        """
        outcome: Total = self._group.lead(work)
        return outcome

    def check_picklable(self, *code: Any) -> None:
        """Raise TypeError for the caller's code that cannot be sent to processes.

        Such code is a module, a loss or a score.
        """
        _pickle_value(code)

    def keep(self) -> "DistributedSource":
        """Return the same blocks, computed once; each stays with the process that has it."""
        kept = copy(self)
        kept._number, kept._functions = self._group.keep(self._number, self._functions), ()
        return kept

    def sum(self, function: Callable[[Block], Total]) -> Total:
        """Return the total over the blocks of all processes in one round.

        See ``RecordSource``.
        """
        result: Total = added(self._group.request_results(self._number, (*self._functions, function)))
        return result


class _Group:
    """The processes, and the blocks that each of them keeps for this source."""

    def __init__(self) -> None:
        try:
            from torch import distributed
        except ImportError as error:
            raise ImportError("DistributedSource needs torch: pip install 'dpscp[torch]'") from error
        if not distributed.is_available() or not distributed.is_initialized():
            raise RuntimeError(
                "DistributedSource needs a process group; call torch.distributed.init_process_group(...) first in "
                "every process (torchrun starts the processes)"
            )
        self._torch, self.rank, self._size = distributed, distributed.get_rank(), distributed.get_world_size()
        # None is the default group; nccl sends GPU memory only, and messages are in CPU memory
        self._over = distributed.new_group(backend="gloo") if distributed.get_backend() == "nccl" else None
        self.kept: dict[int, RecordSource] = {}
        self.is_leading = False

    def lead(self, work: Callable[[], Any]) -> Any:
        if self.is_leading:
            return work()
        if self.rank > 0:
            return self._serve()
        self.is_leading = True
        try:
            outcome = work()
            packed = _pickle_value(outcome)
        except BaseException as error:
            with suppress(Exception):  # the error itself reports a process that has ended
                self._broadcast(final=_pickle_value(Failure.of(error)))
            raise
        finally:
            self.is_leading, self.kept = False, {0: self.kept[0]}
        self._broadcast(final=packed)
        return outcome

    def _serve(self) -> Any:
        while True:
            request, final = self._broadcast()
            if final is not None:
                self.kept = {0: self.kept[0]}
                (outcome,) = unwrap_results([pickle.loads(final)])
                return outcome
            self._gather_answers(request)

    def request_results(self, number: int, functions: Functions, keep_as: int | None = None) -> list[Any]:
        """Return results of functions of a kept source's blocks, in order of ids.

        ``keep_as``: the number under which each process keeps its results, blocks; then none come to process 0.
        """
        if not self.is_leading:
            raise RuntimeError(
                "a DistributedSource works only inside fit or source.lead(lambda: ...); call one of them in every "
                "process"
            )
        packed = _pickle_value(
            (number, functions, keep_as)
        )  # an object that cannot be packed fails here, before any process waits for it
        self._broadcast(packed)
        return list(chain.from_iterable(unwrap_results(self._gather_answers(packed))))

    def keep(self, number: int, functions: Functions) -> int:
        """Keep the requested blocks in every process and return their number."""
        kept = len(self.kept)
        self.request_results(number, functions, kept)
        return kept

    def _gather_answers(self, packed: bytes) -> list[Any]:
        """Return the answers of all processes in process 0, nothing in the others.

        A process with an error answers too.
        """
        answer = capture_error(lambda: _pickle_value(self._run_request(*pickle.loads(packed))))
        found: list[bytes] | None = [b""] * self._size if self.rank == 0 else None
        sent = _pickle_value(answer) if isinstance(answer, Failure) else answer
        self._run_collective(self._torch.gather_object, sent, found, dst=0)
        return list(map(pickle.loads, found or ()))

    def _run_request(self, number: int, functions: Functions, keep_as: int | None) -> list[Any]:
        source = self.kept[number]
        *before, last = functions
        for function in before:
            source = source.map(function)
        if keep_as is None:
            return source.sum(partial(_as_list, last))
        self.kept[keep_as] = source.map(last, keep=True)
        return []

    def _broadcast(self, request: bytes = b"", *, final: bytes | None = None) -> tuple[bytes, bytes | None]:
        """Send a request or the final outcome from process 0 to every process."""
        held = [request, final]
        self._run_collective(self._torch.broadcast_object_list, held, src=0)
        return held[0] or b"", held[1]

    def _run_collective(self, collective: Callable[..., None], *given: Any, **options: Any) -> None:
        """Run a collective operation of all processes.

        The messages of torch about a missing process describe sockets, so they are replaced.
        """
        try:
            collective(*given, **options, group=self._over)
        except RuntimeError as error:
            raise RuntimeError(
                "another process of the group has ended or does not answer. All work has ended without a "
                "model, and the reserved budget is spent. Find out why that process ended, then start all again"
            ) from error

    def gather_all(self, value: Any) -> list[Any]:
        """Return the values of all processes in every process."""
        found = [b""] * self._size
        self._run_collective(self._torch.all_gather_object, found, _pickle_value(value))
        return list(map(pickle.loads, found))


def _as_list(function: Callable[[Block], Any], block: Block) -> list[Any]:
    """Return the result as a list, so that results of processes are joined.

    Process 0 adds them in its own order.
    """
    return [function(block)]


def _shift_id(before: int, block: Block) -> Block:
    """Return the block with a number after those of the processes before this one."""
    return replace(block, id=before + block.id)


def _count_block(block: Block) -> int:
    if block.persons is not None:
        raise ValueError(
            "a DistributedSource has no person ids, because rows of one person may be in several processes. Fit in one "
            "process, or pass a Dask or Spark frame with a schema that declares the column of ids"
        )
    return 1


def _pickle_value(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            "an object of this fit cannot be sent to other processes; define modules, losses, scores and groups at the "
            f"top level of a file, not inside a function or as a lambda ({error})"
        ) from None
