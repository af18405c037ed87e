"""Run the commands: print their results, and turn errors into exit codes."""

import argparse
import json
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dpscp
from dpscp._base.format import at_least, at_most, format_epsilon, format_level, format_number, format_rate
from dpscp.cli import wizard
from dpscp.cli.evaluation import LabeledTable, is_held_out, origin_path, refuse_training_table, write_origin
from dpscp.cli.run import (
    describe_release,
    describe_size_mismatch,
    describe_weak_budget,
    evaluate_labeled,
    fit_estimator,
    load_model,
    open_labeled_table,
    predict_block,
    read_records,
    require_schema,
    summarize_fit,
)
from dpscp.cli.tables import CommandError, Table, check_output, open_table, open_writer, refuse_existing
from dpscp.data.schema import Schema, read_schema, template
from dpscp.exceptions import BudgetError, GuaranteeWarning
from dpscp.pipeline.planning import plan
from dpscp.report.numbers import WHY_BELOW, explain_useless_promise
from dpscp.report.page import write_atomically, write_report

_OUT_OF_MEMORY = (
    "not enough memory for this table; remove columns that the schema does not use from the file, or split a table "
    "for prediction into several files"
)
# Runs of a model audit on each side: one or two minutes.
_MODEL_RUNS = 200
REFUSED, USAGE, OVER_BUDGET, INTERRUPTED = 1, 2, 3, 130


