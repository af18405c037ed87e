"""Clip and add the gradients of records layer by layer, most of them without holding one.

A layer's inputs and the gradients at its outputs give the norm of a record's gradient, and a weighted product of the
two gives the sum of clipped gradients (book-keeping). So one forward and one backward pass are enough, and the backward
pass needs no gradient of a parameter. A layer is a list of *terms*, at most one for each parameter:

- `SampleTerm` holds the gradient of each record: biases, normalization layers, convolutions with few parameters.
- `ProductTerm` holds inputs and output gradients. Its norms are ghost norms.
- `LookupTerm` does the same for an embedding.

All norms, factors and sums are float64. What rounding can do to a sum is proven in docs/floating_point.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from dpscp.training.torch.modules import OwnMessageError, hide_messages, load_torch, summed_losses

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
# A record's gradient of so many numbers is not held; one of a layer with more places has no ghost norm.
_MOST_HELD, _MOST_GHOST_PLACES = 1 << 18, 1 << 11
# Numbers that one operation reads: on a processor they stay in cache, on a GPU they fit into its memory.
_AT_ONCE, _AT_ONCE_ON_GPU = 1 << 20, 1 << 26

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""A shape, and the order of its dimensions in the parameter."""


class Term(Protocol):
    """The part of the records' gradients that belongs to one parameter."""

    @property
    def parameter(self) -> Any:
        """Return the parameter."""

    @property
    def roundings(self) -> int:
        """Return the number of additions behind a norm."""

    def additions(self, block: int) -> int:
        """Return the most additions that a number goes through in a block of so many records."""

    def squared_norms(self) -> Any:
        """Return at least the squared norm of each record's part, float64."""

    def squared_magnitudes(self) -> Any:
        """Return the squared norms of what is added up inside a record, all of it positive; None: the same."""

    def tensors(self) -> Sequence[Any]:
        """Return what the sum is made of, records first."""

    def weighted_sum(self, factors: Any, counted: Any) -> Any:
        """Return the sum of the first records' parts times ``factors``, float64, in new memory.

        Records that are not ``counted`` (None: all are) are taken as zero.
        """


