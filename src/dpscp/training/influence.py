"""Self-influence correction: a record's outputs as training without that record would have made them, to
first order.

Each corrected output is a function of its own record and of the released trajectory, nothing else: a count of
corrected scores has the sensitivity of a count.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._checks import check_count
from dpscp.persons import Persons
from dpscp.training.blocks import aligned_empty
from dpscp.training.labels import encode_targets
from dpscp.training.mechanism import Model, Trajectory
from dpscp.training.networks import (
    ClippedGradient,
    DenseModel,
    RowOutputs,
    inner_products,
    squared_norms,
    with_zero_column,
)
from dpscp.training.preprocess import unwrapped
from dpscp.training.scaling import ScaledTargetModel
from dpscp.training.targets import unit_targets

__all__ = ["NoInfluenceFormError", "corrected_outputs", "self_shift_bounds"]

Array = NDArray[Any]


class NoInfluenceFormError(TypeError, ValueError):
    """No sound form of the correction is known for this model or this training.

    Both kinds, because a model of the wrong kind and a missing trajectory have always raised the one and the other.
    """


def corrected_outputs(
    model: Model,
    trajectory: Trajectory | None,
    X: ArrayLike,
    y: ArrayLike,
    *,
    max_points: int = 512,
    persons: Persons | None = None,
) -> Array:
    """Outputs of a linear head on its own training records with each record's first-order influence taken
    out.

    A record x with errors e_t (derivative of its loss in the outputs at iterate t, clipped as in training)
    moved the released parameters by -sum_t w_t e_t x / n_records in expectation over the sampling, w_t the
    trajectory's weights. Its corrected outputs are therefore outputs + |x|^2 * sum_t w_t e_t / n_records,
    |x|^2 with the bias coordinate. The response of the other records' later gradients is left out: it is
    second order for coverage, and when every step is nonexpansive the parameter shift itself is bounded by
    `self_shift_bounds`.

    Where the rows belong to `persons`, the whole person is taken out: a record's outputs move by the sum over the
    person's records r' of weight(r') <x, x_r'> sum_t w_t e_t(r') / n_persons.

    Calibrate on the larger of a record's plain and corrected score, score test points plainly. A trajectory
    of more than `max_points` steps is read at that many evenly spaced iterates, each standing for its
    neighbours' weights.

    Raises NoInfluenceFormError for a network with hidden layers (no sound form is known) and without a usable
    trajectory.

    Theory: Results D and H
    """
    if isinstance(model, ScaledTargetModel):
        inner = corrected_outputs(model.inner, trajectory, X, unit_targets(y, model.y_bounds), max_points=max_points)
        return model.rescaled(inner)
    head, X = _head(model, X)
    rows, squared, summed, _ = _summed_errors(head, trajectory, X, y, max_points)
    units = Persons.of_rows(persons, len(rows))
    z = RowOutputs(head.network, head.parameters)(rows[:, : head.n_features])
    z = z + _own_pull(rows, squared, summed, units)
    return with_zero_column(z) if head.loss.name == "logistic" else z


def self_shift_bounds(
    model: Model, trajectory: Trajectory | None, X: ArrayLike, y: ArrayLike, *, max_points: int = 512
) -> Array:
    """For each record |x| * sum_t w_t |e_t| / n_records: how far leaving it out can move the released
    parameters.

    A theorem for full-batch descent with plain SGD when every step is nonexpansive (convex clipped losses,
    learning rate at most 2 / smoothness) and every iterate is read (`max_points` >= steps). The bounds depend
    on the records: they are for study, not for release.

    Theory: Result D
    """
    head, X = _head(model, X)
    _, squared, _, lengths = _summed_errors(head, trajectory, X, y, max_points)
    bounds: Array = np.sqrt(squared) * lengths
    return bounds


def _own_pull(rows: Array, squared: Array, summed: Array, persons: Persons) -> Array:
    """How far each record's outputs were moved by the records of its person, itself among them."""
    weighted = summed * persons.weights[:, None]
    pull: Array = squared[:, None] * weighted
    place = np.arange(len(rows)) - np.repeat(persons.offsets[:-1], persons.sizes)
    first, size = np.arange(len(rows)) - place, np.repeat(persons.sizes, persons.sizes)
    for ahead in range(1, int(persons.sizes.max(initial=1))):
        # the one so many places on, around the person's rows; those with fewer rows have met them all
        here = np.flatnonzero(ahead < size)
        other = first[here] + (place[here] + ahead) % size[here]
        pull[here] += inner_products(rows[here], rows[other])[:, None] * weighted[other]
    return pull


def _head(model: Model, X: ArrayLike) -> tuple[DenseModel, ArrayLike]:
    """The linear head inside a model, and the rows as it sees them."""
    model, X = unwrapped(model, X)
    if not isinstance(model, DenseModel):
        raise NoInfluenceFormError(
            f"the self-influence correction is known for linear heads, not for {type(model).__name__}"
        )
    if len(model.network.widths) > 2:
        raise NoInfluenceFormError("the self-influence correction is known for linear heads; this has hidden layers")
    return model, X


def _summed_errors(
    model: DenseModel, trajectory: Trajectory | None, X: ArrayLike, y: ArrayLike, max_points: int
) -> tuple[Array, Array, Array, Array]:
    """Rows, squared norms, and per record the weighted sum of its errors and of their lengths, over n_records."""
    if trajectory is None:
        raise NoInfluenceFormError("the correction needs the trajectory: train with keep_trajectory=True")
    if trajectory.weights is None:
        raise NoInfluenceFormError("the correction needs optimizer='sgd': adam's steps are not sums of gradients")
    points, weights = _points(trajectory.weights, check_count("max_points", max_points))
    rows = model.rows(X)
    target = encode_targets(y, model.loss.name, model.classes, str(rows.dtype))
    if len(target) != len(rows):
        raise ValueError("X and y must hold the same number of records")
    squared = squared_norms(rows)
    gradient = ClippedGradient(model.network, model.loss, trajectory.clip_norm, str(rows.dtype))
    summed = np.zeros((len(rows), model.network.widths[-1]))
    lengths = np.zeros(len(rows))
    per_record = weights * trajectory.sampling_rate / trajectory.normaliser
    flat = aligned_empty((model.network.n_parameters,), str(rows.dtype))
    layers = model.network.layers(flat)
    with np.errstate(all="ignore"):
        for start in range(0, len(rows), gradient.chunk):
            part = slice(start, min(len(rows), start + gradient.chunk))
            m = part.stop - start
            block = _padded_block(rows[part], squared[part], target[part], gradient.block(m))
            for point, weight in zip(points, per_record, strict=True):
                flat[:] = trajectory.iterates[point]
                errors = gradient.errors(layers, *block, np.ones(m))[0][0][:, :m]
                summed[part] += weight * errors.T
                lengths[part] += weight * np.sqrt(np.einsum("ij,ij->j", errors, errors))
    return rows, squared, summed, lengths


def _padded_block(rows: Array, squared: Array, target: Array, size: int) -> tuple[Array, Array, Array]:
    """Records as a block of `ClippedGradient`, aligned; the first of them stands in the places that are left."""
    block = aligned_empty((size, rows.shape[1]), str(rows.dtype)), np.empty(size), np.empty(size, dtype=target.dtype)
    for whole, part in zip(block, (rows, squared, target), strict=True):
        whole[: len(part)], whole[len(part) :] = part, part[0]
    return block


def _points(weights: Array, limit: int) -> tuple[NDArray[np.int64], Array]:
    """Which iterates to read, and the total weight of the steps each one stands for."""
    steps = len(weights)
    stride = math.ceil(steps / limit)
    starts = np.arange(0, steps, stride)
    # the middle of each run of steps stands for it
    middles = np.minimum(starts + (stride - 1) // 2, steps - 1)
    return middles, np.add.reduceat(weights, starts)
