"""Algorithm 3 twice, with one record of difference, to measure the true gap.

Stability bounds are about this gap. It is a study tool: the gap is computed from the records without noise of its own
and must not be released.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import Array
from dpscp.privacy import secure_generator
from dpscp.training.engine.loop import Descent
from dpscp.training.engine.networks import DenseModel
from dpscp.training.engine.threads import one_blas_thread
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
    gaps, draws = np.zeros(mechanism.steps + 1), 0
    with one_blas_thread(), np.errstate(all="ignore"):
        without, joined = Descent(setup), Descent(setup)
        kept = [without.current()]
        for t, (noise, batch) in enumerate(islice(setup.draw_steps(secure_generator(random_state)), mechanism.steps)):
            drawn = np.arange(n + 1) if batch is None else batch
            draws += int(len(drawn) > 0 and drawn[-1] == n)  # batches are sorted
            without.step(drawn[: np.searchsorted(drawn, n)], noise)
            joined.step(drawn, noise)
            gaps[t + 1] = np.linalg.norm(without.parameters - joined.parameters)
            if mechanism.keep_trajectory:
                kept.append(without.current())
    models = [setup.build_model(descent.released()) for descent in (without, joined)]
    return CoupledRun(
        gaps=gaps,
        released_gap=float(np.linalg.norm(models[0].parameters.astype(float) - models[1].parameters)),
        without=models[0],
        joined=models[1],
        draws=draws,
        iterates=np.stack(kept) if mechanism.keep_trajectory else None,
    )