def _records_at_once(values: Any, numbers: int) -> int:
    """Return how many records of so many numbers one operation reads."""
    return max(1, (_AT_ONCE if values.device.type == "cpu" else _AT_ONCE_ON_GPU) // numbers)


def _squares(values: Any) -> Any:
    torch = load_torch()
    return torch.linalg.vector_norm(values.flatten(1), dim=1, dtype=torch.float64).square()


def _widen(values: Any) -> Any:
    """Return the numbers in float64 if they are few, for norms and sums that read them one after the other.

    Else as they are: then both turn some at a time into float64. So they do on a GPU, where it costs nothing.
    """
    return values.double() if values.device.type == "cpu" and values.numel() <= _AT_ONCE else values


def _kept(values: Any, counted: Any) -> Any:
    """Return the values with zeros for records that are not counted."""
    if counted is None:
        return values
    return values.where(counted.view(-1, *[1] * (values.ndim - 1)), 0)


def _in_shape(product: Any, layout: Layout | None, parameter: Any) -> Any:
    return (product if layout is None else product.view(layout[0]).permute(layout[1])).reshape(parameter.shape)


def _row_products(errors: Any, inputs: Any) -> Any:
    """Return the sum over rows of the products of errors and inputs, (units, inputs).

    With one thread NumPy multiplies: on processors of AMD, its library takes .8 of the time of torch's in float64.
    """
    if errors.device.type != "cpu" or load_torch().get_num_threads() > 1:
        return errors.T @ inputs
    return load_torch().from_numpy(errors.numpy().T @ inputs.numpy())


@dataclass(frozen=True)
class SampleTerm:
    """Gradients of single records, (records, ...)."""

    parameter: Any
    samples: Any
    layout: Layout | None = None

    @property
    def roundings(self) -> int:
        return math.prod(self.samples.shape[1:])

    def additions(self, block: int) -> int:
        return block

    @cached_property
    def _samples(self) -> Any:
        return _widen(self.samples.flatten(1))

    def squared_norms(self) -> Any:
        return _squares(self._samples)

    def squared_magnitudes(self) -> Any:
        return None

    def tensors(self) -> Sequence[Any]:
        return [self.samples]

    def weighted_sum(self, factors: Any, counted: Any) -> Any:
        rows = _kept(self._samples[: len(factors)], counted)
        at_once = _records_at_once(rows, rows.shape[1])
        product = sum(
            factors[start : start + at_once] @ rows[start : start + at_once].double()
            for start in range(0, len(rows), at_once)
        )
        return _in_shape(product, self.layout, self.parameter)


@dataclass(frozen=True)
class ProductTerm:
    """Output gradients (records, places, units) and inputs (records, places, inputs) of a layer."""

    parameter: Any
    errors: Any
    inputs: Any
    layout: Layout | None = None

    @property
    def roundings(self) -> int:
        return int(self.errors.shape[2] + self.inputs.shape[2])

    def additions(self, block: int) -> int:
        return _PRODUCT_ROWS + math.ceil(block / (_PRODUCT_ROWS // int(self.errors.shape[1])))

    @cached_property
    def _both(self) -> tuple[Any, Any]:
        return _widen(self.errors), _widen(self.inputs)

    def squared_norms(self) -> Any:
        if self.errors.shape[1] == 1:
            errors, inputs = self._both
            return _squares(errors) * _squares(inputs)
        return self._ghost[0]

    def squared_magnitudes(self) -> Any:
        return None if self.errors.shape[1] == 1 else self._ghost[1]

    @cached_property
    def _ghost(self) -> tuple[Any, Any]:
        torch = load_torch()
        errors, inputs = self._both
        n, places, widest = len(errors), errors.shape[1], max(errors.shape[2], inputs.shape[2])
        at_once = _records_at_once(errors, places * max(places, widest))
        parts = [
            _ghost_norms(_gram(errors[i : i + at_once]), _gram(inputs[i : i + at_once]), self.roundings)
            for i in range(0, n, at_once)
        ]
        return torch.cat([norms for norms, _ in parts]), torch.cat([sizes for _, sizes in parts])

    def tensors(self) -> Sequence[Any]:
        return [self.errors, self.inputs]

    def weighted_sum(self, factors: Any, counted: Any) -> Any:
        product, at_once = None, _PRODUCT_ROWS // self.errors.shape[1]
        all_errors, all_inputs = self._both
        for start in range(0, len(factors), at_once):
            here = slice(start, min(len(factors), start + at_once))
            some = None if counted is None else counted[here]
            errors = _kept(all_errors[here], some).double() * factors[here, None, None]
            inputs = _kept(all_inputs[here], some).double()
            more = _row_products(errors.flatten(0, 1), inputs.flatten(0, 1))
            # added as a whole: inside a product the earlier ones would be rounded many times
            product = more if product is None else product.add_(more)
        return _in_shape(product, self.layout, self.parameter)


def _gram(values: Any) -> Any:
    wide = values.double()
    return wide @ wide.transpose(1, 2)


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
class LookupTerm:
    """Indices (records, places) and output gradients (records, places, units) of an embedding."""

    parameter: Any
    indices: Any
    errors: Any

    @property
    def roundings(self) -> int:
        return int(self.errors.shape[2])

    def additions(self, block: int) -> int:
        return block * int(self.indices.shape[1])

    def squared_norms(self) -> Any:
        return self._ghost[0]

    def squared_magnitudes(self) -> Any:
        return self._ghost[1]

    @cached_property
    def _ghost(self) -> tuple[Any, Any]:
        same = (self.indices[:, :, None] == self.indices[:, None, :]).double()
        return _ghost_norms(_gram(self.errors), same, self.roundings)

    def tensors(self) -> Sequence[Any]:
        return [self.indices, self.errors]

    def weighted_sum(self, factors: Any, counted: Any) -> Any:
        n = len(factors)
        errors = _kept(self.errors[:n], counted).double() * factors[:, None, None]
        total = errors.new_zeros(self.parameter.shape)
        return total.index_add_(0, self.indices[:n].flatten(), errors.flatten(0, 1))


# ---- what a kind of layer contributes


def _trained(layer: Any, name: str) -> Any:
    parameter = getattr(layer, name, None)
    return parameter if parameter is not None and parameter.requires_grad else None


def _holds_samples(places: int, units: int, inputs: int) -> bool:
    """Return whether the gradients of single records cost less than ghost norms."""
    numbers = units * inputs
    held, ghost = (places + 4) * numbers, 2 * places * places * (units + inputs) + 2 * places * numbers
    return places > _MOST_GHOST_PLACES or (held <= ghost and numbers <= _MOST_HELD)


def _linear_terms(layer: Any, inputs: Any, errors: Any) -> list[Term]:
    n, terms = len(inputs), list[Term]()
    errors, inputs = errors.reshape(n, -1, errors.shape[-1]), inputs.reshape(n, -1, inputs.shape[-1])
    weight, bias = _trained(layer, "weight"), _trained(layer, "bias")
    if weight is not None:
        places = errors.shape[1]
        if places > 1 and _holds_samples(places, errors.shape[2], inputs.shape[2]):
            terms.append(SampleTerm(weight, errors.transpose(1, 2) @ inputs))
        else:
            terms.append(ProductTerm(weight, errors, inputs))
    if bias is not None:
        terms.append(SampleTerm(bias, errors.sum(1) if errors.shape[1] > 1 else errors[:, 0]))
    return terms


def _conv_terms(layer: Any, inputs: Any, errors: Any) -> list[Term]:
    torch, terms = load_torch(), list[Term]()
    weight, bias = _trained(layer, "weight"), _trained(layer, "bias")
    padded = inputs
    if any(layer._reversed_padding_repeated_twice):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded = torch.nn.functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    if inputs.ndim == 3:  # one dimension: an image of one line
        padded, errors = padded.unsqueeze(2), errors.unsqueeze(2)
    if weight is not None:
        terms.append(_conv_weight_term(layer, weight, padded, errors))
    if bias is not None:
        terms.append(SampleTerm(bias, errors.sum((2, 3))))
    return terms


def _conv_weight_term(layer: Any, weight: Any, images: Any, errors: Any) -> Term:
    torch, window = load_torch(), _Windows(layer, images, tuple(errors.shape[2:]))
    n, units, places, groups = len(images), errors.shape[1], math.prod(errors.shape[2:]), layer.groups
    numbers = math.prod(weight.shape[1:])
    errors = errors.permute(0, 2, 3, 1).reshape(n, places, groups, units // groups)
    layout = (units, *window.layout[0]), window.layout[1]
    if groups == 1 and not _holds_samples(places, units, numbers):
        return ProductTerm(weight, errors[:, :, 0], window.patches(images)[:, 0], layout)
    at_once = _records_at_once(images, places * numbers * groups)
    samples = torch.empty((n, groups, units // groups, numbers), dtype=errors.dtype, device=errors.device)
    for start in range(0, n, at_once):
        here = slice(start, start + at_once)
        torch.matmul(errors[here].permute(0, 2, 3, 1), window.patches(images[here]), out=samples[here])
    return SampleTerm(weight, samples, layout)


class _Windows:
    """The windows of a convolution, each one a row, in the order in which the images lie in memory."""

    def __init__(self, layer: Any, images: Any, places: tuple[int, ...]) -> None:
        self._groups, self._places = layer.groups, places
        self._kernel, self._stride, self._dilation = (
            (1, *sizes) if len(sizes) == 1 else tuple(sizes)
            for sizes in (layer.kernel_size, layer.stride, layer.dilation)
        )
        self._channels_last = images.stride(1) == 1 and images.shape[1] > 1
        channels = images.shape[1] // layer.groups
        self.layout: Layout = ((channels, *self._kernel), (0, 1, 2, 3))
        if self._channels_last:
            self.layout = ((*self._kernel, channels), (0, 3, 1, 2))

    def patches(self, images: Any) -> Any:
        """Return a copy of the windows, (records, groups, places, numbers)."""
        n, channels = images.shape[:2]
        by_record, by_channel, *by_line = images.stride()
        shape, steps = (
            (*self._places, *self._kernel),
            [by_line[i] * factor[i] for factor in (self._stride, self._dilation) for i in (0, 1)],
        )
        if self._channels_last:
            view = images.as_strided((n, *shape, channels), (by_record, *steps, by_channel))
            parts = view.unflatten(5, (self._groups, -1)).permute(0, 5, 1, 2, 3, 4, 6)
            return parts.reshape(n, self._groups, math.prod(self._places), -1)
        shape, steps = (*shape[2:], *shape[:2]), [*steps[2:], *steps[:2]]
        view = images.as_strided((n, channels, *shape), (by_record, by_channel, *steps))
        return view.reshape(n, self._groups, -1, math.prod(self._places)).transpose(2, 3)


def _norm_terms(layer: Any, inputs: Any, errors: Any) -> list[Term]:
    torch = load_torch()
    functional, nn = torch.nn.functional, torch.nn
    if isinstance(layer, nn.GroupNorm):
        normal = functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
    elif isinstance(layer, nn.LayerNorm):
        normal = functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
    else:
        normal = functional.instance_norm(inputs, eps=layer.eps)
    terms = list[Term]()
    for parameter, values in ((_trained(layer, "weight"), errors * normal), (_trained(layer, "bias"), errors)):
        if parameter is None:
            continue
        if isinstance(layer, nn.LayerNorm):
            samples = values.reshape(len(values), -1, parameter.numel()).sum(1)
        else:
            samples = values.reshape(len(values), parameter.numel(), -1).sum(2)
        terms.append(SampleTerm(parameter, samples))
    return terms


def _embedding_terms(layer: Any, inputs: Any, errors: Any) -> list[Term]:
    n = len(inputs)
    indices, errors = inputs.reshape(n, -1), errors.reshape(n, -1, errors.shape[-1])
    if layer.padding_idx is not None:
        errors = errors.where((indices != layer.padding_idx)[:, :, None], 0)
    return [LookupTerm(layer.weight, indices, errors)]


Rule = Callable[[Any, Any, Any], list[Term]]


def _rules() -> dict[Any, Rule]:
    nn = load_torch().nn
    norms = nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d
    return {
        nn.Linear: _linear_terms,
        nn.Conv1d: _conv_terms,
        nn.Conv2d: _conv_terms,
        nn.Embedding: _embedding_terms,
        **dict.fromkeys(norms, _norm_terms),
    }


class UnsupportedLayerError(OwnMessageError):
    """A module whose layers give no terms; single gradients are computed for it."""

    def __init__(self) -> None:
        super().__init__(
            "on the records a layer is called otherwise than on synthetic rows. Call every layer with trained "
            "parameters once in forward, with one row per record, and do not change its input in place"
        )


@dataclass(frozen=True)
class GradientPlan:
    """How the gradients of a module are computed: public choices, made on synthetic records."""

    by_layers: bool = False
    """Whether `LayerTerms` gives the gradients; else Opacus computes single ones."""
    channels_last: bool = False
    numbers: int = 1
    """How many numbers the layers return for one record."""


class LayerTerms:
    """The terms of a module, from one forward and one backward pass.

    Raises: UnsupportedLayerError for trained parameters outside the layers above, shared ones, and layers with hooks.
    """

    def __init__(self, module: Any) -> None:
        rules = _rules()
        self._module, self._layers = module, dict[Any, Rule]()
        self.trained = [p for p in module.parameters() if p.requires_grad]
        covered = list[int]()
        for layer in module.modules():
            own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
            if not own:
                continue
            rule = rules.get(type(layer))
            if rule is None or not _is_plain(layer):
                raise UnsupportedLayerError
            self._layers[layer] = rule
            covered.extend(map(id, own))
        if len(set(covered)) < len(covered):
            raise UnsupportedLayerError

    def __call__(self, losses: Callable[[Any, Any], Any], rows: Any, target: Any) -> list[Term]:
        """Return the terms of these records.

        ValueError for a layer that is called twice, that gets other rows than records, or whose input changes
        afterwards. For other errors see `hide_messages`.
        """
        return hide_messages(lambda: self._terms(losses, rows, target))

    def _terms(self, losses: Callable[[Any, Any], Any], rows: Any, target: Any) -> list[Term]:
        torch, calls = load_torch(), list[tuple[Any, Any, int, Any]]()

        def listen(layer: Any, inputs: tuple[Any, ...], output: Any) -> None:
            if len(inputs) != 1:  # given by its name
                raise UnsupportedLayerError
            calls.append((layer, inputs[0], inputs[0]._version, torch.autograd.graph.get_gradient_edge(output)))

        hooks = [layer.register_forward_hook(listen) for layer in self._layers]
        try:
            with torch.enable_grad():
                value = summed_losses(losses, self._module(rows), target)
        finally:
            for hook in hooks:
                hook.remove()
        if len({layer for layer, *_ in calls}) < len(calls):
            raise UnsupportedLayerError
        if not calls or not value.requires_grad:
            return []
        # gradients of parameters are not requested, and so not computed
        errors = torch.autograd.grad(value, [edge for *_, edge in calls], allow_unused=True)
        terms = list[Term]()
        with torch.no_grad():
            for (layer, inputs, version, _), error in zip(calls, errors, strict=True):
                if inputs._version != version or len(inputs) != len(rows):
                    raise UnsupportedLayerError
                if error is not None:
                    terms.extend(self._layers[layer](layer, inputs.detach(), error))
        return terms


def _is_plain(layer: Any) -> bool:
    """Return whether a layer does what its class says."""
    changed = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    special = getattr(layer, "scale_grad_by_freq", False) or getattr(layer, "sparse", False)
    return not changed and not special and "forward" not in vars(layer)


# ---- clipping factors


@dataclass(frozen=True)
class ClipRule:
    """The public constants of clipping: the norm, and how much may cancel inside a record.

    Theory: section 1.6
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
        torch = load_torch()
        norms = [term.squared_norms() for term in terms]
        sizes = [term.squared_magnitudes() for term in terms]
        slack = (sum(term.roundings for term in terms) + 64) * ROUNDING
        longest = torch.stack(norms).sum(0).sqrt().clamp(min=self.clip_norm)
        if any(size is not None for size in sizes):
            size = torch.stack([n if s is None else s for n, s in zip(norms, sizes, strict=True)]).sum(0).sqrt()
            longest = torch.maximum(longest, size / self.cancellation(terms))
        finite = torch.isfinite(longest)
        factors = torch.where(finite, (1 - slack) / longest, 0.0)
        return (factors if weights is None else factors * weights), finite
