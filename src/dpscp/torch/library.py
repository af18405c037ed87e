"""Import torch; no other module of the package does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import torch
    from torch._guards import TracingContext, tracing
    from torch._higher_order_ops import triton_kernel_wrap  # noqa: F401 (a graph that comes to another process needs it)
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functional_call, functionalize, grad, vmap
    from torch.fx import GraphModule
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as error:
    raise ImportError("training a torch module needs torch; run: pip install 'dpscp[torch]'") from error

__all__ = [
    "FakeTensorMode",
    "GraphModule",
    "SDPBackend",
    "TorchDispatchMode",
    "TorchFunctionMode",
    "TracingContext",
    "functional_call",
    "functionalize",
    "grad",
    "make_fx",
    "on_processor",
    "sdpa_kernel",
    "torch",
    "tracing",
    "vmap",
]

Tensor = Any
"""A torch tensor: the type checker does not read torch."""


@contextmanager
def on_processor() -> Iterator[None]:
    """Make new tensors on the processor, whatever torch's default device is."""
    if torch.get_default_device().type == "cpu":
        yield
        return
    with torch.device("cpu"):
        yield
