"""Run the demo: from a CSV file of real personal records to a report.

Data: the RAND Health Insurance Experiment (20,190 person-years, public domain, part of statsmodels). Task: predict from
insurance, health and earlier years whether a person sees a doctor this year. A person has one record for each year
after the first, and all records of a person are protected together. Bounds and categories come from the study's code
book, not from the records.
"""

import argparse
import itertools
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dpscp.cli.files import CommandError, check_output, note_path, refuse_existing, write_note
from dpscp.cli.fit import fit_estimator
from dpscp.cli.lines import describe
from dpscp.data.schema import Column, Schema
from dpscp.data.table_writer import open_writer
from dpscp.report.numbers import evaluate
from dpscp.report.page import write_atomically, write_report

_PACKAGES = ("pandas", "pyarrow", "statsmodels", "matplotlib", "jinja2")
CLASSES = ("none", "some")
_DATA = "RAND Health Insurance Experiment, public domain"
_HEALTH = ("excellent", "good", "fair", "poor")
_HELD_OUT_PERSONS = 1200
# The study followed each person for three or five years.
_YEARS = 5

SCHEMA = Schema(
    task="classification",
    target="visits",
    classes=CLASSES,
    person="person",
    rows_per_person=_YEARS - 1,
    n_persons=3431,
    columns=(
        Column("log_coinsurance", "numeric", (0.0, 4.7)),
        Column("deductible_plan", "categorical", categories=("no", "yes")),
        Column("log_incentive_payment", "numeric", (0.0, 7.2)),
        Column("log_largest_expense", "numeric", (0.0, 8.5)),
        Column("physical_limitation", "numeric", (0.0, 1.0)),
        Column("chronic_diseases", "numeric", (0.0, 60.0)),
        Column("health", "categorical", categories=_HEALTH),
        Column("log_visits_last_year", "numeric", (0.0, 4.5)),
        Column("log_visits_a_year_before", "numeric", (0.0, 4.5)),
    ),
)


def load_demo_tables() -> tuple[Any, Any]:
    """Load the records for the fit, and other persons for the evaluation.

    The evaluation has 1,200 persons. The data contain no person ids. Years of one person are consecutive and repeat the
    answers of the first interview, so a change of these answers marks the next person. Runs of more than five years are
    several persons who cannot be separated; these runs are dropped. The random choice of persons is the same in every
    call.
    """
    import pandas as pd
    import statsmodels.api as sm

    raw = sm.datasets.randhie.load_pandas().data
    interview = raw.drop(columns="mdvis")
    person = (interview != interview.shift()).any(axis=1).cumsum() - 1
    visits = raw.mdvis.groupby(person)
    health = np.select([raw.hlthp == 1, raw.hlthf == 1, raw.hlthg == 1], ["poor", "fair", "good"], "excellent")
    frame = pd.DataFrame(
        {
            "person": person,
            "log_coinsurance": raw.lncoins,
            "deductible_plan": np.where(raw.idp == 1, "yes", "no"),
            "log_incentive_payment": raw.lpi,
            "log_largest_expense": raw.fmde,
            "physical_limitation": raw.physlm,
            "chronic_diseases": raw.disea,
            "health": health,
            "log_visits_last_year": np.log1p(visits.shift()),
            "log_visits_a_year_before": np.log1p((visits.cumsum() - raw.mdvis) / visits.cumcount()),
            "visits": np.where(raw.mdvis > 0, "some", "none"),
        }
    )
    frame = frame[(visits.cumcount() > 0) & (visits.transform("size") <= _YEARS)]
    persons = frame.person.unique()
    held_out = frame.person.isin(np.random.default_rng(0).permutation(persons)[:_HELD_OUT_PERSONS])
    return frame[~held_out].reset_index(drop=True), frame[held_out].reset_index(drop=True)


def find_unused_folder(folder: Path) -> Path:
    """Return the first of ``folder``, ``folder-2``, ... that does not exist."""
    numbered = (folder if k == 1 else folder.with_name(f"{folder.name}-{k}") for k in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def run_demo(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Write tables, schema, model and report into a folder, and describe the fit.

    Existing files are refused before anything is written, unless ``force`` is set.
    """
    missing = []
    for name in _PACKAGES:
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise CommandError(
            f"the demo needs {', '.join(missing)}, which the plain installation does not contain; install the extra: "
            "pip install 'dpscp[demo]'"
        )
    import pyarrow as pa

    folder = options.folder or find_unused_folder(Path("dpscp-demo"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise CommandError(f"the folder {str(folder)!r} cannot be created; choose another with --folder") from None
    names = ("records.csv", "heldout.csv", "schema.toml", "model.dpscp", "report.html")
    records, heldout, schema, model, report = paths = [folder / name for name in names]
    check_output(report)
    refuse_existing([*paths, note_path(model)], force=options.force)
    tables = load_demo_tables()
    for path, frame in zip((records, heldout), tables, strict=True):
        with open_writer(path) as write:
            write(pa.RecordBatch.from_pandas(frame, preserve_index=False))
    write_atomically(schema, SCHEMA.to_toml().encode())
    budget = {"epsilon": options.epsilon, "delta": options.delta}
    estimator = fit_estimator(SCHEMA, records, confidence_level=options.confidence, **budget)
    estimator.save(model)
    write_note(model, records)
    new = tables[1].drop_duplicates("person")
    evaluation = evaluate(estimator, SCHEMA.matrix(new), SCHEMA.targets(new))
    metadata = {"purpose": "demonstration of a private release", "data": _DATA}
    title = "Will a person see a doctor this year?"
    write_report(report, estimator, evaluation=evaluation, title=title, metadata=metadata)
    files = {"model": str(model), "report": str(report), "folder": str(folder)}
    values, lines = describe(estimator, evaluation, metadata=metadata)
    return values | files, lines
