"""Make synthetic rows that a torch module takes, and count the numbers that its layers return for them."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.training.torch.modules import load_torch, rows_dtype

FEW_ROWS = 4
# Rows that go through a module at once without gradients, at most; their numbers; and what the layers return for them,
# on a processor. A GPU needs many rows to be busy.
_MOST_ROWS, _MOST_NUMBERS, _MOST_RETURNED = 4096, 2**18, 2**23
_FEWEST_ROWS = 64


def rows_at_once(module: Any, input_shape: tuple[int, ...], device: str) -> int:
    """Return how many rows go through a module at once without gradients.

    From synthetic rows alone: on a processor by the numbers that the layers return, for the first kind of rows that the
    module takes.
    """
    most = min(_MOST_ROWS, _MOST_NUMBERS // math.prod(input_shape))
    if load_torch().device(device).type == "cpu":  # on a GPU rows of the wrong kind end the process
        most = min(most, _MOST_RETURNED // _numbers_per_row(module, input_shape))
    return max(_FEWEST_ROWS, most)


def _numbers_per_row(module: Any, input_shape: tuple[int, ...]) -> int:
    for rows in synthetic_rows(input_shape):
        try:
            return count_numbers(module, rows.to(rows_dtype(module)))
        except Exception:  # rows that the module was not made for; all it can say is about synthetic rows
            continue
    return _MOST_RETURNED


def count_numbers(module: Any, rows: Any) -> int:
    """Return how many numbers the innermost layers of a module return for one of these rows, itself included."""
    torch, found = load_torch(), [math.prod(rows.shape[1:])]

    def listen(_layer: Any, _inputs: Any, output: Any) -> None:
        values = output if isinstance(output, tuple) else (output,)
        found.extend(value.numel() // len(rows) for value in values if isinstance(value, torch.Tensor))

    hooks = [part.register_forward_hook(listen) for part in module.modules() if not list(part.children())]
    try:
        with torch.no_grad():
            module(rows)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)


# ---- kinds of rows


@dataclass(frozen=True)
class RowKind:
    """A kind of synthetic rows: any numbers, numbers in (0, 1), or token ids; padded ones end or start with zeros.

    With ``scales``, rows of different size take turns, and of different form: as they are, without signs, integers, and
    numbers of one size.
    """

    values: str = "any"
    """"any", "unit" or "tokens"."""
    tokens: int = 2
    """Ids lie below this number."""
    has_padding: bool = False
    scales: tuple[float, ...] = ()
    has_outlier: bool = False
    """Whether one number of the first row is far larger than all others."""

    def rows(self, input_shape: tuple[int, ...], count: int = FEW_ROWS, seed: int = 0) -> Any:
        """Return rows, float64; the same ones wherever they are made."""
        unit = _uniform((count, *input_shape), seed)
        if self.values == "any":
            numbers = (unit - 0.5) * math.sqrt(12)
        elif self.values == "unit":
            numbers = unit
        elif self.has_padding:  # zero is the padding
            numbers = 1 + np.floor(unit * (self.tokens - 1))
            numbers.reshape(count, -1)[0, 0] = self.tokens - 1  # rows with the largest id are tried first
        else:
            numbers = (unit > 0.5).astype(np.float64)
            numbers.reshape(count, -1)[:, 0] = np.arange(count) % 2  # at least two rows differ
        if self.has_padding:
            first = next((i for i, size in enumerate(input_shape) if size > 1), 0)  # (1, length): the second dimension
            length = input_shape[first]
            numbers.reshape(count, length, -1)[_is_padding(count, length)] = 0
        if self.scales:
            _scale_rows(numbers, self.scales)
        if self.has_outlier:
            numbers.reshape(count, -1)[0, 0] = _OUTLIER
        return load_torch().from_numpy(numbers)


ANY, UNIT, BITS = RowKind(), RowKind("unit"), RowKind("tokens")
PADDED = RowKind("any", has_padding=True)
# Texts with more and more words; how many a module knows is not known.
TEXTS = tuple(RowKind("tokens", tokens, has_padding=True) for tokens in (2, 3, 8, 64, 1024))

# Scales that one batch mixes: a module decides on its rows by their size (images of 0 to 255), or divides them by it.
# The first rows have the scales that are farthest apart.
SCALES = (1.0, 1e8, 0.0, 255.0, 1e-3, 1e4, 8.0)
# Many deviations away from other numbers: a module may cut its rows at some of these.
_OUTLIER = 1e4
# So many rows have all scales, in all forms.
MIXED_ROWS = 4 * len(SCALES)


def _scale_rows(numbers: NDArray[np.float64], scales: tuple[float, ...]) -> None:
    place = np.arange(len(numbers))
    flat, form = numbers.reshape(len(numbers), -1), (place % len(scales) + place // len(scales)) % 4
    flat[form == 3] = np.sign(flat[form == 3])
    flat *= np.asarray(scales)[place % len(scales), None]
    flat[form == 1] = np.abs(flat[form == 1])
    flat[form == 2] = np.round(flat[form == 2])


def _is_padding(count: int, length: int) -> NDArray[np.bool_]:
    """Return the places of the padding of each row, (count, length): at the end of every other row, or at its start.

    The first row has none. The lengths of the others lie apart from each other.
    """
    row, place = np.arange(count)[:, None], np.arange(length)
    padding = row * max(1, round(0.618 * length)) % length
    mask: NDArray[np.bool_] = np.where(row % 2 == 0, place >= length - padding, place < padding)
    return mask


def _uniform(shape: tuple[int, ...], seed: int) -> NDArray[np.float64]:
    # SplitMix64 of 1, 2, ...: torch's generators may change from version to version
    first = 1 + seed * 2**40
    bits = np.arange(first, first + math.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53).reshape(shape)


def synthetic_rows(input_shape: tuple[int, ...], count: int = FEW_ROWS, seed: int = 0) -> Iterator[Any]:
    """Yield synthetic rows of the kinds that saved files have outputs for."""
    return (kind.rows(input_shape, count, seed) for kind in (ANY, UNIT, BITS))


@dataclass(frozen=True)
class SyntheticRecords:
    """Synthetic records of a kind that a module takes, with targets."""

    input_shape: tuple[int, ...]
    kind: RowKind
    classification: bool
    draws: bool
    """Whether the module draws random numbers for them."""
    device: str
    dtype: Any

    def one_record(self, size: int, seed: int) -> tuple[Any, Any]:
        """Return a block in which every place has the same record."""
        torch = load_torch()
        row = self.kind.rows(self.input_shape, 1, seed)
        rows = row.to(device=self.device, dtype=self.dtype).expand(size, *self.input_shape)
        zeros = torch.zeros(size, dtype=torch.int64 if self.classification else self.dtype, device=self.device)
        target = zeros if self.classification else zeros + 0.5
        return rows.clone(memory_format=torch.contiguous_format), target


def outputs_are_probabilities(module: Any, synthetic: SyntheticRecords) -> bool:
    """Return whether the outputs for synthetic rows are positive and add up to one."""
    torch = load_torch()
    copied = copy.deepcopy(module).to(synthetic.device).eval()
    with torch.no_grad():
        outputs = torch.cat([copied(synthetic.one_record(2, seed)[0]) for seed in (1, 2, 3)])
    several = outputs.ndim == 2 and outputs.shape[1] > 1
    return several and bool((outputs >= 0).all() and ((outputs.sum(1) - 1).abs() < 1e-4).all())
