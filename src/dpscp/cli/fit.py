"""Run ``dpscp schema`` and ``dpscp fit``.

These commands complete the declarations, fit as in Python, and write model and report.
"""

import argparse
import shlex
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpscp._base.suggestions import suggest
from dpscp.cli.files import (
    CommandError,
    Estimator,
    check_output,
    choose_csv_format,
    describe_os_error,
    is_same_file,
    note_path,
    open_table,
    public_names,
    read_new_records,
    read_note,
    refuse_existing,
    require_columns,
    write_note,
)
from dpscp.cli.lines import describe, model_line, report_line, show_hints, show_warning
from dpscp.data.schema import Schema, read_schema, template
from dpscp.data.sources.files import is_url, without_keys
from dpscp.data.sources.tables import Table
from dpscp.data.table_check import check_table
from dpscp.estimators import PrivateConformalClassifier, PrivateConformalRegressor, PrivateMultilabelClassifier
from dpscp.privacy.store import BudgetStore
from dpscp.report.numbers import evaluate, study_budget
from dpscp.report.page import write_atomically, write_report

Result = tuple[dict[str, Any], list[str]]

_ESTIMATORS: dict[str, type[Estimator]] = {
    "classification": PrivateConformalClassifier,
    "regression": PrivateConformalRegressor,
    "multilabel": PrivateMultilabelClassifier,
}


def write_schema(options: argparse.Namespace) -> Result:
    """Write a template of a schema for a table."""
    output = options.output or _schema_path(options.table)
    check_output(output, options.table)
    refuse_existing([output], force=options.force)
    table = open_table(options.table, choose_csv_format(options))
    names = public_names(table, known=[options.target] if options.target else [], confirmed=options.header)
    _require_target(options, names)
    schema = replace(template(names, target=options.target or ""), csv=table.csv_format)
    write_atomically(output, schema.to_toml().encode())
    command = ["dpscp", "fit", without_keys(options.table), "--schema", str(output), "--epsilon", "1"]
    return {"schema": str(output), "lacks": list(schema.lacks)}, [
        f"wrote {output}. Fill in task, types, bounds and categories from public knowledge,",
        f"then run: {shlex.join(command)}",
    ]


