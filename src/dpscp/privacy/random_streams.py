"""The one place that decides where random bits come from and derives one seed from another.

* ``secure_generator``: a NumPy ``Generator`` on a cryptographic stream, for masks and bulk Gaussian noise.
* ``secure_bytes``: raw bytes of the operating system, for exact integer noise.
* ``BlockStreams``: draws that belong to a block of records, the same wherever and however often they are made.
* ``child_seeds``, ``stream_seed``: seeds for the parts of a seeded run, none of which may share a stream.

A seed gives the same draws to anybody who knows it. It is accepted for tests and experiments, and it warns.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from dpscp._base.checks import check_count
from dpscp.exceptions import SeededWarning

# Streams beside the one of the seed itself, which a training mechanism draws from.
PREPROCESSING, TARGET_SCALE, KEPT_ROWS, SCORED_ROWS, BATCHES, HELD_OUT, BOUNDS, LAYERS = 1, 2, 3, 4, 5, 6, 7, 8
EVALUATED = 9
_INTEGER_NOISE = 2


def seed_of(random_state: object) -> int | None:
    """None for system entropy; a checked integer seed, with a warning that the run is not private."""
    if random_state is None:
        return None
    seed = check_count("random_state", random_state, minimum=0)
    warnings.warn(
        f"random_state={seed}: the noise can be recomputed from the seed, so this run is NOT private; "
        "use random_state=None to release anything",
        SeededWarning,
        stacklevel=3,
    )
    return seed


def child_seeds(seed: int | None, count: int) -> tuple[int | None, ...]:
    """``count`` seeds for the parts of one run, independent of each other; None each for system entropy."""
    if seed is None:
        return (None,) * count
    return tuple(int(child) for child in np.random.SeedSequence(seed).generate_state(count))


def stream_seed(random_state: int | None, stream: int) -> int | None:
    """The seed of a stream of its own, for a step beside the one that is seeded with ``random_state`` itself."""
    if random_state is None:
        return None
    seed = check_count("random_state", random_state, minimum=0)
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])


def secure_generator(random_state: int | None = None) -> np.random.Generator:
    """A NumPy generator on AES-128 in counter mode, keyed from the operating system; or a seeded one (warns).

    AES-CTR is a cryptographic stream: its output cannot be told from uniform bits without the key. The Gaussian
    draws made from it are still floating-point numbers, see docs/decisions.md for what that leaves open.
    """
    seed = seed_of(random_state)
    if seed is not None:
        return np.random.Generator(np.random.PCG64(seed))
    from randomgen import AESCounter  # only training needs it

    return np.random.Generator(AESCounter(key=int.from_bytes(os.urandom(16), "little")))


@dataclass(frozen=True)
class BlockStreams:
    """Random draws for the blocks of a source: AES-128 in counter mode at (key, step, block).

    A block that is read again, by whatever machine, draws the same: a lost batch is made again and spends nothing more.
    Whoever holds the key can repeat the draws; it goes where the records are and nowhere else.

    >>> streams = BlockStreams(key=7)
    >>> bool((streams.generator(3, step=2).random(5) == streams.generator(3, step=2).random(5)).all())
    True
    """

    key: int = field(repr=False)

    @classmethod
    def of(cls, random_state: int | None, stream: int) -> Self:
        """A key of the operating system; or, for tests, the one of a seed and of the purpose ``stream``."""
        if random_state is None:
            return cls(int.from_bytes(os.urandom(16), "little"))
        return cls(int.from_bytes(np.random.SeedSequence([random_state, stream]).generate_state(4).tobytes(), "little"))

    def generator(self, block: int, step: int = 0) -> np.random.Generator:
        """The generator of one block in one step."""
        from randomgen import AESCounter

        # 2^56 counts of 16 bytes for each of 2^40 blocks and 2^32 steps: no two of them share a count
        counter = (check_count("step", step, minimum=0) << 96) + (check_count("block", block, minimum=0) << 56)
        return np.random.Generator(AESCounter(key=self.key, counter=counter))


def secure_bytes(random_state: int | None = None) -> Callable[[int], bytes]:
    """A function that returns so many random bytes: the operating system's, or those of a seed (warns)."""
    seed = seed_of(random_state)
    # a stream of its own: training is seeded with random_state itself, and its noise must not come back here
    return os.urandom if seed is None else np.random.default_rng([seed, _INTEGER_NOISE]).bytes