def run(options: argparse.Namespace) -> int:
    """Run a command and return its exit code; print an error as one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", GuaranteeWarning)
        warnings.showwarning = _show_warning
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
            return _print_error(error, REFUSED)
        except MemoryError:  # its own text may contain a number of records
            return _print_error(CommandError(_OUT_OF_MEMORY), REFUSED)
        except KeyboardInterrupt:
            return _print_error(CommandError(_describe_interrupt(options)), INTERRUPTED)
        except Exception as error:
            if options.debug:
                traceback.print_exc()
            # its text may contain values of records: print its type only
            text = f"unexpected {type(error).__name__}; run again with --debug to see where, and report it"
            return _print_error(CommandError(text), REFUSED)


def _print_error(error: BaseException, code: int) -> int:
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


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"dpscp: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _print_result(options: argparse.Namespace, data: Any, *lines: str) -> None:
    """Print JSON if requested, otherwise lines of text."""
    print(json.dumps(data) if options.json else "\n".join(lines))


# ---- the commands


def _schema(options: argparse.Namespace) -> int:
    output = options.output or options.table.with_suffix(".schema.toml")
    check_output(output, options.table)
    refuse_existing([output], force=options.force)
    known = [options.target] if options.target else []
    names = open_table(options.table, options.separator).public_names(known=known, confirmed=options.header)
    schema = template(names, target=options.target or "")
    write_atomically(output, schema.to_toml().encode())
    _print_result(
        options,
        {"schema": str(output), "lacks": list(schema.lacks)},
        f"wrote {output}. Fill in task, types, bounds and categories from public knowledge,",
        f"then run: dpscp fit {options.table} --schema {output} --epsilon 1",
    )
    return 0


def _read_complete_schema(options: argparse.Namespace, table: Table) -> Schema:
    """Read the schema of a fit, and ask for missing declarations on a terminal."""
    schema = read_schema(options.schema) if options.schema else None
    known = [] if schema is None else [c.name for c in schema.columns if c.type != "ignore" and c.name != schema.target]
    known += [name for name in (options.target, schema and schema.target) if name][:1]
    names = table.public_names(known=known, confirmed=options.header)
    schema = schema or template(names)
    if options.target:
        if options.target not in names:
            raise CommandError(f"--target: the table has no column {options.target!r}")
        schema = replace(
            schema.with_target(options.target), columns=tuple(c for c in schema.columns if c.name != options.target)
        )
    no_feature = (schema.target, schema.person)
    undeclared = [n for n in names if n not in no_feature and n not in {c.name for c in schema.columns}]
    if undeclared:
        schema = replace(schema, columns=(*schema.columns, *template(undeclared).columns))
    if schema.lacks and wizard.is_interactive():
        print("These declarations are missing. Answer from public knowledge, not from the records.", file=sys.stderr)
        schema = wizard.complete_schema(schema, _read_answer)
    if schema.lacks and not options.schema:
        raise CommandError(
            f"no --schema, and these declarations are missing: {'; '.join(schema.lacks)}. Create a template with "
            f"'dpscp schema {options.table}' and fill it in; bounds are never taken from the data"
        )
    return schema.require_complete()


def _read_answer(question: str) -> str:
    try:
        print(question, end="", file=sys.stderr, flush=True)
        return input()
    except EOFError:
        raise CommandError("the declarations are not complete; write them into a file and use --schema") from None


def _open_store(options: argparse.Namespace) -> Any:
    """Open the budget store of a fit; return None if the options name none."""
    if options.budget is None:
        if options.dataset is not None:
            raise CommandError("--dataset names the records of a budget store: add --budget with the store")
        return None
    from dpscp.privacy.store import BudgetStore

    store = BudgetStore.open(options.budget, dataset=options.dataset)
    store.require_spendable(seeded=options.seed is not None)
    return store


def _fit(options: argparse.Namespace) -> int:
    for path in (options.output, options.report):
        if path is not None:
            check_output(path, options.table)
    outputs = [options.output, origin_path(options.output), *([] if options.report is None else [options.report])]
    refuse_existing(outputs, force=options.force)
    if options.device is not None:  # fail before a table is read, which may take long
        from dpscp.training.engine.cuda import check_device

        check_device(options.device)
    table = open_table(options.table, options.separator)
    schema = _read_complete_schema(options, table)
    if options.unknown is not None:
        schema = replace(schema, columns=tuple(replace(c, unknown=options.unknown) for c in schema.columns))
    store = _open_store(options)
    if options.evaluate is not None:
        refuse_training_table(options.evaluate, options.table)
    records = read_records(schema, table)
    evaluated = None
    if options.evaluate is not None:  # find errors in it before budget is spent
        evaluated = LabeledTable(schema, open_table(options.evaluate, options.separator), one_per_person=True)
        training = LabeledTable(schema, table).fingerprint_records()
        held_out = is_held_out(evaluated.fingerprint_records(), training, options.evaluate)
        evaluated = replace(evaluated, held_out=held_out)
    mismatch = describe_size_mismatch(schema, records)
    for text in [
        *describe_weak_budget(schema, records.count, options.epsilon, options.delta),
        *([mismatch] if mismatch else []),
    ]:
        _show_warning(text)
    levels = options.confidence if len(options.confidence) > 1 else options.confidence[0]
    estimator = fit_estimator(
        schema,
        records,
        budget=store,
        epsilon=options.epsilon,
        delta=options.delta,
        confidence_level=levels,
        guarantee=options.guarantee,
        release_confidence=options.release_confidence,
        groups=options.groups[0] if options.groups and len(options.groups) == 1 else options.groups,
        random_state=options.seed,
        device=options.device,
        **({} if options.score is None else {"conformity_score": options.score}),
    )
    estimator.save(options.output)
    write_origin(options.output, options.table, options.separator)
    evaluation = None if evaluated is None else evaluate_labeled(estimator, evaluated)
    if options.report is not None:
        about = describe_release(options.output, options.purpose, options.data_name, store)
        title = f"Private prediction of {schema.target}"
        write_report(options.report, estimator, evaluation=evaluation, title=title, about=about)
    data = {"model": str(options.output), "report": options.report and str(options.report)}
    summary = summarize_fit(estimator, evaluation)
    lines = [*_promise_lines(summary), f"model:    {options.output}", *_report_line(options.report)]
    _print_result(options, {**data, **summary}, *lines)
    return 0


def _promise_lines(summary: dict[str, Any]) -> list[str]:
    """Write both promises, and the evaluation if there is one."""
    lines = [
        f"privacy:  epsilon {format_epsilon(summary['epsilon'])} at delta {summary['delta']:g} "
        f"(budget {format_number(summary['budget_epsilon'])}), for {summary['neighbours']}"
        + "".join(f"; NOT private: {reason}" for reason in summary["not_private_because"])
    ]
    evaluation = summary.get("evaluation")
    for place, certificate in enumerate(summary["certificates"]):
        text = f"coverage: at least {at_least(certificate['coverage'])} proven (target "
        text += f"{format_level(certificate['target'])}, guarantee {summary['guarantee']})"
        if evaluation:
            level = evaluation["levels"][place]
            unit = "labels in a set" if summary["task"] == "classification" else "wide on average"
            kind = "held-out" if evaluation["held_out"] else "labeled"
            text += f"; {format_rate(level['coverage'])} of {evaluation['n']:,} {kind} records, "
            text += f"{level['mean_size']:.3g} {unit}"
        average = f"for {certificate['covered']}, {certificate['on_average']}"
        lines += [text, f"          {average}; {certificate['one_release']}"]
    lines += _useless_lines(summary.get("not_useful_because"))
    if summary.get("nominal_size"):
        lines.append(_size_line(**summary["nominal_size"]))
    if evaluation:
        if evaluation["reference"] is not None:
            other = evaluation["reference"]
            lines.append(
                f"compare:  {format_rate(other['coverage'])} and {other['mean_size']:.3g} on average with a "
                f"non-private model ({other['method']})"
            )
        lines += _below_promise_lines(summary)
        lines.append(_evaluation_line(evaluation["held_out"]))
    return lines


def _size_line(count: int, noun: str, is_declared: bool) -> str:
    text = (
        "declared" if is_declared else f"counted in the table; this number is published, declare n_{noun} to avoid it"
    )
    return f"{noun + ':':<9} {count:,} ({text})"


def _useless_lines(reason: str | None) -> list[str]:
    return [] if reason is None else [_highlight(f"verdict:  NOT USEFUL. {reason}")]


def _below_promise_lines(summary: dict[str, Any]) -> list[str]:
    """Write a line for each level that the evaluation shows to be below its promise."""
    return [
        _highlight(
            f"verdict:  BELOW THE PROMISE of {at_least(certificate['coverage'])}. The evaluation shows coverage of at "
            f"most {at_most(level['interval'][1])} (95 % interval). Do not rely on these sets before you know the "
            f"reason: {WHY_BELOW}"
        )
        for certificate, level in zip(summary["certificates"], summary["evaluation"]["levels"], strict=True)
        if level["below_promise"]
    ]


def _highlight(text: str) -> str:
    """Print a line in red on a terminal."""
    return f"\033[31m{text}\033[0m" if sys.stdout.isatty() else text


def _evaluation_line(held_out: bool) -> str:
    text = "NOT private: the evaluation is computed without noise; publish it only if these records may be published"
    if not held_out:
        text += ". The fit may have used these records; if it did, the evaluation says nothing about new records"
    return f"checked:  {text}"


def _report_line(path: Path | None) -> list[str]:
    return [] if path is None else [f"report:   {path.absolute()}"]


def _predict(options: argparse.Namespace) -> int:
    check_output(options.output, options.table, options.model)
    estimator = load_model(options.model)
    table, schema, n, bad = open_table(options.table, options.separator), require_schema(estimator), 0, 0
    with open_writer(options.output) as write:
        for block in table.blocks("predicting"):
            block, n_bad = predict_block(estimator, schema, block, first=n + 1, unknown=options.unknown)
            write(block)
            n, bad = n + len(block), bad + n_bad
    useless = explain_useless_promise(estimator)
    added = block.schema.names[len(table.column_names) :]
    if bad:
        _show_warning(f"{bad:,} of {n:,} rows violate the schema and have no prediction; see column 'errors'")
    _print_result(
        options,
        {
            "output": str(options.output),
            "records": n,
            "errors": bad,
            "columns": added,
            "is_useful": useless is None,
        },
        f"wrote {options.output}: {n:,} records, new columns {', '.join(added)}",
        *_useless_lines(useless),
    )
    return 0


def _report(options: argparse.Namespace) -> int:
    check_output(options.output, options.model)
    estimator = load_model(options.model)
    evaluation = None
    if options.evaluate is not None:
        records = open_labeled_table(estimator, options.model, options.evaluate, options.separator)
        evaluation = evaluate_labeled(estimator, records)
    store = None
    if options.budget is not None:
        from dpscp.privacy.store import BudgetStore

        store = BudgetStore.open(options.budget)
    about = describe_release(options.model, options.purpose, options.data_name, store)
    write_report(options.output, estimator, evaluation=evaluation, title=options.title, about=about)
    summary = summarize_fit(estimator, evaluation)
    lines = [*_promise_lines(summary), *_report_line(options.output)]
    _print_result(options, {"report": str(options.output), **summary}, *lines)
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
        n_groups=options.n_groups,
        groups_per_record=options.groups_per_record,
        evaluation_fraction=options.evaluation_fraction,
    )
    if options.figure is not None:
        result.figure().savefig(options.figure, dpi=150)
    if options.html is not None:
        result.to_html(options.html)
    lines = [f"{name + ':':<8}{path}" for name, path in written.items() if path is not None]
    _print_result(options, result.to_dict(), str(result), *lines)
    return 0


def _audit(options: argparse.Namespace) -> int:
    from dpscp.audit import audit

    if options.figure is not None:
        check_output(options.figure)
    if options.model is None:
        result = audit(options.game or "search", knowledge=options.knowledge, runs=options.runs, null=options.null)
    else:
        from dpscp.audit import ModelGame

        if options.game is not None:
            raise CommandError(f"use a game ({options.game!r}) or --model, not both")
        result = audit(ModelGame(load_model(options.model)), runs=options.runs or _MODEL_RUNS, null=options.null)
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
    return subprocess.run([sys.executable, "-m", "experiments", *options.arguments], cwd=root, check=False).returncode


def _demo(options: argparse.Namespace) -> int:
    from dpscp.cli.demo import find_unused_folder, run_demo

    folder = options.folder or find_unused_folder(Path("dpscp-demo"))
    summary = run_demo(
        folder, epsilon=options.epsilon, delta=options.delta, level=options.confidence, force=options.force
    )
    _print_result(options, summary, *_promise_lines(summary), *_report_line(Path(summary["report"])))
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