def check_records(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """List what a fit on a table would refuse.

    The exit code is 1 if the list is not empty.
    """
    schema = read_schema(options.schema)
    table = open_table(options.table, choose_csv_format(options, schema.csv))
    public_names(table, known=_known_names(schema))
    found = check_table(options.table, replace(schema, csv=table.csv_format))
    if not options.quiet:
        show_hints(found.hints)
    found = replace(found, hints=())
    return found.to_dict(), str(found).split("\n"), min(1, len(found.problems))


def fit_table(options: argparse.Namespace) -> Result:
    """Fit on a table and write the model.

    Everything that can fail is checked before budget is spent.
    """
    for path in (options.output, options.report):
        check_output(path, options.table)
    outputs = [options.output, note_path(options.output), *([] if options.report is None else [options.report])]
    refuse_existing(outputs, force=options.force)
    schema, table = _read_complete_schema(options)
    parameters = _estimator_options(options, schema)
    store = open_store(options)
    # the declarations stay with the model
    declared = {**(schema.metadata or {}), **describe_release(options, store)["metadata"]}
    schema = replace(schema, metadata=declared or None)
    records = None
    if options.evaluate is not None:
        records = read_new_records(options.evaluate, table.csv_format, schema, options.table)
    if not options.quiet:
        show_hints(check_table(options.table, schema).hints)
    if (text := _describe_earlier_fits(options)) is not None:
        show_warning(text)
    estimator = fit_estimator(schema, options.table, budget=store, **parameters)
    output = _save_model(estimator, options.output)
    write_note(output, options.table)
    evaluation = None if records is None else evaluate(estimator, *records)
    about = describe_release(options, store)
    if options.report is not None:
        write_report(options.report, estimator, evaluation=evaluation, **about)
    values, lines = describe(estimator, evaluation, **about)
    data = {"model": str(output), "report": options.report and str(options.report), **values}
    return data, [*lines, model_line(output), *report_line(options.report)]


def fit_estimator(schema: Schema, table: Path, *, budget: Any = None, **options: Any) -> Estimator:
    """Fit the estimator for the schema's task on a table, as in Python."""
    return _ESTIMATORS[schema.task](**options).fit(table, schema.target, schema=schema, budget=budget)


def open_store(options: argparse.Namespace) -> BudgetStore | None:
    """Open the budget store of a command; return None if the options name none."""
    if options.budget is None:
        if options.dataset is not None:
            raise CommandError("--dataset names the records of a budget store: add --budget with the store")
        return None
    store = BudgetStore.open(options.budget, dataset=options.dataset)
    store.require_spendable(seeded=options.seed is not None)
    return store


def describe_release(options: argparse.Namespace, store: BudgetStore | None) -> dict[str, Any]:
    """Return the declarations about a release and its store, as arguments.

    They are arguments of report and statement.
    """
    data = options.data_name or (None if store is None else store.to_dict()["dataset"])
    declared = {"purpose": options.purpose, "responsible": options.responsible, "data": data}
    return {"metadata": {name: text for name, text in declared.items() if text}, "study": study_budget(store)}


def _describe_earlier_fits(options: argparse.Namespace) -> str | None:
    """Return a warning if a note beside a model names this table.

    There is none if a store adds up the costs.
    """
    if options.budget is not None or options.seed is not None:
        return None
    notes = {note for folder in (options.output, options.table) for note in folder.parent.glob("*.origin.json")}
    models = [note.with_name(note.name.removesuffix(".origin.json")) for note in sorted(notes)]
    names = {model.name for model in models if (table := read_note(model)) and is_same_file(table, options.table)}
    if not names:
        return None
    return (
        f"{without_keys(options.table)!r} was fitted before ({', '.join(sorted(names))}): each fit spends "
        "its own epsilon and delta, the costs add up, and no ledger has them together. Create a store once with "
        "'dpscp budget create', and add --budget and --dataset to every command that uses these records"
    )


def _estimator_options(options: argparse.Namespace, schema: Schema) -> dict[str, Any]:
    """Return the parameters of the estimator by their names in Python."""
    named = [c.name for c in schema.columns if c.type == "categorical"]
    groups = options.groups or []
    for group in groups:
        if group not in named and groups != ["label"]:
            raise CommandError(f"--groups: {group!r} is not a categorical column of the schema{suggest(group, named)}")
    found: dict[str, Any] = {
        "epsilon": options.epsilon,
        "delta": options.delta,
        "guarantee": options.guarantee,
        "groups": groups[0] if len(groups) == 1 else options.groups,
        "random_state": options.seed,
    }
    if schema.task == "multilabel":
        found["risk"] = [round(1 - level, 12) for level in options.confidence]
    else:
        found["confidence_level"] = options.confidence if len(options.confidence) > 1 else options.confidence[0]
    if options.evaluate is not None and schema.task == "multilabel":
        raise CommandError("--evaluate measures coverage, but a multilabel task bounds a mean loss; remove it")
    chosen = {
        "release_confidence": options.release_confidence,
        "conformity_score": options.score,
        "clip_to_bounds": options.clip_to_bounds or None,
        "side": options.side,
    }
    known = _ESTIMATORS[schema.task]().get_params()
    for name, value in chosen.items():
        if value is not None and name not in known:
            option = {"conformity_score": "score"}.get(name, name).replace("_", "-")
            raise CommandError(f"--{option} is not for a {schema.task} task; remove it")
    return found | {name: value for name, value in chosen.items() if value is not None}


def _save_model(estimator: Estimator, path: Path) -> Path:
    """Save a model, elsewhere if its folder fails, because its budget is spent."""
    try:
        estimator.save(path)
        return path
    except OSError as error:
        other = Path(tempfile.mkdtemp(prefix="dpscp-")) / path.name
        estimator.save(other)
        show_warning(f"{describe_os_error(error)}. The model was written to {str(other)!r} instead; move it")
        return other


# ---- the schema of a fit


def _schema_path(table: Path) -> Path:
    near = Path(Path(without_keys(table)).name) if is_url(table) else table
    return near.with_suffix(".schema.toml")


def _require_target(options: argparse.Namespace, names: Collection[str]) -> None:
    if options.target and options.target not in names:
        raise CommandError(f"--target: the table has no column {options.target!r}{suggest(options.target, names)}")


def _read_complete_schema(options: argparse.Namespace) -> tuple[Schema, Table]:
    """Read the schema of a fit, and open its table.

    A schema that leaves a column undeclared is refused.
    """
    schema = read_schema(options.schema)
    table = open_table(options.table, choose_csv_format(options, schema.csv))
    if options.target:
        schema = schema.with_target(options.target)
    names = public_names(table, known=_known_names(schema))
    _require_target(options, names)
    schema = replace(_add_columns(schema.for_columns(names), names), csv=table.csv_format)
    require_columns(table, schema.column_names)
    return schema.require_complete(), table


def _known_names(schema: Schema) -> list[str]:
    """Return the column names that a schema declares, to recognize a header."""
    return [*(c.name for c in schema.feature_columns if not c.is_pattern), *schema.target_names[:1]]


def _add_columns(schema: Schema, names: Collection[str]) -> Schema:
    """Return the schema with all columns of a table.

    Those that it does not declare are open.
    """
    known = {*schema.target_names, schema.person, *(column.name for column in schema.columns)}
    return replace(schema, columns=(*schema.columns, *template([name for name in names if name not in known]).columns))
