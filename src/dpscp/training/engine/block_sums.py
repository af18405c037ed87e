"""Clip the gradients of a block of records and add them up, in float64, on a device of torch.

`TensorSums` uses operations on whole tensors, on any device. `dpscp.training.engine.triton_sums` does the same in a few
kernels where torch includes Triton. Both keep the proof of docs/floating_point.md: factors and sums are float64, and a
product adds at most `PRODUCT_ROWS` records.
"""

from importlib.util import find_spec
from typing import Any, Protocol

from dpscp.training.engine.gradients import LARGEST_SQUARES
from dpscp.training.torch.modules import load_torch

# Records in one float64 product: many short products keep a GPU busy where one long product would not.
PRODUCT_ROWS = 1 << 10


class BlockSums(Protocol):
    """The operations of a step that touch every record of a block."""

    def gather(self, columns: tuple[Any, ...], taken: Any) -> tuple[Any, ...]:
        """Return rows, squared norms, targets and weights of the records ``taken[1:]``.

        Those from the place ``taken[0]`` on are padding, of weight zero.
        """

    def apply(self, layer: Any, values: Any) -> Any:
        """Return a layer's outputs before its activation, one row for each row of values."""

    def clip(self, errors: list[Any], inputs: list[Any], lengths: Any, weights: Any) -> Any:
        """Return each record's weight times its clipping factor, in float64.

        The factor is zero where a number is not finite or too large. ``lengths`` are the squared norms of the first
        layer's inputs.
        """

    def add_product(self, total: Any, errors: Any, values: Any, factors: Any) -> None:
        """Add the products of errors and (values, 1), times the factors, to ``total``.

        A record with factor zero adds nothing, whatever its numbers are.
        """


class TensorSums:
    """Operations on whole tensors, on any device.

    Theory: section 1.6
    """

    def __init__(self, clip_norm: float, *, intercept: bool) -> None:
        self._limit, self._intercept = clip_norm, intercept

    def gather(self, columns: tuple[Any, ...], taken: Any) -> tuple[Any, ...]:
        """Return rows, squared norms, targets and weights of these records; see `BlockSums`."""
        rows, lengths, targets, weights = (values.index_select(0, taken[1:]) for values in columns)
        places = load_torch().arange(len(weights), device=taken.device)
        return rows, lengths, targets, weights.where(places < taken[0], 0)

    def apply(self, layer: Any, values: Any) -> Any:
        """Return a layer's outputs before its activation; see `BlockSums`."""
        return apply_layer(layer, values, intercept=self._intercept)

    def clip(self, errors: list[Any], inputs: list[Any], lengths: Any, weights: Any) -> Any:
        """Return each record's weight times its clipping factor; see `BlockSums`."""
        torch = load_torch()
        squares = torch.stack([_squared_norms(error) for error in errors])
        later = [_squared_norms(values) + self._intercept for values in inputs[1:]]
        all_lengths = torch.stack([lengths, *later])
        # a number that is not finite is not below anything
        counted = ((squares < LARGEST_SQUARES) & (all_lengths < LARGEST_SQUARES)).all(0)
        norms = (squares * all_lengths).sum(0).sqrt()
        return (self._limit / norms.clamp(min=self._limit) * weights).where(counted, 0)

    def add_product(self, total: Any, errors: Any, values: Any, factors: Any) -> None:
        """Add the products of errors and (values, 1), times the factors; see `BlockSums`."""
        counted, weights = factors[:, None] != 0, total[:, : values.shape[1]]
        clipped, wide = errors.where(counted, 0) * factors[:, None], values.where(counted, 0).double()
        if len(errors) <= PRODUCT_ROWS:
            weights.addmm_(clipped.T, wide)
            biases = clipped.sum(0)
        else:
            grouped = clipped.view(-1, PRODUCT_ROWS, clipped.shape[1])
            weights += (grouped.transpose(1, 2) @ wide.view(len(grouped), PRODUCT_ROWS, -1)).sum(0)
            biases = grouped.sum(1).sum(0)
        if self._intercept:
            total[:, -1] += biases


def apply_layer(layer: Any, values: Any, *, intercept: bool) -> Any:
    """Return the product of rows and weights, plus the bias."""
    # products of contiguous matrices round alike in more places
    outputs = values @ layer[:, : values.shape[1]].T.contiguous()
    return outputs + layer[:, -1] if intercept else outputs


def choose_sums(device: Any, clip_norm: float, *, intercept: bool) -> BlockSums:
    """Return the fastest operations that the device has."""
    if has_triton(device):
        from dpscp.training.engine.triton_sums import TritonSums

        return TritonSums(clip_norm, device, intercept=intercept)
    return TensorSums(clip_norm, intercept=intercept)


def has_triton(device: Any) -> bool:
    """Return whether torch includes Triton for this device."""
    return load_torch().device(device).type == "cuda" and find_spec("triton") is not None


def _squared_norms(values: Any) -> Any:
    """Return the squared norm of every row, in float64."""
    torch = load_torch()
    return torch.linalg.vector_norm(values, dim=1, dtype=torch.float64).square()
