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

import numpy as np

import dpscp
from dpscp._base.format import format_epsilon
from dpscp._base.progress import clear_activity, pause_activity, verbosity
from dpscp.cli.files import (
    CommandError,
    Estimator,
    check_output,
    choose_csv_format,
    describe_os_error,
    load_model,
    load_release,
    open_table,
    read_new_records,
    read_note,
    require_columns,
    require_schema,
    write_note,
)
from dpscp.cli.fit import Result, check_records, describe_release, fit_table, open_store, write_schema
from dpscp.cli.lines import brief, describe, report_line, show_warning
from dpscp.data.sources.files import without_keys
from dpscp.deployment import (
    CoverageMonitor,
    evaluate,
    judge,
    model_card,
    recalibrate,
    registry_yaml,
    statement_markdown,
)
from dpscp.deployment.prediction import predict_table
from dpscp.exceptions import BudgetError, GuaranteeWarning
from dpscp.privacy import Ledger
from dpscp.privacy.store import BudgetStore
from dpscp.report import numbers
from dpscp.report.page import monitor_page, write_atomically, write_report
from dpscp.report.planning import plan

_OUT_OF_MEMORY = (
    "not enough memory for this table; remove columns that the schema does not use from the file, or split a table "
    "for prediction into several files"
)
REFUSED, USAGE, OVER_BUDGET, ALARM, INTERRUPTED = 1, 2, 3, 4, 130
# A shorter command writes no line of progress if standard error is not a terminal.
_QUIET_SECONDS = 15.0


def run(options: argparse.Namespace) -> int:
    """Run a command, print its result or one-line error, and return the exit code.

    A result is printed as text or JSON.
    """
    # a terminal shows bars; a log gets lines if the work is long
    is_log = not sys.stderr.isatty()
    with warnings.catch_warnings(), verbosity(int(is_log), delay=_QUIET_SECONDS):
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", GuaranteeWarning)
        warnings.showwarning = show_warning
        try:
            data, lines, *codes = COMMANDS[options.command](options)
            clear_activity()
            if data is not None:
                print(json.dumps(data) if options.json else "\n".join(lines), flush=True)
            return sum(codes)
        except BudgetError as error:
            return _print_error(str(error), OVER_BUDGET)
        except BrokenPipeError:  # the process that read the output has ended
            sys.stderr.close()
            return REFUSED
        except OSError as error:
            return _print_error(describe_os_error(error))
        except (CommandError, ValueError, TypeError, ImportError) as error:
            text = str(error)
            for note in getattr(error, "__notes__", ()):
                text = f"{text.removesuffix('.')}. {note}"
            return _print_error(text)
        except MemoryError:  # its text may contain the number of records
            return _print_error(_OUT_OF_MEMORY)
        except KeyboardInterrupt as error:
            return _print_error(str(error) or _describe_interrupt(options), INTERRUPTED)
        except Exception as error:
            if options.debug:
                traceback.print_exc()
            # its text may contain values of records: print its type only
            return _print_error(
                f"unexpected {type(error).__name__}; run again with --debug to see where, and report it"
            )


def _print_error(text: str, code: int = REFUSED) -> int:
    clear_activity()
    print(f"dpscp: error: {' '.join(text.split())}", file=sys.stderr)
    return code


def _describe_interrupt(options: argparse.Namespace) -> str:
    """Describe the state after Ctrl-C.

    There are no partial files, and reserved budget stays spent.
    """
    text = "interrupted; no output file was left incomplete"
    if options.command in ("fit", "evaluate", "monitor", "recalibrate") and options.budget is not None:
        text += (
            f". If the work had begun, its budget is reserved in {str(options.budget)!r} and counts as spent, because "
            f"results may have been seen; check with 'dpscp budget show {options.budget}'"
        )
    return text


# ---- prediction


