"""Compare gradients and outputs of synthetic records, a few rows at a time."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dpscp.training.torch.modules import load_torch
from dpscp.training.torch.terms import Term, single_gradients

# Numbers that are compared at once.
_COMPARED_NUMBERS = 2**18


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
        norms.append(sum(g.flatten(1).square().sum(1) for g in gradients))
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
        differences.add(list(found.values()), totals)
        differences.refuse()


class Differences:
    """The largest differences of gradients, or outputs, from the expected ones; relative to the largest number."""

    def __init__(self, dtypes: Sequence[Any]) -> None:
        self._dtypes = dtypes
        self._lengths, self._largest = [0.0] * len(dtypes), [0.0] * len(dtypes)

    def add(self, found: Sequence[Any], expected: Sequence[Any]) -> None:
        """Look at more rows."""
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            if other.numel():
                difference = float((one.double() - other.double()).abs().max())
                self._largest[place] = max(self._largest[place], math.inf if math.isnan(difference) else difference)
                self._lengths[place] = max(self._lengths[place], float(other.abs().max()))

    def refuse(self) -> None:
        """Refuse differences beyond rounding."""
        torch = load_torch()
        for dtype, length, largest in zip(self._dtypes, self._lengths, self._largest, strict=True):
            # the second term: a gradient that is zero but for rounding has no relative precision
            relative, absolute = (1e-7, 1e-11) if dtype == torch.float64 else (1e-3, 1e-5)
            if not math.isfinite(largest) or largest > relative * length + absolute * max(self._lengths):
                raise MixingError(
                    "on synthetic rows the gradient of a record depends on the other records, or is not the gradient "
                    "of its own loss. A layer or the loss mixes records (attention or means over the first dimension, "
                    "batch_first=False, division by the batch size, padding to the longest row of the batch) or uses "
                    "parameters of another layer. Compute the loss of each record from that record alone"
                )


def require_same(found: Any, expected: Any, keys: list[int] | None = None) -> None:
    """Refuse unless every row is the expected one, up to rounding.

    ``keys``: the rows of ``expected`` that ``found`` has.
    """
    differences = Differences([expected.dtype])
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
