"""What the commands do with records: fit, predict, report. Everything before ``fit`` touches public numbers only."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.cli.evaluation import LabeledTable, is_held_out, read_origin, refuse_training_table
from dpscp.cli.tables import CommandError, Table, open_table
from dpscp.data.person_ids import PersonIds, read_person_ids
from dpscp.data.schema import Schema
from dpscp.data.sources import RecordSource
from dpscp.data.sources.files import table_source
from dpscp.data.sources.tables import as_frame
from dpscp.estimators import PrivateConformalClassifier, PrivateConformalRegressor, load
from dpscp.guarantees import Certificate
from dpscp.report.numbers import About, Evaluation, StudyBudget, evaluate_blocks
from dpscp.training.engine.batching import unit_count

# A declared size may be round; beyond this it is called wrong.
_SIZE_TOLERANCE = 0.05
# Beyond this a privacy promise says little about anybody.
_WEAK_EPSILON = 10.0
# A table whose numbers take more bytes stays in its file.
_IN_MEMORY = 2**28

Estimator = PrivateConformalClassifier | PrivateConformalRegressor


@dataclass(frozen=True)
class Records:
    """The records of a fit: in memory, or a source without ``y``, and how many they are.

    ``persons`` holds their ids, one a row, where the schema declares a column of them; of a source, ``count`` is then
    the number of persons.
    """

    X: NDArray[np.float64] | RecordSource
    y: NDArray[Any] | None
    count: int
    persons: PersonIds | None = None

    @classmethod
    def of(cls, schema: Schema, table: Table) -> "Records":
        """The records of a table, as the schema declares them; a large one is left in its file."""
        if table.bytes_of(len(schema.feature_names)) > _IN_MEMORY:
            source = table_source(table.path, schema, separator=table.separator)
            return cls(source, None, source.sum(unit_count))
        parts = [
            (schema.matrix(frame), schema.targets(frame), schema.persons(frame))
            for frame in table.frames("reading", schema)
        ]
        X, y, persons = zip(*parts, strict=True)
        ids = None if persons[0] is None else PersonIds.joined([read_person_ids(part) for part in persons])
        return cls(np.concatenate(X), np.concatenate(y), sum(map(len, y)), ids)


def fitted(schema: Schema, records: Records, *, budget: Any = None, **options: Any) -> Estimator:
    """The estimator of a schema's task, fitted on the records."""
    kind = PrivateConformalClassifier if schema.task == "classification" else PrivateConformalRegressor
    return kind(**options).fit(records.X, records.y, persons=records.persons, schema=schema, budget=budget)


def describe_size_mismatch(schema: Schema, records: Records) -> str | None:
    """A line for the person at this machine if the table is not as large as declared; None if it is.

    It tells whether the number lies in a range, in the clear, so it goes to standard error only: into no file, no
    report and no JSON. The number itself is not told.
    """
    people = records.persons
    declared = schema.n_records if schema.person is None else schema.n_persons
    found = records.count if people is None else len(np.unique(people.numbers()))
    if declared is None or abs(found - declared) <= _SIZE_TOLERANCE * declared:
        return None
    name = "n_records" if schema.person is None else "n_persons"
    return (
        f"for you alone, do not publish this line: it comes from the records without noise. The table is more than "
        f"{_SIZE_TOLERANCE:.0%} {'larger' if found > declared else 'smaller'} than {name} = {declared} of the schema, "
        f"and the certificate is about a table of the declared size. Declare the number that is publicly known"
    )


def describe_weak_budget(schema: Schema, n_rows: int, epsilon: float, delta: float) -> list[str]:
    """A word for each number of the budget with which the promise says little; public numbers only.

    ``n_rows`` is used where no number is declared: the table's length is published then.
    """
    found = []
    if epsilon > _WEAK_EPSILON:
        found.append(
            f"epsilon = {epsilon:g} is above {_WEAK_EPSILON:g}: the promise to any one person is weak; "
            "1 is a usual choice"
        )
    n = n_rows if schema.person is None else None
    n = schema.n_persons or schema.n_records or n
    if n is not None and delta > 1 / n:
        found.append(
            f"delta = {delta:g} is above 1/n = {1 / n:.2g}: a release that gives away a whole record now and then "
            "keeps such a promise; choose delta well below 1/n"
        )
    return found


def load_model(path: Path) -> Estimator:
    """The model in a file, or one line about what is wrong with it."""
    if not path.is_file():
        raise CommandError(f"there is no model file {str(path)!r}; 'dpscp fit' writes one")
    return load(path)


def schema_of(estimator: Estimator) -> Schema:
    """The schema of the fit."""
    if estimator.schema_ is None:
        raise CommandError(
            "this model carries no schema: it was fitted in Python without one; use dpscp.load and predict there"
        )
    return estimator.schema_


