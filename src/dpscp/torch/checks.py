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

from dpscp.torch.draws import Draw, draws_nothing, find_rule
from dpscp.torch.library import Tensor, torch

_aten = torch.ops.aten
# Memory that nobody has written to may hold other records.
_EMPTY = ("aten.empty", "aten.new_empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty_strided")
_METADATA = _aten._assert_tensor_metadata.default
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)
# What leaves the numbers of an argument as they are, and what only shifts, cuts or takes some of them.
_SAME = {"_to_copy", "unsqueeze", "squeeze", "reshape", "view", "expand", "clone", "detach", "alias"}
_SHIFTED = {"add", "sub", "clamp", "clamp_min", "clamp_max", "floor", "round", "slice", "select"}
# How operations with a dimension and indices along it begin.
_ALONG = ("gather", "scatter", "index_")
# Operations that read and write nothing but the numbers of their arguments and results, write all numbers of a result,
# and raise for a place out of range; and so do those of their gradients. Those that work on each number alone are known
# by a tag of torch.
_KNOWN = set(
    """
    _conj _to_copy _unsafe_view alias block_diag cat channel_shuffle col2im complex constant_pad_nd copy detach
    diag_embed diagonal diagonal_scatter expand flip im2col lift_fresh lift_fresh_copy permute pixel_shuffle
    pixel_unshuffle polar repeat reshape roll select select_scatter slice slice_scatter split split_with_sizes
    squeeze stack t transpose tril triu unbind unfold unsafe_split unsafe_split_with_sizes unsqueeze view
    view_as_complex view_as_real

    arange eye fill full full_like linspace logspace new_full new_ones new_zeros ones ones_like scalar_tensor
    tril_indices triu_indices zeros zeros_like

    all amax amin aminmax any argmax argmin bucketize count_nonzero cummax cummin cumprod cumsum dist isin kthvalue
    linalg_vector_norm logcumsumexp logsumexp max mean median min mode nanmedian nansum norm prod renorm
    searchsorted sort std std_mean sum topk var var_mean

    _cdist _cdist_forward _euclidean_dist _fft_c2c _fft_c2r _fft_r2c _linalg_check_errors _linalg_det _linalg_eigh
    _linalg_slogdet _linalg_solve_ex _linalg_svd _pdist _pdist_forward _trilinear addbmm addmm addmv addr baddbmm
    bmm cholesky_inverse cholesky_solve convolution dot linalg_cholesky_ex linalg_cross linalg_eig linalg_inv_ex
    linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular mm mv vdot

    _adaptive_avg_pool2d _adaptive_avg_pool3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d adaptive_max_pool2d adaptive_max_pool3d affine_grid_generator avg_pool2d avg_pool3d
    grid_sampler_2d grid_sampler_3d max_pool2d_with_indices max_pool3d_with_indices reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d upsample_bicubic2d
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d

    _fused_rms_norm _log_softmax _log_softmax_backward_data _prelu_kernel _safe_softmax _softmax
    _softmax_backward_data _weight_norm_interface elu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu
    log_sigmoid log_sigmoid_forward mish native_batch_norm native_dropout native_group_norm native_layer_norm
    softplus softshrink

    binary_cross_entropy binary_cross_entropy_with_logits huber_loss mse_loss nll_loss nll_loss2d nll_loss2d_forward
    nll_loss_forward smooth_l1_loss soft_margin_loss

    embedding embedding_dense_backward gather index index_add index_copy index_put index_reduce index_select put
    scatter scatter_add scatter_reduce take
    """.split()  # noqa: SIM905 (one name a line would be long)
)
# Operations that use places which another one has found: the places, and the argument in which they were found.
_FOUND_PLACES = {
    "adaptive_max_pool2d_backward": (2, 1),
    "adaptive_max_pool3d_backward": (2, 1),
    "linalg_lu_solve": (1, 0),
    "max_pool2d_with_indices_backward": (-1, 1),
    "max_pool3d_with_indices_backward": (-1, 1),
}
# The building blocks of aten are refused but for these.
_PRIMS = ("prims.convert_element_type",)


class RefusedError(ValueError):
    """A module or loss that is not run on records; the message speaks of code and shapes only."""


def is_plain(value: Any) -> bool:
    """Return whether this is a dense tensor of torch's own type, without code of its own."""
    is_tensor = type(value) in (torch.Tensor, torch.nn.Parameter)
    return is_tensor and value.layout is torch.strided and not value.is_quantized


