"""Limit matrix threads, run work in a second thread, keep memory per thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import cache
from typing import Any, Generic, Self, TypeVar

from threadpoolctl import ThreadpoolController  # comes with scikit-learn

Item = TypeVar("Item")
Made = TypeVar("Made")
# With fewer parameters the noise is drawn in less time than two threads need to wait for each other.
_WORTH_A_THREAD = 1 << 15


def blas_threads() -> tuple[int, ...]:
    """Return how many threads each library of matrix products uses now."""
    return tuple(library.num_threads for library in _libraries().lib_controllers)


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit matrix products to one thread inside the block.

    The matrices of a step are small. More threads cost more time than they save, above all on a busy machine.
    """
    limited: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limited


@cache
def _libraries() -> ThreadpoolController:
    # looked up once: finding them reads the list of all libraries of the process, which takes longer than a short run
    return ThreadpoolController().select(user_api="blas")


class SecondThread:
    """One more thread for work that releases the interpreter lock.

    Such work is draws and matrix products. A step of a wide network then draws its noise while its gradient is
    computed. The matrix library itself keeps one thread for each product. Its own threads would share one product,
    whose rounding then depends on their number, and they wait for each other in a busy loop.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dpscp")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def ahead(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield the same items, each computed while the previous one is used."""
        coming = self._pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = self._pool.submit(next, items, None)
            yield item

    def share(self, jobs: Iterable[Callable[[], object]]) -> None:
        """Do all the jobs in two threads.

        This thread takes jobs from the front, the second one, when it is free, from the back.
        """
        left = deque(jobs)

        def work(take: Callable[[], Callable[[], object]]) -> None:
            while True:
                try:
                    job = take()
                except IndexError:  # the other thread has the last one
                    return
                job()

        helping = self._pool.submit(copy_context().run, work, left.pop)  # with the caller's treatment of overflow
        work(left.popleft)
        if not helping.cancel():
            helping.result()


def second_thread(n_parameters: int) -> AbstractContextManager[SecondThread | None]:
    """Return a second thread for a network of so many parameters, or None.

    None for a small network, and where matrix products may use only one thread.
    """
    if n_parameters < _WORTH_A_THREAD or max(blas_threads()) == 1:
        return nullcontext()
    return SecondThread()


class PerThread(Generic[Made]):
    """An object that a thread makes once and uses for all blocks of a run.

    Its memory contains records of the last block. So it is dropped after the last step of the run, and on an error.
    """

    def __init__(self) -> None:
        self._here = threading.local()

    def put(self, key: Any, made: Made) -> None:
        """Use an object that this thread has made already."""
        self._here.key, self._here.made = key, made

    @contextmanager
    def of(self, key: Any, make: Callable[[], Made], *, last: bool) -> Iterator[Made]:
        """Return the object of this thread for the key."""
        if getattr(self._here, "key", None) != key:
            self.put(key, make())
        kept = False
        try:
            yield self._here.made
            kept = not last
        finally:
            if not kept:
                vars(self._here).clear()
