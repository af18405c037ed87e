"""Train linear heads and dense networks by private SGD, in plain NumPy.

Two differences from the paper's Algorithm 3 are needed for privacy and for the proofs. The sum of clipped gradients is
divided by the public constant sampling_rate * n_records and never by the size of the batch. An empty batch also leads
to a noisy step. Every field of `DPSGD` is a public constant; the starting point is a fixed public function of
`init_seed`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import Array
from dpscp._base.assumptions import ENFORCED_NORM
from dpscp._base.checks import (
    check_choice,
    check_count,
    check_fraction,
    check_nonnegative,
    check_positive,
    check_probability,
    real_number,
)
from dpscp._base.progress import announce, progress
from dpscp.data.persons import Persons
from dpscp.data.sources import RecordSource
from dpscp.data.sources.places import nominal_count, unit_of_blocks
from dpscp.guarantees.stability import (
    LINEAR_LOSSES,
    LinearHead,
    Stability,
    batch_limits,
    stability_dpsgd_fixed_normalizer,
)
from dpscp.training.base import GaussianSums, Needs, Trained, TrainingRun, array_source, require_noise
from dpscp.training.engine.gradients import CLIP_SLACK, MOST_RECORDS, SMALLEST_CLIP_NORM
from dpscp.training.engine.loop import Descent, Setup, Step
from dpscp.training.engine.networks import Network
from dpscp.training.engine.noise import GRID
from dpscp.training.engine.rows import build_engine_block, check_classes, is_large_table, observed_source_labels
from dpscp.training.engine.threads import one_blas_thread, second_thread
from dpscp.training.model import Trajectory

__all__ = ["DPSGD"]


_CHOICES = {
    "activation": ("relu", "tanh"),
    "loss": ("cross_entropy", "logistic", "squared", "huber", "pinball"),
    "optimizer": ("sgd", "adam"),
    "schedule": ("constant", "linear"),
    "dtype": ("float32", "float64"),
}
_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "sampling_rate": check_fraction,
    "steps": check_count,
    "learning_rate": check_positive,
    "clip_norm": check_positive,
    "delta_n": check_probability,
}
_OPTIONAL: dict[str, Callable[[str, Any], object]] = {
    "noise_multiplier": check_nonnegative,
    "averaging": check_fraction,
    "init_scale": check_nonnegative,
    "radius": check_positive,
    "feature_bound": check_positive,
}


@dataclass(frozen=True)
class DPSGD(GaussianSums):
    """Train a linear head or dense network by differentially private SGD.

    Gradients are clipped per record. ``sampling_rate=1`` is full-batch private gradient descent. With persons the sums
    are weighted and batches draw persons (Result H).

    Privacy: one run releases ``steps`` noisy sums of clipped gradients over Poisson batches of rate ``sampling_rate``.
    ``event`` is these Gaussian releases. The unit is one record, or one person; a sum has sensitivity ``clip_norm``,
    and its noise scale is ``noise_multiplier * clip_norm``. Everything else is post-processing.

    Assumes: a record's gradient has the same bits in every place of a batch, as checked on synthetic records.

    Parameters
    ----------
    hidden : tuple of int
        Widths of the hidden layers; empty: a linear head.
    activation : "relu" or "tanh"
    classes : tuple or None
        The public labels in order; None declares the labels in y public.
    loss : "cross_entropy", "logistic", "squared", "huber" or "pinball"
        "logistic" is for two classes; "squared" is (z - y)^2.
    sampling_rate : float in (0, 1]
        The probability with which one record enters a batch.
    steps : int
    learning_rate : float
    clip_norm : float
        The largest norm of one record's gradient.
    noise_multiplier : float or None
        Noise scale over ``clip_norm``. None: call ``calibrated`` first. 0: no noise and no privacy, and the event
        states that.
    momentum : float in [0, 1)
        Heavy-ball momentum of "sgd".
    optimizer : "sgd" or "adam"
    averaging : float in (0, 1] or None
        None releases the last iterate; a fraction f the average of the last ceil(f * steps) iterates.
    radius : float or None
        Project every iterate on the ball of this radius around zero; None: no projection.
    schedule : "constant" or "linear"
        A linear learning rate falls to 0 after the last step.
    feature_bound : float or None
        A public bound on the norm of a row without its bias coordinate. Longer rows are scaled onto it, in training and
        in prediction. A stability bound needs it; privacy does not.
    fit_intercept : bool
    quantiles : tuple of float
        The levels of the pinball loss.
    init_seed : int
        The public starting point is a fixed function of it, see `Network.initial`.
    init_scale : float or None
        The scale of the starting point.
    dtype : "float32" or "float64"
    delta_n : float
        The failure probability of the stability bound under Poisson sampling; a full batch needs none.
    keep_trajectory : bool
        Keep the iterates for the self-influence correction.

    >>> mechanism = DPSGD(classes=(0, 1), steps=50, learning_rate=1.0).calibrated(1.0, 1e-5)
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 3)); y = (X[:, 0] > 0).astype(int)
    >>> trained = mechanism.train(X, y, n_records=400)
    >>> trained.model.predict_proba(X[:2]).shape
    (2, 2)

    Paper: Algorithm 3 [alg:dp-sgd], with the fixed normalizer of Theory: Fact 6
    """

    hidden: tuple[int, ...] = ()
    activation: str = "relu"
    classes: tuple[Any, ...] | None = None
    loss: str = "cross_entropy"
    sampling_rate: float = 1.0
    steps: int = 300
    learning_rate: float = 0.1
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    momentum: float = 0.0
    optimizer: str = "sgd"
    averaging: float | None = None
    radius: float | None = None
    schedule: str = "constant"
    feature_bound: float | None = None
    fit_intercept: bool = True
    quantiles: tuple[float, ...] = (0.05, 0.95)
    init_seed: int = 0
    init_scale: float | None = None
    dtype: str = "float32"
    delta_n: float = 1e-3
    keep_trajectory: bool = False

    trains_persons: ClassVar[bool] = True
    takes_observer: ClassVar[bool] = True
    trains_sources: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.hidden, str) or not np.iterable(self.hidden):
            raise TypeError(f"hidden must be a tuple of layer widths, got {type(self.hidden).__name__}")
        object.__setattr__(self, "hidden", tuple(check_count("hidden[i]", width) for width in self.hidden))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name, check in (_CHECKS | _OPTIONAL).items():
            if name in _CHECKS or getattr(self, name) is not None:
                check(name, getattr(self, name))
        check_count("init_seed", self.init_seed, minimum=0)
        if self.clip_norm < SMALLEST_CLIP_NORM:
            raise ValueError(
                f"clip_norm must be at least {SMALLEST_CLIP_NORM:g}, got {self.clip_norm:g}, because rounding loses "
                "smaller gradients; rescale the features by public constants"
            )
        if not 0 <= real_number("momentum", self.momentum) < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum:g}")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum needs optimizer='sgd'; remove it for 'adam', which has its own")
        object.__setattr__(self, "quantiles", tuple(check_probability("quantiles[i]", q) for q in self.quantiles))
        if self.loss == "pinball" and not self.quantiles:
            raise ValueError("quantiles must contain at least one level for the pinball loss")
        if self.classes is not None:
            if self.task == "regression":
                raise ValueError(f"loss={self.loss!r} is for regression; remove classes, or use loss='cross_entropy'")
            object.__setattr__(self, "classes", check_classes(self.classes, self.loss))

    @property
    def task(self) -> str:
        """Return "classification" or "regression", from the loss."""
        return "classification" if self.loss in ("cross_entropy", "logistic") else "regression"

    @property
    def releases(self) -> tuple[float, int]:
        """Return the sampling rate and the number of steps."""
        return self.sampling_rate, self.steps

    def configured(self, needs: Needs) -> Self:
        """Return a copy for these classes that keeps its iterates if needed."""
        return replace(self, classes=needs.classes, keep_trajectory=needs.trajectory)

    @cached_property
    def learning_rates(self) -> Array:
        """Return the public learning rate of each step."""
        done = np.arange(self.steps) / self.steps
        return np.asarray(self.learning_rate * (1 - done * (self.schedule == "linear")))

    @property
    def averaged_steps(self) -> int:
        """Return how many last iterates are averaged; 1 releases the last one."""
        return 1 if self.averaging is None else max(1, math.ceil(self.averaging * self.steps - 1e-9))

    def influence_weights(self, curvature: Array) -> Array:
        """Return minus the derivative of the result in each step's gradient.

        The result is the released parameters, for the optimizer "sgd". Along a direction in which the mean loss has
        second derivative ``curvature[t]`` at step t, a gradient's push changes each later gradient by the curvature
        times what is left of the push. For plain SGD that is learning_rates[t] * prod_{s > t} (1 - learning_rates[s] *
        curvature[s]).

        Theory: Result D
        """
        weights = np.empty(self.steps)
        kept = carried = 0.0  # the share of the iterate after step t in the release, and the weight of the next step
        for t in range(self.steps - 1, -1, -1):
            if t >= self.steps - self.averaged_steps:
                kept += 1 / self.averaged_steps
            weights[t] = carried = self.learning_rates[t] * kept + self.momentum * carried
            kept -= curvature[t] * carried
        return weights

    def network(self, n_features: int, n_classes: int | None = None) -> Network:
        """Return the network trained on rows of this width."""
        outputs = {"cross_entropy": n_classes or 0, "pinball": len(self.quantiles)}.get(self.loss, 1)
        return Network((n_features, *self.hidden, outputs), self.activation, self.fit_intercept)

    def train_on(self, run: TrainingRun) -> Trained:
        setup, facts = self.prepare_source(run.source, run.n_records), self._public_facts(run.n_records)
        if setup.classes is not None:
            facts["classes"] = setup.classes
        kept = np.empty((self.steps, setup.network.n_parameters), dtype=self.dtype) if self.keep_trajectory else None
        with second_thread(setup.network.n_parameters) as second, one_blas_thread(), np.errstate(all="ignore"):
            descent = Descent(setup, run.observer, second)
            drawn: Iterator[Step] = islice(setup.draw_steps(run.generator()), self.steps)
            drawn = drawn if second is None else second.ahead(drawn)
            for t, (noise, batch) in progress(enumerate(drawn), self.steps, "private training"):
                if kept is not None:
                    kept[t] = descent.current()
                descent.step(batch, noise)
        return run.result(
            setup.build_model(descent.released()),
            facts,
            stability=self.stability(setup.network.widths[0], run.n_records, setup.classes),
            trajectory=None if kept is None else Trajectory(kept, self, run.n_records),
            taken_from_data=() if setup.classes == self.classes else ("classes",),
        )

    def prepare(
        self, X: ArrayLike, y: ArrayLike, *, n_records: int | None = None, persons: Persons | None = None
    ) -> Setup:
        """Check the records and fix everything of a run except its randomness."""
        source = array_source(X, y, persons)
        return self.prepare_source(source, nominal_count(source, n_records))

    def prepare_source(self, source: RecordSource, n_records: int) -> Setup:
        """Return a run on a source.

        Each block is converted for the engine in the process that has it.
        """
        unit = unit_of_blocks(source)
        expected = self.sampling_rate * n_records * unit.cap
        if expected > MOST_RECORDS / 2:
            raise ValueError(
                f"sampling_rate * {unit.count_name} (times rows_per_person) must be at most {MOST_RECORDS // 2}, "
                f"got {expected:g}, because the rounding of larger sums is not bounded; lower sampling_rate"
            )
        classes = self.classes
        if self.task == "classification" and classes is None:
            classes = check_classes(observed_source_labels(source), self.loss)
        # Rows of a large table are kept in 16 bits a number. A full batch would be read more slowly, and without a
        # feature bound the features of a row may differ by any factor.
        may_shorten = self.feature_bound is not None and self.dtype == "float32" and self.sampling_rate < 1
        convert = partial(
            build_engine_block,
            loss=self.loss,
            classes=classes,
            feature_bound=self.feature_bound,
            intercept=self.fit_intercept,
            dtype=self.dtype,
            short=may_shorten and is_large_table(n_records * unit.cap, source.width),
        )
        network = self.network(source.width, None if classes is None else len(classes))
        announce("prepare the records for training")
        return Setup(self, network, source.map(convert, keep=True), n_records, classes)

    def _public_facts(self, n_records: int) -> dict[str, object]:
        facts = {name: getattr(self, name) for name in ("sampling_rate", "learning_rate", "clip_norm")}
        facts |= {"hidden": list(self.hidden), "training_steps": self.steps}
        facts |= {"noise_multiplier": self.noise_multiplier, "normalizer": self.sampling_rate * n_records}
        return facts if self.feature_bound is None else {**facts, "feature_bound": self.feature_bound}

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> Stability | None:
        """Return the proven bound on ||theta_{n+1} - theta_n||, or None.

        The two runs share masks and noise. Proven for linear heads with a feature bound, plain SGD (no momentum, no
        Adam), a smooth loss, and clipping that keeps the loss convex: never active for cross_entropy, any clip_norm for
        one-output losses. Averaging and projection keep the bound. Rounding to the grid moves the two runs apart by at
        most sqrt(parameters) * grid a step, the rounding of the two sums by `CLIP_SLACK` of a record's influence for
        each of MOST_RECORDS records: both are added. Poisson batches need a learning rate at which steps are
        nonexpansive except with probability delta_n / 2, else there is no bound.

        Theory: Result C
        """
        if self.hidden or self.feature_bound is None or self.optimizer != "sgd" or self.momentum:
            return None
        reach = math.hypot(self.feature_bound, 1.0) if self.fit_intercept else self.feature_bound
        if self.loss not in LINEAR_LOSSES:
            return None
        head = LinearHead(self.loss, reach)
        smoothness, steepest = head.smoothness, head.gradient_bound
        if self.loss == "cross_entropy" and self.clip_norm < steepest * (1 - 1e-12):
            return None
        influence = min(self.clip_norm, steepest) * (1 + CLIP_SLACK)
        size = self.network(n_features, None if classes is None else len(classes)).n_parameters
        rounding = math.sqrt(size) * GRID * require_noise(self.noise_multiplier) * self.clip_norm * (1 + CLIP_SLACK)
        rate, rates, drift = self.sampling_rate, self.learning_rates, 0.0
        normalizer = rate * n_records
        if rate == 1:
            influence += rounding
        else:
            # with two candidates nonexpansive steps are likely enough; only then do rounding errors just add up
            caps = batch_limits(rates, smoothness, n_records, rate, normalizer, self.delta_n, convex=True)
            if len(caps) < 2:
                return None
            rounding += influence * CLIP_SLACK * min(1.0, n_records / MOST_RECORDS)  # also in steps without the record
            drift = rounding * float(rates.sum()) / normalizer
        bound = stability_dpsgd_fixed_normalizer(
            clip_norm=influence,
            learning_rate=rates,
            steps=self.steps,
            sampling_rate=rate,
            n_records=n_records,
            smoothness=smoothness,
            convex=True,
            delta_n=self.delta_n,
            score_lipschitz=head.score_lipschitz,
        )
        enforced = ENFORCED_NORM(self.feature_bound)
        return replace(bound, shift_bound=bound.shift_bound + drift, assumptions=(*bound.assumptions, enforced))