def _predict(options: argparse.Namespace) -> Result:
    check_output(options.output, options.table, options.model)
    estimator = load_model(options.model)
    schema = require_schema(estimator)
    table = open_table(options.table, choose_csv_format(options, schema.csv))
    require_columns(table, [column.name for column in schema.feature_columns], "the model needs")
    n, bad, added = predict_table(estimator, table, options.output, raw=options.raw)
    verdict = judge(estimator)
    if bad:
        show_warning(f"{bad:,} of {n:,} rows violate the schema and have no prediction; see column 'errors'")
    counts = {"output": str(options.output), "records": n, "errors": bad, "columns": added}
    text = f"wrote {options.output}: {n:,} records, new columns {', '.join(added)}"
    return counts | {"verdict": verdict.to_dict()}, [text, *brief(verdict)]


# ---- a model in use


def _report(options: argparse.Namespace) -> Result:
    """Write a report.

    With --epsilon its evaluation is private, and the report may be published.
    """
    check_output(options.output, options.model)
    if options.evaluate is None and options.epsilon is not None:
        raise CommandError("--epsilon pays for a private evaluation; add --evaluate with labeled records, or remove it")
    released = load_release(options.model)
    evaluation: Any = None
    if options.evaluate is not None and options.epsilon is None:
        evaluation = numbers.evaluate(released, *_new_records(options, options.evaluate, released))
    elif options.evaluate is not None:
        evaluation = evaluate(released, **_pay(options, options.evaluate, released))
    # with an epsilon the store belongs to the evaluated records, not to those of the fit
    shown = None if options.budget is None or options.epsilon is not None else BudgetStore.open(options.budget)
    about = describe_release(options, shown)
    write_report(
        options.output, released, evaluation=evaluation, title=options.title, language=options.language, **about
    )
    values, lines = describe(released, evaluation, **about)
    return {"report": str(options.output), **values}, [*lines, *report_line(options.output)]


def _new_records(options: argparse.Namespace, path: Path, estimator: Estimator) -> tuple[Any, Any, Any]:
    """Return features, targets and person ids of labeled records.

    The table of the fit is refused.
    """
    schema = require_schema(estimator)
    return read_new_records(path, choose_csv_format(options, schema.csv), schema, read_note(options.model))


def _pay(options: argparse.Namespace, path: Path, estimator: Estimator) -> dict[str, Any]:
    """Return the labeled records and the budget that pays, as arguments."""
    X, y, persons = _new_records(options, path, estimator)
    cost = {"epsilon": options.epsilon, "delta": options.delta, "budget": open_store(options)}
    return {"X": X, "y": y, "persons": persons, "random_state": options.seed, **cost}


def _evaluate(options: argparse.Namespace) -> Result:
    estimator = load_model(options.model)
    choices = {"confidence": options.confidence, "size_is_public": options.size_is_public}
    evaluation = evaluate(estimator, **_pay(options, options.table, estimator), **choices)
    verdict = judge(estimator, evaluation)
    return evaluation.to_dict() | {"verdict": verdict.to_dict()}, [str(evaluation), "", *brief(verdict)]