def added_columns(estimator: Estimator, X: NDArray[np.float64]) -> dict[str, Any]:
    """The columns that ``predict`` adds: prediction, then set and size (or lower and upper) for each level."""
    levels = [certificate.target for certificate in estimator.certificates_]
    marks = [""] if len(levels) == 1 else [f"_{100 * level:g}" for level in levels]
    found: dict[str, Any] = {}
    if isinstance(estimator, PrivateConformalClassifier):
        labels, sets = estimator.predict_set(X)
        found["prediction"] = labels
        for place, mark in enumerate(marks):
            found[f"set{mark}"] = _as_texts(estimator.classes_, sets[:, :, place])
            found[f"set_size{mark}"] = sets[:, :, place].sum(axis=1)
    else:
        centre, intervals = estimator.predict_interval(X)
        found["prediction"] = centre
        for place, mark in enumerate(marks):
            found[f"lower{mark}"], found[f"upper{mark}"] = intervals[:, 0, place], intervals[:, 1, place]
    return found


def predicted(
    estimator: Estimator, schema: Schema, block: Any, *, first: int = 1, unknown: str | None = None
) -> tuple[Any, int]:
    """A block of a table (an Arrow batch) with the columns that ``predict`` adds, and how many of its rows are bad.

    A row that does not fit the schema has no prediction, and the last column says what is wrong with it and which row
    of the table it is (``first`` is that of the block). Rows to predict are not private to the model.
    """
    import pyarrow as pa

    X, wrong = schema.rows(as_frame(block, schema), unknown=unknown)
    bad = np.array([said is not None for said in wrong], dtype=bool)
    added = {name: pa.array(np.asarray(values), mask=bad) for name, values in added_columns(estimator, X).items()}
    texts = [said and f"row {first + place}: {said}" for place, said in enumerate(wrong)]
    for name, values in {**added, "errors": pa.array(texts, pa.string())}.items():
        if name in block.schema.names:
            raise CommandError(f"the table already has a column {name!r}; rename or drop it first")
        block = block.append_column(name, values)
    return block, int(bad.sum())


def _as_texts(classes: NDArray[Any], sets: NDArray[np.bool_]) -> list[str]:
    """Each row of ``sets`` as a JSON list of its labels, written once for each different set: there are few."""
    packed = np.packbits(sets, axis=1)
    keys = packed.view(f"V{packed.shape[1]}")[:, 0].tolist()
    row_of = dict(zip(keys, range(len(keys)), strict=True))
    texts = {key: json.dumps(classes[sets[row]].tolist(), ensure_ascii=False) for key, row in row_of.items()}
    return [texts[key] for key in keys]


def evaluation_of(estimator: Estimator, records: LabeledTable) -> Evaluation:
    """The estimator's sets on labelled records outside the promise."""
    found = evaluate_blocks(estimator, records.blocks("evaluating"))
    return replace(found, held_out=records.held_out)


def about(model: Path, purpose: str | None, data: str | None, store: Any) -> About:
    """What a report says about itself: what was declared, the model file's checksum, and the study's budget."""
    study = None
    if store is not None:
        told = store.to_dict()
        spent = float("inf") if told["spent"] is None else told["spent"]
        study = StudyBudget(told["epsilon"], told["delta"], spent, store.remaining(), len(told["entries"]))
        data = data or told["dataset"]
    return About(purpose, data, hashlib.sha256(model.read_bytes()).hexdigest(), study)


def open_labeled_table(estimator: Estimator, model: Path, path: Path, separator: str | None) -> LabeledTable:
    """The labelled records of a file, refused if the note beside the model leads to the same ones."""
    schema, note = schema_of(estimator), read_origin(model)
    if note is not None:
        refuse_training_table(path, note.table)
    evaluated = LabeledTable(schema, open_table(path, separator), one_each=True)
    if note is None or not note.is_current:
        return evaluated
    training = LabeledTable(schema, open_table(note.table, note.separator))
    return replace(evaluated, held_out=is_held_out(evaluated.prints(), training.prints(), path))


def certificate_as_json(certificate: Certificate) -> dict[str, Any]:
    """A certificate as plain JSON values, with what is said about it in words."""
    return {
        **certificate.to_dict(),
        "is_vacuous": certificate.is_vacuous,
        "covered": certificate.unit.covered,
        "on_average": certificate.on_average,
        "one_release": certificate.one_release,
    }


def summary(estimator: Estimator, evaluation: Evaluation | None = None) -> dict[str, Any]:
    """The promises of a fitted model as plain JSON values; with an evaluation, what labelled records show."""
    delta = float(estimator.delta)
    found: dict[str, Any] = {
        "task": "classification" if isinstance(estimator, PrivateConformalClassifier) else "regression",
        "guarantee": estimator.certificate_.guarantee,
        "epsilon": estimator.ledger_.epsilon(delta, estimator.accountant),
        "delta": delta,
        "budget_epsilon": float(estimator.epsilon),
        "neighbours": estimator.ledger_.neighbours,
        "unit": estimator.ledger_.unit.to_dict(),
        "is_private": estimator.ledger_.is_private,
        "thresholds": [None if np.isinf(t) else float(t) for t in np.ravel(estimator.threshold_)],
        "certificates": [certificate_as_json(c) for c in estimator.certificates_],
        "public_facts": estimator.ledger_.to_dict()["public_facts"],
    }
    if evaluation is not None:
        found["evaluation"] = {
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
    return found
