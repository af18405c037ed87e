"""Fit, predict and summarize for the commands."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.cli.errors import CommandError
from dpscp.cli.evaluation import LabeledTable, is_held_out, read_origin, refuse_training_table
from dpscp.cli.tables import Table, open_table
from dpscp.data.csv_format import CSVFormat
from dpscp.data.person_ids import PersonIds, read_person_ids
from dpscp.data.schema import Schema
from dpscp.estimators import PrivateConformalClassifier, PrivateConformalRegressor, load
from dpscp.guarantees import Certificate
from dpscp.report.numbers import (
    About,
    Evaluation,
    StudyBudget,
    evaluate_blocks,
    explain_useless_promise,
    nominal_size,
)

# A declared size may be rounded. A larger difference gets a warning.
_SIZE_TOLERANCE = 0.05
# A privacy promise above this epsilon is weak.

Estimator = PrivateConformalClassifier | PrivateConformalRegressor


def fit_estimator(schema: Schema, table: Path, *, budget: Any = None, **options: Any) -> Estimator:
    """Fit the estimator for the schema's task on a table, as in Python."""
    kind = PrivateConformalClassifier if schema.task == "classification" else PrivateConformalRegressor
    return kind(**options).fit(table, schema.target, schema=schema, budget=budget)


def count_units(schema: Schema, table: Table) -> int:
    """Count the records of a table, or the persons if the schema declares a column of ids; private."""
    if schema.person is None:
        return sum(map(len, table.blocks("reading", [schema.target])))
    blocks = table.blocks("reading", [schema.person])
    return len(np.unique(PersonIds.joined([read_person_ids(block[schema.person]) for block in blocks]).numbers()))


def describe_size_mismatch(schema: Schema, size: int) -> str | None:
    """Describe a table whose size is not the declared one; return None if it is.

    The text reveals without noise whether the size lies in a range. It goes to standard error only, never into a file,
    a report or JSON. The size itself is not printed.
    """
    declared = schema.n_records if schema.person is None else schema.n_persons
    if declared is None or abs(size - declared) <= _SIZE_TOLERANCE * declared:
        return None
    name = "n_records" if schema.person is None else "n_persons"
    return (
        f"do not publish this line: it was computed from the records without noise. The table is more than "
        f"{_SIZE_TOLERANCE:.0%} {'larger' if size > declared else 'smaller'} than {name} = {declared} in the schema. "
        f"The certificate is valid for a table of the declared size: set {name} to the publicly known number"
    )


def load_model(path: Path) -> Estimator:
    """Load the model in a file."""
    found = load_release(path)
    if not isinstance(found, Estimator):
        raise CommandError(f"{str(path)!r} has a {type(found).__name__}, which is for Python: use dpscp.load(path)")
    return found


def load_release(path: Path) -> Any:
    """Load the release in a file, of whatever class."""
    if not path.is_file():
        raise CommandError(f"model file {str(path)!r} does not exist; create one with 'dpscp fit'")
    return load(path)


def require_schema(estimator: Estimator) -> Schema:
    """Return the schema of the fit; refuse a model without one."""
    if estimator.schema_ is None:
        raise CommandError(
            "this model has no schema: it was fitted in Python without one. Use dpscp.load(path).predict in Python"
        )
    return estimator.schema_


def predict_columns(estimator: Estimator, X: NDArray[np.float64]) -> dict[str, Any]:
    """Compute the columns that ``dpscp predict`` adds.

    They are the prediction, then for each level the set and its size, or the lower and the upper end.
    """
    levels = [certificate.target for certificate in estimator.certificates_]
    marks = [""] if len(levels) == 1 else [f"_{100 * level:g}" for level in levels]
    columns: dict[str, Any] = {}
    if isinstance(estimator, PrivateConformalClassifier):
        labels, sets = estimator.predict_set(X)
        columns["prediction"] = labels
        for place, mark in enumerate(marks):
            columns[f"set{mark}"] = list_labels(estimator.classes_, sets[:, :, place])
            columns[f"set_size{mark}"] = sets[:, :, place].sum(axis=1)
    else:
        center, intervals = estimator.predict_interval(X)
        columns["prediction"] = center
        for place, mark in enumerate(marks):
            columns[f"lower{mark}"], columns[f"upper{mark}"] = intervals[:, 0, place], intervals[:, 1, place]
    return columns