def _monitor(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    for path in (options.state, options.report, options.output):
        check_output(path, options.model, options.table, *([] if path is options.state else [options.state]))
    monitor = _open_monitor(options, load_model(options.model))
    estimator = monitor.estimator
    if options.output is not None and monitor.follow is None:
        raise CommandError("--output needs thresholds that follow; create the monitor with --follow 1")
    name = options.batch or Path(without_keys(options.table)).name
    records = _new_records(options, options.table, estimator)
    step = monitor.update(*records, batch=name, budget=open_store(options))
    write_atomically(options.state, monitor.to_json().encode())
    if options.output is not None:
        monitor.estimator.save(options.output)
    if options.report is not None:
        write_atomically(options.report, monitor_page(monitor).encode())
    delta, ledger = monitor.budget.delta, step.ledger
    data = {
        "batch": name,
        "log_evidence": step.log_evidence,
        "alarm": step.alarm,
        "n_batches": step.n_batches,
        "tolerated": monitor.tolerated,
        "level": monitor.level,
        "epsilon": ledger.epsilon(delta),
        "delta": delta,
        "neighbors": ledger.neighbors,
        "is_private": ledger.is_private,
        "state": str(options.state),
    }
    following = []
    if monitor.follow is not None:
        data["threshold"] = np.reshape(step.threshold, -1).tolist()
        runs = monitor.long_run()
        following = [f"long run: {run}" for run in (runs if isinstance(runs, tuple) else (runs,))]
        following += [] if options.output is None else [f"model:    {options.output} has the thresholds in force"]
    rise = monitor.smallest_rise
    seen = "no rise is" if rise is None else f"a rise to {rise:.3g} is"
    verdict = "ALARM: coverage fell below the tolerated level" if step.alarm else "no alarm"
    batches = "1 batch" if step.n_batches == 1 else f"{step.n_batches} batches"
    return (
        data,
        [
            f"{verdict} after {batches} (tolerated miss rate {monitor.tolerated:.3g})",
            f"log evidence: {step.log_evidence:.2f}; the alarm is raised at {monitor.alarm_limit:.2f} and stays on",
            f"power:    {seen} seen within 12 batches of {monitor.expected_batch:,} with probability .9",
            *following,
            _cost_line(ledger, ledger.epsilon(delta), delta, f"for {ledger.unit.noun}s of this batch"),
            *report_line(options.report),
            *(["next:     find out what changed, then run dpscp recalibrate on new records"] if step.alarm else []),
        ],
        ALARM if step.alarm else 0,
    )


def _cost_line(ledger: Ledger, epsilon: float, delta: float, payer: str) -> str:
    seeded = "" if ledger.is_private else "; NOT private, the noise came from a seed"
    return f"privacy:  epsilon {format_epsilon(epsilon)} at delta {delta:g} {payer}{seeded}"


def _open_monitor(options: argparse.Namespace, estimator: Any) -> CoverageMonitor:
    """Read the monitor from its state file, or create one.

    Options that would change it are refused.
    """
    new = {name: getattr(options, name) for name in ("epsilon", "delta", "tolerated", "level", "follow", "seed")}
    chosen = {name: value for name, value in new.items() if value is not None}
    if options.state.exists():
        if chosen:
            raise CommandError(
                f"{str(options.state)!r} already contains a monitor with its own budget and level: omit "
                f"{', '.join('--' + name for name in chosen)}, or use another --state file"
            )
        return CoverageMonitor.from_json(options.state.read_text(encoding="utf-8"), estimator)
    seed = chosen.pop("seed", None)
    return CoverageMonitor(estimator, **{"epsilon": 0.5, "delta": 1e-6, **chosen}, random_state=seed)


def _recalibrate(options: argparse.Namespace) -> Result:
    check_output(options.output, options.model, options.table)
    estimator = load_model(options.model)
    new = recalibrate(estimator, **_pay(options, options.table, estimator), n_records=options.n)
    new.save(options.output)
    table = read_note(options.model)
    if table is not None:  # the note names the training table of the old model
        write_note(options.output, table)
    certificate, ledger = new.certificate_, new.ledger_
    data = {
        "model": str(options.output),
        "coverage": certificate.coverage,
        "target": certificate.target,
        "epsilon": options.epsilon,
        "delta": options.delta,
        "is_private": ledger.is_private,
    }
    payer = "for the new records; the records of the fit pay nothing more"
    return data, [
        f"coverage: {certificate}",
        _cost_line(ledger, options.epsilon, options.delta, payer),
        f"model:    {options.output}; start a new monitor for it",
    ]


def _serve(options: argparse.Namespace) -> tuple[None, list[str]]:
    from dpscp.deployment import server

    is_local = options.host in server.LOOPBACK
    if options.token_file is None and not is_local:
        raise CommandError(
            f"--host {options.host} is open to other machines, so clients need a token; write a long random text to a "
            "file and add --token-file FILE"
        )
    token = None if options.token_file is None else options.token_file.read_text(encoding="utf-8").strip()
    hosts = server.LOOPBACK if is_local else ("*",)
    app = server.create_app(load_model(options.model), outcomes=options.outcomes, token=token, hosts=hosts)
    with pause_activity():
        server.serve(app, options.host, options.port)
    return None, []


def _statement(options: argparse.Namespace) -> Result:
    check_output(options.output, options.model)
    language = options.language
    writers: dict[str, Callable[[Any], str]] = {
        "markdown": lambda statement: statement_markdown(statement, language),
        "registry": registry_yaml,
        "model_card": lambda statement: model_card(statement, language),
    }
    chosen = [name for name in writers if getattr(options, name)]
    if len(chosen) > 1:
        raise CommandError(f"choose one of {', '.join('--' + name.replace('_', '-') for name in chosen)}")
    if language != "en" and chosen == ["registry"]:
        raise CommandError("--registry writes English only; remove --language")
    chosen = chosen or (["markdown"] if language != "en" else [])
    about = describe_release(options, None if options.budget is None else BudgetStore.open(options.budget))
    statement = load_release(options.model).statement(**about)
    text = writers[chosen[0]](statement) if chosen else json.dumps(statement, indent=2) + "\n"
    if options.output is None:
        return statement, [text.rstrip("\n")]
    write_atomically(options.output, text.encode())
    return statement, [f"wrote {options.output}"]


# ---- without a model, and budgets


def _plan(options: argparse.Namespace) -> Result:
    check_output(options.html)
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
        groups=options.n_groups,
    )
    if options.html is not None:
        result.to_html(options.html)
    return result.to_dict(), [str(result), *([] if options.html is None else [f"page:   {options.html}"])]


