"""Trace one synthetic record through the caller's module and loss.

The caller's Python runs here and nowhere else, on synthetic numbers. What comes out is a graph of operations of torch,
which ``checks`` examines and ``blocks`` maps over records.

A parameter that functions of torch use as a weight or bias (``torch.nn.functional.linear``, ...) needs no gradient in
the graph. The function's input and the gradient at its output are results of the graph, and ``layers`` makes the
parameter's part of a record's gradient of them. Other parameters get their gradient from the graph.

Theory: Torch modules: records cannot meet
"""

import inspect
import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dpscp.torch.checks import RefusedError, check_graph, find_tables, is_plain
from dpscp.torch.draws import Draw
from dpscp.torch.forms import RecordForm
from dpscp.torch.library import Tensor, make_fx, torch

Losses = Callable[[Any, Any], Any]
_functional = torch.nn.functional
# Characters of an error on synthetic records that are shown.
_LONGEST_WORDS = 300
_SEEDS = (11, 12)
_FEWEST_IDS = 2

# ---- functions of torch whose parameters have terms


@dataclass(frozen=True)
class Call:
    """One use of trained parameters by a function of torch.

    ``kind`` and ``options`` say what the function computes; ``shape`` and ``dtype`` are those of its output for one
    record.
    """

    kind: str
    weight: str | None
    bias: str | None
    options: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: Any


def _linear(x: Any, weight: Any, bias: Any = None) -> tuple[Any, ...]:
    return "linear", x, weight, bias, ()


def _addmm(bias: Any, x: Any, weight: Any) -> tuple[Any, ...]:
    return "product", x, weight, bias, ()


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    return (value,) * dimensions if isinstance(value, int) else tuple(value)


