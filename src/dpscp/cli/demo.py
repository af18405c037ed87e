"""Run the demo: from a CSV file of real personal records to a report.

Data: the RAND Health Insurance Experiment (20,190 person-years, public domain, part of statsmodels). Task: predict from
insurance, health and earlier years whether a person sees a doctor this year. A person has one record for each year
after the first, and all records of a person are protected together. Bounds and categories come from the study's code
book, not from the records.
"""

import itertools
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dpscp import metrics
from dpscp.cli.errors import CommandError
from dpscp.cli.evaluation import LabeledTable, Origin, origin_path, write_origin
from dpscp.cli.outputs import check_output, refuse_existing
from dpscp.cli.run import describe_release, evaluate_labeled, fit_estimator, summarize_fit
from dpscp.cli.tables import open_table
from dpscp.data.schema import Column, Schema
from dpscp.data.table_writer import open_writer
from dpscp.report.numbers import Reference
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
    """Load the records for the fit and those of 1,200 other persons for the evaluation.

    The data contain no person ids. Years of one person are consecutive and repeat the answers of the first interview,
    so a change of these answers marks the next person. Runs of more than five years are several persons who cannot be
    separated, and are left out. The random choice of persons is the same in every call.
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


def evaluate_reference(records: Any, held_out: LabeledTable, level: float) -> Reference:
    """Evaluate a non-private model: split conformal prediction with logistic regression.

    It uses one record of each person, so that no person is in both parts.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from dpscp.paper import SplitConformal

    one_record = records.drop_duplicates("person")
    model = SplitConformal(
        make_pipeline(StandardScaler(), LogisticRegression()), confidence_level=level, random_state=0
    ).fit(SCHEMA.matrix(one_record), SCHEMA.targets(one_record))
    rows, truth = zip(*held_out.blocks("comparing"), strict=True)
    sets = model.predict_set(np.concatenate(rows))[1]
    covered = metrics.covered(np.concatenate(truth), sets, classes=model.classes_)
    return Reference("split conformal, logistic regression", float(covered.mean()), float(sets.sum(axis=1).mean()))


def require_packages() -> None:
    """Refuse a demo without the packages for tables, the data and the report."""
    missing = [name for name in _PACKAGES if not _is_installed(name)]
    if missing:
        raise CommandError(
            f"the demo needs {', '.join(missing)}, which the plain installation does not bring; install the extra: "
            "pip install 'dpscp[demo]'"
        )


def _is_installed(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def find_unused_folder(folder: Path) -> Path:
    """Return the first of ``folder``, ``folder-2``, ``folder-3``, ... that does not exist."""
    numbered = (folder if k == 1 else folder.with_name(f"{folder.name}-{k}") for k in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def run_demo(folder: Path, *, epsilon: float, delta: float, level: float, force: bool = False) -> dict[str, Any]:
    """Write tables, schema, model and report into a folder, and return the summary of the fit.

    Existing files are refused before anything is written, unless ``force`` is set.
    """
    require_packages()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise CommandError(f"the folder {str(folder)!r} cannot be created; choose another with --folder") from None
    paths = {n: folder / n for n in ("records.csv", "heldout.csv", "schema.toml", "model.dpscp", "report.html")}
    import pyarrow as pa

    check_output(paths["report.html"])
    refuse_existing([*paths.values(), origin_path(paths["model.dpscp"])], force=force)
    tables = load_demo_tables()
    for name, frame in zip(("records.csv", "heldout.csv"), tables, strict=True):
        with open_writer(paths[name]) as write:
            write(pa.RecordBatch.from_pandas(frame, preserve_index=False))
    write_atomically(paths["schema.toml"], SCHEMA.to_toml().encode())
    estimator = fit_estimator(SCHEMA, paths["records.csv"], epsilon=epsilon, delta=delta, confidence_level=level)
    estimator.save(paths["model.dpscp"])
    write_origin(paths["model.dpscp"], Origin.of(paths["records.csv"], None))
    # a comparison of records proves nothing here, because many persons share all values; the split by person does
    held_out = LabeledTable(SCHEMA, open_table(paths["heldout.csv"]), one_per_person=True, held_out=True)
    reference = evaluate_reference(tables[0], held_out, level)
    evaluation = replace(evaluate_labeled(estimator, held_out), reference=reference)
    about = describe_release("demonstration of a private release", _DATA, None)
    title = "Will a person see a doctor this year?"
    write_report(paths["report.html"], estimator, evaluation=evaluation, title=title, about=about)
    summary = summarize_fit(estimator, evaluation)
    return {**summary, "model": str(paths["model.dpscp"]), "report": str(paths["report.html"]), "folder": str(folder)}
