"""Commands, exit codes and what is printed; the work itself is elsewhere."""

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
from dpscp._base.format import asked, at_least, at_most, chosen, format_epsilon, observed
from dpscp.cli import run as fits
from dpscp.cli import wizard as questions
from dpscp.cli.evaluation import LabeledTable, is_held_out, origin_path, refuse_training_table, write_origin
from dpscp.cli.tables import CommandError, Table, check_output, keep_existing, open_table, written_table
from dpscp.data.schema import Schema, read_schema, template
from dpscp.exceptions import BudgetError, GuaranteeWarning
from dpscp.pipeline.planning import plan
from dpscp.report.numbers import WHY_BELOW
from dpscp.report.page import write_atomically, write_report

_OUT_OF_MEMORY = (
    "not enough memory for this table; free some, drop columns that the schema does not use from the file, "
    "or predict a large table in parts"
)
# Games of one's own model in each world: a minute or two.
_MODEL_RUNS = 200
REFUSED, USAGE, OVER_BUDGET, INTERRUPTED = 1, 2, 3, 130


def run(given: argparse.Namespace) -> int:
    """Run the command of parsed arguments and return its exit code; errors are one line on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", GuaranteeWarning)
        warnings.showwarning = _show_warning
        try:
            code = COMMANDS[given.command](given)
            sys.stdout.flush()
            return code
        except BudgetError as error:
            return _failed(error, OVER_BUDGET)
        except (CommandError, ValueError, TypeError, ImportError, OSError, TimeoutError) as error:
            if isinstance(error, BrokenPipeError):  # the reader of our output has gone: nothing to tell
                sys.stderr.close()
                return REFUSED
            return _failed(error, REFUSED)
        except MemoryError:  # its own text may count the records
            return _failed(CommandError(_OUT_OF_MEMORY), REFUSED)
        except KeyboardInterrupt:
            return _failed(CommandError(_interrupted(given)), INTERRUPTED)
        except Exception as error:
            if given.debug:
                traceback.print_exc()
            # its text may hold something of the records: only its kind is told
            return _failed(
                CommandError(f"unexpected {type(error).__name__}; run with --debug, see it, report it"), REFUSED
            )


def _failed(error: BaseException, code: int) -> int:
    print(f"dpscp: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _interrupted(given: argparse.Namespace) -> str:
    """What is true after Ctrl-C: files are whole or not there, and a reservation is not given back."""
    text = "interrupted; no output file was left half-written"
    store = given.budget if given.command in ("fit", "evaluate", "monitor") else None
    if store is not None:
        text += (
            f". If the work had begun, its share is reserved in {str(store)!r} and counts as spent: the noise may have "
            f"been seen. 'dpscp budget show {store}' tells"
        )
    return text


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"dpscp: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _tell(given: argparse.Namespace, data: Any, *lines: str) -> None:
    """JSON for machines or lines for people, on standard output."""
    print(json.dumps(data) if given.json else "\n".join(lines))


# ---- the commands


def _schema(given: argparse.Namespace) -> int:
    output = given.output or given.table.with_suffix(".schema.toml")
    check_output(output, given.table)
    keep_existing([output], force=given.force)
    known = [given.target] if given.target else []
    names = open_table(given.table, given.separator).public_names(known=known, confirmed=given.header)
    schema = template(names, target=given.target or "")
    write_atomically(output, schema.to_toml().encode())
    _tell(
        given,
        {"schema": str(output), "lacks": list(schema.lacks)},
        f"wrote {output}: fill in task, types, bounds and categories from what is publicly known,",
        f"then run: dpscp fit {given.table} --schema {output} --epsilon 1",
    )
    return 0


def _declared(given: argparse.Namespace, table: Table) -> Schema:
    """The complete schema of a fit: from the file, asked for on a terminal, or refused."""
    schema = read_schema(given.schema) if given.schema else None
    known = [] if schema is None else [c.name for c in schema.columns if c.type != "ignore" and c.name != schema.target]
    known += [name for name in (given.target, schema and schema.target) if name][:1]
    names = table.public_names(known=known, confirmed=given.header)
    schema = schema or template(names)
    if given.target:
        if given.target not in names:
            raise CommandError(f"the table has no column {given.target!r}, given as --target")
        schema = replace(
            schema.with_target(given.target), columns=tuple(c for c in schema.columns if c.name != given.target)
        )
    no_feature = (schema.target, schema.person)
    undeclared = [n for n in names if n not in no_feature and n not in {c.name for c in schema.columns}]
    if undeclared:
        schema = replace(schema, columns=(*schema.columns, *template(undeclared).columns))
    if schema.lacks and questions.can_ask():
        print("Not declared yet; answer from public knowledge, not from the records.", file=sys.stderr)
        schema = questions.complete(schema, _ask)
    if schema.lacks and not given.schema:
        raise CommandError(
            f"no schema was given, and these must be declared: {'; '.join(schema.lacks)}. "
            f"'dpscp schema {given.table}' writes a template to fill in: bounds are never taken from the data"
        )
    return schema.require_complete()


def _ask(question: str) -> str:
    try:
        print(question, end="", file=sys.stderr, flush=True)
        return input()
    except EOFError:
        raise CommandError("the declarations were not completed; use --schema") from None


def _store_of(given: argparse.Namespace) -> Any:
    """The budget store that a fit spends from; None without one."""
    if given.budget is None:
        if given.dataset is not None:
            raise CommandError("--dataset repeats the name of a budget store's data set: give the store with --budget")
        return None
    from dpscp.privacy.store import BudgetStore

    store = BudgetStore.open(given.budget, dataset=given.dataset)
    store.require_spendable(seeded=given.seed is not None)
    return store


def _fit(given: argparse.Namespace) -> int:
    for path in (given.output, given.report):
        if path is not None:
            check_output(path, given.table)
    outputs = [given.output, origin_path(given.output), *([] if given.report is None else [given.report])]
    keep_existing(outputs, force=given.force)
    if given.device is not None:  # a table may take long to read
        from dpscp.training.engine.cuda import check_device

        check_device(given.device)
    table = open_table(given.table, given.separator)
    schema = _declared(given, table)
    if given.unknown is not None:
        schema = replace(schema, columns=tuple(replace(c, unknown=given.unknown) for c in schema.columns))
    store = _store_of(given)
    if given.evaluate is not None:
        refuse_training_table(given.evaluate, given.table)
    records = fits.Records.of(schema, table)
    checked = None
    if given.evaluate is not None:  # whatever is wrong with it is found before anything is spent
        checked = LabeledTable(schema, open_table(given.evaluate, given.separator), one_each=True)
        training = LabeledTable(schema, table).prints()
        checked = replace(checked, held_out=is_held_out(checked.prints(), training, given.evaluate))
    mismatch = fits.describe_size_mismatch(schema, records)
    for text in [
        *fits.describe_weak_budget(schema, records.count, given.epsilon, given.delta),
        *([mismatch] if mismatch else []),
    ]:
        _show_warning(text)
    levels = given.confidence if len(given.confidence) > 1 else given.confidence[0]
    estimator = fits.fitted(
        schema,
        records,
        budget=store,
        epsilon=given.epsilon,
        delta=given.delta,
        confidence_level=levels,
        guarantee=given.guarantee,
        release_confidence=given.release_confidence,
        groups=given.groups,
        random_state=given.seed,
        device=given.device,
        **({} if given.score is None else {"conformity_score": given.score}),
    )
    estimator.save(given.output)
    write_origin(given.output, given.table, given.separator)
    evaluation = None if checked is None else fits.evaluation_of(estimator, checked)
    if given.report is not None:
        about = fits.about(given.output, given.purpose, given.data_name, store)
        title = f"Private prediction of {schema.target}"
        write_report(given.report, estimator, evaluation=evaluation, title=title, about=about)
    data = {"model": str(given.output), "report": given.report and str(given.report)}
    told = fits.summary(estimator, evaluation)
    _tell(given, {**data, **told}, *_promise_lines(told), f"model:    {given.output}", *_report_line(given.report))
    return 0


def _promise_lines(told: dict[str, Any]) -> list[str]:
    lines = [
        f"privacy:  epsilon {format_epsilon(told['epsilon'])} at delta {told['delta']:g} "
        f"(budget {chosen(told['budget_epsilon'])}), for {told['neighbours']}"
        + ("" if told["is_private"] else "; NOT private, the noise came from a seed")
    ]
    for place, certificate in enumerate(told["certificates"]):
        text = f"coverage: at least {at_least(certificate['coverage'])} proven (asked for "
        text += f"{asked(certificate['target'])}, guarantee {told['guarantee']})"
        if "evaluation" in told:
            level = told["evaluation"]["levels"][place]
            what = "labels in a set" if told["task"] == "classification" else "wide on average"
            kind = "held-out" if told["evaluation"]["held_out"] else "labelled"
            text += f"; {observed(level['coverage'])} of {told['evaluation']['n']:,} {kind} records, "
            text += f"{level['mean_size']:.3g} {what}"
        average = f"for {certificate['covered']}, {certificate['on_average']}"
        lines += [text, f"          {average}; {certificate['one_release']}"]
    if "evaluation" in told:
        if told["evaluation"]["reference"] is not None:
            other = told["evaluation"]["reference"]
            lines.append(
                f"compare:  {observed(other['coverage'])} of them and {other['mean_size']:.3g} on average without any "
                f"privacy ({other['method']})"
            )
        lines += _verdict_lines(told)
        lines.append(_evaluation_line(told["evaluation"]["held_out"]))
    return lines


def _verdict_lines(told: dict[str, Any]) -> list[str]:
    """A line for each level that labelled records show below its promise; red on a terminal."""
    lines = []
    for certificate, level in zip(told["certificates"], told["evaluation"]["levels"], strict=True):
        if level["below_promise"]:
            text = (
                f"verdict:  BELOW THE PROMISE of {at_least(certificate['coverage'])}: these records put coverage at "
                f"{at_most(level['interval'][1])} or less (95 % interval). Do not rely on these sets before you know "
                f"why: {WHY_BELOW}"
            )
            lines.append(f"\033[31m{text}\033[0m" if sys.stdout.isatty() else text)
    return lines


def _evaluation_line(held_out: bool) -> str:
    text = "NOT private: numbers on labelled records are computed in the clear; publish them only if the records may be"
    if not held_out:
        text += (
            ". These could not be told from the records of the fit: if it used them, they say nothing about new ones"
        )
    return f"checked:  {text}"


def _report_line(path: Path | None) -> list[str]:
    return [] if path is None else [f"report:   {path.absolute()}"]


def _predict(given: argparse.Namespace) -> int:
    check_output(given.output, given.table, given.model)
    estimator = fits.load_model(given.model)
    table, schema, n, bad = open_table(given.table, given.separator), fits.schema_of(estimator), 0, 0
    with written_table(given.output) as write:
        for block in table.blocks("predicting"):
            made, wrong = fits.predicted(estimator, schema, block, first=n + 1, unknown=given.unknown)
            write(made)
            n, bad = n + len(made), bad + wrong
    added = made.schema.names[len(table.column_names) :]
    if bad:
        _show_warning(f"{bad:,} of {n:,} rows do not fit the schema and have no prediction: column 'errors' says why")
    _tell(
        given,
        {"output": str(given.output), "records": n, "errors": bad, "columns": added},
        f"wrote {given.output}: {n:,} records, with the columns {', '.join(added)}",
    )
    return 0


def _report(given: argparse.Namespace) -> int:
    check_output(given.output, given.model)
    estimator = fits.load_model(given.model)
    evaluation = None
    if given.evaluate is not None:
        others = fits.open_labeled_table(estimator, given.model, given.evaluate, given.separator)
        evaluation = fits.evaluation_of(estimator, others)
    store = None
    if given.budget is not None:
        from dpscp.privacy.store import BudgetStore

        store = BudgetStore.open(given.budget)
    about = fits.about(given.model, given.purpose, given.data_name, store)
    write_report(given.output, estimator, evaluation=evaluation, title=given.title, about=about)
    told = fits.summary(estimator, evaluation)
    _tell(given, {"report": str(given.output), **told}, *_promise_lines(told), *_report_line(given.output))
    return 0


def _plan(given: argparse.Namespace) -> int:
    if given.figure is not None:
        check_output(given.figure)
    if given.regression and given.classes is not None:
        raise CommandError("give --classes or --regression, not both")
    found = plan(
        given.n,
        given.epsilon,
        overshoot=given.overshoot,
        delta=given.delta,
        alpha=round(1 - given.confidence, 12),
        classes=None if given.regression else (given.classes or 2),
        n_features=given.features,
        train_share=given.train_share,
        release_confidence=given.release_confidence,
        rows_per_person=given.rows_per_person,
    )
    if given.figure is not None:
        found.figure().savefig(given.figure, dpi=150)
    _tell(given, found.to_dict(), str(found), *([] if given.figure is None else [f"picture: {given.figure}"]))
    return 0


def _audit(given: argparse.Namespace) -> int:
    from dpscp.audit import audit

    if given.figure is not None:
        check_output(given.figure)
    if given.model is None:
        result = audit(given.game or "search", knowledge=given.knowledge, runs=given.runs, null=given.null)
    else:
        from dpscp.audit import ModelGame

        if given.game is not None:
            raise CommandError(f"give a game ({given.game}) or --model, whose settings are a game of their own")
        result = audit(ModelGame(fits.load_model(given.model)), runs=given.runs or _MODEL_RUNS, null=given.null)
    if given.figure is not None:
        result.plot(given.figure)
    _tell(given, result.to_dict(), str(result))
    return 0 if result.passed else REFUSED


def _budget(given: argparse.Namespace) -> int:
    from dpscp.privacy import Ledger
    from dpscp.privacy.store import BudgetStore

    if given.action == "create":
        if given.epsilon is None or given.delta is None or given.dataset is None:
            raise CommandError("a new budget needs --epsilon and --delta, and --dataset with a name for the records")
        check_output(given.store)
        sequence = given.sequence and [Ledger.from_json(path.read_text(encoding="utf-8")) for path in given.sequence]
        store = BudgetStore.create(
            given.store, given.epsilon, given.delta, dataset=given.dataset, sequence=sequence, slack=given.slack
        )
    else:
        store = BudgetStore.open(given.store, dataset=given.dataset)
    _tell(given, store.to_dict(), store.summary())
    return 0


def _reproduce(given: argparse.Namespace) -> int:
    root = Path(dpscp.__file__).resolve().parents[2]
    if not (root / "experiments" / "__main__.py").is_file():
        raise CommandError(
            "the experiments are not part of the installed package; run this in a source checkout (pip install -e .)"
        )
    return subprocess.run([sys.executable, "-m", "experiments", *given.arguments], cwd=root, check=False).returncode


def _demo(given: argparse.Namespace) -> int:
    from dpscp.cli.demo import run_demo, unused_folder

    folder = given.folder or unused_folder(Path("dpscp-demo"))
    told = run_demo(folder, epsilon=given.epsilon, delta=given.delta, level=given.confidence, force=given.force)
    _tell(given, told, *_promise_lines(told), *_report_line(Path(told["report"])))
    return 0


def _evaluate(given: argparse.Namespace) -> int:
    from dpscp.cli.deployment import evaluate_table

    told, lines = evaluate_table(given)
    _tell(given, told, *lines)
    return 0


def _monitor(given: argparse.Namespace) -> int:
    from dpscp.cli.deployment import monitor_table

    told, lines = monitor_table(given)
    _tell(given, told, *lines)
    return 0


def _statement(given: argparse.Namespace) -> int:
    from dpscp.cli.deployment import state_privacy

    told, lines = state_privacy(given)
    _tell(given, told, *lines)
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _demo,
    "schema": _schema,
    "fit": _fit,
    "predict": _predict,
    "report": _report,
    "evaluate": _evaluate,
    "monitor": _monitor,
    "statement": _statement,
    "plan": _plan,
    "audit": _audit,
    "budget": _budget,
    "reproduce": _reproduce,
}
