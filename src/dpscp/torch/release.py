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
from dpscp.training.engine.noise import GRID, GridNoise, round_to_grid
from dpscp.training.engine.threads import second_thread

Noise = Any
Step = tuple[NDArray[np.int64], Noise]
"""The persons of a batch, and the noise of the step."""


class Release:
    """Noise of one standard deviation, for sums in clip norms; without noise they are released as they are.

    A GPU draws its noise from a key of ``rng``.
    """

    def __init__(self, noise: float, rng: np.random.Generator, shapes: Sequence[tuple[int, ...]], device: Any) -> None:
        self._spacing, self._noise = GRID * noise, noise
        size, self._is_cpu = sum(math.prod(shape) for shape in shapes), not is_gpu(device)
        stream = GridNoise(rng, size) if self._is_cpu else None
        self._next = draw_noise(rng.bytes(32), size, 1 / GRID, device).__next__ if stream is None else stream.next

    def draw(self) -> Noise:
        """Return the noise of the next step in units of the grid."""
        return self._next() if self._noise else np.empty(0)

    def __call__(self, sums: list[Any], drawn: Noise) -> list[Any]:
        """Return the sums with this noise, rounded to the grid; the sums may change."""
        if not self._noise:
            return sums
        if not self._is_cpu:
            released = [total.to(drawn.device) for total in sums]
            parts = drawn.split([total.numel() for total in released])
            torch._foreach_mul_(released, 1 / self._spacing)
            torch._foreach_add_(released, [part.view_as(total) for part, total in zip(parts, released, strict=True)])
            torch._foreach_round_(released)
            torch._foreach_mul_(released, self._spacing)
            return released
        start, released = 0, [total.cpu().contiguous() for total in sums]
        for total in released:
            stop = start + total.numel()
            round_to_grid(total.view(-1).numpy(), drawn[start:stop], self._spacing)
            start = stop
        return released


@contextmanager
def draw_ahead(steps: Iterator[Step], n_parameters: int) -> Iterator[Iterator[Step]]:
    """Return the same steps; a second thread, where torch may use two, draws the next one meanwhile.

    They are drawn in the same order, so nothing that is computed changes.
    """
    if torch.get_num_threads() == 1:
        yield steps
        return
    with second_thread(n_parameters) as second:
        yield steps if second is None else second.ahead(steps)
