"""Commands for a model that is in use: evaluate it privately, watch its coverage, state its privacy."""

import argparse
import json
from pathlib import Path
from typing import Any

from dpscp._base.format import format_epsilon
from dpscp.cli import run as fits
from dpscp.cli.tables import CommandError, check_output, open_table
from dpscp.deployment import CoverageMonitor, evaluate, statement_markdown
from dpscp.report.page import write_atomically


def evaluate_table(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Evaluate a model on a labeled table, privately; return JSON values and lines for a person."""
    estimator = fits.load_model(given.model)
    records = _labeled_records(estimator, given)
    found = evaluate(
        estimator,
        records.X,
        records.y,
        persons=records.persons,
        epsilon=given.epsilon,
        delta=given.delta,
        confidence=given.confidence,
        budget=_budget_store(given),
        random_state=given.seed,
    )
    return found.to_dict(), [str(found)]


def monitor_table(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Count one batch of labeled records in a monitor whose state lies in a file; make the file if there is none."""
    check_output(given.state, given.model, given.table)
    estimator = fits.load_model(given.model)
    monitor = _open_monitor(given, estimator)
    records = _labeled_records(estimator, given)
    name = given.batch or given.table.name
    step = monitor.update(records.X, records.y, records.persons, batch=name, budget=_budget_store(given))
    write_atomically(given.state, monitor.to_json().encode())
    delta = monitor.budget.delta
    told = {
        "batch": name,
        "log_evidence": step.log_evidence,
        "alarm": step.alarm,
        "n_batches": step.n_batches,
        "tolerated": monitor.tolerated,
        "level": monitor.level,
        "epsilon": step.ledger.epsilon(delta),
        "delta": delta,
        "is_private": step.ledger.is_private,
        "state": str(given.state),
    }
    verdict = "ALARM: coverage fell below what is tolerated" if step.alarm else "no alarm"
    return told, [
        f"{verdict} after {step.n_batches} batches (tolerated miss rate {monitor.tolerated:.3g})",
        f"evidence: {step.log_evidence:.2f}; the alarm is raised at {monitor.alarm_limit:.2f} and then stays",
        f"privacy:  epsilon {format_epsilon(step.ledger.epsilon(delta))} at delta {delta:g} for this batch's records"
        + ("" if step.ledger.is_private else "; NOT private, the noise came from a seed"),
        *(["next:     calibrate again on the newest batch, and find out what changed"] if step.alarm else []),
    ]


def state_privacy(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Write the privacy statement of a model to a file, or return it as lines."""
    if given.output is not None:
        check_output(given.output, given.model)
    estimator, study = fits.load_model(given.model), None
    if given.budget is not None:
        from dpscp.privacy.store import BudgetStore

        study = fits.about(given.model, None, None, BudgetStore.open(given.budget)).study
    found = estimator.statement(study=study)
    text = statement_markdown(found) if given.markdown else json.dumps(found, indent=2) + "\n"
    if given.output is None:
        return found, [text.rstrip("\n")]
    write_atomically(given.output, text.encode())
    return found, [f"wrote {given.output}"]


def _open_monitor(given: argparse.Namespace, estimator: Any) -> CoverageMonitor:
    """The monitor of the state file, or a new one; options of a new one are refused for an old one."""
    options = {"epsilon": given.epsilon, "delta": given.delta, "tolerated": given.tolerated, "level": given.level}
    chosen = {name: value for name, value in options.items() if value is not None}
    if given.state.exists():
        if chosen or given.seed is not None:
            raise CommandError(
                f"{str(given.state)!r} holds a monitor already, with its own budget and level: leave out "
                f"{', '.join('--' + name for name in chosen) or '--seed'}, or give --state with a new name"
            )
        return CoverageMonitor.from_json(given.state.read_text(encoding="utf-8"), estimator)
    return CoverageMonitor(estimator, **{"epsilon": 0.5, "delta": 1e-6, **chosen}, random_state=given.seed)


def _labeled_records(estimator: fits.Estimator, given: argparse.Namespace) -> fits.Records:
    """The labeled records of a table that is not the one of the fit."""
    fits.open_labeled_table(estimator, given.model, given.table, given.separator)  # refuses the table of the fit
    records = fits.Records.of(fits.schema_of(estimator), open_table(given.table, given.separator))
    if records.y is None:
        raise CommandError(f"{str(given.table)!r} is too large to be evaluated at once: give a part of it")
    return records


def _budget_store(given: argparse.Namespace) -> Any:
    """The store that pays, if one was named."""
    if given.budget is None:
        return None
    from dpscp.privacy.store import BudgetStore

    return BudgetStore.open(Path(given.budget), dataset=given.dataset)
