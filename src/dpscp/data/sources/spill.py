"""Keep blocks in memory if they are small, otherwise in an unnamed temporary file that is read again for every sum."""

import mmap
import pickle
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from typing import IO, Generic, TypeVar

from dpscp._base.progress import show_pass
from dpscp.data.sources.base import ArraySource, Block, RecordSource

Item = TypeVar("Item")
# Arrays start at multiples of this, so that the engine reads them without a copy.
_ALIGNED = 64
_PAGE = mmap.ALLOCATIONGRANULARITY
# The number of bytes up to which rows stay in memory.
_IN_MEMORY = 2**27


@contextmanager
def _named_folder(folder: str | PathLike[str] | None) -> Iterator[None]:
    """Name the folder in a write error, such as a full disk, because the file has no name."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(folder or tempfile.gettempdir())
        raise


class Scratch(Generic[Item]):
    """Blocks in an unnamed file on disk, mapped into memory when they are read.

    Free memory of the machine keeps them in its cache.

    The file has no name, cannot be read by others, and disappears with the process. It holds unencrypted records,
    like the files they came from: ``folder`` (None: the system's folder for temporary files) should be as protected as
    theirs, with space for two to eight bytes for each feature of each record.
    """

    def __init__(self, blocks: Iterable[Item], folder: str | PathLike[str] | None = None) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix=".dpscp-", dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._heads: list[tuple[bytes, list[tuple[int, int]]]] = []
        for block in blocks:
            buffers: list[pickle.PickleBuffer] = []
            head = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
            with _named_folder(folder):
                self._heads.append((head, [self._write_buffer(buffer) for buffer in buffers]))
        with _named_folder(folder):
            self._file.flush()

    def __iter__(self) -> Iterator[Item]:
        done = 0

        def items() -> Iterator[Item]:
            nonlocal done
            for item in self[:]:
                done += 1
                yield item

        return show_pass(items(), lambda: done / len(self._heads))

    def __getitem__(self, which: slice) -> Iterator[Item]:
        """Yield the items at these places."""
        for head, places in self._heads[which]:
            yield pickle.loads(head, buffers=[self._map_memory(*place) for place in places])

    def _write_buffer(self, buffer: pickle.PickleBuffer) -> tuple[int, int]:
        """Write an array and return the place and the number of its bytes."""
        start = -(-self._file.tell() // _ALIGNED) * _ALIGNED
        self._file.seek(start)
        with buffer.raw() as raw:
            return start, self._file.write(raw)

    def _map_memory(self, start: int, size: int) -> memoryview:
        if size == 0:
            return memoryview(b"")
        page = start // _PAGE * _PAGE
        whole = mmap.mmap(self._file.fileno(), start + size - page, access=mmap.ACCESS_READ, offset=page)
        return memoryview(whole)[start - page :]


class LocalSource(RecordSource):
    """The base class of sources that hold one block at a time, and keep blocks in a scratch file."""

    is_fixed = True
    folder: str | PathLike[str] | None

    def keep(self) -> "ReadSource":
        return ReadSource(Scratch(self.mapped(), self.folder), self.width, self.folder)


class ReadSource(LocalSource):
    """Blocks that are read again, in the same order, for every sum."""

    def __init__(self, blocks: Iterable[Block], width: int, folder: str | PathLike[str] | None) -> None:
        self._stored, self.width, self.folder = blocks, width, folder

    def read(self) -> Iterable[Block]:
        return self._stored


def keep_or_spill(
    items: Iterable[Item], folder: str | PathLike[str] | None, public_size: int = 0
) -> list[Item] | Scratch[Item]:
    """Return blocks, or pieces that begin with their rows, in memory if small, otherwise in a scratch file.

    If the public number of bytes is known and large, all blocks go to the file at once. The place of a block affects
    speed only, not results.
    """
    first, size, more = list[Item](), 0, iter(items)
    for item in more:
        first.append(item)
        size += (item.rows if isinstance(item, Block) else item[0]).nbytes  # type: ignore[index]  # a tuple
        if max(size, public_size) > _IN_MEMORY:
            first.reverse()
            return Scratch(chain((first.pop() for _ in range(len(first))), more), folder)
    return first


def store_blocks(
    blocks: Iterable[Block], width: int, folder: str | PathLike[str] | None, public_size: int = 0
) -> RecordSource:
    """Return a source of the blocks, which are computed once."""
    kept = keep_or_spill(blocks, folder, public_size)
    return ArraySource.of_blocks(kept) if isinstance(kept, list) else ReadSource(kept, width, folder)
