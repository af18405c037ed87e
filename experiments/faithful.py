"""The paper's five methods with the paper's settings: training as Opacus would do it, its searches, its accounting.

The standardisation with the pool's own mean and scale is not private; it is the paper's protocol and exists here only.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpscp as dp
from dpscp.paper import noisy_midpoint_quantile
from dpscp.training import DPSGD, Model
from experiments.accounting import Spending, paper_spending
from experiments.runner import ALPHA, EPSILONS, seed_of

__all__ = [
    "Fold",
    "PaperSettings",
    "evaluate",
    "full_data_threshold",
    "non_private_rows",
    "paper_rows",
    "scores_of",
    "spending_table",
    "spent_on",
    "standardized",
]

Array = NDArray[Any]
Row = dict[str, Any]

SHARES = (0.3, 0.5, 0.7, 0.9)
RANK_BUFFER = 10
# A clip this large never acts: the non-private baselines are plain SGD.
_NO_CLIP = 1e6


@dataclass(frozen=True)
class PaperSettings:
    """One experiment's settings; ``failure_probability=None`` is 1/n.

    ``learning_rate`` and ``momentum`` of BloodMNIST, momentum of all, and ``failure_probability`` are not printed:
    they were found by matching the tables, see unprinted_settings.py.
    """

    batch: int
    epochs: int
    hidden: tuple[int, ...]
    loss: str
    n_classes: int | None
    score_range: tuple[float, float]
    learning_rate: float = 1e-3
    momentum: float = 0.9
    optimizer: str = "sgd"
    search_steps: int = 20
    failure_probability: float | None = None

    def loader(self, n: int) -> tuple[float, int]:
        """Sampling rate and number of steps as Opacus' loader has them: 1 / ceil(n / batch), epochs times that."""
        batches = math.ceil(n / self.batch)
        return 1 / batches, int(self.epochs / (1 / batches))

    def mechanism(self, n: int, noise_multiplier: float, start: int) -> DPSGD:
        """Training on n records; noise 0 trains without clipping either. Starting point as torch's default layers."""
        rate, steps = self.loader(n)
        return DPSGD(
            hidden=self.hidden,
            loss=self.loss,
            classes=None if self.n_classes is None else tuple(range(self.n_classes)),
            sampling_rate=rate,
            steps=steps,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            optimizer=self.optimizer,
            clip_norm=1.0 if noise_multiplier else _NO_CLIP,
            noise_multiplier=noise_multiplier,
            init_seed=start,
            init_scale=1.0,
        )

    def train(self, X: Array, y: Array, noise_multiplier: float, seed: int, start: int) -> Model:
        """A trained model. Opacus divides by int(n / batches): a nominal n makes the engine do the same.

        ``start`` seeds the starting point. All runs of a trial share it, which the printed tables neither ask for nor
        forbid (unprinted_settings.py).
        """
        rate, _ = self.loader(len(X))
        nominal = int(len(X) * rate) * math.ceil(len(X) / self.batch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dp.GuaranteeWarning)
            mechanism = self.mechanism(len(X), noise_multiplier, start)
            return mechanism.train(X, y, random_state=seed, n_records=nominal).model


