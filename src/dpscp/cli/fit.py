"""Run ``dpscp schema`` and ``dpscp fit``: complete the declarations, fit as in Python, write model and report."""

import argparse
import shlex
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpscp._base.suggestions import suggest
from dpscp.cli import wizard
from dpscp.cli.errors import CommandError, describe_os_error
from dpscp.cli.evaluation import (
    LabeledTable,
    Origin,
    find_earlier_fits,
    is_held_out,
    origin_path,
    refuse_training_table,
    write_origin,
)
from dpscp.cli.lines import promise_lines, report_line, show_warning
from dpscp.cli.outputs import check_output, refuse_existing
from dpscp.cli.run import (
    Estimator,
    count_units,
    describe_release,
    describe_size_mismatch,
    evaluate_labeled,
    fit_estimator,
    summarize_fit,
)
from dpscp.cli.tables import Table, open_table
from dpscp.data.csv_format import CSVFormat
from dpscp.data.schema import Schema, SchemaError, read_schema, template
from dpscp.report.page import write_atomically, write_report

Result = tuple[dict[str, Any], list[str]]


def choose_csv_format(options: argparse.Namespace, declared: CSVFormat | None = None) -> CSVFormat:
    """Return the format of CSV files: the declared one, changed by the options."""
    thousands = "" if options.thousands == "none" else options.thousands
    return (declared or CSVFormat()).with_changes(
        separator=options.separator, encoding=options.encoding, decimal=options.decimal, thousands=thousands
    )


def write_schema(options: argparse.Namespace) -> Result:
    """Write a template of a schema for a table."""
    output = options.output or schema_path(options.table)
    check_output(output, options.table)
    refuse_existing([output], force=options.force)
    known = [options.target] if options.target else []
    written = choose_csv_format(options)
    names = open_table(options.table, written).public_names(known=known, confirmed=options.header)
    if options.target and options.target not in names:
        raise CommandError(f"--target: the table has no column {options.target!r}{suggest(options.target, names)}")
    schema = replace(template(names, target=options.target or ""), csv=written)
    write_atomically(output, schema.to_toml().encode())
    return {"schema": str(output), "lacks": list(schema.lacks)}, [
        f"wrote {output}. Fill in task, types, bounds and categories from public knowledge,",
        f"then run: dpscp fit {shlex.quote(str(options.table))} --schema {shlex.quote(str(output))} --epsilon 1",
    ]


def schema_path(table: Path) -> Path:
    """Return the path of the schema that ``dpscp schema`` and the questions of ``dpscp fit`` write."""
    return table.with_suffix(".schema.toml")


def fit_table(options: argparse.Namespace) -> Result:
    """Fit on a table and write the model; everything that can fail is checked before budget is spent."""
    _check_outputs(options)
    schema, table = _read_complete_schema(options)
    store = open_store(options, seeded=options.seed is not None)
    evaluated = _open_evaluated(options, schema, table)
    size = count_units(schema, table)
    mismatch = describe_size_mismatch(schema, size)
    for text in [
        *([mismatch] if mismatch else []),
        *describe_earlier_fits(options),
    ]:
        show_warning(text)
    estimator = fit_estimator(schema, options.table, budget=store, **_estimator_options(options, schema))
    output = _save_model(estimator, options.output)
    write_origin(output, Origin.of(options.table, table.csv_format.separator))
    evaluation = None if evaluated is None else evaluate_labeled(estimator, evaluated)
    if options.report is not None:
        about = describe_release(options.purpose, options.data_name, store)
        title = f"Private prediction of {schema.target}"
        write_report(options.report, estimator, evaluation=evaluation, title=title, about=about)
    summary = summarize_fit(estimator, evaluation)
    data = {"model": str(output), "report": options.report and str(options.report), **summary}
    return data, [*promise_lines(summary), f"model:    {output}", *report_line(options.report)]


def describe_earlier_fits(options: argparse.Namespace) -> list[str]:
    """Return a warning if the notes beside models say that the table was fitted before, and no store adds up."""
    if options.budget is not None or options.seed is not None:
        return []
    models = find_earlier_fits(options.table, options.output.parent, options.table.parent)
    if not models:
        return []
    return [
        f"{str(options.table)!r} was fitted before ({', '.join(str(model.name) for model in models)}): each fit spends "
        "its own epsilon and delta, the costs add up, and no ledger has them together. Create a store once with "
        "'dpscp budget create', and add --budget and --dataset to every command that uses these records"
    ]


def _check_outputs(options: argparse.Namespace) -> None:
    for path in (options.output, options.report):
        if path is not None:
            check_output(path, options.table)
    outputs = [options.output, origin_path(options.output), *([] if options.report is None else [options.report])]
    refuse_existing(outputs, force=options.force)


def _estimator_options(options: argparse.Namespace, schema: Schema) -> dict[str, Any]:
    """Return the parameters of the estimator by their names in Python."""
    found: dict[str, Any] = {
        "epsilon": options.epsilon,
        "delta": options.delta,
        "confidence_level": options.confidence if len(options.confidence) > 1 else options.confidence[0],
        "guarantee": options.guarantee,
        "release_confidence": options.release_confidence,
        "groups": options.groups[0] if options.groups and len(options.groups) == 1 else options.groups,
        "random_state": options.seed,
    }
    if options.score is not None:
        found["conformity_score"] = options.score
    if options.clip_to_bounds:
        if schema.task != "regression":
            raise CommandError(
                "--clip-to-bounds cuts intervals at the bounds of the target; remove it: this schema "
                "declares a classification"
            )
        found["clip_to_bounds"] = True
    named = [c.name for c in schema.columns if c.type == "categorical"]
    allowed = (*named, "label") if len(options.groups or ()) == 1 else named
    for group in options.groups or ():
        if group not in allowed:
            raise CommandError(f"--groups: {group!r} is not a categorical column of the schema{suggest(group, named)}")
    return found


