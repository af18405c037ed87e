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
    """Collect the nodes and constants of a graph."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError:
            raise ImportError("to_onnx needs onnx; install it with pip install 'dpscp[onnx]'") from None
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, dtype: Any = None) -> "Values":
        """Add an array."""
        name = f"constant {len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return Values(self, name)


class Values:
    """Values in a graph; operators add nodes and turn numbers into constants."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def apply(self, kind: str, *others: Any, output: str | None = None, **attributes: Any) -> "Values":
        """Add a node and return its result."""
        graph, name = self.graph, output or f"value {len(self.graph.nodes)}"
        inputs = [other if isinstance(other, Values) else graph.constant(other) for other in others]
        names = [self.name, *(one.name for one in inputs)]
        graph.nodes.append(graph.onnx.helper.make_node(kind, names, [name], **attributes))
        return Values(graph, name)

    def __add__(self, other: Any) -> "Values":
        return self.apply("Add", other)

    def __sub__(self, other: Any) -> "Values":
        return self.apply("Sub", other)

    def __mul__(self, other: Any) -> "Values":
        return self.apply("Mul", other)

    def __truediv__(self, other: Any) -> "Values":
        return self.apply("Div", other)

    def __matmul__(self, other: Any) -> "Values":
        return self.apply("MatMul", other)

    def __gt__(self, other: Any) -> "Values":
        return self.apply("Greater", other)

    def where(self, yes: Any, no: Any) -> "Values":
        """Choose values by these booleans."""
        return self.apply("Where", yes, no)

    def cast(self, dtype: Any) -> "Values":
        """Convert numbers to another type."""
        return self.apply("Cast", to=self.graph.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def clip(self, low: Any, high: Any) -> "Values":
        """Bound numbers by constants, which may differ between columns."""
        return self.apply("Max", np.asarray(low, float)).apply("Min", np.asarray(high, float))

    def columns(self, places: Sequence[int]) -> "Values":
        """Select columns."""
        return self.apply("Gather", np.asarray(places, np.int64), axis=1)

    def join(self, *others: "Values") -> "Values":
        """Put columns side by side."""
        return self.apply("Concat", *others, axis=1)

    def lengths(self) -> "Values":
        """Return the norms of rows, as a column."""
        return self.apply("ReduceSumSquare", axes=[1]).apply("Sqrt")

    def bounded_rows(self, bound: float, width: int, *, unit: bool = False) -> "Values":
        """Shorten rows to norm ``bound``; with ``unit``, give all rows that norm.

        This is what ``scaled_rows`` does.
        """
        largest = self.apply("Abs").apply("ReduceMax", axes=[1])
        divisor = (largest > 0.0).where(largest, 1.0)
        short = self / divisor
        length, target = short.lengths(), self.graph.constant(float(bound))
        if not unit:
            target = target.apply("Min", length * divisor)
        return short * (target * (1 - 1e-15 * (4 + width)) / (length > 0.0).where(length, 1.0))


# ---- transforms: from float64 rows to float64 rows


def _feature(step: Any, rows: Values) -> Values:
    rows = (rows.clip(step.low, step.high) - step.shift) / step.scale
    return rows if step.limit is None else rows.clip(-step.limit, step.limit)


def _quantile(step: Any, rows: Values) -> Values:
    scaled, chosen = _feature(step, rows), list(step.columns)
    if not chosen:
        return scaled
    # the same float32 operations as those of the transform; columns one by one, because of the cells of all edges
    lookup, (starts, slopes) = CellLookup.of(step.levels.shape[1] - 1), step.lines
    low, high = step.low[chosen], step.high[chosen]
    places = rows.clip(step.low, step.high).columns(chosen) - (low / 2 + high / 2)
    places = (places / (high / 2 - low / 2)).clip(-1.0, 1.0).cast(np.float32)
    parts = []
    for place in range(len(chosen)):
        one = places.columns([place])
        passed = one.apply("GreaterOrEqual", lookup.edges[None, 1:-1].astype(np.float32))
        cell = passed.cast(np.int64).apply("ReduceSum", [1])
        edge, slope, start = (
            rows.graph.constant(table, np.float32).apply("Gather", cell)
            for table in (lookup.edges, slopes[place], starts[place])
        )
        parts.append(((one - edge) * slope + start).cast(np.float64))
    return scaled.join(*parts)


def _scales(step: Any, rows: Values) -> Values:
    for scale, shift in (("log", 0.0), ("log1p", 1.0)):
        if scale not in step.scales:
            continue
        lowest = float(scale_limits(scale)[0])
        # log(1 + x) loses small x; the correction adds the rounding error of the sum
        total = rows + shift
        usable = total > 0.0
        safe = usable.where(total, 1.0)
        logarithm = safe.apply("Log")
        if shift:
            logarithm = logarithm + (rows - (safe - 1.0)) / safe
        found = usable.where(logarithm, lowest).apply("Max", lowest)
        rows = rows.graph.constant([one == scale for one in step.scales]).where(found, rows)
    return rows


def _matrix(step: Any, rows: Values) -> Values:
    width = len(step.matrix)
    whitened: Values = rows.bounded_rows(1.0, width, unit=True) @ step.matrix
    return whitened.bounded_rows(1.0, width, unit=True)


def _random_features(step: Any, rows: Values) -> Values:
    height, _ = step.matrix.shape
    rows = rows.bounded_rows(step.bound, height)
    bent = (rows @ step.matrix).apply("Abs") - rows.lengths() * math.sqrt(2 / (math.pi * height))
    return rows.join(bent * step.scale)


def _target_encoding(step: Any, rows: Values) -> Values:
    others = step.origins[: step.n_features - len(step.columns)]
    parts = [rows.columns(others)] if others else []
    starts = np.cumsum([0, *step.sizes])
    for column, size, start in zip(step.columns, step.sizes, starts, strict=False):
        own, code = step.values[start : start + size], rows.columns([column])
        is_code = code.apply("GreaterOrEqual", 0.0).apply("And", code.apply("Less", float(size)))
        is_code = is_code.apply("And", code.apply("Equal", code.apply("Floor")))
        place = is_code.where(code, float(size)).cast(np.int64).apply("Squeeze", [1])
        parts.append(rows.graph.constant(np.vstack([own, 0 * own[:1]])).apply("Gather", place))
    return parts[0].join(*parts[1:])


def _centered(step: Any, rows: Values) -> Values:
    found: Values = rows.bounded_rows(step.bound, len(step.shift)) - step.shift
    return found


TRANSFORMS: Mapping[str, Callable[[Any, Values], Values]] = {
    "feature": _feature,
    "quantile": _quantile,
    "scale": _scales,
    "matrix": _matrix,
    "random_features": _random_features,
    "centered": _centered,
    "target_encoding": _target_encoding,
}


# ---- models: from float64 rows to outputs


def _preprocessed(model: Any, rows: Values) -> Values:
    width = model.n_features
    for step in model.transforms:
        if step.kind in ("unit_norm", "norm_clip"):  # only these transforms do not store the width
            is_unit = step.kind == "unit_norm"
            rows = rows.bounded_rows(1.0 if is_unit else step.bound, width, unit=is_unit)
        elif step.kind in TRANSFORMS:
            rows = TRANSFORMS[step.kind](step, rows)
        else:
            raise TypeError(f"{type(step).__name__} has no ONNX form; add one to dpscp.core.onnx.TRANSFORMS")
        width = step.width or width
    outputs = _outputs(model.inner, rows)
    if model.y_bounds is None:
        return outputs
    low, high = model.y_bounds
    scaled: Values = outputs.cast(np.float64) * ((high - low) / 2) + (low + high) / 2
    return scaled


def _dense(model: Any, rows: Values) -> Values:
    dtype = model.parameters.dtype
    end = ROW_END[str(dtype)]
    if model.feature_bound is not None:
        rows = rows.bounded_rows(model.feature_bound, model.n_features)
    values, layers = rows.clip(-end, end).cast(dtype), model.layers
    for place, layer in enumerate(layers):
        weights, bias = (layer[:, :-1], layer[:, -1]) if model.network.intercept else (layer, None)
        values = values @ weights.T
        values = values if bias is None else values + bias
        if place < len(layers) - 1:
            values = values.apply("Relu" if model.network.activation == "relu" else "Tanh")
    return values if model.loss.name != "logistic" else (values * dtype.type(0)).join(values)


def _torch(model: Any, rows: Values) -> Values:
    from dpscp.torch.library import torch

    graph, shape = rows.graph, model.input_shape
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
    kind = graph.onnx.helper.tensor_dtype_to_np_dtype(found.input[0].type.tensor_type.elem_type)
    rows.apply("Reshape", [-1, *shape]).cast(kind).apply("Identity", output="torch input")
    graph.nodes.extend(found.node)
    graph.constants.extend(found.initializer)
    outputs = Values(graph, "torch output")
    return outputs.apply("Unsqueeze", [1]) if len(found.output[0].type.tensor_type.shape.dim) == 1 else outputs


MODELS: Mapping[str, Callable[[Any, Values], Values]] = {
    "preprocessed": _preprocessed,
    "dense": _dense,
    "torch": _torch,
}


def _outputs(model: Any, rows: Values) -> Values:
    kind = model.config()["model"]
    if kind not in MODELS:
        raise TypeError(f"{type(model).__name__} has no ONNX form; add one to dpscp.core.onnx.MODELS")
    return MODELS[kind](model, rows)


# ---- tasks: from outputs to answers


def _label_answers(estimator: Any, outputs: Values) -> list[tuple[str, Any, Sequence[Any]]]:
    """Add labels, probabilities and sets, and return the outputs of the graph.

    Outputs have types and shapes.
    """
    graph, classes, thresholds = outputs.graph, estimator.classes_, np.asarray(estimator.threshold_)
    probabilities = outputs.apply("Softmax", axis=1)
    scores = _label_scores(estimator.task_.score_name, probabilities).cast(np.float64)
    scores.apply("Unsqueeze", [2]).apply("LessOrEqual", thresholds, output="sets")
    types, are_numbers = graph.onnx.TensorProto, classes.dtype.kind in "iu"
    labels = graph.constant(classes, np.int64) if are_numbers else graph.constant(classes.astype(str), object)
    labels.apply("Gather", probabilities.apply("ArgMax", axis=1, keepdims=0), output="label")
    probabilities.apply("Cast", to=types.DOUBLE, output="probabilities")
    label = types.INT64 if are_numbers else types.STRING
    return [
        ("label", label, ["n"]),
        ("probabilities", types.DOUBLE, ["n", len(classes)]),
        ("sets", types.BOOL, ["n", len(classes), thresholds.shape[-1]]),
    ]


def _label_scores(name: str | None, probabilities: Values) -> Values:
    """Return the scores of the labels."""
    graph = probabilities.graph
    one = graph.constant(1.0).apply("CastLike", probabilities)
    if name == "lac":
        return one - probabilities
    shape = probabilities.apply("Shape")
    count = shape.apply("Slice", [1], [2])
    ordered, order = Values(graph, f"ordered {len(graph.nodes)}"), Values(graph, f"order {len(graph.nodes)}")
    top = graph.onnx.helper.make_node("TopK", [probabilities.name, count.name], [ordered.name, order.name], axis=1)
    graph.nodes.append(top)
    mass = ordered.apply("CumSum", 1).apply("Min", one)
    mass = probabilities.apply("ScatterElements", order, mass, axis=1).cast(np.float64)
    if name == "aps":
        return mass
    ranks = graph.constant(0).apply("Range", count.apply("Squeeze"), 1)
    ranks = ranks.apply("Unsqueeze", [0]).apply("Expand", shape)
    return mass + ranks.apply("ScatterElements", order, ranks, axis=1).cast(np.float64) * 0.01


def _interval_answers(estimator: Any, outputs: Values) -> list[tuple[str, Any, Sequence[Any]]]:
    """Add predictions and intervals, and return the outputs of the graph.

    Outputs have types and shapes.
    """
    task: Regression = estimator.task_
    low, high = task.scaled_bounds
    pair = outputs.cast(np.float64).clip(low, high)
    lower, upper = pair.apply("ReduceMin", axes=[1]), pair.apply("ReduceMax", axes=[1])
    center = (lower + upper) * 0.5
    thresholds = np.asarray(estimator.threshold_, dtype=np.float64)
    reach = outputs.graph.constant(thresholds[None, :])
    if task.score_name == "normalized":
        reach = ((upper - lower) * 0.5).apply("Max", float(SMALLEST_SCALE * (high - low))) * reach
        lower = upper = center
    no_end = np.full((1, len(thresholds)), np.inf)
    ends = [
        lower - (no_end if task.score_name in _UPPER else reach),
        upper + (no_end if task.score_name in _LOWER else reach),
    ]
    ends = [_in_units(end, task.y_scale) for end in ends]
    if task.hard_bounds:
        ends = [end.clip(*task.y_bounds) for end in ends]
    _in_units(center, task.y_scale).apply("Squeeze", [1], output="prediction")
    below, above = (end.apply("Unsqueeze", [1]) for end in ends)
    below.apply("Concat", above, axis=1, output="intervals")
    double = outputs.graph.onnx.TensorProto.DOUBLE
    return [("prediction", double, ["n"]), ("intervals", double, ["n", 2, len(thresholds)])]


def _in_units(values: Values, scale: str) -> Values:
    """Convert numbers from a scale to their own units.

    Minus infinity is kept, see ``from_scale``.
    """
    if scale == LINEAR:
        return values
    found = values.apply("Exp")
    return values.apply("Equal", -np.inf).where(values, found - 1.0 if scale == "log1p" else found)


def write_onnx(estimator: Any, path: str | PathLike[str]) -> None:
    """Write the graph of a fitted estimator to exactly ``path``.

    See ``PrivateConformalClassifier.to_onnx``.
    """
    if estimator.group_values_ is not None and not estimator.as_release().groups_are_classes:
        raise TypeError("to_onnx does not support groups of rows; fit without groups, or with groups='label'")
    if estimator.task_.score_assumptions:
        raise TypeError("to_onnx does not support your own conformity_score; fit with the name of a score")
    graph = Graph()
    onnx, types = graph.onnx, graph.onnx.TensorProto
    outputs = _outputs(estimator.model_, Values(graph, "X"))
    answers = (_interval_answers if estimator.task_.name == "regression" else _label_answers)(estimator, outputs)
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