def _audit(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    from dpscp.audit import audit

    check_output(options.figure)
    result = audit(load_model(options.model), runs=options.runs, null=options.null)
    if options.figure is not None:
        result.plot(options.figure)
    return result.to_dict(), [str(result)], 0 if result.passed else REFUSED


def _budget(options: argparse.Namespace) -> Result:
    if options.action == "show":
        store = BudgetStore.open(options.store, dataset=options.dataset)
        return store.to_dict(), [store.summary()]
    if options.epsilon is None or options.delta is None or options.dataset is None:
        raise CommandError("a new budget store needs --epsilon, --delta and --dataset (a public name of the records)")
    check_output(options.store)
    store = BudgetStore.create(options.store, options.epsilon, options.delta, dataset=options.dataset)
    return store.to_dict(), [store.summary()]


def _reproduce(options: argparse.Namespace) -> tuple[None, list[str], int]:
    root = Path(dpscp.__file__).resolve().parents[2]
    if not (root / "experiments" / "__main__.py").is_file():
        raise CommandError(
            "the experiments are not part of the installed package; use a source checkout (pip install -e .)"
        )
    command = [sys.executable, "-m", "experiments", *options.arguments]
    with pause_activity():
        return None, [], subprocess.run(command, cwd=root, check=False).returncode


def _demo(options: argparse.Namespace) -> Result:
    from dpscp.cli.demo import run_demo

    values, lines = run_demo(options)
    return values, [*lines, *report_line(Path(values["report"]))]


# Each command returns JSON values, the same content as lines of text, and its exit code if it may differ from 0.
COMMANDS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "demo": _demo,
    "schema": write_schema,
    "check": check_records,
    "fit": fit_table,
    "predict": _predict,
    "report": _report,
    "evaluate": _evaluate,
    "monitor": _monitor,
    "recalibrate": _recalibrate,
    "serve": _serve,
    "statement": _statement,
    "plan": _plan,
    "audit": _audit,
    "budget": _budget,
    "reproduce": _reproduce,
}
