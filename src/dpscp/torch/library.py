"""Import torch; no other module of the package does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import torch
    import torch._guards
    import torch._higher_order_ops.triton_kernel_wrap  # a graph that comes to another process needs it
    import torch._subclasses.fake_tensor
    import torch.func
    import torch.fx.experimental.proxy_tensor
    import torch.nn.attention
    import torch.overrides
    import torch.utils._python_dispatch
except ImportError as error:
    raise ImportError("training a torch module needs torch; run: pip install 'dpscp[torch]'") from error

__all__ = ["Tensor", "make_fx", "on_processor", "torch"]

Tensor = Any
"""A torch tensor: the type checker does not read torch."""
make_fx = torch.fx.experimental.proxy_tensor.make_fx


@contextmanager
def on_processor() -> Iterator[None]:
    """Make new tensors on the processor, whatever torch's default device is."""
    if torch.get_default_device().type == "cpu":
        yield
        return
    with torch.device("cpu"):
        yield
