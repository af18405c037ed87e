"""Run the commands for a model in use: private evaluation, monitoring and the privacy statement."""

import argparse
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.format import format_epsilon
from dpscp.cli.errors import CommandError
from dpscp.cli.evaluation import read_origin, write_origin
from dpscp.cli.fit import choose_csv_format, open_store
from dpscp.cli.outputs import check_output
from dpscp.cli.run import Estimator, describe_release, load_model, load_release, open_labeled_table, require_schema
from dpscp.cli.tables import open_table
from dpscp.data.person_ids import PersonIds, read_person_ids
from dpscp.deployment import CoverageMonitor, evaluate, recalibrate, statement_markdown
from dpscp.report.monitoring import monitor_page
from dpscp.report.page import write_atomically


def evaluate_table(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Evaluate a model on a labeled table, privately; return JSON values and lines of text."""
    estimator = load_model(options.model)
    evaluation = evaluate(estimator, **_read_paid_records(estimator, options), confidence=options.confidence)
    return evaluation.to_dict(), [str(evaluation)]


def monitor_table(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Add a batch of labeled records to the monitor in a file; create the file if needed."""
    check_output(options.state, options.model, options.table)
    if options.report is not None:
        check_output(options.report, options.model, options.table, options.state)
    estimator = load_model(options.model)
    monitor = _open_monitor(options, estimator)
    records = _labeled_records(estimator, options)
    name = options.batch or options.table.name
    step = monitor.update(records.X, records.y, records.persons, batch=name, budget=open_store(options))
    write_atomically(options.state, monitor.to_json().encode())
    if options.report is not None:
        write_atomically(options.report, monitor_page(monitor).encode())
    delta = monitor.budget.delta
    result = {
        "batch": name,
        "log_evidence": step.log_evidence,
        "alarm": step.alarm,
        "n_batches": step.n_batches,
        "tolerated": monitor.tolerated,
        "level": monitor.level,
        "epsilon": step.ledger.epsilon(delta),
        "delta": delta,
        "neighbors": step.ledger.neighbors,
        "is_private": step.ledger.is_private,
        "state": str(options.state),
    }
    verdict = "ALARM: coverage fell below the tolerated level" if step.alarm else "no alarm"
    return result, [
        f"{verdict} after {step.n_batches} batches (tolerated miss rate {monitor.tolerated:.3g})",
        f"evidence: {step.log_evidence:.2f}; the alarm is raised at {monitor.alarm_limit:.2f} and stays on",
        f"privacy:  epsilon {format_epsilon(step.ledger.epsilon(delta))} at delta {delta:g} for records of this batch"
        + ("" if step.ledger.is_private else "; NOT private, the noise came from a seed"),
        *([] if options.report is None else [f"report:   {options.report}"]),
        *(["next:     find out what changed, then run dpscp recalibrate on new records"] if step.alarm else []),
    ]


def recalibrate_model(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Write a copy of a model with thresholds from new labeled records."""
    check_output(options.output, options.model, options.table)
    estimator = load_model(options.model)
    new = recalibrate(estimator, **_read_paid_records(estimator, options), n_records=options.n)
    new.save(options.output)
    origin = read_origin(options.model)
    if origin is not None:  # the training table is that of the old model
        write_origin(options.output, origin)
    certificate, ledger = new.certificate_, new.ledger_
    result = {
        "model": str(options.output),
        "coverage": certificate.coverage,
        "target": certificate.target,
        "epsilon": options.epsilon,
        "delta": options.delta,
        "is_private": ledger.is_private,
    }
    return result, [
        f"coverage: {certificate}",
        f"privacy:  epsilon {format_epsilon(options.epsilon)} at delta {options.delta:g} for the new records; the "
        "records of the fit pay nothing more"
        + ("" if ledger.is_private else "; NOT private, the noise came from a seed"),
        f"model:    {options.output}; start a new monitor for it",
    ]


def write_statement(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Write the privacy statement of a model to a file, or return it as lines."""
    if options.output is not None:
        check_output(options.output, options.model)
    estimator, study = load_release(options.model), None
    if options.budget is not None:
        from dpscp.privacy.store import BudgetStore

        study = describe_release(None, None, BudgetStore.open(options.budget)).study
    statement = estimator.statement(study=study)
    text = statement_markdown(statement) if options.markdown else json.dumps(statement, indent=2) + "\n"
    if options.output is None:
        return statement, [text.rstrip("\n")]
    write_atomically(options.output, text.encode())
    return statement, [f"wrote {options.output}"]


def _read_paid_records(estimator: Estimator, options: argparse.Namespace) -> dict[str, Any]:
    """Return the labeled records of the table and what pays for them, as arguments."""
    records = _labeled_records(estimator, options)
    return {
        "X": records.X,
        "y": records.y,
        "persons": records.persons,
        "epsilon": options.epsilon,
        "delta": options.delta,
        "budget": open_store(options),
        "random_state": options.seed,
    }


def _open_monitor(options: argparse.Namespace, estimator: Any) -> CoverageMonitor:
    """Read the monitor from its state file, or create one; refuse options that would change it."""
    new = {"epsilon": options.epsilon, "delta": options.delta, "tolerated": options.tolerated, "level": options.level}
    chosen = {name: value for name, value in new.items() if value is not None}
    if options.state.exists():
        if chosen or options.seed is not None:
            raise CommandError(
                f"{str(options.state)!r} already contains a monitor with its own budget and level: omit "
                f"{', '.join('--' + name for name in chosen) or '--seed'}, or use another --state file"
            )
        return CoverageMonitor.from_json(options.state.read_text(encoding="utf-8"), estimator)
    return CoverageMonitor(estimator, **{"epsilon": 0.5, "delta": 1e-6, **chosen}, random_state=options.seed)


@dataclass(frozen=True)
class _LabeledRecords:
    """Features (n, n_features), targets (n,) and, with a column of persons, ids of a table."""

    X: NDArray[np.float64]
    y: NDArray[Any]
    persons: PersonIds | None


def _labeled_records(estimator: Estimator, options: argparse.Namespace) -> _LabeledRecords:
    """Read labeled records; refuse the table of the fit."""
    schema = require_schema(estimator)
    table = open_table(options.table, choose_csv_format(options, schema.csv))
    table.require_columns(schema.column_names)
    open_labeled_table(estimator, options.model, options.table, table.csv_format)  # refuses the training table
    X, y, persons = zip(*(schema.encode(frame) for frame in table.frames("reading", schema)), strict=True)
    ids = None if schema.person is None else PersonIds.joined([read_person_ids(part) for part in persons])
    return _LabeledRecords(np.concatenate(X), np.concatenate(y), ids)
