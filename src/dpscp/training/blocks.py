"""Blocks of records whose sizes are such that a matrix product rounds a record alike in every place.

A product rounds a record by the size of the block, by the place in it and by the number of threads (kernels for small
matrices and for edges). A record's result must be a function of that record alone: else one more record would move the
results of all others, and by more than any sensitivity says where a jump, or a threshold, is near.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController  # comes with scikit-learn

__all__ = ["AlikeBlocks", "aligned_empty", "blas_threads", "is_aligned", "one_blas_thread", "whole_lanes"]

Array = NDArray[Any]

# Sizes of blocks are multiples of this, and so many records fill whole cache lines.
_LANES = 16
_CACHE_LINE = 64


def aligned_empty(shape: tuple[int, ...], dtype: str) -> Array:
    """An array that starts at a cache line, so that products run the same way whichever array they read."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + _CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def is_aligned(array: Array) -> bool:
    """Whether an array starts at a cache line."""
    return array.ctypes.data % _CACHE_LINE == 0


class AlikeBlocks:
    """The sizes of blocks in which made-up records get the same bits in every place as in a block of `chunk`.

    What a product does depends on sizes, places, alignment and threads and not on values, so that with these sizes a
    record's results are a function of that record. If a full block fails, records go one at a time (`chunk` is 1).
    """

    def __init__(self, most: float, made_up_results: Callable[[int], Iterable[Array]]) -> None:
        """`made_up_results(size)` puts each of some made-up records in every place: arrays (units, places)."""
        self._made_up_results = made_up_results
        self._alike: dict[int, bool] = {}
        self._expected: list[Array] = []
        self.chunk = whole_lanes(most)
        if not self._rounds_alike(self.chunk):
            self.chunk = 1  # one place rounds like itself, and `size` asks for no other
            self._alike = {1: True}

    def size(self, m: int) -> int:
        """The number of places, padding included, of a block for m records."""
        size = min(whole_lanes(m), self.chunk)
        return size if self._rounds_alike(size) else self.chunk

    def _rounds_alike(self, size: int) -> bool:
        if size not in self._alike:
            results = list(self._made_up_results(size))
            if not self._expected:
                self._expected = [result[:, :1].copy() for result in results]
            self._alike[size] = all(
                bool((result == expected).all()) for result, expected in zip(results, self._expected, strict=True)
            )
        return self._alike[size]


def whole_lanes(m: float) -> int:
    """The next number of records that fills whole cache lines."""
    return _LANES * math.ceil(m / _LANES)


def blas_threads() -> tuple[int, ...]:
    """How many threads each library of matrix products uses now."""
    return tuple(library.num_threads for library in _libraries().lib_controllers)


def one_blas_thread() -> AbstractContextManager[Any]:
    """One thread for matrix products inside the block: the matrices of a step are small, and more threads cost more
    than they bring, very much so on a busy machine.
    """
    limited: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limited


@cache
def _libraries() -> ThreadpoolController:
    # looked up once: finding them reads the list of all libraries of the process, which takes longer than a short run
    return ThreadpoolController().select(user_api="blas")