def spending_table(settings: PaperSettings, n: int, shares: tuple[float, ...], **other: int) -> dict[str, list[float]]:
    """Noise multiplier, train epsilon and count noise of every configuration, keyed for a task's configuration.

    Computed once by the parent process: Rényi accounting of thousands of steps takes a while.
    """
    table = {}
    for epsilon in EPSILONS:
        for share in (*shares, None):
            rate, steps = settings.loader(n if share is not None else n // 2)
            for search_steps in {settings.search_steps, *other.values()}:
                spent = paper_spending(epsilon, share, rate, steps, search_steps)
                table[_key(epsilon, share, search_steps)] = list(asdict(spent).values())
    return table


def _key(epsilon: float, share: float | None, search_steps: int) -> str:
    return f"{epsilon:g}/{'split' if share is None else format(share, 'g')}/{search_steps}"


def spent_on(spending: Mapping[str, list[float]], epsilon: float, share: float | None, search_steps: int) -> Spending:
    """One configuration of a spending table; ``share=None`` is DP-Split."""
    return Spending(*spending[_key(epsilon, share, search_steps)])


def standardized(train: Array, *others: Array) -> list[Array]:
    """All arrays with the mean and scale of the first one: the paper's protocol, NOT private."""
    mean, sd = train.mean(axis=0), train.std(axis=0)
    sd = np.where(sd > 0, sd, 1.0)
    return [(a - mean) / sd for a in (train, *others)]


@dataclass(frozen=True)
class Fold:
    """One trial: pool and test part, and whether rows and targets are standardised on what trains."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    standardize_rows: bool
    standardize_targets: bool

    def parts(self, training: Array, calibration: Array) -> tuple[tuple[Array, ...], float]:
        """(X, y) of training, calibration and test, transformed; and the scale that maps widths back."""
        rows = [self.X[training], self.X[calibration], self.X_test]
        targets = [self.y[training], self.y[calibration], self.y_test]
        scale = 1.0
        if self.standardize_rows:
            rows = standardized(*rows)
        if self.standardize_targets:
            scale = float(targets[0].std())
            targets = standardized(*targets)
        return (rows[0], targets[0], rows[1], targets[1], rows[2], targets[2]), scale


def scores_of(model: Model, X: Array, y: Array) -> Array:
    """1 - p_y, or the absolute residual."""
    if model.task == "regression":
        return dp.scores.absolute_residual(y, np.asarray(model.outputs(X), float)[:, 0])
    return dp.scores.lac(model.predict_proba(X), y)


def evaluate(model: Model, threshold: float, X: Array, y: Array, scale: float) -> dict[str, float | None]:
    """Coverage, size and informativeness of the sets {score <= threshold} on test records."""
    if model.task == "regression":
        covered = scores_of(model, X, y) <= threshold
        return {"coverage": float(covered.mean()), "size": 2 * threshold * scale, "informativeness": None}
    sets = dp.sets.label_set(dp.scores.lac_of_labels(model.predict_proba(X)), np.array([threshold]))[:, :, 0]
    return {
        "coverage": dp.metrics.coverage(y, sets),
        "size": dp.metrics.efficiency(sets),
        "informativeness": dp.metrics.informativeness(sets),
    }


def paper_rows(
    settings: PaperSettings,
    fold: Fold,
    spending: Mapping[str, list[float]],
    shares: tuple[float, ...],
    seed: int,
    variants: Mapping[str, PaperSettings] | None = None,
) -> Iterator[Row]:
    """DP-SCP-F and DP-SCP-A for every epsilon and share, DP-Split for every epsilon.

    ``variants`` are other settings of the search, run on the same trained models and marked with their name.
    """
    n = len(fold.X)
    everyone = np.arange(n)
    order = np.random.default_rng(seed).permutation(n)
    (X, y, _, _, X_test, y_test), scale = fold.parts(everyone, everyone)
    for epsilon in EPSILONS:
        for share in shares:
            spent = spent_on(spending, epsilon, share, settings.search_steps)
            own = seed_of(seed, epsilon, share)
            model = settings.train(X, y, spent.noise_multiplier, own, seed)
            scores = scores_of(model, X, y)
            base = {"epsilon": epsilon, "train_share": share, "n": n, "train_epsilon": spent.train_epsilon}
            for name, used in {"": settings, **(variants or {})}.items():
                count_noise = spent_on(spending, epsilon, share, used.search_steps).count_noise
                for method in ("dp-scp-f", "dp-scp-a"):
                    threshold = full_data_threshold(method, scores, used, count_noise, own)
                    found = evaluate(model, threshold, X_test, y_test, scale)
                    yield {**base, "method": method, "variant": name, "count_noise": count_noise, **found}
    training, calibration = order[: n // 2], order[n // 2 :]
    (X, y, X_cal, y_cal, X_test, y_test), scale = fold.parts(training, calibration)
    for epsilon in EPSILONS:
        spent = spent_on(spending, epsilon, None, settings.search_steps)
        own = seed_of(seed, epsilon, "split")
        model = settings.train(X, y, spent.noise_multiplier, own, seed)
        threshold = midpoint_threshold(scores_of(model, X_cal, y_cal), settings, spent.count_noise, own)
        found = evaluate(model, threshold, X_test, y_test, scale)
        base = {"epsilon": epsilon, "train_share": None, "n": n, "train_epsilon": spent.train_epsilon}
        yield {**base, "method": "dp-split", "variant": "", "count_noise": spent.count_noise, **found}


def non_private_rows(settings: PaperSettings, fold: Fold, seed: int) -> Iterator[Row]:
    """Naive Full and Split CP: the same network by plain SGD, the exact conformal quantile."""
    n = len(fold.X)
    everyone = np.arange(n)
    order = np.random.default_rng(seed).permutation(n)
    halves = order[: n // 2], order[n // 2 :]
    for method, (training, calibration) in {"naive-full": (everyone, everyone), "split-cp": halves}.items():
        (X, y, X_cal, y_cal, X_test, y_test), scale = fold.parts(training, calibration)
        model = settings.train(X, y, 0.0, seed_of(seed, method), seed)
        scores = np.sort(scores_of(model, X_cal, y_cal))
        rank = math.ceil((1 - ALPHA) * (len(scores) + 1))
        found = evaluate(model, float(scores[rank - 1]), X_test, y_test, scale)
        blank = {"epsilon": None, "train_share": None, "train_epsilon": None, "count_noise": None}
        yield {**blank, "n": n, "method": method, "variant": "", **found}


def full_data_threshold(method: str, scores: Array, settings: PaperSettings, count_noise: float, seed: int) -> float:
    """Algorithm 2: with both buffers for DP-SCP-F, with none for DP-SCP-A."""
    finite = method == "dp-scp-f"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        found = dp.private_quantile(
            scores,
            alpha=ALPHA,
            score_range=settings.score_range,
            count_noise=count_noise,
            steps=settings.search_steps,
            rank="ceil",
            correction="union" if finite else "none",
            rank_buffer=RANK_BUFFER if finite else 0,
            failure_probability=settings.failure_probability if finite else None,
            random_state=seed,
        )
    return found.threshold


def midpoint_threshold(scores: Array, settings: PaperSettings, count_noise: float, seed: int) -> float:
    """The noisy midpoint rule of DP-Split."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        found = noisy_midpoint_quantile(
            scores,
            alpha=ALPHA,
            score_range=settings.score_range,
            count_noise=count_noise,
            steps=settings.search_steps,
            random_state=seed,
        )
    return found.threshold
