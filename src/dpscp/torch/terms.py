"""The parts of records' gradients that belong to one parameter, and how they are clipped and added.

- `SampleTerm` holds the gradient of each record: biases, normalization layers, convolutions with few parameters.
- `ProductTerm` holds inputs and output gradients. Its norms are ghost norms.
- `LookupTerm` does the same for an embedding.

All norms, factors and sums are float64. What rounding can do to a sum is proven in docs/floating_point.md.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpscp.torch.library import torch

# Twice the unit of float64 rounding: first-order bounds with it hold in full.
ROUNDING = 2.0**-52
# Rows of one float64 product, and so the additions in it.
_PRODUCT_ROWS = 1 << 13
# The most blocks of a batch: so many additions more.
MOST_BLOCKS = 1 << 12
# And so many where the blocks of a source are added by pairs.
_MOST_SOURCE_LEVELS = 41
# What clipped sums may lose by rounding, out of CLIP_SLACK.
_SUM_SLACK = 9e-5
# Numbers that one operation reads: on a processor they stay in cache, on a GPU they fit into its memory.
_AT_ONCE, _AT_ONCE_ON_GPU = 1 << 18, 1 << 26
# Products from here on are worth a call of oneDNN, which ``torch.compile`` uses in the same way.
_LARGE_PRODUCT = 1 << 20
# With so many places a float32 product for each record takes less time than one float64 product of all.
_FEWEST_SINGLE_PLACES = 32
_multiply_float32 = torch.ops.mkldnn._linear_pointwise if torch.backends.mkldnn.is_available() else None


@dataclass(frozen=True)
class Term(ABC):
    """The part of the records' gradients that belongs to one parameter, of shape ``shape``."""

    shape: tuple[int, ...]

    @property
    @abstractmethod
    def roundings(self) -> int:
        """Return the number of additions in the computation of a norm."""

    @abstractmethod
    def additions(self, block: int) -> int:
        """Return the most additions that a number goes through in a block of so many records."""

    @abstractmethod
    def squared_norms(self) -> Any:
        """Return an upper bound of the squared norm of each record's part, float64."""

    @abstractmethod
    def squared_magnitudes(self) -> Any:
        """Return the squared norms of what is added up inside a record, all of it positive; None: the same."""

    @abstractmethod
    def single_gradients(self) -> Any:
        """Return the gradient of each record, (records, *shape of the parameter)."""

    @abstractmethod
    def weighted_sum(self, factors: Any, counted: Any) -> Any:
        """Return the sum of the first records' parts times ``factors``, float64, in new memory.

        Records that are not ``counted`` (None: all are) are taken as zero.
        """


