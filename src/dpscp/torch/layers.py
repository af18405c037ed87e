"""Make the terms of the parameters from what a graph returns of each call.

The input of a function of torch and the gradient at its output give the norm of a record's gradient, and a weighted
product of the two gives the sum of clipped gradients (book-keeping). A parameter that is used several times has one
term. Where the uses cannot be joined, the gradients of single records are added.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dpscp.torch.library import Tensor, torch
from dpscp.torch.terms import LookupTerm, PairTerm, ProductTerm, SampleTerm, Term, records_at_once, single_products
from dpscp.torch.trace import Call, GradientGraph

# A record's gradient of so many numbers is not held; one of a layer with more places has no ghost norm.
_MOST_HELD, _MOST_GHOST_PLACES = 1 << 18, 1 << 11
# To write a number and to read it twice takes as long as so many multiplications, as measured.
_HELD_COST = 56

Found = Iterator[tuple[str, Term]]


def make_terms(traced: GradientGraph, results: Sequence[Tensor]) -> dict[str, Term]:
    """Return the term of each trained parameter, from the results of a block."""
    found, shapes, count = defaultdict[str, list[Term]](list), dict(traced.trained), len(traced.calls)
    for call, inputs, errors in zip(traced.calls, results, results[count:], strict=False):
        for name, term in _RULES[call.kind](call, shapes, inputs, errors):
            found[name].append(term)
    for name, gradients in zip(traced.others, results[2 * count :], strict=True):
        found[name].append(SampleTerm(shapes[name], gradients))
    return {name: _choose_norms(_join_uses(found[name])) for name in shapes}


def _join_uses(terms: list[Term]) -> Term:
    """Join the terms of all uses of a parameter."""
    first, *rest = terms
    kind = type(first)
    if not rest:
        return first
    if issubclass(kind, PairTerm) and all(isinstance(term, kind) for term in terms):
        return kind(first.shape, *(torch.cat([getattr(t, side) for t in terms], 1) for side in ("errors", "inputs")))
    return SampleTerm(first.shape, sum(term.single_gradients() for term in terms))


def _choose_norms(term: Term) -> Term:
    """Replace products by single gradients where these cost less than ghost norms."""
    if not isinstance(term, ProductTerm) or term.errors.shape[1] == 1:
        return term
    _, places, units = term.errors.shape
    if not _holds_samples(places, units, term.inputs.shape[2]):
        return term
    return SampleTerm(term.shape, single_products(term.errors.transpose(1, 2), term.inputs.transpose(1, 2)))


def _holds_samples(places: int, units: int, inputs: int) -> bool:
    """Return whether the gradients of single records cost less than ghost norms."""
    numbers = units * inputs
    held, ghost = (places + _HELD_COST) * numbers, 2 * places * places * (units + inputs) + 2 * places * numbers
    return places > _MOST_GHOST_PLACES or (held <= ghost and numbers <= _MOST_HELD)


def _linear(call: Call, shapes: dict[str, Any], inputs: Tensor, errors: Tensor) -> Found:
    n = len(inputs)
    errors, inputs = errors.reshape(n, -1, errors.shape[-1]), inputs.reshape(n, -1, inputs.shape[-1])
    if call.weight:
        pair = (inputs, errors) if call.kind == "product" else (errors, inputs)
        yield call.weight, ProductTerm(shapes[call.weight], *pair)
    if call.bias:
        yield call.bias, SampleTerm(shapes[call.bias], errors.sum(1) if errors.shape[1] > 1 else errors[:, 0])


def _embedding(call: Call, shapes: dict[str, Any], inputs: Tensor, errors: Tensor) -> Found:
    n, (padding,) = len(inputs), call.options
    # on a GPU the lookup has bounded them too; elsewhere one out of range has raised
    indices = inputs.reshape(n, -1).clamp(0, shapes[call.weight or ""][0] - 1)
    errors = errors.reshape(n, -1, errors.shape[-1])
    if padding is not None:
        errors = errors.where((indices != padding)[:, :, None], 0)
    assert call.weight is not None
    yield call.weight, LookupTerm(shapes[call.weight], errors, indices)


def _conv(call: Call, shapes: dict[str, Any], inputs: Tensor, errors: Tensor) -> Found:
    """Return terms of a convolution; a record may have several images."""
    sizes, stride, sides, dilation, groups = call.options
    kernel = len(sizes)
    n, images = len(inputs), inputs.reshape(-1, *inputs.shape[-kernel - 1 :])
    errors = errors.reshape(n, -1, *errors.shape[-kernel - 1 :])  # (records, images, units, places...)
    if call.bias:
        yield call.bias, SampleTerm(shapes[call.bias], errors.flatten(3).sum((1, 3)))
    if call.weight:
        padding = [width for pair in reversed(sides) for width in pair]
        padded = torch.nn.functional.pad(images, padding) if any(padding) else images.contiguous()
        windows = _windows(padded, sizes, stride, dilation, tuple(errors.shape[3:]))
        yield call.weight, _conv_weight(shapes[call.weight], errors, windows, groups)


def _windows(images: Tensor, kernel: Any, stride: Any, dilation: Any, places: tuple[int, ...]) -> Tensor:
    """Return the windows of a convolution as a view, (images, channels, *kernel, *places)."""
    lead, steps = images.stride()[:2], images.stride()[2:]
    inside, between = ([s * f for s, f in zip(steps, factors, strict=True)] for factors in (dilation, stride))
    shape = (*images.shape[:2], *kernel, *places)
    return images.as_strided(shape, (*lead, *inside, *between), images.storage_offset())


def _conv_weight(shape: tuple[int, ...], errors: Tensor, windows: Tensor, groups: int) -> Term:
    n, per_record, units = errors.shape[:3]
    numbers, places = math.prod(shape[1:]), math.prod(errors.shape[3:])
    errors = errors.reshape(n * per_record, groups, units // groups, places)
    if groups == 1 and not _holds_samples(places * per_record, units, numbers):
        rows = windows.reshape(-1, numbers, places).transpose(1, 2)
        columns = errors[:, 0].transpose(1, 2)
        return ProductTerm(shape, columns.reshape(n, -1, units), rows.reshape(n, -1, numbers))
    at_once = records_at_once(errors, places * numbers * groups)
    samples = errors.new_empty((n * per_record, groups, units // groups, numbers))
    for start in range(0, len(samples), at_once):
        here = slice(start, start + at_once)
        single_products(errors[here], windows[here].reshape(-1, groups, numbers, places), samples[here])
    return SampleTerm(shape, samples.reshape(n, per_record, -1).sum(1) if per_record > 1 else samples.flatten(1))


_RULES: dict[str, Callable[[Call, dict[str, Any], Tensor, Tensor], Found]] = {
    "linear": _linear,
    "product": _linear,
    "embedding": _embedding,
    "conv": _conv,
}