def check_graph(
    graph: torch.fx.GraphModule, records: Collection[str], *, may_draw: bool = True
) -> tuple[torch.fx.GraphModule, tuple[Draw, ...]]:
    """Check and rewrite a graph in place; return it with the draws that it takes as further arguments.

    ``records``: the names of the arguments that hold a record. RefusedError names the operation and the remedy.
    """
    secret = _dependents(graph, records)
    draws = list[Draw]()
    settle_memory(graph)
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
        if not is_plain(value):
            raise RefusedError(
                f"the module or its loss uses a constant of type {type(value).__name__}, which is not a plain tensor "
                "and whose code could see records; use a dense tensor of torch"
            )
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
    if target is _aten.embedding.default and node.args[0] in secret:
        raise RefusedError(
            "an embedding looks up rows of a table that is computed from the record, and an index out of range would "
            "read another record; use torch.gather or a product with one-hot vectors"
        )
    is_drawn = torch.Tag.nondeterministic_seeded in tags and not draws_nothing(target, node.args, node.kwargs)
    is_known = is_drawn or torch.Tag.pointwise in tags or {base, base.removesuffix("_backward")} & _KNOWN
    if not is_known and target is not _METADATA:
        raise RefusedError(
            f"{name} is not one of the operations that are known to stay within the numbers of one record; write it "
            "with others"
        )
    if base in _FOUND_PLACES and not _found_its_places(node, *_FOUND_PLACES[base]):
        raise RefusedError(f"{name} may read beyond the numbers of one record, unless torch finds its places itself")


def _found_its_places(node: Any, places: int, found_in: int) -> bool:
    """Return whether indices were computed by torch from an argument of the same shape, so that they are inside it."""
    place, values = node.args[places], node.args[found_in]
    if place.target is not operator.getitem:
        return False
    source = place.args[0].args[0]
    return bool(source.meta["val"].shape == values.meta["val"].shape)


def _has_places(node: Any, base: str) -> bool:
    """Return whether an index operation has no mask, so that the shape of its result is known."""
    masks = (torch.bool, torch.uint8)
    return base == "index" and all(place is None or place.meta["val"].dtype not in masks for place in node.args[1])


def _keeps_statistics(node: Any, base: str) -> bool:
    """Return whether a batch normalization updates its running statistics; its schema does not say so."""
    if "batch_norm" not in base or "backward" in base or "functional" in base:
        return False
    named = {a.name: v for a, v in zip(node.target._schema.arguments, node.args, strict=False)} | node.kwargs
    return bool(named.get("training")) and named.get("running_mean") is not None


def settle_memory(graph: torch.fx.GraphModule) -> None:
    """Replace views by reshapes, which copy where the memory layout needs it, and fill new memory with zeros."""
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in _VIEWS:
            node.target = _aten.reshape.default
        elif (name := _name(node)) in _EMPTY:
            filled = name.removeprefix("aten.").removesuffix("_strided")
            node.target = getattr(_aten, filled.replace("empty", "zeros")).default
            node.args = node.args[:-1] if name.endswith("_strided") else node.args


def _rewrite(graph: torch.fx.GraphModule, node: Any) -> None:
    target = node.target
    if target is _aten.embedding_dense_backward.default:
        node.target = _add_rows
    elif target is _METADATA:
        graph.graph.erase_node(node)


def _add_rows(errors: Tensor, indices: Tensor, rows: int, padding: int = -1, by_frequency: bool = False) -> Tensor:
    """Return the gradient of an embedding's table; an index out of range raises, also in a block."""
    if by_frequency:
        raise RefusedError("scale_grad_by_freq of an Embedding is not supported; leave it out")
    flat = indices.reshape(-1)
    kept = errors.reshape(len(flat), -1) * (flat != padding)[:, None]
    return kept.new_zeros((rows, kept.shape[1])).index_put((flat,), kept, accumulate=True)


def bound_places(graph: torch.fx.GraphModule) -> None:
    """Clamp indices to the public sizes: on a GPU, one out of range would end the process."""
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
        elif base in ("index", "index_put"):
            args[1] = [None if i is None else limit(i, n) for i, n in zip(args[1], shape, strict=False)]
        elif base in ("take", "put"):
            args[1] = limit(args[1], math.prod(shape))
        elif base.startswith(_ALONG):
            args[2] = limit(args[2], shape[args[1]], 0)
        node.args = tuple(args)
    graph.recompile()


def _limit(graph: torch.fx.GraphModule, node: Any, index: Any, size: int, least: int | None = None) -> Any:
    if index.meta["val"].dtype not in (torch.int64, torch.int32):  # a mask
        return index
    with graph.graph.inserting_before(node):
        return graph.graph.call_function(_aten.clamp.default, (index, -size if least is None else least, size - 1))


def _replace_draw(graph: torch.fx.GraphModule, node: Any, may_draw: bool) -> list[Draw]:
    """Replace a node that draws by a function of numbers that are an argument of the graph."""
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
    last = [other for other in graph.graph.nodes if other.op == "placeholder"][-1]
    with graph.graph.inserting_after(last):
        drawn = graph.graph.placeholder(f"drawn_{len(last.graph.nodes)}")
    node.target, node.args = rule, (drawn, *node.args)
    node.kwargs = {name: value for name, value in node.kwargs.items() if name == "dtype"}
    return [Draw(tuple(result.shape), is_normal, "float64" if is_wide or result.dtype == torch.float64 else "float32")]
