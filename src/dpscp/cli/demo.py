"""The demo: private prediction sets on real personal records, from a CSV file to a report.

Data: the RAND Health Insurance Experiment (20,190 person-years, public domain, bundled with statsmodels). Task: how
many outpatient visits will a person make in a year, from insurance and health variables. Bounds and categories come
from the study's code book, not from the records.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from dpscp.cli import fits
from dpscp.cli.evaluation import Labelled, note_path, write_note
from dpscp.cli.tables import CommandError, check_output, keep_existing, open_table, written_table
from dpscp.report.page import write_atomically, write_report
from dpscp.schema import Column, Schema

__all__ = ["SCHEMA", "demo_tables", "run_demo", "unused_folder"]

CLASSES = ("none", "1-2", "3-5", "6 or more")
_HEALTH = ("excellent", "good", "fair", "poor")
_HELD_OUT = 5000

SCHEMA = Schema(
    task="classification",
    target="visits",
    classes=CLASSES,
    n_records=15_190,
    columns=(
        Column("log_coinsurance", "numeric", (0.0, 4.7)),
        Column("deductible_plan", "categorical", categories=("no", "yes")),
        Column("log_incentive_payment", "numeric", (0.0, 7.2)),
        Column("log_largest_expense", "numeric", (0.0, 8.5)),
        Column("physical_limitation", "numeric", (0.0, 1.0)),
        Column("chronic_diseases", "numeric", (0.0, 60.0)),
        Column("health", "categorical", categories=_HEALTH),
    ),
)


def demo_tables() -> tuple[Any, Any]:
    """The study's records as two frames, a random part of 5,000 for checking (the same at every call)."""
    try:
        import pandas as pd
        import statsmodels.api as sm
    except ImportError:  # pragma: no cover (the test environment has it)
        raise CommandError("the demo's data come with statsmodels: pip install 'dpscp[demo]'") from None
    raw = sm.datasets.randhie.load_pandas().data
    health = np.select([raw.hlthp == 1, raw.hlthf == 1, raw.hlthg == 1], ["poor", "fair", "good"], "excellent")
    frame = pd.DataFrame(
        {
            "log_coinsurance": raw.lncoins,
            "deductible_plan": np.where(raw.idp == 1, "yes", "no"),
            "log_incentive_payment": raw.lpi,
            "log_largest_expense": raw.fmde,
            "physical_limitation": raw.physlm,
            "chronic_diseases": raw.disea,
            "health": health,
            "visits": np.array(CLASSES)[np.digitize(raw.mdvis, [0.5, 2.5, 5.5])],
        }
    )
    held_out = np.random.default_rng(0).permutation(len(frame)) < _HELD_OUT
    return frame[~held_out].reset_index(drop=True), frame[held_out].reset_index(drop=True)


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
    keep_existing([*paths.values(), note_path(paths["model.dpscp"])], force=force)
    for name, frame in zip(("records.csv", "heldout.csv"), demo_tables(), strict=True):
        with written_table(paths[name]) as write:
            write(pa.RecordBatch.from_pandas(frame, preserve_index=False))
    write_atomically(paths["schema.toml"], SCHEMA.to_toml().encode())
    records = fits.Records.of(SCHEMA, open_table(paths["records.csv"]))
    estimator = fits.fitted(SCHEMA, records, epsilon=epsilon, delta=delta, confidence_level=level)
    estimator.save(paths["model.dpscp"])
    write_note(paths["model.dpscp"], paths["records.csv"], None)
    # a comparison could not tell: many people of the study share all their values. The split above can
    held_out = Labelled(SCHEMA, open_table(paths["heldout.csv"]), held_out=True)
    evaluation = fits.evaluation_of(estimator, held_out)
    write_report(paths["report.html"], estimator, evaluation=evaluation, title="How many doctor visits in a year?")
    told = fits.summary(estimator, evaluation)
    return {**told, "model": str(paths["model.dpscp"]), "report": str(paths["report.html"]), "folder": str(folder)}
