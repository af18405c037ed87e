"""All sources of random bits, and all derivations of seeds.

* ``secure_generator``: a NumPy ``Generator`` on a cryptographic stream, for masks and Gaussian noise.
* ``secure_bytes``: bytes of the operating system, for exact integer noise.
* ``PlacedDraws``: one uniform number for each place of a table, the same at every reading.
* ``BlockStreams``: draws that belong to a block of records, the same on every machine and at every reading.
* ``child_seeds``, ``stream_seed``: seeds for the parts of a seeded run; no two parts share a stream.

Anyone who knows a seed can recompute the draws. Seeds are for tests and experiments, and they warn.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count
from dpscp.exceptions import SeededWarning

# Streams other than that of the seed itself, which a training mechanism uses.
PREPROCESSING, TARGET_SCALE, KEPT_ROWS, SCORED_ROWS, BATCHES, BOUNDS, LAYERS = 1, 2, 3, 4, 5, 7, 8
THINNING, QUANTILES, EVALUATED, RECALIBRATION = 9, 10, 11, 12
_INTEGER_NOISE = 2
# Numbers that are drawn at once where only some of them are wanted.
_DRAWN_AT_ONCE = 1 << 16


def seed_of(random_state: object) -> int | None:
    """Return None for system entropy, or a checked seed with a warning."""
    if random_state is None:
        return None
    seed = check_count("random_state", random_state, minimum=0)
    warnings.warn(
        f"random_state={seed}: the noise can be recomputed from the seed, so this run is NOT private; "
        "use random_state=None for anything that you release",
        SeededWarning,
        stacklevel=3,
    )
    return seed


def child_seeds(seed: int | None, count: int) -> tuple[int | None, ...]:
    """Return independent seeds for the parts of one run; None for system entropy."""
    if seed is None:
        return (None,) * count
    return tuple(int(child) for child in np.random.SeedSequence(seed).generate_state(count))


def stream_seed(random_state: int | None, stream: int) -> int | None:
    """Return the seed of a separate stream, for a step beside the seeded one."""
    if random_state is None:
        return None
    seed = check_count("random_state", random_state, minimum=0)
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])


def secure_generator(random_state: int | None = None) -> np.random.Generator:
    """Return a NumPy generator on AES-128 in counter mode, or a seeded one.

    The key comes from the operating system. Without the key, the output cannot be distinguished from uniform bits.
    Gaussian draws from it are still floating-point numbers; docs/floating_point.md states the consequences.

    Parameters
    ----------
    random_state : int, optional
        A seed for tests; warns, and the draws are not private.

    Returns
    -------
    numpy.random.Generator
    """
    seed = seed_of(random_state)
    if seed is not None:
        return np.random.Generator(np.random.PCG64(seed))
    from randomgen import AESCounter  # only training needs it

    return np.random.Generator(AESCounter(key=int.from_bytes(os.urandom(16), "little")))


@dataclass(frozen=True)
class PlacedDraws:
    """One uniform number in [0, 1) for each place 0, 1, 2, ...: draws that do not depend on how records lie in blocks.

    The numbers are those of one cryptographic stream (or of a seeded one) in order; a block moves the stream forward to
    its own places. Reading a block again, on whatever machine, gives the same numbers. Whoever holds the key can repeat
    the draws; it goes where the records are and nowhere else.

    >>> draws = PlacedDraws(seed=7)
    >>> bool((draws.uniform(range(10))[3:5] == draws.uniform(range(3, 5))).all())
    True
    """

    seed: int | None = field(default=None, repr=False)
    key: int = field(default=0, repr=False)

    @classmethod
    def of(cls, random_state: int | None) -> Self:
        """The stream of a key of the operating system; or, for tests, the one of a seed (warns)."""
        seed = seed_of(random_state)
        return cls(seed, 0 if seed is not None else int.from_bytes(os.urandom(16), "little"))

    def uniform(self, places: "range | NDArray[np.int64]") -> NDArray[np.float64]:
        """The numbers of these places, which increase one by one (a range) or in larger steps."""
        if isinstance(places, range):
            return self._from(places.start).random(len(places))
        found = np.empty(len(places))
        if not len(places):
            return found
        generator = self._from(int(places[0]))
        # what lies between two places is drawn and left: a cipher is faster than a search for each place
        for start in range(int(places[0]), int(places[-1]) + 1, _DRAWN_AT_ONCE):
            drawn = generator.random(_DRAWN_AT_ONCE)
            first, last = np.searchsorted(places, (start, start + _DRAWN_AT_ONCE))
            found[first:last] = drawn[places[first:last] - start]
        return found

    def _from(self, place: int) -> np.random.Generator:
        """The generator whose next number is that of this place: a number uses 64 bits of the stream."""
        if self.seed is not None:
            return np.random.Generator(np.random.PCG64(self.seed).advance(place))
        from randomgen import AESCounter

        bits = AESCounter(key=self.key)
        bits.advance(place)
        return np.random.Generator(bits)


@dataclass(frozen=True)
class BlockStreams:
    """Random draws for the blocks of a source: AES-128 at (key, step, block).

    A block that is read again, on any machine, gets the same draws. A lost batch can be repeated at no extra cost.
    Anyone who has the key can repeat the draws, so it is sent only to where the records are.

    >>> streams = BlockStreams(key=7)
    >>> bool((streams.generator(3, step=2).random(5) == streams.generator(3, step=2).random(5)).all())
    True
    """

    key: int = field(repr=False)

    @classmethod
    def of(cls, random_state: int | None, stream: int) -> Self:
        """Return streams with a system key, or with the key of a seed and a purpose."""
        if random_state is None:
            return cls(int.from_bytes(os.urandom(16), "little"))
        return cls(int.from_bytes(np.random.SeedSequence([random_state, stream]).generate_state(4).tobytes(), "little"))

    def generator(self, block: int, step: int = 0) -> np.random.Generator:
        """Return the generator of one block in one step."""
        from randomgen import AESCounter

        # 2^56 counter values for each of 2^40 blocks and 2^32 steps: no two of them share a value
        counter = (check_count("step", step, minimum=0) << 96) + (check_count("block", block, minimum=0) << 56)
        return np.random.Generator(AESCounter(key=self.key, counter=counter))


def secure_bytes(random_state: int | None = None) -> Callable[[int], bytes]:
    """Return a function that returns random bytes, of the system or of a seed."""
    seed = seed_of(random_state)
    # a separate stream: training is seeded with random_state itself, and its noise must not be repeated here
    return os.urandom if seed is None else np.random.default_rng([seed, _INTEGER_NOISE]).bytes
