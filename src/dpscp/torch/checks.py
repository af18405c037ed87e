"""Check the graph of one record, and rewrite what would let records meet.

The graph must consist of operations of ``aten``, which PyTorch maps over a block of records by its own rules. It must
write to nothing, read no file, and have results whose shapes do not depend on values.

Theory: Torch modules: records cannot meet
"""

import math
import operator
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from dpscp.torch.draws import Draw, draw_shape, draws_nothing, find_rule
from dpscp.torch.library import Tensor, torch

_aten = torch.ops.aten
# Memory that nobody has written to may hold other records.
_EMPTY = {
    _aten.empty.memory_format: _aten.zeros.default,
    _aten.new_empty.default: _aten.new_zeros.default,
    _aten.empty_like.default: _aten.zeros_like.default,
}
_STRIDED = {_aten.new_empty_strided.default: _aten.new_zeros.default, _aten.empty_strided.default: _aten.zeros.default}
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)
# What leaves the numbers of an argument as they are, and what only shifts, cuts or takes some of them.
_SAME = {"_to_copy", "unsqueeze", "squeeze", "reshape", "view", "expand", "clone", "detach", "alias"}
_SHIFTED = {"add", "sub", "clamp", "clamp_min", "clamp_max", "floor", "round", "slice", "select"}
# Operations with a dimension and indices along it.
_ALONG = ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy")
# The building blocks of aten are refused but for these.
_PRIMS = ("prims.convert_element_type",)
_UNCHECKED = ("as_strided", "as_strided_copy", "as_strided_scatter", "from_file", "set_", "resize", "empty_permuted")


class RefusedError(ValueError):
    """A module or loss that is not run on records; the message speaks of code and shapes only."""


def check_graph(
    graph: torch.fx.GraphModule, records: Collection[str], *, may_draw: bool = True
) -> tuple[torch.fx.GraphModule, tuple[Draw, ...]]:
    """Check and rewrite a graph in place; return it with the draws that it takes as further arguments.

    ``records``: the names of the arguments that hold a record. RefusedError names the operation and the remedy.
    """
    secret = _dependents(graph, records)
    draws = list[Draw]()
    allow_strides(graph)
    for node in list(graph.graph.nodes):
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node.op != "call_function":
            raise RefusedError(
                f"the graph of the module calls {node.target}, which is code and not an operation of torch"
            )
        if node.target is not operator.getitem:
            _check_operation(node, secret)
            _rewrite(graph, node)
            draws += _replace_draw(graph, node, may_draw)
    graph.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    _own_constants(graph)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    graph.recompile()
    return graph, tuple(draws)


def find_tables(graph: torch.fx.GraphModule, records: Collection[str]) -> Iterator[tuple[str, int, bool]]:
    """Yield the arguments in whose numbers a table is looked up, and the number of its rows.

    And whether all numbers of the argument are indices as they are. Else some of them are, perhaps shifted or cut.
    """
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target is not _aten.embedding.default:
            continue
        table, index = node.args[:2]
        names = set[str]()
        while index.op == "call_function" and (name := _name(index).partition(".")[2]) in _SAME | _SHIFTED:
            names.add(name)
            index = index.args[0]
        if index.name in records:
            yield index.name, int(table.meta["val"].shape[0]), names <= _SAME


def _own_constants(graph: torch.fx.GraphModule) -> None:
    """Give the graph copies of the constants of the caller's code."""
    for name in {node.target for node in graph.graph.nodes if node.op == "get_attr"}:
        value = getattr(graph, name)
        if not isinstance(value, torch.Tensor):
            raise RefusedError(f"the graph of the module holds {type(value).__name__}, which is not a tensor")
        for held in (vars(graph), graph._buffers, graph._parameters):
            held.pop(name, None)
        graph.register_buffer(name, value.detach().clone())


def _dependents(graph: torch.fx.GraphModule, records: Collection[str]) -> set[Any]:
    """Return the nodes whose values follow from a record."""
    found = set[Any]()
    for node in graph.graph.nodes:
        if node.name in records or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _name(node: Any) -> str:
    return str((getattr(node.target, "_schema", None) and node.target._schema.name.replace("::", ".")) or node.target)


def _check_operation(node: Any, secret: set[Any]) -> None:
    target, name = node.target, _name(node)
    if not isinstance(target, torch._ops.OpOverload) or (target.namespace != "aten" and name not in _PRIMS):
        raise RefusedError(
            f"{name} is not an operation of torch's public library (aten), and its code could see several records; "
            "write it with operations of torch"
        )
    base = name.partition(".")[2]
    tags = target.tags
    if target._schema.is_mutable or _keeps_statistics(node, base):
        raise RefusedError(
            f"the module or its loss writes in place to a parameter, a buffer or an input ({name}), and such state "
            "may contain data of the records; remove every update of state from forward and from the loss"
        )
    if torch.Tag.data_dependent_output in tags or (
        torch.Tag.dynamic_output_shape in tags and not _has_places(node, base)
    ):
        raise RefusedError(
            f"the shape or the path of the computation depends on values of a record ({name}); use torch.where, or "
            "multiply by a mask, in place of if, nonzero and x[mask]"
        )
    if base.startswith(_UNCHECKED) or base in ("resize_", "index_fill"):
        raise RefusedError(f"{name} is not allowed, because it may read beyond the numbers of one record")
    if "empty" in base and target not in _EMPTY and target not in _STRIDED:
        raise RefusedError(f"{name} is not allowed, because its memory may hold other records; use torch.zeros")
    if target is _aten.embedding.default and node.args[0] in secret:
        raise RefusedError(
            "an embedding looks up rows of a table that is computed from the record, and an index out of range would "
            "read another record; use torch.gather or a product with one-hot vectors"
        )


