"""Check that a source still returns the records of its first reading.

A fit reads a source several times. It draws the training and held-out records by their places in the blocks. A source
that returns its rows in another order would mix the two parts. So the first reading stores a digest of each block,
keyed with random bits that stay in memory. Every later reading is compared with it, in the process that has the block.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from dpscp.data.sources.base import Block, RecordSource

_BYTES = 16
# Arrays of these kinds are compared by their bytes, others as text.
_PLAIN = "biufcUSmM"
Found = TypeVar("Found")
Digests = list[tuple[int, bytes]]


def watch_changes(source: RecordSource, digests: Digests, key: bytes) -> RecordSource:
    """Return the source, whose blocks are compared with those of the first reading."""
    return source.map(SameBlocks(dict(digests), key, source.change_remedy))


@dataclass(frozen=True)
class FirstReading(Generic[Found]):
    """The result of ``look`` for a block, and the digest of the block."""

    look: Callable[[Block], Found]
    key: bytes = field(repr=False)

    def __call__(self, block: Block) -> tuple[Found, Digests]:
        return self.look(block), [(block.id, digest(block, self.key))]


@dataclass(frozen=True)
class SameBlocks:
    """Return the block unchanged if it equals that of the first reading; otherwise refuse it."""

    digests: Mapping[int, bytes] = field(repr=False)
    key: bytes = field(repr=False)
    remedy: str

    def __call__(self, block: Block) -> Block:
        if self.digests.get(block.id) != digest(block, self.key):
            raise RuntimeError(
                "the source returned other records, or the same records in another order, than at its first reading. "
                f"Training records could become held-out records. {self.remedy}"
            )
        return block


def digest(block: Block, key: bytes) -> bytes:
    """Return a keyed digest of rows, targets and persons, in their order."""
    found = hashlib.blake2b(key=key, digest_size=_BYTES)
    offsets = np.empty(0, dtype=np.int64) if block.persons is None else block.persons.offsets
    for part in (block.read(), block.targets, offsets):
        values = np.asarray(part)
        plain = np.ascontiguousarray(values if values.dtype.kind in _PLAIN else values.astype(str))
        found.update(f"{plain.dtype.str}{plain.shape}".encode())
        found.update(plain.reshape(-1).view(np.uint8).data)
    return found.digest()
