"""Read and write the text of a schema: TOML or JSON.

In TOML, comments stand for missing declarations.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from dpscp._base.suggestions import suggest
from dpscp.data.columns import COLUMN_KEYS, HASH, TYPES
from dpscp.data.frames import SchemaError, refuse_unknown_keys
from dpscp.data.scales import LINEAR

FORMAT, VERSION = "dpscp-schema", 1
# Keys of the declarations about a release that a schema or a caller may make, for its report.
METADATA_KEYS = ("purpose", "data", "responsible", "contact", "legal_basis", "collection_period", "recipients")
_LARGEST_FILE = 16 * 2**20
_HEAD = (
    "# Public declarations for dpscp. Fill in what is publicly known (code books, units, physical limits).",
    "# Do not look at the records for it: everything in this file is treated as published.",
)
_KEYS = (
    *("format", "version", "task", "target", "targets", "classes", "bounds"),
    *("n_records", "person", "rows_per_person", "n_persons", "scale"),
)
# Comments after an empty value, and in place of a missing one.
_EMPTY = {"task": '   # "classification", "regression" or "multilabel"', "target": "   # the column to predict"}
_MISSING = {
    "classes": ['# classes = ["no", "yes"]   # classification: the public labels'],
    "bounds": [
        "# bounds = [low, high]   # regression: the public range of the target, or the fit finds one",
        '# scale = "log"   # regression: for costs and durations; "log1p" where 0 can occur',
    ],
    "n_records": ["# n_records = 10000   # the public number of records; without it, the table's length is published"],
    "person": [
        '# person = "id"   # the column of person ids, if a person can have several records',
        "# rows_per_person = 3   # with person: the largest number of records used of one person",
    ],
}


def read_text(path: str | PathLike[str]) -> str:
    """Return the text of a schema file."""
    file = Path(path)
    if not file.exists():
        raise SchemaError(f"schema file {str(path)!r} does not exist; 'dpscp schema TABLE' writes a template")
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise SchemaError(f"{str(path)!r} is too large for a schema; pass a schema file")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise SchemaError(f"{str(path)!r} cannot be read as UTF-8 text; check the file") from None


def parse_text(text: str, name: str) -> Any:
    """Return the values in a TOML or JSON text (JSON if it begins with a brace)."""
    try:
        return json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        place = f" (line {line})" if line else f" ({error})" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise SchemaError(f"{name!r} is neither valid TOML nor valid JSON{place}") from None


def merge_shared(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return each column's declarations with ``[defaults]`` and ``[categories]``."""
    columns, defaults, lists = (data.get(name, {}) for name in ("columns", "defaults", "categories"))
    for name, table in (("columns", columns), ("defaults", defaults), ("categories", lists)):
        if not isinstance(table, Mapping):
            raise SchemaError(f"{name} must be a table: [{name}], with one entry for each name")
    refuse_unknown_keys(defaults, COLUMN_KEYS, "defaults")
    if HASH in lists:
        raise SchemaError(f"categories has a list named {HASH!r}, which has a meaning of its own; rename it")
    return {str(name): _merge_column(str(name), column, defaults, lists) for name, column in columns.items()}


def _merge_column(name: str, column: Any, defaults: Mapping[str, Any], lists: Mapping[str, Any]) -> Any:
    if not isinstance(column, Mapping):
        return column
    kind = TYPES.get(str(column.get("type") or defaults.get("type")))
    merged = {key: value for key, value in defaults.items() if kind and key in ("type", *kind.keys)} | dict(column)
    chosen = merged.get("categories")
    if not isinstance(chosen, str) or chosen == HASH:
        return merged
    if chosen not in lists:
        raise SchemaError(
            f"categories of column {name!r} must be a list, {HASH!r}, or the name of a list in [categories], "
            f"got {chosen!r}{suggest(chosen, lists)}"
        )
    return merged | {"categories": lists[chosen]}


def check_metadata(metadata: Any) -> dict[str, str]:
    """Return the declarations about a release as texts.

    Raises ``SchemaError`` for an unknown key or another value.
    """
    if not isinstance(metadata, Mapping):
        raise SchemaError("metadata must be a table of texts")
    refuse_unknown_keys(metadata, METADATA_KEYS, "metadata")
    wrong = [key for key, value in metadata.items() if not isinstance(value, str)]
    if wrong:
        raise SchemaError(f"metadata {wrong[0]!r} must be a text; put it in quotes")
    return dict(metadata)


def format_schema(declared: Mapping[str, Any]) -> str:
    """Return the text of a schema file.

    See ``Schema.to_dict`` for the declarations.
    """
    irrelevant = {"classification": ["bounds"], "regression": ["classes"], "multilabel": ["classes", "bounds"]}
    left_out = irrelevant.get(declared["task"], [])
    lines = list(_HEAD)
    for key in _KEYS:
        if key in declared:
            lines.append(_line(key, declared[key]) + ("" if declared[key] else _EMPTY.get(key, "")))
        elif key not in left_out and not (key == "person" and "rows_per_person" in declared):
            lines += _MISSING.get(key, [])
    if "csv" in declared:
        lines += ["", "[csv]", *(_line(*pair) for pair in declared["csv"].items())]
    if "metadata" in declared:
        lines += ["", "[metadata]", *(_line(*pair) for pair in declared["metadata"].items())]
    else:
        lines += ["", "# [metadata]   # optional, for the report", f"# keys: {', '.join(METADATA_KEYS)}"]
    columns = declared["columns"]
    first_open = next((name for name, column in columns.items() if not column["type"]), None)
    for name, column in columns.items():
        lines += ["", f"[columns.{_format_value(name)}]", *(_line(*pair) for pair in column.items())]
        if name == first_open:
            lines.append(
                f"# type is one of {', '.join(map(json.dumps, TYPES))}. Lines for each type, here and in other columns:"
            )
        kinds = TYPES.values() if name == first_open else [TYPES[column["type"] or "ignore"]]
        lines += [hint for kind in kinds if kind.keys and kind.keys[0] not in column for hint in kind.hints]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    return f"{key} = {_format_value(value)}"


def _format_value(value: Any) -> str:
    """Format a TOML value; JSON's strings, numbers and lists are valid TOML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def bounds_of_targets(columns: Sequence[Any], target: str | tuple[str, ...]) -> Any:
    """Return the declared bounds of the targets: one pair, or one for each.

    None means that the fit finds them.
    """
    found = [column.bounds for column in columns if isinstance(column.bounds, tuple)]
    if isinstance(target, str):
        return columns[0].bounds if columns else None
    if found and len(found) < len(target):
        raise SchemaError("some targets have bounds and others have none; declare bounds for each target, or for none")
    return found or None


def scale_of_targets(columns: Sequence[Any]) -> str | None:
    """Return the scale that the columns of the targets declare; None: linear."""
    scales = {column.scale for column in columns}
    if len(scales) > 1:
        raise SchemaError("the targets have different scales; declare the same scale for each")
    return None if scales <= {LINEAR} else scales.pop()
