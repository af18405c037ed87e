"""Define losses at public thresholds, their exact sums and the multilabel task.

Losses are never released. A search releases noisy sums of them, and the ledger contains its cost.

Theory: Result J
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.assumptions import ALL_LABELS_IF_INFINITE, NO_LABEL_IF_INFINITE, Assumption
from dpscp._base.checks import check_choice, check_range
from dpscp.core.release import Counted
from dpscp.core.tasks import Prediction, Readers
from dpscp.data.groups import is_member
from dpscp.data.persons import Persons
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.places import Places, one_row_of_each, places_of
from dpscp.data.validation import suppress_float_warnings
from dpscp.guarantees.certificate import Promise
from dpscp.privacy import Ledger
from dpscp.privacy.random_streams import SCORED_ROWS, PlacedDraws, child_seeds, stream_seed
from dpscp.scores.losses import Losses, false_discoveries, missed_labels
from dpscp.threshold.counts import LossSums
from dpscp.training.base import Mechanism
from dpscp.training.mechanisms.one_vs_rest import OneVsRest
from dpscp.training.model import Model

MISSED, DISCOVERIES = "missed_labels", "false_discoveries"
# Tolerance for the rounding of losses that leave [0, 1] or rise; such losses are corrected.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Multilabel(Prediction):
    """Several labels of each record, (n, n_labels); the sets bound a mean loss.

    Labels are indicators.

    Attributes
    ----------
    labels : tuple
        The public names of the columns.
    loss : str
        ``"missed_labels"`` or ``"false_discoveries"``.

    Theory: Result J
    """

    labels: tuple[Any, ...]
    loss: str = MISSED

    name = "multilabel"
    promise = Promise.RISK
    resolution = 64
    most_steps = 10
    trains = "classification"
    training_labels = (0, 1)
    in_file: ClassVar[Readers] = {"labels": tuple, "loss": str}

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, (MISSED, DISCOVERIES))
        vars(self).update(
            running_maximum=self.loss == DISCOVERIES,
            assumptions=(ALL_LABELS_IF_INFINITE if self.loss == MISSED else NO_LABEL_IF_INFINITE,),
            score_facts={"labels": [str(label) for label in self.labels], "loss": self.loss},
        )

    def around(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism that trains one binary model for each label."""
        return OneVsRest(mechanism, len(self.labels))

    def check_model(self, model: Model) -> None:
        """Refuse a model without one head for each label."""
        row = np.zeros((1, model.n_features))
        if model.task != self.name or model.outputs(row).shape[1] != len(self.labels):
            raise ValueError("estimator must train one binary model for each label")

    def losses(self, probabilities: NDArray[np.float64], truth: NDArray[Any]) -> Losses:
        """Return the loss of each record as a function of the threshold."""
        shown = self._shown(probabilities)
        if self.loss == DISCOVERIES:
            return false_discoveries(shown, truth)
        return missed_labels(1 - shown, truth)

    def sets(self, probabilities: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which labels are in the sets, (n, n_labels, n_levels).

        ``thresholds`` are (n_levels,), or (n, n_levels) for each row.
        """
        shown = self._shown(probabilities)[:, :, None]
        cut = thresholds if thresholds.ndim == 1 else thresholds[:, None, :]
        return np.asarray(shown > cut if self.loss == DISCOVERIES else 1 - shown <= cut)

    def _shown(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities; if a model overflows, each label's worst one."""
        return np.nan_to_num(probabilities, nan=0.0 if self.loss == MISSED else 1.0)


def even_thresholds(threshold_range: tuple[float, float], steps: int) -> FloatArray:
    """Return the 2^steps - 1 inner points of an even grid of thresholds.

    The losses are a function of the threshold.
    """
    low, high = check_range("threshold_range", threshold_range)
    n_parts = 2 ** max(1, steps)
    points: FloatArray = low + (high - low) * (np.arange(1, n_parts) / n_parts)
    if not np.all(np.diff(points, prepend=low, append=high) > 0):
        raise ValueError("threshold_range has fewer floating-point numbers than grid points; pass a wider range")
    return points


def check_thresholds(thresholds: Any) -> FloatArray:
    """Return public thresholds as an increasing array, or raise ValueError."""
    points = np.asarray(thresholds)
    if points.ndim != 1 or not len(points) or points.dtype.kind not in "iuf":
        raise ValueError("thresholds must be a one-dimensional array of at least one number")
    points = points.astype(np.float64)
    if not np.isfinite(points).all() or not np.all(np.diff(points) > 0):
        raise ValueError("thresholds must be finite and increasing: each larger than the one before")
    return points


def counted_losses(
    sums: Sequence[LossSums], thresholds: FloatArray, spent: Ledger, assumptions: tuple[Assumption, ...] = ()
) -> Counted:
    """Return an object that gives loss sums to a search as counts.

    The sums are at increasing public thresholds.
    """
    ends, values = [float(thresholds[0]), float(thresholds[-1])], np.append(thresholds, np.inf)
    return Counted(
        sums,
        spent,
        sums[0].place_range,
        assumptions,
        facts={"score_range": ends, "n_thresholds": len(thresholds), "loss_resolution": sums[0].resolution},
        # places beyond the last threshold mean that no finite one keeps the promise
        threshold_at=lambda places: values[np.minimum(places, len(thresholds)).astype(np.int64)],
    )


def sum_losses(
    column: Callable[[int], Any],
    n_thresholds: int,
    *,
    rows: NDArray[np.int64] | None,
    owners: Persons,
    groups: Sequence[NDArray[np.int64]] | None,
    dither: FloatArray,
    resolution: int,
    running_maximum: bool,
    weights: FloatArray | None = None,
) -> list[LossSums]:
    """Return the exact sums of one minus the loss for each group of units.

    One secret uniform number for each unit rounds its losses.

    ``column(j)`` has the loss of each row at the j-th of ``n_thresholds`` increasing thresholds.
    ``rows`` are the used rows, person by person as ``owners`` says (None: all); ``groups`` the units of each group
    (None: one group of all); ``dither`` one uniform number of each unit. A unit's loss is the mean over its rows. It is
    rounded to a multiple of 1 / ``resolution`` by the same uniform at every threshold, which keeps its order and its
    mean. ``weights`` in [0, 1] multiply the losses of the used rows (Result K). Columns are read from the last to the
    first, one at a time. Invalid losses are refused with a message that does not name their records.

    Theory: Result J
    """
    members = [np.arange(owners.count)] if groups is None else list(groups)
    sums = np.zeros((len(members), n_thresholds), dtype=np.int64)
    after: FloatArray | None = None
    for j in reversed(range(n_thresholds)):
        losses = check_losses(column(j))
        if after is not None and len(after) != len(losses):
            raise ValueError("losses must return one loss for each record at every threshold: the lengths differ")
        if after is not None:
            if not running_maximum and np.any(losses < after - _ROUNDING):
                raise ValueError(
                    "losses must not rise with the threshold, but those of some records do. Reverse the thresholds "
                    "if larger ones make sets smaller, or set running_maximum=True to control the running maximum"
                )
            losses = np.maximum(losses, after)
        after = losses
        kept = losses if rows is None else losses[rows]
        if len(kept) != owners.n_rows:
            raise ValueError("losses must have one row for each record")
        kept = kept if weights is None else weights * kept
        rounded = _round_gains(_person_means(kept, owners), dither, resolution)
        sums[:, j] = [int(rounded[units].sum()) for units in members]
    return [LossSums(len(units), resolution, row) for units, row in zip(members, sums, strict=True)]


def check_losses(losses: Any) -> FloatArray:
    """Return one column of losses in [0, 1].

    A ``ValueError`` for anything else contains no value.
    """
    column = np.asarray(losses)
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        raise ValueError("losses must be one number for each record at every threshold")
    column = column.astype(np.float64)
    if not np.all((column >= -_ROUNDING) & (column <= 1 + _ROUNDING)):
        raise ValueError(
            "losses must be numbers in [0, 1], but some are not. Divide a cost by its largest possible value"
        )
    return np.asarray(np.clip(column, 0.0, 1.0))


def _person_means(losses: FloatArray, owners: Persons) -> FloatArray:
    """The mean loss of each person's rows."""
    if owners.count == owners.n_rows:
        return losses
    return np.asarray(np.add.reduceat(losses, owners.offsets[:-1]) / owners.sizes)


def _round_gains(losses: FloatArray, dither: FloatArray, resolution: int) -> NDArray[np.int64]:
    """Return floor(resolution (1 - loss) + U), a rounded complement of the loss.

    It never falls as the loss falls, and is ``resolution`` where there is no loss.
    """
    return np.minimum(np.floor(resolution * (1 - losses) + dither), resolution).astype(np.int64)


def count_losses(
    task: Multilabel,
    model: Model,
    records: RecordSource,
    spent: Ledger,
    *,
    n_groups: int,
    steps: int,
    seed: int | None,
) -> Counted:
    """Return the counts of a fit that bounds a loss, for each group.

    They are exact sums over blocks.

    Without groups a person's loss is the mean over their rows; with groups one random row of each person counts.

    Theory: Results H and J
    """
    row_seed, dither_seed = child_seeds(stream_seed(seed, SCORED_ROWS), 2)
    places = places_of(records)
    if n_groups:
        records = one_row_of_each(records, row_seed, places)
    total = records.sum(partial(_sum_block_losses, task, model, n_groups, steps, PlacedDraws.of(dither_seed), places))
    sums = [LossSums(int(size), task.resolution, row) for size, row in zip(*total, strict=True)]
    return counted_losses(sums, even_thresholds((0.0, 1.0), steps), spent, task.assumptions)


def _sum_block_losses(
    task: Multilabel, model: Model, n_groups: int, steps: int, draws: PlacedDraws, places: Places, block: Block
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Add up the rounded losses of a block at every threshold, for each group.

    Return the number of units of each group, and their sums, (n_groups, n_thresholds).
    """
    # a model of the caller's own gets all rows at once, as in prediction
    own = not model.is_row_wise
    with suppress_float_warnings():
        parts = block.parts(max(1, len(block)) if own else None)
        found = [np.asarray(model.predict_proba(rows)) for _, rows in parts]
    truth = block.targets
    shown = np.concatenate(found) if found else np.empty((0, len(task.labels)))
    groups = weights = None
    if block.groups is not None and not n_groups:  # rejected by a likelihood ratio: loss 0
        weights = (block.groups >= 0).astype(float)
    elif block.groups is not None:
        groups = [np.flatnonzero(is_member(block.groups, group)) for group in range(n_groups)]
    points, losses = even_thresholds((0.0, 1.0), steps), task.losses(shown, truth)
    sums = sum_losses(
        lambda j: losses(float(points[j])),
        len(points),
        rows=None,
        owners=block.owners,
        groups=groups,
        dither=draws.uniform(places.persons[block.id]),
        resolution=task.resolution,
        running_maximum=task.running_maximum,
        weights=weights,
    )
    return np.array([one.size for one in sums]), np.stack([one.sums for one in sums])
