"""Algorithm 3 twice, with one record of difference, to measure the true gap.

Stability bounds are about this gap. It is a study tool: the gap is computed from the records without noise of its own
and must not be released.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import Array
from dpscp.privacy import secure_generator
from dpscp.training.engine.loop import GridNoise, draw_steps, take_steps
from dpscp.training.engine.networks import DenseModel
from dpscp.training.engine.padding import one_blas_thread
from dpscp.training.mechanisms.dpsgd import DPSGD


@dataclass(frozen=True)
class CoupledRun:
    """The outcome of a coupled run.

    Attributes
    ----------
    gaps : array of shape (steps + 1,)
        The distance of the two iterates after each step; the first is 0.
    released_gap : float
        The distance of the released (possibly averaged) parameters.
    without, joined : DenseModel
        The models without and with the extra record.
    draws : int
        How often the extra record was sampled.
    iterates : array of shape (steps + 1, n_parameters), or None
        The iterates of the run without the extra record, when the mechanism keeps its trajectory.

    Paper: [thm:dpsgd_stability_smooth], Experiment I
    """

    gaps: Array
    released_gap: float
    without: DenseModel
    joined: DenseModel
    draws: int
    iterates: Array | None = None


def coupled_run(
    mechanism: DPSGD,
    X: ArrayLike,
    y: ArrayLike,
    x_new: ArrayLike,
    y_new: Any,
    *,
    n_records: int | None = None,
    random_state: int | None = None,
) -> CoupledRun:
    """Train with and without one record, sharing masks, noise and constants.

    The extra record has its own mask, drawn with the others.

    Parameters
    ----------
    mechanism : DPSGD
    X : array of shape (n, n_features)
    y : array of shape (n,)
    x_new : array of shape (n_features,)
        The row of the extra record, and its target ``y_new``.
    y_new : label or number
    n_records : int or None
        The nominal number of records of both runs; None: that without the extra record.
    random_state : int or None

    Returns
    -------
    CoupledRun

    Paper: Section 4.2 (synchronized coupling) [thm:proj_dpsgd_stability]
    """
    rows = np.asarray(X)
    n = len(rows)
    both = np.concatenate([rows, np.asarray(x_new).reshape(1, -1)])
    labels = np.asarray(y)
    setup = mechanism.prepare(
        both, np.concatenate([labels, np.asarray([y_new], dtype=labels.dtype)]), n_records=n_records or n
    )
    everything = setup.records
    without = everything.first(n)
    rng = secure_generator(random_state)
    noise = GridNoise(rng, setup.network.n_parameters) if setup.noise else None
    masks, copies, counted = itertools.tee(setup.batches(rng), 3)
    gaps = np.zeros(mechanism.steps + 1)
    draws = 0
    with one_blas_thread(), np.errstate(all="ignore"):
        descents = [setup.descent(without), setup.descent(everything)]
        kept = [descents[0].current()]
        for t in take_steps(descents, draw_steps([_first(copies, n), masks], noise)):
            gaps[t + 1] = np.linalg.norm(descents[0].parameters - descents[1].parameters)
            batch = next(counted)
            draws += 1 if batch is None else int(len(batch) > 0 and batch[-1] == n)
            if mechanism.keep_trajectory:
                kept.append(descents[0].current())
    models = [setup.model(descent.released()) for descent in descents]
    return CoupledRun(
        gaps=gaps,
        released_gap=float(np.linalg.norm(models[0].parameters.astype(float) - models[1].parameters)),
        without=models[0],
        joined=models[1],
        draws=draws,
        iterates=np.stack(kept) if mechanism.keep_trajectory else None,
    )


def _first(batches: Iterator[NDArray[np.int64] | None], n: int) -> Iterator[NDArray[np.int64] | None]:
    """Return the batches with the last record left out (batches are sorted)."""
    for batch in batches:
        yield batch if batch is None else batch[: np.searchsorted(batch, n)]
