"""Write a schema as a TOML file, with comments for what is not declared yet."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpscp.data.columns import Column
    from dpscp.data.schema import Schema

FORMAT, VERSION = "dpscp-schema", 1
# What a schema or a caller may declare about a release, for its report.
METADATA_KEYS = ("purpose", "data", "responsible", "contact", "legal_basis", "collection_period", "recipients")


def format_schema(schema: "Schema") -> str:
    """Return the text of a schema file."""
    lines = [
        "# Public declarations for dpscp. Fill in what is publicly known (code books, units, physical limits).",
        "# Do not look at the records for it: everything in this file is treated as published.",
        f'format = "{FORMAT}"',
        f"version = {VERSION}",
        *_target_lines(schema),
        *_count_lines(schema),
        *_table_lines("csv", schema.csv.to_dict()),
    ]
    if schema.metadata:
        lines += _table_lines("metadata", schema.metadata)
    else:
        lines += ["", "# [metadata]   # optional, for the report", f"# keys: {', '.join(METADATA_KEYS)}"]
    for column in schema.columns:
        lines += ["", f"[columns.{_format_value(column.name)}]", *_column_lines(column)]
    return "\n".join(lines) + "\n"


def _target_lines(schema: "Schema") -> list[str]:
    lines = [
        f'task = "{schema.task}"' + ("" if schema.task else '   # "classification" or "regression"'),
        f"target = {_format_value(schema.target)}" + ("" if schema.target else "   # the column to predict"),
    ]
    if schema.classes is not None:
        lines.append(f"classes = {_format_value(list(schema.classes))}")
    elif schema.task != "regression":
        lines.append('# classes = ["no", "yes"]   # classification: the public labels')
    if schema.bounds is not None:
        lines.append(f"bounds = {_format_value(schema.to_dict()['bounds'])}")
    elif schema.task != "classification":
        lines.append("# bounds = [low, high]   # regression: the public range of the target, or the fit finds one")
    return lines


def _count_lines(schema: "Schema") -> list[str]:
    lines = []
    if schema.n_records is not None:
        lines.append(f"n_records = {schema.n_records}")
    else:
        lines.append(
            "# n_records = 10000   # the public number of records; without it, the table's length is published"
        )
    if schema.person is not None:
        lines.append(f"person = {_format_value(schema.person)}")
    elif schema.rows_per_person is None:
        lines.append('# person = "id"   # the column of person ids, if a person can have several records')
        lines.append("# rows_per_person = 3   # with person: the largest number of records used of one person")
    others = {"rows_per_person": schema.rows_per_person, "n_persons": schema.n_persons, "scale": schema.scale}
    return lines + [f"{name} = {_format_value(value)}" for name, value in others.items() if value is not None]


def _table_lines(name: str, values: Any) -> list[str]:
    return ["", f"[{name}]", *(f"{key} = {_format_value(value)}" for key, value in values.items())] if values else []


def _column_lines(column: "Column") -> list[str]:
    lines, known = [], column.to_dict()
    if not column.type:
        lines.append('type = ""   # "numeric", "categorical" or "ignore"')
        del known["type"]
    lines += [f"{key} = {_format_value(value)}" for key, value in known.items()]
    if column.bounds is None and column.type in ("", "numeric"):
        lines.append("# bounds = [low, high]   # numeric: public bounds; without them the fit finds some, at a cost")
        lines.append('# missing = "indicator"   # numeric: if values can be missing; or a public number')
        lines.append('# scale = "log"   # numeric: for costs and durations; "log1p" where 0 can occur')
    if column.lacks in ("type", "categories"):
        lines.append('# categories = ["a", "b"]   # categorical; if other values can appear: unknown = "other"')
    return lines


def _format_value(value: Any) -> str:
    """Format a TOML value; JSON's strings, numbers and lists are valid TOML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
