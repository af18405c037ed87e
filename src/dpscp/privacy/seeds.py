"""The one place that decides where random bits come from and derives one seed from another.

* ``secure_generator``: a NumPy ``Generator`` on a cryptographic stream, for masks and bulk Gaussian noise.
* ``secure_bytes``: raw bytes of the operating system, for exact integer noise.
* ``child_seeds``, ``stream_seed``: seeds for the parts of a seeded run, none of which may share a stream.

A seed gives the same draws to anybody who knows it. It is accepted for tests and experiments, and it warns.
"""

import os
import warnings
from collections.abc import Callable

import numpy as np

from dpscp._checks import check_count
from dpscp.exceptions import SeededWarning

__all__ = [
    "KEPT_ROWS",
    "PREPROCESSING",
    "SCORED_ROWS",
    "TARGET_SCALE",
    "child_seeds",
    "secure_bytes",
    "secure_generator",
    "seed_of",
    "stream_seed",
]

# Streams beside the one of the seed itself, which a training mechanism draws from.
PREPROCESSING, TARGET_SCALE, KEPT_ROWS, SCORED_ROWS = 1, 2, 3, 4
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


def secure_bytes(random_state: int | None = None) -> Callable[[int], bytes]:
    """A function that returns so many random bytes: the operating system's, or those of a seed (warns)."""
    seed = seed_of(random_state)
    # a stream of its own: training is seeded with random_state itself, and its noise must not come back here
    return os.urandom if seed is None else np.random.default_rng([seed, _INTEGER_NOISE]).bytes
