"""The demo: private prediction sets on real personal records, from a CSV file to a report.

Data: the RAND Health Insurance Experiment (20,190 person-years, public domain, bundled with statsmodels). Task: will a
person see a doctor this year, from insurance, health and the years before. A person has a row for each year after the
first: the schema names the column of persons, and all of one person's rows are protected together. Bounds and
categories come from the study's code book, not from the records.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpscp import metrics
from dpscp.cli import run as fits
from dpscp.cli.evaluation import LabeledTable, origin_path, write_origin
from dpscp.cli.tables import CommandError, check_output, keep_existing, open_table, written_table
from dpscp.data.schema import Column, Schema
from dpscp.report.numbers import Reference
from dpscp.report.page import write_atomically, write_report

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


def demo_tables() -> tuple[Any, Any]:
    """The study's records as two frames that share nobody, 1,200 random persons for checking (the same at every call).

    The table names no persons. Years of one person follow each other with the same answers of the first interview, so a
    change in these begins the next person; runs of more than five years are several persons who cannot be told apart,
    and are left out.
    """
    try:
        import pandas as pd
        import statsmodels.api as sm
    except ImportError:  # pragma: no cover (the test environment has it)
        raise CommandError("the demo's data come with statsmodels: pip install 'dpscp[demo]'") from None
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


def without_privacy(records: Any, held_out: LabeledTable, level: float) -> Reference:
    """What the same sets would be without any privacy: split conformal prediction with logistic regression.

    One row of each person, so that no person is in both parts.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from dpscp.baselines import SplitConformal

    one_each = records.drop_duplicates("person")
    model = SplitConformal(
        make_pipeline(StandardScaler(), LogisticRegression()), confidence_level=level, random_state=0
    ).fit(SCHEMA.matrix(one_each), SCHEMA.targets(one_each))
    rows, truth = zip(*held_out.blocks("comparing"), strict=True)
    sets = model.predict_set(np.concatenate(rows))[1]
    covered = metrics.covered(np.concatenate(truth), sets, classes=model.classes_)
    return Reference("split conformal, logistic regression", float(covered.mean()), float(sets.sum(axis=1).mean()))


def unused_folder(folder: Path) -> Path:
    """The folder if there is nothing of that name yet, else the first of ``folder-2``, ``folder-3``, ... without."""
    numbered = (folder if k == 1 else folder.with_name(f"{folder.name}-{k}") for k in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def run_demo(folder: Path, *, epsilon: float, delta: float, level: float, force: bool = False) -> dict[str, Any]:
    """Write tables, schema, model and report into the folder; return the summary of the fit with the paths.

    Files that were there before are refused before anything is written, unless ``force`` replaces them.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise CommandError(f"the folder {str(folder)!r} cannot be made; choose another with --folder") from None
    paths = {n: folder / n for n in ("records.csv", "heldout.csv", "schema.toml", "model.dpscp", "report.html")}
    import pyarrow as pa

    check_output(paths["report.html"])
    keep_existing([*paths.values(), origin_path(paths["model.dpscp"])], force=force)
    tables = demo_tables()
    for name, frame in zip(("records.csv", "heldout.csv"), tables, strict=True):
        with written_table(paths[name]) as write:
            write(pa.RecordBatch.from_pandas(frame, preserve_index=False))
    write_atomically(paths["schema.toml"], SCHEMA.to_toml().encode())
    records = fits.Records.of(SCHEMA, open_table(paths["records.csv"]))
    estimator = fits.fitted(SCHEMA, records, epsilon=epsilon, delta=delta, confidence_level=level)
    estimator.save(paths["model.dpscp"])
    write_origin(paths["model.dpscp"], paths["records.csv"], None)
    # a comparison could not tell: many people of the study share all their values. The split above can
    held_out = LabeledTable(SCHEMA, open_table(paths["heldout.csv"]), one_each=True, held_out=True)
    reference = without_privacy(tables[0], held_out, level)
    evaluation = replace(fits.evaluation_of(estimator, held_out), reference=reference)
    about = fits.about(paths["model.dpscp"], "to show what a private release looks like", _DATA, None)
    title = "Will a person see a doctor this year?"
    write_report(paths["report.html"], estimator, evaluation=evaluation, title=title, about=about)
    told = fits.summary(estimator, evaluation)
    return {**told, "model": str(paths["model.dpscp"]), "report": str(paths["report.html"]), "folder": str(folder)}
