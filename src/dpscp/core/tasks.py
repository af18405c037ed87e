"""Tasks: what a release predicts and counts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Self, cast

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import ALL_LABELS, HARD_BOUNDS, OWN_SCORE, Assumption
from dpscp._base.checks import check_count, check_positive, check_range
from dpscp.data.persons import Persons
from dpscp.data.scales import LINEAR, check_scale, finite_on_scale, from_scale, to_scale
from dpscp.data.validation import plain
from dpscp.guarantees.certificate import Promise
from dpscp.scores import INTERVAL_SCORES, LABEL_SCORES, IntervalScore, LabelScore, Pair, interval_score, label_score
from dpscp.scores.intervals import ONE_SIDED_SCORES, check_interval_score, score_intervals, score_targets
from dpscp.scores.labels import check_label_score, score_labels, score_name
from dpscp.scores.sets import scaled_threshold
from dpscp.training.base import Mechanism, Trained
from dpscp.training.engine.influence import corrected_outputs
from dpscp.training.mechanisms.one_vs_rest import SPREAD, OneVsRest, SeveralTargets
from dpscp.training.model import Model, NoInfluenceFormError, softmax
from dpscp.training.preprocessing.private_bounds import PrivateBounds

FOUND_RANGE = "y_bounds_on_scale"
Readers = Mapping[str, Callable[[Any], Any]]


class Task:
    """Define what a release predicts and counts, by public constants only.

    The defaults are those of scores whose promise is coverage.
    """

    name: ClassVar[str]
    promise: ClassVar[Promise] = Promise.COVERAGE
    classes: tuple[Any, ...] | None = None
    """The public labels; None without labels."""
    classes_found: bool = False
    """Whether the labels were taken from the data."""
    y_bounds: Any = None
    """The public range of the target, (low, high), or that of each one; None without one."""
    resolution: int = 1
    """Counts are multiples of one over it (Result J)."""
    most_steps: int | None = None
    """The number of halvings that separates all thresholds; None: no number does."""

    running_maximum: bool = False
    """Whether the promise is about the running maximum of a loss that may rise with the threshold."""
    size_limit: float = 0.0
    """The largest size of a set."""
    score_facts: Mapping[str, Any] = MappingProxyType({})
    """What is public about the score."""

    @property
    def score_range(self) -> tuple[float, float]:
        """The public range of the score."""
        return 0.0, 1.0

    @property
    def fine_near(self) -> float | tuple[float, float] | None:
        """Where the grid of thresholds is finest; None: nowhere."""
        return None


@dataclass(frozen=True)
class OwnScores(Task):
    """Scores of the caller's own."""

    score_range: tuple[float, float] = (0.0, 1.0)
    fine_near: float | tuple[float, float] | None = None

    name = "scores"

    def __post_init__(self) -> None:
        check_range("score_range", self.score_range)


@dataclass(frozen=True)
class OwnLosses(Task):
    """Losses of the caller's own, searched at the places of public thresholds.

    Theory: Result J
    """

    resolution: int = 64
    running_maximum: bool = False
    most_steps: int | None = None

    name = "losses"
    promise = Promise.RISK


def _read_truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("hard_bounds and classes_found must be true or false")
    return value


@dataclass(frozen=True)
class MissingScore:
    """Placeholder for the caller's own score of a loaded fit.

    Files do not contain such a score, so every use is refused.

    Attributes
    ----------
    outputs : int
        The number of model outputs that the score needs; 1 for labels.
    """

    outputs: int = 1

    natural: ClassVar[bool] = False

    @property
    def range(self) -> NoReturn:
        """Refuse the use of the score."""
        raise ValueError("conformity_score must be that of the fit; set it with set_params(conformity_score=...)")

    of_labels = of_targets = interval = range