def _has_places(node: Any, base: str) -> bool:
    """Return whether an index has places and no mask, so that the shape of its result is known."""
    if base not in ("index", "_unsafe_index"):
        return False
    return all(place is None or place.meta["val"].dtype not in (torch.bool, torch.uint8) for place in node.args[1])


def _keeps_statistics(node: Any, base: str) -> bool:
    """Return whether a batch normalization updates its running statistics; its schema does not say so."""
    if "batch_norm" not in base or "backward" in base or "functional" in base:
        return False
    named = {a.name: v for a, v in zip(node.target._schema.arguments, node.args, strict=False)} | node.kwargs
    return bool(named.get("training")) and named.get("running_mean") is not None


def allow_strides(graph: torch.fx.GraphModule) -> None:
    """Let every view copy where the layout in memory is another one than that of the traced tensors."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in _VIEWS:
            node.target = _aten.reshape.default


def _rewrite(graph: torch.fx.GraphModule, node: Any) -> None:
    target = node.target
    if target in _EMPTY:
        node.target = _EMPTY[target]
    elif target in _STRIDED:
        node.target, node.args = _STRIDED[target], node.args[:-1]
    elif target is _aten.embedding_dense_backward.default:
        node.target = _add_rows
    elif target is _aten._assert_tensor_metadata.default:
        graph.graph.erase_node(node)


def _add_rows(errors: Tensor, indices: Tensor, rows: int, padding: int = -1, by_frequency: bool = False) -> Tensor:
    """Return the gradient of an embedding's table; an index out of range raises, also in a block."""
    if by_frequency:
        raise RefusedError("scale_grad_by_freq of an Embedding is not supported; leave it out")
    flat = indices.reshape(-1)
    kept = errors.reshape(len(flat), -1) * (flat != padding)[:, None]
    return kept.new_zeros((rows, kept.shape[1])).index_put((flat,), kept, accumulate=True)


def bound_places(graph: torch.fx.GraphModule) -> None:
    """Let indices out of range read the last or first number: on a GPU they would end the process."""
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not node.args:
            continue
        base, args = _name(node).partition(".")[2], list(node.args)
        shape: Any = getattr(getattr(args[0], "meta", {}).get("val"), "shape", ())
        limit = partial(_limit, graph, node)
        if node.target is _add_rows:
            args[1] = limit(args[1], args[2], 0)
        elif base == "embedding":
            args[1] = limit(args[1], shape[0], 0)
        elif base in ("index", "_unsafe_index", "index_put"):
            args[1] = [None if i is None else limit(i, n) for i, n in zip(args[1], shape, strict=False)]
        elif base in ("take", "put"):
            args[1] = limit(args[1], math.prod(shape))
        elif base in _ALONG:
            args[2] = limit(args[2], shape[args[1]], 0)
        node.args = tuple(args)
    graph.recompile()


def _limit(graph: torch.fx.GraphModule, node: Any, index: Any, size: int, least: int | None = None) -> Any:
    if index.meta["val"].dtype not in (torch.int64, torch.int32):  # a mask
        return index
    with graph.graph.inserting_before(node):
        return graph.graph.call_function(_aten.clamp.default, (index, -size if least is None else least, size - 1))


def _replace_draw(graph: torch.fx.GraphModule, node: Any, may_draw: bool) -> list[Draw]:
    """Make the numbers of a node that draws an argument of the graph."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in operation.tags:
        return []
    if draws_nothing(operation, node.args, node.kwargs):
        return []
    found = find_rule(operation)
    if found is None:
        raise RefusedError(
            f"the module draws with {_name(node)}, which is not supported; draw with torch.rand or torch.randn"
        )
    if not may_draw:
        raise RefusedError(
            f"the module draws random numbers in evaluation mode ({_name(node)}), so its outputs are not a function of "
            "a record; draw only where self.training is true"
        )
    rule, is_normal, is_wide = found
    result = node.meta["val"]
    result = result[0] if isinstance(result, tuple | list) else result
    shape = draw_shape(operation, node.args, result)
    last = [other for other in graph.graph.nodes if other.op == "placeholder"][-1]
    with graph.graph.inserting_after(last):
        drawn = graph.graph.placeholder(f"drawn_{len(last.graph.nodes)}")
    node.target, node.args = rule, (drawn, *node.args)
    node.kwargs = {name: value for name, value in node.kwargs.items() if name == "dtype"}
    return [Draw(shape, is_normal, "float64" if is_wide or result.dtype == torch.float64 else "float32")]
