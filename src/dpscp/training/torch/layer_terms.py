"""Compute the gradients of records layer by layer, most of them without holding one.

A layer's inputs and the gradients at its outputs give the norm of a record's gradient, and a weighted product of the
two gives the sum of clipped gradients (book-keeping). So one forward and one backward pass are enough, and the backward
pass needs no gradient of a parameter. A layer is a list of terms, at most one for each parameter (``terms``). A module
with other layers gets the gradients of single records from Opacus.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpscp.training.torch.modules import (
    OwnMessageError,
    compute_out_of_place,
    gradient_rows,
    load_opacus,
    load_torch,
    summed_losses,
)
from dpscp.training.torch.terms import Layout, LookupTerm, ProductTerm, SampleTerm, Term, records_at_once

# A record's gradient of so many numbers is not held; one of a layer with more places has no ghost norm.
_MOST_HELD, _MOST_GHOST_PLACES = 1 << 18, 1 << 11

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
    at_once = records_at_once(images, places * numbers * groups)
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

        UnsupportedLayerError for a layer that is called twice, that gets other rows than records, or whose input
        changes afterwards. Other errors may contain values of the records: see `hide_messages`.
        """
        torch, calls = load_torch(), list[tuple[Any, Any, int, Any]]()

        def listen(layer: Any, inputs: tuple[Any, ...], by_name: dict[str, Any], output: Any) -> None:
            (value,) = *inputs, *by_name.values()  # such a layer has one input
            calls.append((layer, value, value._version, torch.autograd.graph.get_gradient_edge(output)))

        hooks = [layer.register_forward_hook(listen, with_kwargs=True) for layer in self._layers]
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


class OpacusTerms:
    """The gradients of single records, by Opacus' hooks."""

    def __init__(self, module: Any) -> None:
        wrapper, _ = load_opacus()
        # loss_reduction="sum": gradients of the summed loss are the records' own gradients, unscaled
        self.wrapped = wrapper(compute_out_of_place(module), loss_reduction="sum")
        self.trained = [p for p in module.parameters() if p.requires_grad]

    def __call__(self, losses: Callable[[Any, Any], Any], rows: Any, target: Any) -> list[Term]:
        """Return one term for each parameter that has a gradient.

        OwnMessageError for gradients that do not have one row per record.
        """
        samples = gradient_rows(self.wrapped, losses, rows, target)
        return [SampleTerm(p, s) for p, s in zip(self.trained, samples, strict=True) if s is not None]


def make_terms(plan: GradientPlan, module: Any) -> LayerTerms | OpacusTerms:
    """Return what computes the terms of a module, which is a copy of its own, by this plan."""
    if plan.channels_last:
        module = module.to(memory_format=load_torch().channels_last)
    return LayerTerms(module) if plan.by_layers else OpacusTerms(module)


def _is_plain(layer: Any) -> bool:
    """Return whether a layer does what its class says."""
    changed = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    special = getattr(layer, "scale_grad_by_freq", False) or getattr(layer, "sparse", False)
    return not changed and not special and "forward" not in vars(layer)