def _conv(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[Any, ...]:
    dimensions = weight.ndim - 2
    dilation = _each(dilation, dimensions)
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (size - 1) for d, size in zip(dilation, weight.shape[2:], strict=True)]
        sides = tuple((both // 2, both - both // 2) for both in total)
    else:
        sides = tuple((side, side) for side in _each(padding, dimensions))
    return "conv", x, weight, bias, (tuple(weight.shape[2:]), _each(stride, dimensions), sides, dilation, groups)


def _embedding(x: Any, weight: Any, padding_idx: int | None = None, *rest: Any, **named: Any) -> tuple[Any, ...]:
    options = dict(zip(("max_norm", "norm_type", "scale_grad_by_freq", "sparse"), rest, strict=False)) | named
    if options.get("max_norm") is not None or options.get("scale_grad_by_freq"):
        raise RefusedError("max_norm and scale_grad_by_freq of an Embedding are not supported; leave them out")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return "embedding", x, weight, None, (padding_idx,)


def _bag(*args: Any, **kwargs: Any) -> Any:
    """Compute an EmbeddingBag by an Embedding, which raises for an index out of range."""
    given = inspect.signature(_functional.embedding_bag).bind(*args, **kwargs)
    given.apply_defaults()
    x, weight, offsets, *options, mode, sparse, factors, _, padding = given.arguments.values()
    if offsets is not None:
        raise RefusedError("an EmbeddingBag with offsets is not supported; give each record as many indices")
    rows = _functional.embedding(x, weight, padding, *options, sparse)
    kept = torch.ones_like(x) if padding is None else x != padding % len(weight)
    if mode == "max":
        return rows.masked_fill(kept[..., None] == 0, -math.inf).amax(1)
    shares = kept if mode == "sum" else kept / kept.sum(1, keepdim=True).clamp(min=1)
    return (rows * (shares if factors is None else factors * shares)[..., None]).sum(1)


_FUNCTIONS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    _functional.linear: _linear,
    torch.addmm: _addmm,
    torch.conv1d: _conv,
    torch.conv2d: _conv,
    torch.conv3d: _conv,
    _functional.embedding: _embedding,
}
# Reading these says nothing of the values.
_PROPERTIES = {
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "is_cuda", "is_meta", "is_sparse",
    "is_quantized", "grad", "grad_fn", "names", "size", "dim", "numel", "stride", "is_floating_point", "is_complex",
    "__len__", "nelement", "element_size", "__hash__", "is_contiguous", "type",
}  # fmt: skip


class _Uses(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is not read by the type checker
    """Record how functions of torch use trained parameters.

    ``zeros`` are added to the outputs of functions in ``_FUNCTIONS``; None while their shapes are being found.
    """

    def __init__(self, names: dict[int, str], zeros: Sequence[Tensor] | None) -> None:
        super().__init__()
        self.names, self.zeros = names, zeros
        self.calls, self.inputs, self.direct = list[Call](), list[Tensor](), set[str]()

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is _functional.embedding_bag:
            with self:
                return _bag(*args, **kwargs)
        if function in _FUNCTIONS:
            kind, x, weight, bias, options = _FUNCTIONS[function](*args, **kwargs)
            own = [None if value is None else self.names.get(id(value)) for value in (weight, bias)]
            if own != [None, None] and id(x) not in self.names and isinstance(x, torch.Tensor):
                return self._watch(function(*args, **kwargs), kind, x, own, options)
        name = getattr(function, "__name__", "")
        name = getattr(getattr(function, "__self__", None), "__name__", "") if name == "__get__" else name
        if name not in _PROPERTIES:
            self.direct.update(self.names[id(value)] for value in _tensors(args, kwargs) if id(value) in self.names)
        return function(*args, **kwargs)

    def _watch(self, output: Tensor, kind: str, x: Tensor, own: list[str | None], options: tuple[Any, ...]) -> Tensor:
        place = len(self.calls)
        self.calls.append(Call(kind, own[0], own[1], options, tuple(output.shape), output.dtype))
        self.inputs.append(x)
        if self.zeros is None:
            return output
        if place >= len(self.zeros) or self.zeros[place].shape != output.shape:
            raise RefusedError(_CHANGES)
        return output + self.zeros[place]


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value, {})


_CHANGES = (
    "the module or its loss computes something else at every call (random numbers of Python or NumPy, a counter, a "
    "cache, numbers that left torch by .numpy()), and what it computes for a record must not depend on earlier "
    "records. Stay in torch, and remove state from forward; for a cache that the first call fills, call the module on "
    "a synthetic record before fit"
)

# ---- graphs


@dataclass(frozen=True)
class ScoreGraph:
    """The outputs of one record: (parameters and buffers, inputs) -> outputs."""

    graph: torch.fx.GraphModule = field(repr=False)
    form: RecordForm
    n_outputs: int


@dataclass(frozen=True)
class GradientGraph:
    """The gradient of one record's loss, in parts.

    (parameters and buffers, inputs, target, numbers of the draws) -> (input and output gradient of each call, gradients
    of ``others``).
    """

    graph: torch.fx.GraphModule = field(repr=False)
    form: RecordForm
    sizes: tuple[tuple[int, int], ...]
    """The inputs that are indices, by place, and the size of their table."""
    looks_up: bool
    """Whether numbers of a record are indices of a table."""
    calls: tuple[Call, ...]
    others: tuple[str, ...]
    trained: tuple[tuple[str, tuple[int, ...]], ...]
    """Names and shapes of the trained parameters."""
    draws: tuple[Draw, ...]
    target: tuple[tuple[int, ...], str]
    """Shape and kind of one record's target."""

    @property
    def numbers(self) -> int:
        """Return how many numbers the results for one record have."""
        output = next(node for node in self.graph.graph.nodes if node.op == "output")
        return sum(int(node.meta["val"].numel()) for node in output.all_input_nodes)


class TracedModule:
    """A copy of the caller's module with its parameters and buffers by name."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.parameters = {name: p.detach() for name, p in module.named_parameters()}
        self.buffers = {name: b.detach() for name, b in module.named_buffers()}
        self.trained = [name for name, p in module.named_parameters() if p.requires_grad]

    @property
    def fixed(self) -> list[Tensor]:
        """Return parameters and buffers, the first arguments of a graph."""
        return [*self.parameters.values(), *self.buffers.values()]

    def outputs(self, state: Sequence[Tensor], form: RecordForm, inputs: Sequence[Tensor]) -> Tensor:
        """Return the outputs of one record, (1, ...)."""
        names = [*self.parameters, *self.buffers]
        # copies, because the first layer may change its input in place
        args, kwargs = form.arguments([value.unsqueeze(0).clone() for value in inputs])
        found = torch.func.functional_call(self.module, dict(zip(names, state, strict=True)), tuple(args), kwargs)
        found = getattr(found, "logits", found)
        if not isinstance(found, torch.Tensor) or not found.ndim or len(found) != 1:
            raise RefusedError(
                "the module must return one tensor with the records in its first dimension, or an object with logits"
            )
        return found

    def graph_of(self, function: Callable[..., Any], arguments: Sequence[Tensor], seed: int) -> torch.fx.GraphModule:
        """Trace a function of tensors; RefusedError names the layer where that fails."""
        with plain_operations(seed):
            try:
                traced = torch.func.functionalize(function)  # what is written in place becomes a new tensor
                return make_fx(lambda *values: traced(*values))(*arguments)  # make_fx counts the arguments
            except Exception as error:
                raise RefusedError(explain_failure(error, self.module)) from None


@contextmanager
def plain_operations(seed: int) -> Iterator[None]:
    """Use operations that PyTorch can map over records, and random states that nobody else has."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        # one of these for all nodes; else each node makes its own, which takes half of the time
        stack.enter_context(
            torch._guards.tracing(
                torch._guards.TracingContext(torch._subclasses.fake_tensor.FakeTensorMode(allow_fallback_kernels=True))
            )
        )
        # libraries then leave out branches on values, such as "is any of this masked"
        stack.enter_context(torch.compiler._compile_session_context())
        torch.manual_seed(seed)
        yield


def trace_outputs(module: Any, form: RecordForm) -> ScoreGraph:
    """Return the graph of the outputs of one record, in evaluation mode; ``module`` is a copy of its own."""
    own = TracedModule(module.eval())
    fixed, count = own.fixed, len(own.fixed)

    def outputs(*values: Tensor) -> Tensor:
        with torch.no_grad(), _Uses({}, None):
            return own.outputs(values[:count], form, values[count:]).squeeze(0)

    graphs = [own.graph_of(outputs, [*fixed, *(x[0] for x in form.synthetic(1, seed))], seed) for seed in _SEEDS]
    _require_same(*graphs)
    graph, _ = check_graph(graphs[0], _names(graphs[0])[count:], may_draw=False)
    output = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    return ScoreGraph(graph, form, int(output.meta["val"].numel()))


def trace_gradients(
    module: Any, losses: Losses, form: RecordForm, target: tuple[tuple[int, ...], str]
) -> GradientGraph:
    """Return the graph of the gradient of one record's loss; ``module`` is a copy of its own, in training mode."""
    own = TracedModule(module)
    fixed, count, records = own.fixed, len(own.fixed), len(form.inputs)

    def loss(state: Sequence[Tensor], zeros: Sequence[Tensor] | None, rest: Sequence[Tensor], names: Any) -> Any:
        with _Uses(names, zeros) as uses:
            values = losses(own.outputs(state, form, rest[:records]), rest[records].unsqueeze(0))
        if values.shape != (1,):
            raise RefusedError(ONE_LOSS_EACH)
        return values.sum(), uses

    found = list[_Uses]()

    def forward(*values: Tensor) -> Tensor:
        state = values[:count]
        names = {id(value): name for name, value in zip(own.parameters, state, strict=False) if name in own.trained}
        value, uses = loss(state, None, values[count:], names)
        found.append(uses)
        return value

    first, second = (synthetic_record(form, target, seed) for seed in _SEEDS)
    graphs = [
        own.graph_of(forward, [*fixed, *record], seed) for record, seed in zip((first, second), _SEEDS, strict=True)
    ]
    _require_same(*graphs)
    if found[0].calls != found[1].calls:
        raise RefusedError(_CHANGES)
    direct = found[0].direct
    watched = [name for name in own.trained if name not in direct]
    calls = _calls_of(found[0].calls, watched)
    rest = [name for name in own.trained if name in direct]
    _require_reached(own.trained, calls, direct)

    def gradient(*values: Tensor) -> list[Tensor]:
        state, zeros, record = values[:count], values[count : count + len(calls)], values[count + len(calls) :]
        inputs = list[Tensor]()

        def value_of(zeros: Sequence[Tensor], moved: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
            now = [moved.get(name, value) for name, value in zip((*own.parameters, *own.buffers), state, strict=True)]
            names = {id(value): name for name, value in zip(own.parameters, now, strict=False) if name in watched}
            value, uses = loss(now, zeros, record, names)
            if _calls_of(uses.calls, watched) != calls:
                raise RefusedError(_CHANGES)
            return value, tuple(uses.inputs)

        start = {name: state[place] for place, name in enumerate(own.parameters) if name in rest}
        (errors, others), inputs = torch.func.grad(value_of, argnums=(0, 1), has_aux=True)(tuple(zeros), start)
        return [*inputs, *errors, *(others[name] for name in rest)]

    zeros = [torch.zeros(call.shape, dtype=call.dtype) for call in calls]
    graph = own.graph_of(gradient, [*fixed, *zeros, *second], _SEEDS[1])
    _drop_zeros(graph, _names(graph)[count : count + len(calls)])
    graph, draws = check_graph(graph, _names(graph)[count:])
    trained = tuple((name, tuple(own.parameters[name].shape)) for name in own.trained)
    return GradientGraph(graph, form, *_sizes(graph, count, form), calls, tuple(rest), trained, draws, target)


ONE_LOSS_EACH = (
    "loss must return one number per record, in the shape (records,). Pass reduction='none' to a loss of torch. For "
    "one output, compare outputs[:, 0] with the targets, because outputs have the shape (records, 1)"
)


def synthetic_record(form: RecordForm, target: tuple[tuple[int, ...], str], seed: int) -> list[Tensor]:
    """Return the inputs and the target of one synthetic record."""
    shape, dtype = target
    number = torch.full(shape, 0.5, dtype=torch.float64).to(getattr(torch, dtype))
    return [*(x[0] for x in form.synthetic(1, seed)), number]


def _calls_of(calls: Sequence[Call], watched: Sequence[str]) -> tuple[Call, ...]:
    """Return the calls that use watched parameters, without their other parameters."""
    kept = set(watched)
    return tuple(
        replace(
            call,
            weight=call.weight if call.weight in kept else None,
            bias=call.bias if call.bias in kept else None,
        )
        for call in calls
        if kept & {call.weight, call.bias}
    )


def _require_reached(trained: Sequence[str], calls: Sequence[Call], direct: set[str]) -> None:
    reached = direct | {name for call in calls for name in (call.weight, call.bias) if name}
    if missing := [name for name in trained if name not in reached]:
        raise RefusedError(
            f"the parameters {', '.join(missing[:5])} do not enter the loss of a record; freeze them with "
            "requires_grad_(False), or remove them"
        )


def _names(graph: torch.fx.GraphModule) -> list[str]:
    return [node.name for node in graph.graph.nodes if node.op == "placeholder"]


def _sizes(graph: torch.fx.GraphModule, count: int, form: RecordForm) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return the places of inputs that are indices, with the size of the smallest table.

    And whether numbers of a record are indices at all; with two rows, a comparison gives them too.
    """
    names, sizes, looks_up = _names(graph)[count : count + len(form.inputs)], dict[int, int](), False
    for name, size, is_whole in find_tables(graph, names):
        looks_up, place = looks_up or size > _FEWEST_IDS, names.index(name)
        if is_whole and not form.inputs[place].is_real:
            sizes[place] = min(size, sizes.get(place, size))
    return tuple(sizes.items()), looks_up


def _drop_zeros(graph: torch.fx.GraphModule, names: Sequence[str]) -> None:
    """Remove the zeros, whose gradients are in the graph by now."""
    for node in [node for node in graph.graph.nodes if node.name in names]:
        for user in list(node.users):
            if user.target is not torch.ops.aten.add.Tensor or user.args[1] is not node:
                raise RefusedError("a layer's output is used in a way that is not supported")
            user.replace_all_uses_with(user.args[0])
            graph.graph.erase_node(user)
        graph.graph.erase_node(node)


def _require_same(first: torch.fx.GraphModule, second: torch.fx.GraphModule) -> None:
    """Refuse a module whose graphs differ between two synthetic records."""
    same = str(first.graph) == str(second.graph)
    for name in {node.target for node in first.graph.nodes if node.op == "get_attr"} if same else ():
        a, b = getattr(first, name), getattr(second, name)
        if not (is_plain(a) and is_plain(b)):  # a generator, which is not used, or refused later
            continue
        same = same and a.shape == b.shape and a.dtype == b.dtype
        same = same and a.numpy(force=True).tobytes() == b.numpy(force=True).tobytes()
    if not same:
        raise RefusedError(_CHANGES)


# ---- refusals


def explain_failure(error: BaseException, module: Any) -> str:
    """Return what failed on a synthetic record, in which layer, and what may help."""
    if isinstance(error, RefusedError):
        return _place_of(error, module) + str(error)
    words = str(error)
    known = next((text for parts, text in _REMEDIES if any(part in words for part in parts)), None)
    return _place_of(error, module) + (known or f"{type(error).__name__} on a synthetic record: {shorten(error)}")


def shorten(error: BaseException) -> str:
    """Return the first words of an error."""
    words = " ".join(str(error).split())
    return f"{words[:_LONGEST_WORDS]} ..." if len(words) > _LONGEST_WORDS else words.rstrip(".")


_REMEDIES = (
    (
        ("value out of a tracing tensor", "data-dependent", ".item()", "_local_scalar_dense", "is_nonzero", "tolist()"),
        "the code branches on a value of a record or reads it (if, .item(), .tolist()); use torch.where, or multiply "
        "by a mask",
    ),
    (("numpy()", "Can't call numpy"), "the code leaves torch (.numpy()); write it with operations of torch"),
    (
        ("mutating", "in-place", "inplace", "Cannot assign", "non-functional tensor"),
        "the code changes a parameter, a buffer or another tensor of its own in place; remove every update of state "
        "from forward and from the loss",
    ),
    (
        ("autograd.Function", "custom_function", "saved tensor hooks"),
        "functions with a gradient of their own are not supported; write them with operations of torch",
    ),
)


def _place_of(error: BaseException, module: Any) -> str:
    """Return the innermost layer in which an error was raised."""
    paths = {id(part): path for path, part in module.named_modules()}
    place = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        part = frame.f_locals.get("self")
        if id(part) in paths and isinstance(part, torch.nn.Module):
            place = f"{type(part).__name__} at {paths[id(part)]!r}: " if paths[id(part)] else f"{type(part).__name__}: "
    return place
