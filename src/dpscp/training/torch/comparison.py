"""Compare gradients and outputs of synthetic records, a few rows at a time."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dpscp.training.torch.modules import load_torch
from dpscp.training.torch.terms import Term, flat_rows, single_gradients

# Numbers that are compared at once.
_COMPARED_NUMBERS = 2**18


# The relative precision of float32 numbers, where a module takes no others.
_PRECISE = 3e-5
# Rows of so small a gradient, relative to that of others and to the precision, are not compared.
_NEGLIGIBLE = 1e-3

MIXES = (
    "on synthetic rows the gradient of a record depends on the other records, or is not the gradient of its own loss. "
    "A layer or the loss mixes records (attention, means, maxima or decisions over the first dimension, "
    "batch_first=False, division by the batch size, padding to the longest row of the batch) or uses parameters of "
    "another layer. Compute the loss of each record from that record alone: x.amax(dim=1) is the largest number of "
    "each record, x.max() that of all"
)


class MixingError(ValueError):
    """The gradient, or the output, of a record depends on other records."""


def spread(n: int, count: int) -> list[int]:
    """Return so many of n places, all different, from the last one on."""
    step = next(step for step in (7, 11, 13, 1) if math.gcd(step, n) == 1)
    return [n - 1 - (step * i) % n for i in range(count)]


def parts(n: int, trained: list[Any]) -> Iterator[list[int]]:
    """Yield n places, a few at a time: the gradients of all of them may be most of the memory."""
    step = max(1, _COMPARED_NUMBERS // sum(p.numel() for p in trained))
    for start in range(0, n, step):
        yield list(range(start, min(n, start + step)))


def gradients_of(terms: list[Term], trained: list[Any], records: list[int]) -> list[Any]:
    """Return the gradients of these records for each trained parameter."""
    found = single_gradients(terms, trained, records)
    return [
        p.detach().new_zeros((len(records), *p.shape)) if gradients is None else gradients
        for p, gradients in zip(trained, found, strict=True)
    ]


def require_own_sums(terms: list[Term], trained: list[Any], n: int) -> None:
    """Refuse terms whose norms and weighted sums are not those of their single gradients."""
    torch = load_torch()
    if not terms:
        return
    weights = [  # unequal, in three orders
        (1 + torch.arange(n, device=trained[0].device).double() * shift % n) / n for shift in (1, 2, 3)
    ]
    norms: list[Any] = []
    wanted = [[torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in trained] for _ in weights]
    for some in parts(n, trained):
        gradients = [g.double() for g in gradients_of(terms, trained, some)]
        norms.append(sum(flat_rows(g).square().sum(1) for g in gradients))
        for once, totals in zip(weights, wanted, strict=True):
            for total, gradient in zip(totals, gradients, strict=True):
                total += torch.einsum("i,i...->...", once[some], gradient)
    differences = Differences([trained[0].dtype])
    differences.add([sum(term.squared_norms() for term in terms)], [torch.cat(norms)])
    differences.refuse()
    for once, totals in zip(weights, wanted, strict=True):
        found = {id(p): torch.zeros_like(total) for p, total in zip(trained, totals, strict=True)}
        for term in terms:
            found[id(term.parameter)] += term.weighted_sum(once, None)
        differences = Differences([p.dtype for p in trained])
        differences.add([values[None] for values in found.values()], [total[None] for total in totals])
        differences.refuse()


class Differences:
    """The largest differences of gradients, or outputs, from the expected ones; relative to the largest number.

    ``by_row``: rows of different scales, each relative to its own largest number. ``is_precise``: float32 numbers are
    the most precise ones of the module.
    """

    def __init__(self, dtypes: Sequence[Any], *, by_row: bool = False, is_precise: bool = False) -> None:
        self._dtypes, self._by_row, self._is_precise = dtypes, by_row, is_precise
        self._found: list[tuple[Any, Any]] = []

    def add(self, found: Sequence[Any], expected: Sequence[Any]) -> None:
        """Look at more rows."""
        if any(other.numel() for other in expected):
            both = [_largest(one, other) for one, other in zip(found, expected, strict=True)]
            differences, lengths = (load_torch().stack(values) for values in zip(*both, strict=True))
            if not self._by_row:
                differences, lengths = (values.amax(1, keepdim=True) for values in (differences, lengths))
            self._found.append((differences, lengths))

    def refuse(self) -> None:
        """Refuse differences beyond rounding."""
        if not self._found:
            return
        torch = load_torch()
        differences, lengths = (torch.cat(values, 1) for values in zip(*self._found, strict=True))
        if not self._by_row:
            differences, lengths = (values.amax(1, keepdim=True) for values in (differences, lengths))
        limits = [self._limits(dtype) for dtype in self._dtypes]
        relative, absolute = (
            torch.tensor(values, dtype=torch.float64, device="cpu")[:, None] for values in zip(*limits, strict=True)
        )
        # the second term: a gradient that is zero but for rounding has no relative precision
        longest = lengths.amax(0)
        allowed = relative * lengths + absolute * longest
        if self._by_row:  # nor has a loss that is zero but for rounding
            allowed = relative * longest + _NEGLIGIBLE * relative * longest.median()
        if not bool((torch.isfinite(differences) & (differences <= allowed)).all()):
            raise MixingError(MIXES)

    def _limits(self, dtype: Any) -> tuple[float, float]:
        """Return how far numbers may differ relative to the largest one, and to the largest of all parameters."""
        is_double = dtype == load_torch().float64
        if self._by_row:  # what mixes scales changes rows by much more; a saturated row has few exact digits
            return (1e-6 if is_double else 1e-2), 0.0
        if is_double:
            return 1e-7, 1e-11
        return (_PRECISE if self._is_precise else 1e-3), (_PRECISE / 30 if self._is_precise else 1e-5)


def _largest(one: Any, other: Any) -> tuple[Any, Any]:
    """Return the largest difference, infinite where it is not finite, and the largest number of each row.

    Some columns at a time: large arrays between them would be new memory each time.
    """
    torch = load_torch()
    difference, length = torch.zeros(2, len(other), dtype=torch.float64, device=other.device)
    if not other.numel():
        return difference.cpu(), length.cpu()
    at_once = max(1, _COMPARED_NUMBERS // len(other))
    for found, expected in zip(flat_rows(one).split(at_once, 1), flat_rows(other).split(at_once, 1), strict=True):
        wide = expected.double()
        difference = torch.maximum(difference, torch.linalg.vector_norm(found.double() - wide, math.inf, dim=1))
        length = torch.maximum(length, torch.linalg.vector_norm(wide, math.inf, dim=1))
    return difference.cpu().nan_to_num(math.inf, math.inf), length.cpu()


def require_same(found: Any, expected: Any, keys: list[int] | None = None, *, by_row: bool = False) -> None:
    """Refuse unless every row is the expected one, up to rounding.

    ``keys``: the rows of ``expected`` that ``found`` has. ``by_row``: see `Differences`.
    """
    differences = Differences([expected.dtype], by_row=by_row)
    for one, other in zip(_some_rows(found), _some_rows(expected, keys), strict=True):
        differences.add([one], [other])
    differences.refuse()


def _some_rows(values: Any, keys: list[int] | None = None) -> Iterator[Any]:
    """Yield the rows (None: all) a few at a time; nothing of values without a number."""
    values = load_torch().atleast_1d(values)
    if not values.numel():
        return
    step = max(1, _COMPARED_NUMBERS // values[0].numel())
    for start in range(0, len(values) if keys is None else len(keys), step):
        yield values[start : start + step] if keys is None else values[keys[start : start + step]]
