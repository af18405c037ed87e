"""Draw the noise of the steps of a torch run, add it to sums and round them to the grid.

Noise comes from the library's own cryptographic streams, on every device.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.torch.gpu import draw_noise, is_gpu
from dpscp.torch.library import torch
from dpscp.training.engine.noise import GRID, GridNoise
from dpscp.training.engine.threads import second_thread

Noise = Any
Step = tuple[NDArray[np.int64], Noise]
"""The persons of a batch, and the noise of the step."""
# Numbers of a sum that all operations of a rounding see before the next ones: they stay in cache.
_ROUNDED_AT_ONCE = 1 << 14


class Release:
    """Add noise of one standard deviation to sums in clip norms; a standard deviation of zero adds none.

    A GPU draws its noise from a key of ``rng``.
    """

    def __init__(self, noise: float, rng: np.random.Generator, shapes: Sequence[tuple[int, ...]], device: Any) -> None:
        self._spacing, self._noise = GRID * noise, noise
        size, self._is_cpu = sum(math.prod(shape) for shape in shapes), not is_gpu(device)
        self._stream = GridNoise(rng, size) if self._is_cpu else draw_noise(rng.bytes(32), size, 1 / GRID, device)

    def draw(self) -> Noise:
        """Return the noise of the next step in units of the grid."""
        if not self._noise:
            return torch.empty(0)
        return torch.from_numpy(self._stream.next()) if isinstance(self._stream, GridNoise) else next(self._stream)

    def __call__(self, sums: list[Any], drawn: Noise, scale: float = 1.0) -> list[Any]:
        """Return the sums with this noise, rounded to the grid, times a public scale; the sums may change."""
        if not self._noise:
            return [total * scale for total in sums]
        released = [total.to(drawn.device).contiguous().view(-1) for total in sums]
        noise = drawn.split([total.numel() for total in released])
        if self._is_cpu:
            for total, own in zip(released, noise, strict=True):
                # what one operation has read stays in cache for the next one
                for part, some in zip(total.split(_ROUNDED_AT_ONCE), own.split(_ROUNDED_AT_ONCE), strict=True):
                    part.mul_(1 / self._spacing).add_(some).round_().mul_(self._spacing * scale)
        else:
            torch._foreach_mul_(released, 1 / self._spacing)
            torch._foreach_add_(released, noise)
            torch._foreach_round_(released)
            torch._foreach_mul_(released, self._spacing * scale)
        return [values.view(total.shape) for values, total in zip(released, sums, strict=True)]


@contextmanager
def draw_ahead(steps: Iterator[Step], n_parameters: int) -> Iterator[Iterator[Step]]:
    """Yield the steps; where torch may use two threads, a second one draws the next step ahead.

    They are drawn in the same order, so nothing that is computed changes.
    """
    if torch.get_num_threads() == 1:
        yield steps
        return
    with second_thread(n_parameters) as second:
        yield steps if second is None else second.ahead(steps)
