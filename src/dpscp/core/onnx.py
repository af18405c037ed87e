"""Write a fitted estimator and its thresholds as an ONNX graph.

The graph does what ``predict_set`` and ``predict_interval`` do, in the same precision. ``TRANSFORMS`` and ``MODELS``
have one function for each kind of transform and model. Only released values enter the graph.
"""

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from dpscp.core.tasks import Regression
from dpscp.data.model_files import open_atomically
from dpscp.data.scales import LINEAR, scale_limits
from dpscp.scores.intervals import SMALLEST_SCALE
from dpscp.training.engine.rows import ROW_END
from dpscp.training.preprocessing.quantiles import CellLookup

# An operator set that most runtimes support and that has every operator of the graphs.
_OPSET, _IR_VERSION = 17, 8
_UPPER, _LOWER = (tuple(f"{name}_{side}" for name in ("absolute", "cqr")) for side in ("upper", "lower"))


class Graph:
    """Collect the nodes and constants of a graph, and name them."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError:
            raise ImportError("to_onnx needs onnx; install it with pip install 'dpscp[onnx]'") from None
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, dtype: Any = np.float64) -> str:
        """Add an array and return its name."""
        name = f"constant {len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = output or f"value {len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Convert numbers to another type."""
        return self.add("Cast", value, to=self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def clip(self, value: str, low: Any, high: Any, dtype: Any = np.float64) -> str:
        """Bound numbers by constants, which may differ between columns."""
        return self.add("Min", self.add("Max", value, self.constant(low, dtype)), self.constant(high, dtype))

    def bounded_rows(self, rows: str, bound: float, width: int, *, unit: bool = False) -> str:
        """Shorten rows to norm ``bound``, or with ``unit`` give them that norm, as ``scaled_rows`` does."""
        one, zero = self.constant(1.0), self.constant(0.0)
        largest = self.add("ReduceMax", self.add("Abs", rows), axes=[1])
        divisor = self.add("Where", self.add("Greater", largest, zero), largest, one)
        short = self.add("Div", rows, divisor)
        length = self.add("Sqrt", self.add("ReduceSumSquare", short, axes=[1]))
        target = (
            self.constant(bound) if unit else self.add("Min", self.constant(bound), self.add("Mul", length, divisor))
        )
        inside = self.add("Mul", target, self.constant(1 - 1e-15 * (4 + width)))
        factor = self.add("Div", inside, self.add("Where", self.add("Greater", length, zero), length, one))
        return self.add("Mul", short, factor)

    def columns(self, rows: str, places: Sequence[int]) -> str:
        """Select columns."""
        return self.add("Gather", rows, self.constant(places, np.int64), axis=1)


# ---- transforms: from float64 rows to float64 rows


def _feature(graph: Graph, step: Any, rows: str) -> str:
    rows = graph.clip(rows, step.low, step.high)
    rows = graph.add("Div", graph.add("Sub", rows, graph.constant(step.shift)), graph.constant(step.scale))
    return rows if step.limit is None else graph.clip(rows, -step.limit, step.limit)


def _quantile(graph: Graph, step: Any, rows: str) -> str:
    scaled = _feature(graph, step, rows)
    if not step.columns:
        return scaled
    # the same float32 operations as those of the transform; columns one by one, because of the cells of all edges
    lookup, (starts, slopes) = CellLookup.of(step.levels.shape[1] - 1), step.lines
    low, high = step.low[list(step.columns)], step.high[list(step.columns)]
    places = graph.columns(graph.clip(rows, step.low, step.high), step.columns)
    places = graph.add("Sub", places, graph.constant(low / 2 + high / 2))
    places = graph.cast(graph.clip(graph.add("Div", places, graph.constant(high / 2 - low / 2)), -1.0, 1.0), np.float32)
    parts = [scaled]
    for place in range(len(step.columns)):
        one = graph.columns(places, [place])
        passed = graph.add("GreaterOrEqual", one, graph.constant(lookup.edges[None, 1:-1], np.float32))
        axes = graph.constant([1], np.int64)
        cell = graph.add("ReduceSum", graph.cast(passed, np.int64), axes)
        edge, slope, start = (
            graph.add("Gather", graph.constant(table, np.float32), cell)
            for table in (lookup.edges, slopes[place], starts[place])
        )
        found = graph.add("Add", graph.add("Mul", graph.add("Sub", one, edge), slope), start)
        parts.append(graph.cast(found, np.float64))
    return graph.add("Concat", *parts, axis=1)


def _scales(graph: Graph, step: Any, rows: str) -> str:
    for scale, shift in (("log", 0.0), ("log1p", 1.0)):
        if scale not in step.scales:
            continue
        is_own = graph.constant([one == scale for one in step.scales], np.bool_)
        lowest = scale_limits(scale)[0]
        # log(1 + x) loses small x; the correction adds the rounding error of the sum
        total = graph.add("Add", rows, graph.constant(shift))
        usable = graph.add("Greater", total, graph.constant(0.0))
        safe = graph.add("Where", usable, total, graph.constant(1.0))
        logarithm = graph.add("Log", safe)
        if shift:
            lost = graph.add("Sub", rows, graph.add("Sub", safe, graph.constant(1.0)))
            logarithm = graph.add("Add", logarithm, graph.add("Div", lost, safe))
        found = graph.add("Where", usable, logarithm, graph.constant(lowest))
        found = graph.add("Max", found, graph.constant(lowest))
        rows = graph.add("Where", is_own, found, rows)
    return rows


def _matrix(graph: Graph, step: Any, rows: str) -> str:
    rows = graph.bounded_rows(rows, 1.0, len(step.matrix), unit=True)
    rows = graph.add("MatMul", rows, graph.constant(step.matrix))
    return graph.bounded_rows(rows, 1.0, len(step.matrix), unit=True)


def _random_features(graph: Graph, step: Any, rows: str) -> str:
    height, _ = step.matrix.shape
    rows = graph.bounded_rows(rows, step.bound, height)
    length = graph.add("Sqrt", graph.add("ReduceSumSquare", rows, axes=[1]))
    mean = graph.add("Mul", length, graph.constant(math.sqrt(2 / (math.pi * height))))
    bent = graph.add("Sub", graph.add("Abs", graph.add("MatMul", rows, graph.constant(step.matrix))), mean)
    return graph.add("Concat", rows, graph.add("Mul", bent, graph.constant(step.scale)), axis=1)


def _target_encoding(graph: Graph, step: Any, rows: str) -> str:
    others = step.origins[: step.n_features - len(step.columns)]
    parts = [graph.columns(rows, others)] if others else []
    starts = np.cumsum([0, *step.sizes])
    for column, size, start in zip(step.columns, step.sizes, starts, strict=False):
        own = step.values[start : start + size]
        code, end = graph.columns(rows, [column]), graph.constant(float(size))
        is_code = graph.add("And", graph.add("GreaterOrEqual", code, graph.constant(0.0)), graph.add("Less", code, end))
        is_code = graph.add("And", is_code, graph.add("Equal", code, graph.add("Floor", code)))
        place = graph.cast(graph.add("Where", is_code, code, end), np.int64)
        place = graph.add("Squeeze", place, graph.constant([1], np.int64))
        parts.append(graph.add("Gather", graph.constant(np.vstack([own, 0 * own[:1]])), place))
    return graph.add("Concat", *parts, axis=1)


def _centered(graph: Graph, step: Any, rows: str) -> str:
    return graph.add("Sub", graph.bounded_rows(rows, step.bound, len(step.shift)), graph.constant(step.shift))


TRANSFORMS: Mapping[str, Callable[[Graph, Any, str], str]] = {
    "feature": _feature,
    "quantile": _quantile,
    "scale": _scales,
    "matrix": _matrix,
    "random_features": _random_features,
    "centered": _centered,
    "target_encoding": _target_encoding,
}


# ---- models: from float64 rows to outputs


def _preprocessed(graph: Graph, model: Any, rows: str) -> str:
    width = model.n_features
    for step in model.transforms:
        if step.kind in ("unit_norm", "norm_clip"):  # only these transforms do not store the width
            is_unit = step.kind == "unit_norm"
            rows = graph.bounded_rows(rows, 1.0 if is_unit else step.bound, width, unit=is_unit)
        elif step.kind in TRANSFORMS:
            rows = TRANSFORMS[step.kind](graph, step, rows)
        else:
            raise TypeError(f"{type(step).__name__} has no ONNX form; add one to dpscp.core.onnx.TRANSFORMS")
        width = step.width or width
    outputs = _outputs(graph, model.inner, rows)
    if model.y_bounds is None:
        return outputs
    low, high = model.y_bounds
    scaled = graph.add("Mul", graph.cast(outputs, np.float64), graph.constant((high - low) / 2))
    return graph.add("Add", scaled, graph.constant((low + high) / 2))


def _dense(graph: Graph, model: Any, rows: str) -> str:
    dtype = model.parameters.dtype
    end = ROW_END[str(dtype)]
    if model.feature_bound is not None:
        rows = graph.bounded_rows(rows, model.feature_bound, model.n_features)
    values = graph.cast(graph.clip(rows, -end, end), dtype)
    layers = model.layers
    for place, layer in enumerate(layers):
        weights, bias = (layer[:, :-1], layer[:, -1]) if model.network.intercept else (layer, None)
        values = graph.add("MatMul", values, graph.constant(weights.T, dtype))
        values = values if bias is None else graph.add("Add", values, graph.constant(bias, dtype))
        if place < len(layers) - 1:
            values = graph.add("Relu" if model.network.activation == "relu" else "Tanh", values)
    if model.loss.name != "logistic":
        return values
    return graph.add("Concat", graph.add("Mul", values, graph.constant(0.0, dtype)), values, axis=1)


def _torch(graph: Graph, model: Any, rows: str) -> str:
    from dpscp.torch.library import torch

    shape = model.input_shape
    if any(not isinstance(size, int) for size in shape):
        raise TypeError("to_onnx does not support a module with several inputs; export model_.module_ with torch.onnx")
    module, written = model.fresh_module(), io.BytesIO()
    example = torch.zeros(2, *shape, dtype=next(module.parameters()).dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter needs no package but torch
        torch.onnx.export(
            module,
            (example,),
            written,
            dynamo=False,
            opset_version=_OPSET,
            input_names=["torch input"],
            output_names=["torch output"],
            dynamic_axes={"torch input": {0: "n"}, "torch output": {0: "n"}},
        )
    found = graph.onnx.load_from_string(written.getvalue()).graph
    records = graph.add("Reshape", rows, graph.constant([-1, *shape], np.int64))
    kind = graph.onnx.helper.tensor_dtype_to_np_dtype(found.input[0].type.tensor_type.elem_type)
    graph.add("Identity", graph.cast(records, kind), output="torch input")
    graph.nodes.extend(found.node)
    graph.constants.extend(found.initializer)
    outputs = "torch output"
    if len(found.output[0].type.tensor_type.shape.dim) == 1:
        outputs = graph.add("Unsqueeze", outputs, graph.constant([1], np.int64))
    return outputs


MODELS: Mapping[str, Callable[[Graph, Any, str], str]] = {
    "preprocessed": _preprocessed,
    "dense": _dense,
    "torch": _torch,
}


def _outputs(graph: Graph, model: Any, rows: str) -> str:
    kind = model.config()["model"]
    if kind not in MODELS:
        raise TypeError(f"{type(model).__name__} has no ONNX form; add one to dpscp.core.onnx.MODELS")
    return MODELS[kind](graph, model, rows)


# ---- tasks: from outputs to answers


def _label_answers(graph: Graph, estimator: Any, outputs: str) -> list[tuple[str, Any, Sequence[Any]]]:
    """Add labels, probabilities and sets; return the outputs of the graph with types and shapes."""
    classes = estimator.classes_
    probabilities = graph.add("Softmax", outputs, axis=1)
    scores = _label_scores(graph, estimator.task_.score_name, probabilities)
    thresholds = np.asarray(estimator.threshold_)
    levels = graph.add("Unsqueeze", graph.cast(scores, np.float64), graph.constant([2], np.int64))
    graph.add("LessOrEqual", levels, graph.constant(thresholds), output="sets")
    likeliest = graph.add("ArgMax", probabilities, axis=1, keepdims=0)
    types, are_numbers = graph.onnx.TensorProto, classes.dtype.kind in "iu"
    labels = graph.constant(classes, np.int64) if are_numbers else graph.constant(classes.astype(str), object)
    graph.add("Gather", labels, likeliest, output="label")
    graph.add("Cast", probabilities, to=types.DOUBLE, output="probabilities")
    label = types.INT64 if are_numbers else types.STRING
    return [
        ("label", label, ["n"]),
        ("probabilities", types.DOUBLE, ["n", len(classes)]),
        ("sets", types.BOOL, ["n", len(classes), thresholds.shape[-1]]),
    ]


def _label_scores(graph: Graph, name: str | None, probabilities: str) -> str:
    """Return the scores of the labels."""
    if name == "lac":
        one = graph.add("CastLike", graph.constant(1.0), probabilities)
        return graph.add("Sub", one, probabilities)
    shape = graph.add("Shape", probabilities)
    count = graph.add("Slice", shape, *(graph.constant([place], np.int64) for place in (1, 2)))
    ordered, order = f"ordered {len(graph.nodes)}", f"order {len(graph.nodes)}"
    graph.nodes.append(graph.onnx.helper.make_node("TopK", [probabilities, count], [ordered, order], axis=1))
    mass = graph.add("CumSum", ordered, graph.constant(1, np.int64))
    mass = graph.add("Min", mass, graph.add("CastLike", graph.constant(1.0), mass))
    mass = graph.cast(graph.add("ScatterElements", probabilities, order, mass, axis=1), np.float64)
    if name == "aps":
        return mass
    last = graph.add("Squeeze", count)
    ranks = graph.add("Range", graph.constant(0, np.int64), last, graph.constant(1, np.int64))
    ranks = graph.add("Expand", graph.add("Unsqueeze", ranks, graph.constant([0], np.int64)), shape)
    rank = graph.cast(graph.add("ScatterElements", ranks, order, ranks, axis=1), np.float64)
    return graph.add("Add", mass, graph.add("Mul", rank, graph.constant(0.01)))


def _interval_answers(graph: Graph, estimator: Any, outputs: str) -> list[tuple[str, Any, Sequence[Any]]]:
    """Add predictions and intervals; return the outputs of the graph with types and shapes."""
    task: Regression = estimator.task_
    low, high = task.scaled_bounds
    pair = graph.clip(graph.cast(outputs, np.float64), low, high)
    lower, upper = graph.add("ReduceMin", pair, axes=[1]), graph.add("ReduceMax", pair, axes=[1])
    half = graph.constant(0.5)
    center = graph.add("Mul", graph.add("Add", lower, upper), half)
    thresholds = np.asarray(estimator.threshold_, dtype=np.float64)
    reach = graph.constant(thresholds[None, :])
    if task.score_name == "normalized":
        width = graph.add("Mul", graph.add("Sub", upper, lower), half)
        reach = graph.add("Mul", graph.add("Max", width, graph.constant(SMALLEST_SCALE * (high - low))), reach)
        lower = upper = center
    no_end = np.full((1, len(thresholds)), np.inf)
    below = graph.constant(no_end) if task.score_name in _UPPER else reach
    above = graph.constant(no_end) if task.score_name in _LOWER else reach
    ends = [graph.add("Sub", lower, below), graph.add("Add", upper, above)]
    ends = [_in_units(graph, end, task.y_scale) for end in ends]
    if task.hard_bounds:
        ends = [graph.clip(end, *task.y_bounds) for end in ends]
    middle = graph.constant([1], np.int64)
    graph.add("Squeeze", _in_units(graph, center, task.y_scale), middle, output="prediction")
    graph.add("Concat", *(graph.add("Unsqueeze", end, middle) for end in ends), axis=1, output="intervals")
    double = graph.onnx.TensorProto.DOUBLE
    return [("prediction", double, ["n"]), ("intervals", double, ["n", 2, len(thresholds)])]


def _in_units(graph: Graph, values: str, scale: str) -> str:
    """Convert numbers from a scale to their own units; minus infinity is kept, see ``from_scale``."""
    if scale == LINEAR:
        return values
    found = graph.add("Exp", values)
    if scale == "log1p":
        found = graph.add("Sub", found, graph.constant(1.0))
    has_no_end = graph.add("Equal", values, graph.constant(-np.inf))
    return graph.add("Where", has_no_end, values, found)


def write_onnx(estimator: Any, path: str | PathLike[str]) -> None:
    """Write the graph of a fitted estimator to exactly ``path``, see ``PrivateConformalClassifier.to_onnx``."""
    if estimator.group_values_ is not None and not estimator.as_release().groups_are_classes:
        raise TypeError("to_onnx does not support groups of rows; fit without groups, or with groups='label'")
    if estimator.task_.score_assumptions:
        raise TypeError("to_onnx does not support your own conformity_score; fit with the name of a score")
    graph = Graph()
    onnx, types = graph.onnx, graph.onnx.TensorProto
    outputs = _outputs(graph, estimator.model_, "X")
    answers = (_interval_answers if estimator.task_.name == "regression" else _label_answers)(graph, estimator, outputs)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "dpscp",
            [onnx.helper.make_tensor_value_info("X", types.DOUBLE, ["n", estimator.n_features_in_])],
            [onnx.helper.make_tensor_value_info(*answer) for answer in answers],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="dpscp",
    )
    facts = {"dpscp.model": estimator.digest(), "dpscp.promise": estimator.certificate_.summary}
    schema = estimator.schema_
    facts |= {} if schema is None else {"dpscp.features": "\n".join(schema.feature_names)}
    onnx.helper.set_model_props(model, facts)
    onnx.checker.check_model(model, full_check=True)
    with open_atomically(path) as file:
        file.write(model.SerializeToString())
