"""A schema to fill in: names and types of the columns of a frame, without a value of the records."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dpscp.data.columns import Column
from dpscp.data.frames import Frame, SchemaError, label_text, parse_numbers, select_columns
from dpscp.data.schema import Schema, template


def schema_from_frame(frame: Any, target: str, *, task: str, public: bool | Sequence[str]) -> Schema:
    """Return the schema of ``Schema.from_frame``."""
    names = column_names(frame)
    empty = template(names, target=target)  # refuses an unknown target and repeated names
    shown = set(names) if public is True else set(public or ())
    if unknown := sorted(shown - set(names)):
        raise SchemaError(f"public names column {unknown[0]!r}, which the table does not have")
    facts: dict[str, Any] = {}
    if target in shown and task:
        values = select_columns(frame, [target])[target]
        is_labels = task == "classification"
        facts = {"classes": public_labels(values)} if is_labels else {"bounds": public_range(target, values)}
    return Schema(task, target, describe_columns(frame, [c.name for c in empty.columns], shown), **facts)


def column_names(frame: Any) -> list[str]:
    """Return the names of a frame's columns."""
    import pyarrow as pa

    if not isinstance(frame, Frame):
        raise SchemaError(f"pass a frame (pandas, polars, Arrow), got {type(frame).__name__}")
    names = frame.columns if hasattr(frame, "columns") else None
    if names is None or not all(isinstance(name, str) for name in names):  # Arrow's columns are arrays
        names = pa.table(frame).column_names
    return [str(name) for name in names]


def describe_columns(frame: Any, names: Collection[str], public: Collection[str]) -> tuple[Column, ...]:
    """Return a declaration for each column: its type, and public facts only where its values are ``public``."""
    values = select_columns(frame, list(names))
    return tuple(_describe_column(name, values[name], is_public=name in public) for name in names)


def _describe_column(name: str, values: Any, *, is_public: bool) -> Column:
    kind = type_of_column(values)
    if not is_public or not kind:
        return Column(name, kind)
    if kind == "numeric":
        return Column(name, kind, bounds=public_range(name, values))
    return Column(name, kind, categories=public_labels(values))


def type_of_column(values: Any) -> str:
    """Return the type by the kind of storage alone; "" for dates and other kinds."""
    import pandas as pd

    types = pd.api.types
    if types.is_bool_dtype(values.dtype):
        return "categorical"
    if types.is_numeric_dtype(values.dtype):
        return "numeric"
    texts = types.is_string_dtype(values.dtype) or types.is_object_dtype(values.dtype)
    return "categorical" if texts or isinstance(values.dtype, pd.CategoricalDtype) else ""


def public_range(name: str, values: Any) -> tuple[float, float]:
    """Return the smallest and largest value of a column whose values are public."""
    numbers, _ = parse_numbers(values)
    found = numbers[np.isfinite(numbers)]
    if not len(found) or found.min() == found.max():
        raise SchemaError(f"column {name!r} has no two different numbers; declare its bounds")
    return float(found.min()), float(found.max())


def public_labels(values: Any) -> tuple[str, ...]:
    """Return the sorted labels of a column whose values are public."""
    return tuple(sorted({label_text(value) for value in values.dropna().unique().tolist()}))
