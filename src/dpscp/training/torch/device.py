"""Use a device of torch: look whether it is there, copy to it, record its work."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from dpscp._base.arrays import Array
from dpscp.training.torch.modules import load_torch


def check_device(name: str) -> Any:
    """Return the torch device of this name; ValueError if it is unavailable."""
    torch = load_torch()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device={name!r} cannot be used ({reason}); leave it out to train on the CPU") from None
    return device


def has_triton(device: Any) -> bool:
    """Return whether torch includes Triton for this device."""
    return load_torch().device(device).type == "cuda" and find_spec("triton") is not None


class Upload:
    """Copy an array to the device without waiting for the device.

    Of two arrays in pinned memory one is written while the other may still be on its way.
    """

    def __init__(self, into: Any) -> None:
        torch = load_torch()
        self._into, self._on_gpu, self._turn = into, into.device.type == "cuda", 0
        self._held = [torch.zeros(into.shape, dtype=into.dtype, pin_memory=self._on_gpu) for _ in range(2)]
        self._sent = [torch.cuda.Event() for _ in range(2)] if self._on_gpu else []
        self.next: Array = self._held[0].numpy()

    def send(self) -> None:
        """Copy ``next`` to the device.

        ``next`` is then another array, whose content is old.
        """
        self._into.copy_(self._held[self._turn], non_blocking=True)
        if self._on_gpu:
            self._sent[self._turn].record(load_torch().cuda.current_stream(self._into.device))
        self._turn = 1 - self._turn
        if self._on_gpu:
            self._sent[self._turn].synchronize()
        self.next = self._held[self._turn].numpy()


def record_graph(work: Callable[[], object], device: Any) -> Callable[[], object]:
    """Return the work as one recorded CUDA graph; elsewhere the work itself.

    A short step spends most of its time on starting kernels.
    """
    if device.type != "cuda":
        return work
    cuda = load_torch().cuda
    aside = cuda.Stream(device)  # of this device, also where another is the current one: else nothing is recorded
    aside.wait_stream(cuda.current_stream(device))
    with cuda.stream(aside):
        work()  # libraries make their workspaces now, which a recording must not
    cuda.current_stream(device).wait_stream(aside)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=aside):
        work()
    replay: Callable[[], object] = graph.replay
    return replay
