"""Run the commands: print their results, and turn errors into exit codes."""

import argparse
import json
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dpscp
from dpscp._base.progress import clear_activity, pause_activity
from dpscp.cli.errors import CommandError, describe_os_error
from dpscp.cli.fit import choose_csv_format, fit_table, write_schema
from dpscp.cli.lines import promise_lines, report_line, show_warning, useless_lines
from dpscp.cli.outputs import check_output
from dpscp.cli.run import (
    describe_release,
    evaluate_labeled,
    load_model,
    open_labeled_table,
    predict_block,
    require_schema,
    summarize_fit,
)
from dpscp.cli.tables import open_table
from dpscp.core.planning import plan
from dpscp.data.groups import Groups
from dpscp.data.table_writer import open_writer
from dpscp.exceptions import BudgetError, GuaranteeWarning
from dpscp.report.numbers import explain_useless_promise
from dpscp.report.page import write_report

_OUT_OF_MEMORY = (
    "not enough memory for this table; remove columns that the schema does not use from the file, or split a table "
    "for prediction into several files"
)
REFUSED, USAGE, OVER_BUDGET, INTERRUPTED = 1, 2, 3, 130


def run(options: argparse.Namespace) -> int:
    """Run a command and return its exit code; print an error as one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", GuaranteeWarning)
        warnings.showwarning = show_warning
        try:
            code = COMMANDS[options.command](options)
            sys.stdout.flush()
            return code
        except BudgetError as error:
            return _print_error(error, OVER_BUDGET)
        except (CommandError, ValueError, TypeError, ImportError, OSError, TimeoutError) as error:
            if isinstance(error, BrokenPipeError):  # the process that read our output has ended
                sys.stderr.close()
                return REFUSED
            text = describe_os_error(error) if isinstance(error, OSError) else str(error)
            return _print_error(CommandError(text), REFUSED)
        except MemoryError:  # its own text may contain a number of records
            return _print_error(CommandError(_OUT_OF_MEMORY), REFUSED)
        except KeyboardInterrupt as error:
            return _print_error(CommandError(str(error) or _describe_interrupt(options)), INTERRUPTED)
        except Exception as error:
            if options.debug:
                traceback.print_exc()
            # its text may contain values of records: print its type only
            text = f"unexpected {type(error).__name__}; run again with --debug to see where, and report it"
            return _print_error(CommandError(text), REFUSED)


def _print_error(error: BaseException, code: int) -> int:
    clear_activity()
    print(f"dpscp: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _describe_interrupt(options: argparse.Namespace) -> str:
    """Describe the state after Ctrl-C: no partial files, and reserved budget stays spent."""
    text = "interrupted; no output file was left incomplete"
    store = options.budget if options.command in ("fit", "evaluate", "monitor", "recalibrate") else None
    if store is not None:
        text += (
            f". If the work had begun, its budget is reserved in {str(store)!r} and counts as spent, because results "
            f"may have been seen; check with 'dpscp budget show {store}'"
        )
    return text


def _print_result(options: argparse.Namespace, data: Any, *lines: str) -> None:
    """Print JSON if requested, otherwise lines of text."""
    clear_activity()
    print(json.dumps(data) if options.json else "\n".join(lines))


# ---- the commands


def _schema(options: argparse.Namespace) -> int:
    result, lines = write_schema(options)
    _print_result(options, result, *lines)
    return 0


def _fit(options: argparse.Namespace) -> int:
    result, lines = fit_table(options)
    _print_result(options, result, *lines)
    return 0


def _predict(options: argparse.Namespace) -> int:
    check_output(options.output, options.table, options.model)
    estimator = load_model(options.model)
    schema, n, bad = require_schema(estimator), 0, 0
    table = open_table(options.table, choose_csv_format(options, schema.csv))
    table.require_columns([column.name for column in schema.feature_columns], "the model needs")
    with open_writer(options.output, table.csv_format, raw=options.raw) as write:
        for block in table.blocks("predicting"):
            block, n_bad = predict_block(estimator, schema, table, block, first=n + 1, unknown=options.unknown)
            write(block)
            n, bad = n + len(block), bad + n_bad
    useless = explain_useless_promise(estimator)
    added = block.schema.names[len(table.column_names) :]
    if bad:
        show_warning(f"{bad:,} of {n:,} rows violate the schema and have no prediction; see column 'errors'")
    _print_result(
        options,
        {
            "output": str(options.output),
            "records": n,
            "errors": bad,
            "columns": added,
            "is_useful": useless is None,
            "not_useful_because": useless,
        },
        f"wrote {options.output}: {n:,} records, new columns {', '.join(added)}",
        *useless_lines(useless),
    )
    return 0


def _report(options: argparse.Namespace) -> int:
    check_output(options.output, options.model)
    estimator = load_model(options.model)
    evaluation = None
    if options.evaluate is not None:
        written = choose_csv_format(options, require_schema(estimator).csv)
        records = open_labeled_table(estimator, options.model, options.evaluate, written)
        evaluation = evaluate_labeled(estimator, records)
    store = None
    if options.budget is not None:
        from dpscp.privacy.store import BudgetStore

        store = BudgetStore.open(options.budget)
    about = describe_release(options.purpose, options.data_name, store)
    write_report(options.output, estimator, evaluation=evaluation, title=options.title, about=about)
    summary = {"report": str(options.output), **summarize_fit(estimator, evaluation)}
    _print_result(options, summary, *promise_lines(summary), *report_line(options.output))
    return 0


def _plan(options: argparse.Namespace) -> int:
    written = {"figure": options.figure, "page": options.html}
    for path in filter(None, written.values()):
        check_output(path)
    if options.regression and options.classes is not None:
        raise CommandError("use --classes or --regression, not both")
    result = plan(
        options.n,
        options.epsilon,
        overshoot=options.overshoot,
        delta=options.delta,
        alpha=round(1 - options.confidence, 12),
        classes=None if options.regression else (options.classes or 2),
        n_features=options.features,
        train_share=options.train_share,
        release_confidence=options.release_confidence,
        rows_per_person=options.rows_per_person,
        groups=_planned_groups(options),
        evaluation_fraction=options.evaluation_fraction,
    )
    if options.figure is not None:
        result.figure().savefig(options.figure, dpi=150)
    if options.html is not None:
        result.to_html(options.html)
    lines = [f"{name + ':':<8}{path}" for name, path in written.items() if path is not None]
    _print_result(options, result.to_dict(), str(result), *lines)
    return 0


def _planned_groups(options: argparse.Namespace) -> Groups | int | None:
    """Return the groups to plan: their number, or that of overlapping ones."""
    count: int | None = options.n_groups
    if options.groups_per_record == 1:
        return count
    # a plan calls no function
    return Groups(len, values=range(count or 1), per_record=options.groups_per_record)


def _audit(options: argparse.Namespace) -> int:
    from dpscp.audit import audit

    if options.figure is not None:
        check_output(options.figure)
    result = audit(load_model(options.model), runs=options.runs, null=options.null)
    if options.figure is not None:
        result.plot(options.figure)
    _print_result(options, result.to_dict(), str(result))
    return 0 if result.passed else REFUSED


def _budget(options: argparse.Namespace) -> int:
    from dpscp.privacy import Ledger
    from dpscp.privacy.store import BudgetStore

    if options.action == "create":
        if options.epsilon is None or options.delta is None or options.dataset is None:
            raise CommandError(
                "a new budget store needs --epsilon, --delta and --dataset (a public name of the records)"
            )
        check_output(options.store)
        sequence = options.sequence and [
            Ledger.from_json(path.read_text(encoding="utf-8")) for path in options.sequence
        ]
        store = BudgetStore.create(
            options.store,
            options.epsilon,
            options.delta,
            dataset=options.dataset,
            sequence=sequence,
            slack=options.slack,
        )
    else:
        store = BudgetStore.open(options.store, dataset=options.dataset)
    _print_result(options, store.to_dict(), store.summary())
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    root = Path(dpscp.__file__).resolve().parents[2]
    if not (root / "experiments" / "__main__.py").is_file():
        raise CommandError(
            "the experiments are not part of the installed package; use a source checkout (pip install -e .)"
        )
    command = [sys.executable, "-m", "experiments", *options.arguments]
    with pause_activity():
        return subprocess.run(command, cwd=root, check=False).returncode


def _demo(options: argparse.Namespace) -> int:
    from dpscp.cli.demo import find_unused_folder, run_demo

    folder = options.folder or find_unused_folder(Path("dpscp-demo"))
    summary = run_demo(
        folder, epsilon=options.epsilon, delta=options.delta, level=options.confidence, force=options.force
    )
    _print_result(options, summary, *promise_lines(summary), *report_line(Path(summary["report"])))
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from dpscp.cli.deployment import evaluate_table

    result, lines = evaluate_table(options)
    _print_result(options, result, *lines)
    return 0


def _recalibrate(options: argparse.Namespace) -> int:
    from dpscp.cli.deployment import recalibrate_model

    result, lines = recalibrate_model(options)
    _print_result(options, result, *lines)
    return 0


def _monitor(options: argparse.Namespace) -> int:
    from dpscp.cli.deployment import monitor_table

    result, lines = monitor_table(options)
    _print_result(options, result, *lines)
    return 0


def _statement(options: argparse.Namespace) -> int:
    from dpscp.cli.deployment import write_statement

    result, lines = write_statement(options)
    _print_result(options, result, *lines)
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _demo,
    "schema": _schema,
    "fit": _fit,
    "predict": _predict,
    "report": _report,
    "evaluate": _evaluate,
    "monitor": _monitor,
    "recalibrate": _recalibrate,
    "statement": _statement,
    "plan": _plan,
    "audit": _audit,
    "budget": _budget,
    "reproduce": _reproduce,
}
