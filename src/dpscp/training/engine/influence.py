"""Correct outputs for the influence of each record on its own model.

The correction estimates, to first order, the outputs of training without that record. Each corrected output is a
function of its own record and of the released trajectory, nothing else. So a count of corrected scores has the
sensitivity of a count.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import Array
from dpscp.data.persons import Persons
from dpscp.training.engine.gradients import ClippedGradient
from dpscp.training.engine.networks import DenseModel, Loss, Network, RowOutputs, with_zero_column
from dpscp.training.engine.rows import (
    EngineBlock,
    check_rows,
    encode_targets,
    inner_products,
    scaled_rows,
    squared_norms,
    target_units,
    unit_targets,
)
from dpscp.training.model import Model, NoInfluenceFormError, Trajectory, softmax

# On the development data the response of the records was .6 to 1 of that of synthetic ones, because their labels are
# predicted worse and their directions are uneven. Half of it keeps the correction conservative.
_RESPONSE_SHARE = 0.5
_N_SYNTHETIC = 256
# Iterates of a trajectory that are read at most.
_MOST_POINTS = 512


def corrected_outputs(
    model: Model,
    trajectory: Trajectory | None,
    X: ArrayLike,
    y: ArrayLike,
    *,
    persons: Persons | None = None,
    y_bounds: tuple[float, float] | None = None,
) -> Array:
    """Return a linear head's outputs without each record's own influence.

    They are for its training records, and correct to first order. A record x with errors e_t (derivative of its loss in
    the outputs at iterate t, clipped as in training) moved the released parameters by -sum_t w_t e_t x / n_records in
    expectation over the sampling, w_t the trajectory's weights if later gradients are held fixed. They are not: each
    change alters the other records' later gradients back. Where all rows have one known length (behind `UnitNorm` or
    `PrivateWhitening`), corrected outputs are outputs + (sum_t u_t e_t + |x|^2 sum_t v_t e_t) / n_records, u_t and v_t
    the weights of the intercept and of a feature after that response; its curvature is that of synthetic records under
    the released iterates, taken at half. Elsewhere, for quantile pairs, and for regression without ``y_bounds`` (the
    public range of the targets) the response is left out, and corrected scores are larger than they need be.

    Where the rows belong to `persons`, the whole person is taken out: a record's outputs move by the sum over the
    person's records r' of weight(r') times the same with <x, x_r'> for |x|^2 and the errors of r'.

    Calibrate on the larger of a record's plain and corrected score, score test points plainly. A trajectory
    of more than 512 steps is read at so many evenly spaced iterates at most, each standing for its
    neighbors' weights.

    Parameters
    ----------
    model : Model
    trajectory : Trajectory or None
    X : array of shape (n, n_features)
    y : array of shape (n,)
    persons : Persons or None
    y_bounds : (low, high) or None

    Returns
    -------
    array of shape (n, n_outputs)

    Raises
    ------
    NoInfluenceFormError
        For a network with hidden layers (no sound form is known) and without a usable trajectory.

    Theory: Results D and H
    """
    form = model.influence_form()
    head, X = form.head, check_rows(X) if form.row_steps else X
    for step in form.row_steps:
        X = step(np.asarray(X))
    for scaled in form.target_ranges:
        y = unit_targets(y, scaled)
    y_bounds = (-1.0, 1.0) if form.target_ranges else y_bounds
    path, points, starts = _read(trajectory)
    length = min(path.row_length or 0.0, math.inf if head.feature_bound is None else head.feature_bound)
    curvature = _curvature(head, path, points, length, y_bounds) if length else np.zeros(len(points))
    each_step = np.repeat(curvature, np.diff(starts, append=len(path.iterates)))
    # the second moment of the bias coordinate, and of a feature if rows of this length point everywhere alike
    weights = [_step_weights(path, moment * each_step) for moment in (1.0, length**2 / head.n_features)]
    rows, summed = _summed_errors(head, path, X, y, points, np.add.reduceat(weights, starts, axis=1))
    units = Persons.of_rows(persons, len(rows))
    z = RowOutputs(head.network, head.parameters)(rows[:, : head.n_features])
    z = z + _own_pull(rows, summed, units, float(head.network.intercept))
    for scaled in reversed(form.target_ranges):
        z = target_units(z, scaled)
    return with_zero_column(z) if head.loss.name == "logistic" else z


def has_influence_form(model: Model, trajectory: Trajectory | None) -> bool:
    """Return whether `corrected_outputs` works for this model and trajectory."""
    try:
        model.influence_form()
        _read(trajectory)
    except NoInfluenceFormError:
        return False
    return True


def _own_pull(rows: Array, summed: Array, persons: Persons, intercept: float) -> Array:
    """Return how far the records of a person moved each record's outputs.

    The record itself is included.

    ``summed`` holds the sums of errors that moved the intercept and those that moved the features.
    """
    by_intercept, by_features = summed * persons.weights[:, None]
    pull: Array = intercept * by_intercept + (squared_norms(rows) - intercept)[:, None] * by_features
    place = np.arange(len(rows)) - np.repeat(persons.offsets[:-1], persons.sizes)
    first, size = np.arange(len(rows)) - place, np.repeat(persons.sizes, persons.sizes)
    for ahead in range(1, int(persons.sizes.max(initial=1))):
        # the row ``ahead`` places later, cyclically; persons with fewer rows are complete
        here = np.flatnonzero(ahead < size)
        other = first[here] + (place[here] + ahead) % size[here]
        alike = inner_products(rows[here], rows[other]) - intercept
        pull[here] += intercept * by_intercept[other] + alike[:, None] * by_features[other]
    return pull


def _read(trajectory: Trajectory | None) -> tuple[Trajectory, NDArray[np.int64], NDArray[np.int64]]:
    """Return a usable trajectory, the iterates to read, and their first steps."""
    if trajectory is None:
        raise NoInfluenceFormError(
            "the self-influence correction needs the trajectory; train with keep_trajectory=True"
        )
    if trajectory.mechanism.optimizer != "sgd":
        raise NoInfluenceFormError(
            "the self-influence correction needs optimizer='sgd'; the steps of adam are not sums of gradients"
        )
    steps = len(trajectory.iterates)
    stride = math.ceil(steps / _MOST_POINTS)
    starts = np.arange(0, steps, stride)
    # the middle of each run of steps stands for it
    return trajectory, np.minimum(starts + (stride - 1) // 2, steps - 1), starts


def _step_weights(trajectory: Trajectory, curvature: Array) -> Array:
    """Return the weight of every step after the response of the others."""
    # a response larger than the change itself would oscillate, and training would not have converged
    largest = 1 / np.maximum(trajectory.mechanism.learning_rates, 1e-300)
    return trajectory.mechanism.influence_weights(np.minimum(curvature, largest))


def _curvature(
    head: DenseModel, trajectory: Trajectory, points: Array, length: float, y_bounds: tuple[float, float] | None
) -> Array:
    """Return the mean derivative of a clipped error at each point.

    It uses synthetic rows and released numbers only.

    Theory: Result D
    """
    directions = Network((head.n_features, _N_SYNTHETIC), intercept=False).initial(0, 1.0)
    rows = scaled_rows(directions.reshape(_N_SYNTHETIC, -1), length, unit=True)
    reach = trajectory.mechanism.clip_norm / math.hypot(length, float(head.network.intercept))
    found = np.empty(len(points))
    with np.errstate(all="ignore"):
        for i, point in enumerate(points):
            (layer,) = head.network.layers(trajectory.iterates[point].astype(np.float64))
            z = rows @ layer[:, : head.n_features].T
            if head.network.intercept:
                z += layer[:, -1]
            found[i] = _mean_bend(head.loss, z, reach, y_bounds)
    return np.asarray(_RESPONSE_SHARE * np.nan_to_num(found))


def _mean_bend(loss: Loss, z: Array, reach: float, y_bounds: tuple[float, float] | None) -> float:
    """Return the mean derivative of a clipped error in its output.

    Errors longer than ``reach`` are clipped. Labels follow the model's own probabilities p, targets are uniform over
    their public range. A clipped error e of several outputs still turns: its derivative is reach / |e| times what is
    orthogonal to e of diag(p) - p p^T.
    """
    if loss.name in ("squared", "huber"):
        if y_bounds is None:
            return 0.0
        steep, bent = (2.0, math.inf) if loss.name == "squared" else (1.0, loss.huber_delta)
        return steep * float(np.mean(np.abs(z - np.linspace(*y_bounds, 65)) <= min(reach / steep, bent)))
    if loss.name == "pinball":
        return 0.0
    p = softmax(with_zero_column(z) if loss.name == "logistic" else z)
    two, three = (p**2).sum(axis=1, keepdims=True), (p**3).sum(axis=1, keepdims=True)
    spread = 1 - two
    if loss.name == "logistic":
        return float(np.mean(spread[:, 0] / 2 * (p * (1 - p <= reach)).sum(axis=1)))
    squared = two - 2 * p + 1  # |e|^2 for every label
    along = (three - 2 * p**2 + p - (two - p) ** 2) / squared
    bend = np.where(squared <= reach**2, spread, reach / np.sqrt(squared) * (spread - along))
    return float(np.mean((p * bend).sum(axis=1)) / (p.shape[1] - 1))


def _summed_errors(
    model: DenseModel, trajectory: Trajectory, X: ArrayLike, y: ArrayLike, points: Array, weights: Array
) -> tuple[Array, Array]:
    """Return rows and sums of errors of each record, divided by n_records.

    A sum is over the points, with each row of weights.
    """
    rows = model.rows(X)
    target = encode_targets(y, model.loss.name, model.classes, str(rows.dtype))
    if len(target) != len(rows):
        raise ValueError("X and y must hold the same number of records")
    records = EngineBlock(0, rows, target, squared_norms=squared_norms(rows))
    gradient = ClippedGradient(model.network, model.loss, trajectory.mechanism.clip_norm, str(rows.dtype))
    summed = np.zeros((len(weights), len(rows), model.network.widths[-1]))
    per_record = weights.T / trajectory.n_records
    with np.errstate(all="ignore"):
        for start in range(0, len(rows), gradient.chunk):
            for point, each in zip(points, per_record, strict=True):
                gradient.parameters[:] = trajectory.iterates[point]
                errors = gradient.errors(records, start)
                part = slice(start, start + errors.shape[1])
                for total, weight in zip(summed, each, strict=True):
                    total[part] += weight * errors.T
    return rows, summed
