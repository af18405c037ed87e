"""Choose block sizes for which a product rounds a record alike in every place.

A matrix product rounds a record by the size of the block, the place in it and the number of threads (kernels for small
matrices and for edges). A record's result must be a function of that record alone. Else one more record would change
the results of all others, and near a jump or a threshold by more than any sensitivity states.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import cache, lru_cache
from threading import Lock
from typing import Any, Self, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController  # comes with scikit-learn

from dpscp._base.arrays import Array

Item = TypeVar("Item")
_SIZE_CHECK = Lock()  # several threads may look at the same sizes

# Sizes of blocks are multiples of this, and so many records fill whole cache lines.
LANES = 16
_CACHE_LINE = 64
# With fewer parameters the noise is drawn in less time than two threads need to wait for each other.
_WORTH_A_THREAD = 1 << 15


def aligned_empty(shape: tuple[int, ...], dtype: str) -> Array:
    """Return an empty array that starts at a cache line.

    Products then run the same way for every array.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + _CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def is_aligned(array: Array, step: int) -> bool:
    """Return whether slices that start at multiples of ``step`` are aligned.

    An aligned slice starts at a cache line.
    """
    return array.ctypes.data % _CACHE_LINE == 0 and step * array.strides[0] % _CACHE_LINE == 0


class AlikeBlocks:
    """Block sizes in which synthetic records get the same bits in every place.

    The bits are those in a block of `chunk`.

    What a product does depends on sizes, places, alignment and threads and not on values, so that with these sizes a
    record's results are a function of that record. If a full block fails, records go one at a time (`chunk` is 1).
    """

    def __init__(self, what: Hashable, most: float, synthetic_results: Callable[[int], Iterable[Array]]) -> None:
        """Check the largest block size.

        `synthetic_results(size)` puts each synthetic record in every place and yields arrays (units, places). Each size
        is checked once in a process for `what`: the shapes, the library's threads and the code.
        """
        self._synthetic_results = synthetic_results
        self._alike, self._expected = _known_sizes(what)
        self.chunk = whole_lanes(most)
        if not self._rounds_alike(self.chunk):
            self.chunk = 1  # one place rounds like itself, and `size` asks for no other

    def size(self, m: int) -> int:
        """Return the number of places, padding included, of a block for m records."""
        size = min(whole_lanes(m), self.chunk)
        return size if size == self.chunk or self._rounds_alike(size) else self.chunk

    def _rounds_alike(self, size: int) -> bool:
        if size not in self._alike:
            results = list(self._synthetic_results(size))
            with _SIZE_CHECK:
                if not self._expected:
                    self._expected.extend(result[:, :1].copy() for result in results)
            pairs = zip(results, self._expected, strict=True)
            self._alike[size] = all(bool((result == expected).all()) for result, expected in pairs)
        return self._alike[size]


@lru_cache(maxsize=256)
def _known_sizes(_what: Hashable) -> tuple[dict[int, bool], list[Array]]:
    """Return which sizes round alike, and what synthetic records get in a full block."""
    return {}, []


def whole_lanes(m: float) -> int:
    """Return the next number of records that fills whole cache lines."""
    return LANES * math.ceil(m / LANES)


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
    """One thread beside the caller's, for work that leaves the interpreter free.

    Draws and matrix products.

    A step of a wide network then draws its noise while its gradient is computed. It asks for no second thread of the
    matrix library: those share one product, which rounds by the number of threads, and wait for each other in a loop
    that a busy machine makes very slow.
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
    """Return a second thread if so many parameters are worth it.

    None where it would not pay or where matrix products may use only one.
    """
    if n_parameters < _WORTH_A_THREAD or max(blas_threads()) == 1:
        return nullcontext()
    return SecondThread()
