"""Draw the noise of the steps of a torch run, add it to sums and round them to the grid."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpscp.training.engine.loop import GRID, GridNoise, round_to_grid
from dpscp.training.engine.padding import second_thread
from dpscp.training.torch.device_noise import DeviceNoise
from dpscp.training.torch.modules import load_torch

Noise = NDArray[np.float64]
Step = tuple[NDArray[np.int64], Noise]
"""The persons of a batch, and the noise of the step."""


class Release(Protocol):
    """Noise of one standard deviation, for sums in clip norms."""

    def draw(self) -> Noise:
        """Return the noise of the next step in units of the grid, as far as it is drawn on the processor."""

    def __call__(self, sums: list[Any], drawn: Noise) -> list[Any]:
        """Return the sums with this noise, rounded to the grid; the sums may change."""


def make_release(
    device: Any, noise: float, rng: np.random.Generator, random_state: int | None, shapes: Sequence[tuple[int, ...]]
) -> Release:
    """Return the release of sums in these shapes; without noise they are released as they are."""
    if not noise:
        return _NoNoise()
    size = sum(math.prod(shape) for shape in shapes)
    if device.type == "cpu":
        return _ProcessorRelease(noise, rng, size)
    return _DeviceRelease(device, noise, random_state, size)


@contextmanager
def draw_ahead(steps: Iterator[Step], device: Any, n_parameters: int) -> Iterator[Iterator[Step]]:
    """Return the same steps; a second thread, where torch may use two, draws the next one meanwhile.

    They are drawn in the same order, so nothing that is computed changes.
    """
    if device.type != "cpu" or load_torch().get_num_threads() == 1:
        yield steps
        return
    with second_thread(n_parameters) as second:
        yield steps if second is None else second.ahead(steps)


class _NoNoise:
    def draw(self) -> Noise:
        return np.empty(0)

    def __call__(self, sums: list[Any], drawn: Noise) -> list[Any]:  # noqa: ARG002
        return sums


class _ProcessorRelease:
    def __init__(self, noise: float, rng: np.random.Generator, size: int) -> None:
        self._spacing, self._stream = GRID * noise, GridNoise(rng, size)

    def draw(self) -> Noise:
        return self._stream.next()

    def __call__(self, sums: list[Any], drawn: Noise) -> list[Any]:
        start, released = 0, [total.contiguous() for total in sums]
        for total in released:
            stop = start + total.numel()
            round_to_grid(total.view(-1).numpy(), drawn[start:stop], self._spacing)
            start = stop
        return released


class _DeviceRelease:
    def __init__(self, device: Any, noise: float, random_state: int | None, size: int) -> None:
        self._stream, self._spacing = DeviceNoise(random_state, size, device, 1 / GRID), GRID * noise

    def draw(self) -> Noise:
        return np.empty(0)

    def __call__(self, sums: list[Any], drawn: Noise) -> list[Any]:  # noqa: ARG002
        flat = load_torch().cat([total.flatten() for total in sums])
        flat = flat.mul_(1 / self._spacing).add_(self._stream.next()).round_().mul_(self._spacing)
        parts = flat.split([total.numel() for total in sums])
        return [part.view_as(total) for part, total in zip(parts, sums, strict=True)]