class Prediction(Task):
    """A task for which a model is trained.

    The defaults are those of answers with a ``score``: a set has the answers whose score is at most the threshold.
    """

    in_file: ClassVar[Readers] = {}
    """The fields in a file besides the score, and the function that reads each."""
    read_score: ClassVar[Any] = None
    """Returns a score by its name, or the caller's own, checked; None without a score."""
    trains: ClassVar[str]
    """The task of the mechanism that a caller passes: "classification" or "regression"."""
    score: Any = None
    """None in a task that counts losses."""
    y_scale: str = LINEAR
    """The public scale on which targets are trained and scored."""
    private_range: bool = False
    """Whether training finds the range of the targets."""
    assumptions: tuple[Assumption, ...] = ()
    """The assumptions of the promise for every guarantee."""
    score_name: str | None = None
    """The name of a built-in score; None for a caller's own."""
    score_assumptions: tuple[Assumption, ...] = ()
    """The assumptions about a caller's own score."""
    is_one_sided: bool = False
    """Whether sets are intervals with one end."""
    n_targets: int = 1
    """The number of real targets, each with a model that gets a part of the budget."""
    score_outputs: int = 1
    """The number of outputs of a model that the score of a target reads."""
    scaled_bounds: tuple[float, float] | None = None
    """The range of the targets as training sees them; None for labels."""
    training_labels: tuple[int, ...] | None = None
    """The labels as training sees them; None for regression."""
    model_labels: tuple[Any, ...] | None = None
    """The labels of the model's columns, if they are not ``training_labels``."""

    natural_score: bool = False
    """Whether a mechanism's Lipschitz constant is about this score."""

    def _derive(self, **values: Any) -> None:
        """Set what follows from the fields and the score of this frozen task."""
        name = score_name(self.score, {**LABEL_SCORES, **INTERVAL_SCORES})
        natural, own = bool(self.score.natural), () if name else (OWN_SCORE,)
        vars(self).update({"score_name": name, "natural_score": natural, "score_assumptions": own, **values})

    def around(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism that trains the model of this task.

        It is built on the caller's or the recipe's mechanism.
        """
        return mechanism

    def with_found_range(self, trained: Trained) -> Self:  # noqa: ARG002
        """Return the task with what training found."""
        return self

    def with_own_score(self, score: Any) -> Any:
        """Return the task with the caller's own score in place of a missing one.

        The name of a score changes nothing.
        """
        if self.read_score is None or not isinstance(self.score, MissingScore) or isinstance(score, str):
            return self
        return replace(cast(Any, self), score=self.read_score(score))

    def to_dict(self) -> dict[str, Any]:
        """Return what a file states of the task, as JSON values."""
        own = {name: plain(getattr(self, name)) for name in self.in_file}
        return own if self.score is None else {"score": self.score_name, "score_outputs": self.score_outputs, **own}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **given: Any) -> Self:
        """Return the task that ``to_dict`` wrote; ``ValueError`` for other fields.

        ``given`` are fields that the file keeps elsewhere.
        """
        names = [*cls.in_file, *(("score", "score_outputs") if cls.read_score else ())]
        if not isinstance(data, dict) or set(data) != set(names):
            raise ValueError(f"its task must have the fields {', '.join(names)}")
        found = {name: read(data[name]) for name, read in cls.in_file.items()}
        if cls.read_score:
            name, outputs = data["score"], check_count("score_outputs", data["score_outputs"])
            if not isinstance(name, str | None):
                raise ValueError("its score must be a name, or null for the caller's own")
            found["score"] = MissingScore(outputs) if name is None else cls.read_score(name)
        return cls(**given, **found)

    def try_score(self) -> None:
        """Check a score of the caller's own on synthetic rows."""

    def training_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the targets as training sees them."""
        return targets

    def check_model(self, model: Model) -> None:
        """Refuse a model for another task, or without one output for each class, in order."""
        if model.task != self.name:
            raise ValueError(f"estimator must train a {self.name} model")
        # in another order, a label would be scored with another label's probability
        expected = self.training_labels if self.model_labels is None else self.model_labels
        if self.classes is not None and tuple(model.classes or ()) != expected:
            raise ValueError(
                "the model must have one output for each declared class, in the same order. Pass the classes of a "
                "model that was trained elsewhere; a mechanism must use its field 'classes'"
            )

    def check_outputs(self, n_outputs: int) -> None:
        """Refuse a model with another number of outputs than the score reads."""
        if self.scaled_bounds is not None and n_outputs != self.n_targets * self.score_outputs:
            needs = "one output" if self.score_outputs == 1 else "a pair of quantiles"
            if self.n_targets > 1:
                one = "a module or mechanism of one is trained once for each"
                needs += f" for each of {self.n_targets} targets ({one})"
            raise ValueError(f"conformity_score needs a model with {needs}, but this one has {n_outputs}")

    def scores(
        self,
        trained: Trained,
        rows: NDArray[Any],
        targets: NDArray[Any],
        *,
        corrected: bool,
        persons: Persons | None = None,
    ) -> NDArray[Any]:
        """Compute the score of every record.

        ``corrected`` removes the influence of the record's person, where a form is known.

        Theory: Results D and H
        """
        model = trained.model
        values = model.outputs(rows) if self.classes is None else model.predict_proba(rows)
        scores = self._own_scores(np.asarray(values), targets)
        if not corrected:
            return scores
        seen = self.training_targets(targets)
        labels = seen if model.classes is None else np.asarray(model.classes)[seen]
        bounds = self.scaled_bounds
        try:
            outputs = corrected_outputs(model, trained.trajectory, rows, labels, persons=persons, y_bounds=bounds)
        except NoInfluenceFormError:
            return scores
        values = outputs if self.classes is None else softmax(outputs)
        return np.asarray(np.maximum(scores, self._own_scores(values, targets)))

    def _own_scores(self, predicted: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
        """Return the score of each record's own target."""
        raise NotImplementedError


@dataclass(frozen=True)
class Classification(Prediction):
    """Labels from a public list, used as their indices.

    Attributes
    ----------
    classes : tuple
        The public labels.
    score : LabelScore
    model_labels : tuple or None
        The labels of the model's columns; None for indices, if this release trains the model.
    classes_found : bool
        Whether the labels were taken from the data.
    """

    classes: tuple[Any, ...] = ()
    score: LabelScore = field(default_factory=lambda: label_score("lac"))
    model_labels: tuple[Any, ...] | None = None
    classes_found: bool = False

    name = trains = "classification"
    assumptions = (ALL_LABELS,)
    in_file: ClassVar[Readers] = {"classes_found": _read_truth}  # the labels are an array of their own
    read_score = staticmethod(label_score)

    def __post_init__(self) -> None:
        # labels are trained as their places, so that a class without a record keeps its place
        places = tuple(range(len(self.classes)))
        self._derive(size_limit=float(len(places)), training_labels=places)

    @property
    def score_range(self) -> tuple[float, float]:
        """The public range of the score."""
        return self.score.range(len(self.classes))

    @property
    def fine_near(self) -> tuple[float, float]:
        """Both ends of the score range, where the scores of a certain model are."""
        return self.score_range

    def try_score(self) -> None:
        """Check a caller's own score on synthetic probabilities."""
        check_label_score(self.score, len(self.classes))

    def _own_scores(self, predicted: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(score_labels(self.score, predicted)[np.arange(len(targets)), targets])


@dataclass(frozen=True)
class Regression(Prediction):
    """Real targets: clipped to the public range for training, unclipped in scores.

    Attributes
    ----------
    y_bounds : (low, high)
        The public range of the target.
    score : IntervalScore
    hard_bounds : bool
        Whether the caller declares that no target lies outside ``y_bounds``; intervals then end there.
    private_range : bool
        Whether training finds the range.
    y_scale : str
        The public scale on which targets are trained and scored, see ``dpscp.data.scales``. ``y_bounds`` and intervals
        are in the units of the target. A target where the scale is not defined has an infinite score.
    found_range : (low, high) or None
        The range that training found, on the scale; None where ``y_bounds`` says it all. In units, numbers that are
        far apart on a scale may round to the same one.
    """

    y_bounds: tuple[float, float] = (0.0, 1.0)
    score: IntervalScore = field(default_factory=lambda: interval_score("absolute"))
    hard_bounds: bool = False
    private_range: bool = False
    y_scale: str = LINEAR
    found_range: tuple[float, float] | None = None
    scaled_bounds: tuple[float, float] = field(init=False, repr=False, compare=False)

    name = trains = "regression"
    in_file: ClassVar[Readers] = {
        "y_bounds": partial(check_range, "y_bounds"),
        "hard_bounds": _read_truth,
        "y_scale": partial(check_scale, "y_scale", bounds=None),
        "found_range": lambda ends: None if ends is None else check_range(FOUND_RANGE, ends),
    }
    read_score = staticmethod(interval_score)

    def __post_init__(self) -> None:
        low, high = self.found_range or self.y_bounds
        if not self.private_range and self.found_range is None:
            low, high = to_scale(self.y_bounds, self.y_scale).tolist()
        name = score_name(self.score, INTERVAL_SCORES)
        facts = {
            "conformity_score": name,
            "y_scale": None if self.y_scale == LINEAR else self.y_scale,
            FOUND_RANGE: None if self.found_range is None else list(self.found_range),
        }
        self._derive(
            assumptions=(HARD_BOUNDS,) if self.hard_bounds else (),
            score_facts={name: value for name, value in facts.items() if value is not None},
            score_outputs=int(self.score.outputs),
            size_limit=float(self.y_bounds[1] - self.y_bounds[0]),
            is_one_sided=name in ONE_SIDED_SCORES,
            scaled_bounds=(low, high),
        )

    @property
    def score_range(self) -> tuple[float, float]:
        """The public range of the score."""
        return self.score.range(self.scaled_bounds)

    @property
    def fine_near(self) -> float | None:
        """Zero: residuals of a good model are small compared with public bounds."""
        low, high = self.score_range
        return 0.0 if low <= 0 <= high else None

    def with_found_range(self, trained: Trained) -> "Regression":
        """Return the task with the range that training found, on the scale and in units."""
        if not self.private_range:
            return self
        found = check_range("y_bounds", trained.found_privately["y_bounds"])
        if self.y_scale == LINEAR:
            return replace(self, y_bounds=found, private_range=False)
        low, high = from_scale(found, self.y_scale).tolist()
        return replace(self, y_bounds=(low, high), private_range=False, found_range=found)

    def try_score(self) -> None:
        """Check a caller's own score on synthetic targets."""
        check_interval_score(self.score, self.scaled_bounds)

    def training_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the targets on their scale, clipped to the range if it is public."""
        if self.private_range:
            return finite_on_scale(targets, self.y_scale)
        return np.clip(to_scale(targets, self.y_scale), *self.scaled_bounds)

    def pair(self, outputs: NDArray[Any]) -> Pair:
        """Return the model's outputs within the public range, on the scale of the target."""
        self.check_outputs(outputs.shape[1])
        return Pair.of(outputs, self.scaled_bounds)

    def predictions(self, outputs: NDArray[Any]) -> NDArray[np.float64]:
        """Return the predicted targets of a model's outputs, in their units, (n,)."""
        return from_scale(self.pair(outputs).center, self.y_scale)

    def answers(self, outputs: NDArray[Any], thresholds: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return predictions, and intervals in their units, (n, 2, n_levels).

        An interval holds the targets whose score is at most the threshold.

        ``thresholds`` has shape (n_levels,), or (n, n_levels).
        """
        pair = self.pair(outputs)
        found = from_scale(score_intervals(self.score, pair, thresholds), self.y_scale)
        found = np.asarray(np.clip(found, *self.y_bounds)) if self.hard_bounds else found
        return from_scale(pair.center, self.y_scale), found

    def _own_scores(self, predicted: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
        scores = score_targets(self.score, to_scale(targets, self.y_scale), self.pair(predicted))
        # a record that makes the model overflow gets the worst score; an error would reveal that it is present
        return np.where(np.isnan(predicted).any(axis=1), np.inf, scores)


@dataclass(frozen=True)
class JointRegression(Prediction):
    """Several real targets for each record; intervals contain all of them together.

    The score of a record is the largest score of its targets, each divided by the spread of its residuals. So one
    threshold gives intervals that contain all targets at once.

    Attributes
    ----------
    each : tuple of Regression
        The task of each target; they differ in their ranges only.
    spreads : tuple of float
        The divisor of each target's score, on its scale. Training releases them; if empty, it is half the range.

    Theory: Results A, B and E
    """

    each: tuple[Regression, ...]
    spreads: tuple[float, ...] = ()

    name = trains = "regression"

    def __post_init__(self) -> None:
        first = self.each[0]
        if first.score_name is None:
            raise ValueError("your own conformity_score is for one target only; pass the name of a score")
        for name in ("score", "y_scale", "score_outputs", "is_one_sided", "assumptions"):
            vars(self)[name] = getattr(first, name)
        found = {FOUND_RANGE: [list(task.found_range or ()) for task in self.each]}
        self._derive(
            natural_score=False,
            n_targets=len(self.each),
            y_bounds=tuple(task.y_bounds for task in self.each),
            scaled_bounds=(-1.0, 1.0),  # training sees each target scaled by its range
            score_facts={**first.score_facts, **(found if FOUND_RANGE in first.score_facts else {})},
            size_limit=1.0,  # the mean width, as a share of the ranges
        )

    @property
    def _divisors(self) -> tuple[float, ...]:
        if self.score_name == "normalized":  # has no unit
            return (1.0,) * self.n_targets
        ranges = [task.scaled_bounds for task in self.each]
        return self.spreads or tuple((high - low) / 2 for low, high in ranges)

    @property
    def score_range(self) -> tuple[float, float]:
        """The public range of the score."""
        pairs = zip(self.each, self._divisors, strict=True)
        ends = np.array([np.array(task.score_range) / spread for task, spread in pairs])
        return float(ends[:, 0].min()), float(ends[:, 1].max())

    @property
    def fine_near(self) -> float | None:
        """Where the grid of thresholds is finest."""
        return self.each[0].fine_near

    def around(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism that trains one model for each target.

        It also finds ranges that are not public.
        """
        first = self.each[0]
        if not first.private_range:
            return SeveralTargets(OneVsRest(mechanism, self.n_targets), tuple(task.scaled_bounds for task in self.each))
        finds = PrivateBounds(mechanism, target=True, target_scale=first.y_scale)
        return SeveralTargets(OneVsRest(finds, self.n_targets))

    def with_found_range(self, trained: Trained) -> "JointRegression":
        """Return the task with the ranges and the spreads that training found."""
        found = trained.found_privately
        ranges = found.get("y_bounds", ((),) * self.n_targets)
        each = [
            task.with_found_range(replace(trained, found_privately={"y_bounds": ends}))
            for task, ends in zip(self.each, ranges, strict=True)
        ]
        return JointRegression(tuple(each), found.get(SPREAD, ()))

    def to_dict(self) -> dict[str, Any]:
        """Return what a file states of the task, as JSON values."""
        return {"each": [task.to_dict() for task in self.each], "spreads": list(self.spreads)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **given: Any) -> "JointRegression":
        """Return the task that ``to_dict`` wrote; ``ValueError`` for other fields."""
        if set(data) != {"each", "spreads"} or not isinstance(data["each"], list) or len(data["each"]) < 2:
            raise ValueError("its task must have the fields each and spreads, of several targets")
        spreads = tuple(check_positive("spreads[i]", spread) for spread in data["spreads"])
        if len(spreads) not in (0, len(data["each"])):
            raise ValueError("its task must have one spread for each target")
        return cls(tuple(Regression.from_dict(task, **given) for task in data["each"]), spreads)

    def training_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the targets on their scale, clipped to ranges that are public."""
        return np.column_stack([task.training_targets(y) for task, y in zip(self.each, targets.T, strict=True)])

    def _parts(self, outputs: NDArray[Any]) -> Iterator[tuple[Regression, NDArray[Any], float]]:
        """Yield task, outputs and divisor of each target."""
        self.check_outputs(outputs.shape[1])
        return zip(self.each, np.split(outputs, self.n_targets, axis=1), self._divisors, strict=True)

    def predictions(self, outputs: NDArray[Any]) -> NDArray[np.float64]:
        """Return the predicted targets of a model's outputs, (n, n_targets).

        They are in the units of the targets.
        """
        return np.column_stack([task.predictions(own) for task, own, _ in self._parts(outputs)])

    def answers(self, outputs: NDArray[Any], thresholds: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return predictions and intervals, (n, n_targets, 2, n_levels).

        In the intervals, all scores are at most the threshold.

        ``thresholds`` has shape (n_levels,), or (n, n_levels).
        """
        found = [task.answers(own, scaled_threshold(thresholds, spread)) for task, own, spread in self._parts(outputs)]
        predictions, intervals = zip(*found, strict=True)
        return np.column_stack(predictions), np.stack(intervals, axis=1)

    def _own_scores(self, predicted: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
        parts = zip(self._parts(predicted), targets.T, strict=True)
        return np.asarray(np.max([task._own_scores(own, y) / spread for (task, own, spread), y in parts], axis=0))