def _save_model(estimator: Estimator, path: Path) -> Path:
    """Save a model; if its folder fails now, save it elsewhere, because its budget is spent."""
    try:
        estimator.save(path)
        return path
    except OSError as error:
        other = Path(tempfile.mkdtemp(prefix="dpscp-")) / path.name
        estimator.save(other)
        show_warning(f"{describe_os_error(error)}. The model was written to {str(other)!r} instead; move it")
        return other


def open_store(options: argparse.Namespace, *, seeded: bool = False) -> Any:
    """Open the budget store of a command; return None if the options name none."""
    if options.budget is None:
        if options.dataset is not None:
            raise CommandError("--dataset names the records of a budget store: add --budget with the store")
        return None
    from dpscp.privacy.store import BudgetStore

    store = BudgetStore.open(options.budget, dataset=options.dataset)
    store.require_spendable(seeded=seeded)
    return store


def _open_evaluated(options: argparse.Namespace, schema: Schema, table: Table) -> LabeledTable | None:
    """Open the labeled records of ``--evaluate``, and find errors in them before budget is spent."""
    if options.evaluate is None:
        return None
    refuse_training_table(options.evaluate, options.table)
    opened = open_table(options.evaluate, table.csv_format)
    opened.require_columns(schema.column_names)
    evaluated = LabeledTable(schema, opened, one_per_person=True)
    training = LabeledTable(schema, table).fingerprint_records()
    held_out = is_held_out(evaluated.fingerprint_records(), training, options.evaluate)
    return replace(evaluated, held_out=held_out)


def _read_complete_schema(options: argparse.Namespace) -> tuple[Schema, Table]:
    """Read the schema of a fit, and ask for missing declarations on a terminal."""
    draft = schema_path(options.table)
    resumes = options.schema is None and wizard.is_interactive() and draft.is_file()
    given = draft if resumes else options.schema
    schema = read_schema(given) if given else None
    table = open_table(options.table, choose_csv_format(options, None if schema is None else schema.csv))
    known = [] if schema is None else [c.name for c in schema.columns if c.type != "ignore" and c.name != schema.target]
    known += [name for name in (options.target, schema and schema.target) if name][:1]
    names = table.public_names(known=known, confirmed=options.header)
    schema = replace(_add_columns(schema or template(names), names, options), csv=table.csv_format)
    if schema.lacks and wizard.is_interactive():
        schema = wizard.ask_declarations(schema, given or draft, _repeat_command(options, given or draft), names)
    if schema.lacks and not options.schema:
        raise CommandError(_describe_missing_schema(options, schema))
    return schema.require_complete(), table


def _add_columns(schema: Schema, names: Collection[str], options: argparse.Namespace) -> Schema:
    """Return the schema with the target and the unknown categories of the options, and with all columns."""
    if options.target:
        if options.target not in names:
            raise CommandError(f"--target: the table has no column {options.target!r}{suggest(options.target, names)}")
        schema = replace(
            schema.with_target(options.target), columns=tuple(c for c in schema.columns if c.name != options.target)
        )
    if options.unknown is not None:
        schema = replace(schema, columns=tuple(replace(c, unknown=options.unknown) for c in schema.columns))
    missing = [name for name in schema.column_names if name not in names]
    undeclared = [n for n in names if n not in (schema.target, schema.person, *(c.name for c in schema.columns))]
    if missing:
        said = " ".join(f"{name!r}{suggest(name, undeclared) or '.'}" for name in missing)
        others = f" Not declared are: {', '.join(map(repr, undeclared))}." if undeclared else ""
        raise SchemaError(
            f"the table lacks column{'s' * (len(missing) > 1)} that the schema declares: {said}{others} Correct the "
            'schema, or set the type of the column to "ignore"'
        )
    return replace(schema, columns=(*schema.columns, *template(undeclared).columns)) if undeclared else schema


def _describe_missing_schema(options: argparse.Namespace, schema: Schema) -> str:
    draft = schema_path(options.table)
    if draft.is_file():
        step = f"complete {str(draft)!r}, then run: {_repeat_command(options, draft)}"
    else:
        step = "create a template with: " + _schema_command(options)
    return (
        f"no --schema, and these declarations are missing: {'; '.join(schema.lacks)}. Bounds are never taken from the "
        f"data: {step}"
    )


def _repeat_command(options: argparse.Namespace, schema: Path) -> str:
    """Return the command of this fit with the schema in a file."""
    return shlex.join(["dpscp", *options.words, *([] if options.schema else ["--schema", str(schema)])])


def _schema_command(options: argparse.Namespace) -> str:
    """Return the command that writes a template for the table of this fit, with its options."""
    words = ["dpscp", "schema", str(options.table), *(["--header"] if options.header else [])]
    for name in ("target", "separator", "encoding", "decimal", "thousands"):
        value = getattr(options, name)
        words += [] if value is None else [f"--{name}", value]
    return shlex.join(words)