def predict_block(
    estimator: Estimator, schema: Schema, table: Table, block: Any, *, first: int = 1, unknown: str | None = None
) -> tuple[Any, int]:
    """Add the prediction columns to a block of a table.

    A row that violates the schema has no prediction. The last column, ``errors``, gives its row number and the reason.
    Rows to predict are not private to the model.

    Parameters
    ----------
    block : Arrow batch of ``table``
    first : row number of the block's first row in the table.
    unknown : meaning of an undeclared category; None: as the schema says.

    Returns
    -------
    The block with the new columns, and the number of rows without a prediction.
    """
    import pyarrow as pa

    X, errors = schema.rows(table.as_frame(block, schema), unknown=unknown)
    bad = np.array([error is not None for error in errors], dtype=bool)
    places = pa.array(np.arange(len(bad)), mask=bad)
    columns = {name: pa.array(values).take(places) for name, values in predict_columns(estimator, X).items()}
    texts = [error and f"row {first + place}: {error}" for place, error in enumerate(errors)]
    for name, values in {**columns, "errors": pa.array(texts, pa.string())}.items():
        if name in block.schema.names:
            raise CommandError(f"the table already has a column {name!r}; rename or drop that column")
        block = block.append_column(name, values)
    return block, int(bad.sum())


def list_labels(classes: NDArray[Any], sets: NDArray[np.bool_]) -> Any:
    """Return the labels of each row of ``sets`` as an Arrow array of lists, built once for each distinct set."""
    import pyarrow as pa

    packed = np.packbits(sets, axis=1)
    _, rows, place = np.unique(packed.view(f"V{packed.shape[1]}")[:, 0], return_index=True, return_inverse=True)
    names = classes.astype(str)
    distinct = pa.array([names[sets[row]].tolist() for row in rows], pa.list_(pa.string()))
    return distinct.take(pa.array(place.astype(np.int64)))


def evaluate_labeled(estimator: Estimator, records: LabeledTable) -> Evaluation:
    """Evaluate the estimator's sets on labeled records, without privacy."""
    return replace(evaluate_blocks(estimator, records.blocks("evaluating")), held_out=records.held_out)


def describe_release(purpose: str | None, data: str | None, store: Any) -> About:
    """Collect the header of a report: declarations and study budget."""
    study = None
    if store is not None:
        state = store.to_dict()
        spent = float("inf") if state["spent"] is None else state["spent"]
        study = StudyBudget(state["epsilon"], state["delta"], spent, store.remaining(), len(state["entries"]))
        data = data or state["dataset"]
    return About(purpose, data, study)


def open_labeled_table(estimator: Estimator, model: Path, path: Path, csv_format: CSVFormat) -> LabeledTable:
    """Open a table of labeled records; refuse the records of the fit, if the note beside the model names them."""
    schema, note = require_schema(estimator), read_origin(model)
    if note is not None:
        refuse_training_table(path, note.table)
    evaluated = LabeledTable(schema, open_table(path, csv_format), one_per_person=True)
    if note is None or not note.is_current:
        return evaluated
    training = LabeledTable(schema, open_table(note.table, schema.csv.with_changes(separator=note.separator)))
    return replace(
        evaluated, held_out=is_held_out(evaluated.fingerprint_records(), training.fingerprint_records(), path)
    )


def certificate_as_json(certificate: Certificate) -> dict[str, Any]:
    """Convert a certificate to JSON values, with its statements in words."""
    return {
        **certificate.to_dict(),
        "is_vacuous": certificate.is_vacuous,
        "covered": certificate.unit.covered,
        "on_average": certificate.on_average,
        "one_release": certificate.one_release,
    }


def summarize_fit(estimator: Estimator, evaluation: Evaluation | None = None) -> dict[str, Any]:
    """Convert the promises of a fitted model, and its evaluation, to JSON values."""
    delta = float(estimator.delta)
    size, useless = nominal_size(estimator), explain_useless_promise(estimator)
    summary: dict[str, Any] = {
        "task": "classification" if isinstance(estimator, PrivateConformalClassifier) else "regression",
        "guarantee": estimator.certificate_.guarantee,
        "epsilon": estimator.ledger_.epsilon(delta, estimator.accountant),
        "delta": delta,
        "budget_epsilon": float(estimator.epsilon),
        "neighbors": estimator.ledger_.neighbors,
        "unit": estimator.ledger_.unit.to_dict(),
        "is_private": estimator.ledger_.is_private,
        "not_private_because": list(estimator.ledger_.not_private_because),
        "thresholds": [None if np.isinf(t) else float(t) for t in np.ravel(estimator.threshold_)],
        "certificates": [certificate_as_json(c) for c in estimator.certificates_],
        "is_useful": useless is None,
        "not_useful_because": useless,
        "nominal_size": None if size is None else asdict(size),
        "public_facts": estimator.ledger_.to_dict()["public_facts"],
    }
    if evaluation is not None:
        summary["evaluation"] = {
            "n": evaluation.n,
            "is_private": False,
            "held_out": evaluation.held_out,
            "levels": [
                {
                    "target": v.target,
                    "coverage": v.coverage,
                    "interval": v.interval,
                    "below_promise": v.is_below_promise,
                    "mean_size": v.mean_size,
                }
                for v in evaluation.levels
            ],
            "reference": None if evaluation.reference is None else asdict(evaluation.reference),
        }
    return summary