def records_at_once(values: Any, numbers: int) -> int:
    """Return how many records of so many numbers one operation reads."""
    return max(1, (_AT_ONCE if values.device.type == "cpu" else _AT_ONCE_ON_GPU) // numbers)


def flat_rows(values: Any) -> Any:
    """Return one row of numbers for each record; a parameter without dimensions has one number."""
    return values.flatten(1) if values.ndim > 1 else values[:, None]


def _split(values: Any, at_once: int) -> Sequence[Any]:
    return (values,) if len(values) <= at_once else values.split(at_once)


def _squares(values: Any) -> Any:
    rows = flat_rows(values)
    norms = [
        torch.linalg.vector_norm(some.double(), dim=1) for some in _split(rows, records_at_once(rows, rows.shape[1]))
    ]
    return (norms[0] if len(norms) == 1 else torch.cat(norms)).square()


def _zero_uncounted(values: Any, counted: Any) -> Any:
    """Replace the values of records that are not counted by zeros."""
    if counted is None:
        return values
    return values.where(counted.view(-1, *[1] * (values.ndim - 1)), 0)


def _multiply(left: Any, right: Any, out: Any = None) -> Any:
    """Return the matrix product, written to ``out`` where it is given.

    With one thread NumPy multiplies: on processors of AMD, its library takes half to .8 of the time of torch's.
    """
    if left.device.type != "cpu" or torch.get_num_threads() > 1:
        return torch.matmul(left, right, out=out)
    return torch.from_numpy(np.matmul(left.numpy(), right.numpy(), out=None if out is None else out.numpy()))


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return x @ weight.T + bias for matrices of the module's own precision.

    oneDNN multiplies large ones in float32: on processors of AMD, it takes half of the time of torch's library.
    """
    large = x.shape[0] * weight.numel() >= _LARGE_PRODUCT
    if large and _multiply_float32 is not None and x.device.type == "cpu" and x.dtype == torch.float32 == weight.dtype:
        return _multiply_float32(x, weight, bias, "none", [], "")
    return torch.nn.functional.linear(x, weight, bias)


def single_products(errors: Any, inputs: Any, out: Any = None) -> Any:
    """Return the sum over places of the products of (..., units, places) and (..., inputs, places), for each record."""
    (*lead, units, _), numbers = errors.shape, inputs.shape[-2]
    out = errors.new_empty((*lead, units, numbers)) if out is None else out
    if errors.device.type != "cpu" or errors.shape[-1] * units * numbers < _LARGE_PRODUCT:
        return _multiply(errors, inputs.transpose(-1, -2), out)
    for one, error, values in zip(out.flatten(0, -3), errors.flatten(0, -3), inputs.flatten(0, -3), strict=True):
        one.copy_(linear(error, values))
    return out


@dataclass(frozen=True)
class SampleTerm(Term):
    """Gradients of single records, (records, ...)."""

    samples: Any

    @property
    def roundings(self) -> int:
        return math.prod(self.samples.shape[1:])

    def additions(self, block: int) -> int:
        return block

    def squared_norms(self) -> Any:
        return _squares(self.samples)

    def squared_magnitudes(self) -> Any:
        return None

    def single_gradients(self) -> Any:
        return self.samples.reshape(len(self.samples), *self.shape)

    def weighted_sum(self, factors: Any, counted: Any) -> Any:
        rows = _zero_uncounted(flat_rows(self.samples)[: len(factors)], counted)
        at_once = records_at_once(rows, rows.shape[1])
        parts = zip(_split(factors, at_once), _split(rows, at_once), strict=True)
        total, *more = (some @ values.double() for some, values in parts)
        for part in more:
            total += part
        return total.reshape(self.shape)


@dataclass(frozen=True)
class PairTerm(Term):
    """Output gradients (records, places, units) of a layer, and its inputs at the same places.

    Norms are ghost norms, from the products of all pairs of places.
    """

    errors: Any
    inputs: Any

    def squared_norms(self) -> Any:
        return self._ghost[0]

    def squared_magnitudes(self) -> Any:
        return self._ghost[1]

    @cached_property
    def _ghost(self) -> tuple[Any, Any]:
        """Return norms and magnitudes, a few records at a time.

        Results are written into memory of their own. New ones between the large temporary arrays would keep these from
        being used again, and memory would grow with the number of parts.
        """
        (n, places, units), widest = self.errors.shape, self.inputs.shape[-1]
        if places == 1:
            return _squares(self.errors) * self.squares_of_inputs(), None
        norms, sizes = self.errors.new_empty((2, n), dtype=torch.float64)
        at_once = records_at_once(self.errors, places * max(places, units, widest))
        for start in range(0, n, at_once):
            some = slice(start, start + at_once)
            norms[some], sizes[some] = _ghost_norms(_gram(self.errors[some]), self.gram_of_inputs(some), self.roundings)
        return norms, sizes

    @abstractmethod
    def squares_of_inputs(self) -> Any:
        """Return the squared norms of the inputs at the only place."""

    @abstractmethod
    def gram_of_inputs(self, records: slice) -> Any:
        """Return the products of the inputs of all pairs of places, float64."""


def _gram(values: Any) -> Any:
    wide = values.double()
    return _multiply(wide, wide.transpose(1, 2))


def _ghost_norms(errors: Any, inputs: Any, roundings: int) -> tuple[Any, Any]:
    """Return upper bounds of squared norms, and squared magnitudes, from two Gram matrices.

    The sum over pairs of places cancels. Its rounding is relative to the magnitude, and is added to it.
    """
    places = errors.shape[1]
    lengths = [gram.diagonal(dim1=1, dim2=2).clamp(min=0) for gram in (errors, inputs)]
    sizes = (lengths[0] * lengths[1]).sqrt().sum(1).square()
    norms = (errors * inputs).sum((1, 2)).clamp(min=0)
    return norms + (roundings + places * places + 16) * ROUNDING * sizes, sizes


@dataclass(frozen=True)
class ProductTerm(PairTerm):
    """The outer products of output gradients and inputs (records, places, inputs)."""

    @property
    def roundings(self) -> int:
        return int(self.errors.shape[2] + self.inputs.shape[2])

    @property
    def has_single_products(self) -> bool:
        """Return whether a record's places are added in float32, which depends on that record alone."""
        (_, places, units), inputs = self.errors.shape, self.inputs.shape[2]
        if self.errors.device.type != "cpu" or not self.errors.dtype == self.inputs.dtype == torch.float32:
            return False
        return bool(places >= _FEWEST_SINGLE_PLACES and places * units * inputs >= _LARGE_PRODUCT)

    def additions(self, block: int) -> int:
        return max(block, _PRODUCT_ROWS + math.ceil(block / (_PRODUCT_ROWS // int(self.errors.shape[1]))))

    def squares_of_inputs(self) -> Any:
        return _squares(self.inputs)

    def gram_of_inputs(self, records: slice) -> Any:
        return _gram(self.inputs[records])

    def single_gradients(self) -> Any:
        products = self.errors.double().transpose(1, 2) @ self.inputs.double()
        return products.reshape(len(products), *self.shape)

    def weighted_sum(self, factors: Any, counted: Any) -> Any:
        if self.has_single_products:
            return self._sum_of_single_products(factors)
        product: Any = None
        at_once = _PRODUCT_ROWS // self.errors.shape[1]
        for start in range(0, len(factors), at_once):
            here = slice(start, min(len(factors), start + at_once))
            some = None if counted is None else counted[here]
            errors = _zero_uncounted(self.errors[here], some).double() * factors[here, None, None]
            inputs = _zero_uncounted(self.inputs[here], some).double()
            more = _multiply(errors.flatten(0, 1).T, inputs.flatten(0, 1))
            # added as a whole: inside a product the earlier ones would be rounded many times
            product = more if product is None else product.add_(more)
        return product.reshape(self.shape)

    def _sum_of_single_products(self, factors: Any) -> Any:
        """Return the sum, with a float32 product for each record, from the same memory for all.

        Its rounding moves no other record. Its float64 norm is compared with the one that the factor was made for: a
        product that is longer is shortened, and one that is not finite adds nothing.
        """
        total = self.errors.new_zeros((self.errors.shape[2], self.inputs.shape[2]), dtype=torch.float64)
        product, slack = torch.empty_like(total), 1 + total.numel() * ROUNDING
        left, right = (torch.empty_like(side[0].T) for side in (self.errors, self.inputs))
        longest = self.squared_norms().sqrt().tolist()
        for errors, inputs, factor, most in zip(self.errors, self.inputs, factors.tolist(), longest, strict=False):
            product.copy_(linear(left.copy_(errors.T), right.copy_(inputs.T)))
            length = torch.linalg.vector_norm(product).item() * slack
            if factor and 0 < length < math.inf:
                total.add_(product, alpha=factor * min(1.0, most / length))
        return total.reshape(self.shape)


@dataclass(frozen=True)
class LookupTerm(PairTerm):
    """Output gradients of an embedding, added up by indices (records, places)."""

    @property
    def roundings(self) -> int:
        return int(self.errors.shape[2])

    def additions(self, block: int) -> int:
        return block * int(self.inputs.shape[1])

    def squares_of_inputs(self) -> Any:
        return 1.0

    def gram_of_inputs(self, records: slice) -> Any:
        indices = self.inputs[records]
        return (indices[:, :, None] == indices[:, None, :]).double()

    def single_gradients(self) -> Any:
        n = len(self.inputs)
        totals = torch.zeros((n, *self.shape), dtype=torch.float64, device=self.errors.device)
        places = torch.arange(n, device=self.errors.device)[:, None].expand_as(self.inputs)
        return totals.index_put_((places, self.inputs), self.errors.double(), accumulate=True)

    def weighted_sum(self, factors: Any, counted: Any) -> Any:
        n = len(factors)
        errors = _zero_uncounted(self.errors[:n], counted).double() * factors[:, None, None]
        total = errors.new_zeros(self.shape)
        return total.index_add_(0, self.inputs[:n].flatten(), errors.flatten(0, 1))


# ---- clipping factors


@dataclass(frozen=True)
class ClipRule:
    """The public constants of clipping: the norm, and how much may cancel inside a record.

    Theory: Fact 6
    """

    clip_norm: float
    most_records: float
    """The most records, or persons, of a batch."""
    block: int
    """The most records that are processed at once."""

    def cancellation(self, terms: Sequence[Term]) -> float:
        """Return how many clip norms the numbers that are added up inside a record may have.

        It follows from the additions in a block, between blocks, and between the blocks of a source.
        """
        additions = max(term.additions(self.block) for term in terms) + MOST_BLOCKS + _MOST_SOURCE_LEVELS
        return _SUM_SLACK / (ROUNDING * additions * self.most_records)

    def factors(self, terms: Sequence[Term], weights: Any) -> tuple[Any, Any]:
        """Return each record's factor over the clip norm, and which records are finite.

        The gradient times its factor has at most the norm of the record's weight (None: one), and what is added up
        inside the record at most ``cancellation`` times that. A record that is not finite has the factor zero.
        """
        norms = [term.squared_norms() for term in terms]
        sizes = [term.squared_magnitudes() for term in terms]
        slack = (sum(term.roundings for term in terms) + 64) * ROUNDING
        longest = torch.stack(norms).sum(0).sqrt().clamp(min=self.clip_norm)
        if any(size is not None for size in sizes) or self.cancellation(terms) < 1:
            size = torch.stack([n if s is None else s for n, s in zip(norms, sizes, strict=True)]).sum(0).sqrt()
            longest = torch.maximum(longest, size / self.cancellation(terms))
        finite = torch.isfinite(longest)
        factors = torch.where(finite, (1 - slack) / longest, 0.0)
        return (factors if weights is None else factors * weights), finite
