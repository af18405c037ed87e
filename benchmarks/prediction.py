"""Time `predict_set` and `predict_interval` on a million rows against raw NumPy and the peers, on one thread.

Run with `python benchmarks/prediction.py`, or as a part of `peers.py`, which installs the peers. Raw NumPy is what a
careful user would write by hand for the same model: the outputs by one matrix product in the model's own precision,
softmax and one comparison for the sets; the outputs and their two ends for the intervals. No check of the input, and no
care for the last bit of an interval's end. MAPIE and crepes wrap the same model as a scikit-learn estimator, which like
all of them (and like dpscp) checks its input; puncc wraps it as it is, and TorchCP gets it as a module and the rows as
a float32 tensor that is there before the clock starts. A peer that is not installed is named and left out. The sets of
crepes come from p-values and take far longer: it gets a part of the rows, and its time is scaled up.

Contenders take turns, and times are CPU times: other work on the machine changes the ratios little. The table prints
medians of the rounds in milliseconds, and ratios against raw NumPy.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TARGET = 1.3
N_CLASSES, N_FEATURES, BOUNDS = 10, 20, (-10.0, 10.0)
N_TRAINING, N_CALIBRATION, ALPHA = 20_000, 2000, 0.1
# crepes' sets cost about 0.4 ms a row
CREPES_SHARE = 100
Array = NDArray[Any]
Turn = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """Rows to predict, their targets, and the released linear model with its threshold: the same for all."""

    X: Array
    y: Array
    weights: Array
    threshold: float

    @property
    def calibration(self) -> tuple[Array, Array]:
        return self.X[:N_CALIBRATION], self.y[:N_CALIBRATION]


def made(name: str, n: int) -> tuple[Array, Array]:
    """Rows and targets."""
    rng = np.random.default_rng(0)
    if name == "sets":
        centers = rng.normal(size=(N_CLASSES, N_FEATURES))
        y = rng.integers(0, N_CLASSES, n)
        return centers[y] + rng.normal(size=(n, N_FEATURES)), y
    X = rng.uniform(-1, 1, size=(n, N_FEATURES))
    return X, X.sum(axis=1) + rng.normal(size=n)


def fitted(name: str, X: Array, y: Array) -> Any:
    """The private model, the same in every process: seeded."""
    from dpscp import PrivateConformalClassifier, PrivateConformalRegressor
    from dpscp.training import DPSGD

    public = {"epsilon": 8.0, "guarantee": "split", "random_state": 0}
    if name == "sets":
        training = DPSGD(steps=30, learning_rate=0.5)
        model: Any = PrivateConformalClassifier(training, classes=list(range(N_CLASSES)), **public)
    else:
        training = DPSGD(loss="huber", steps=30, learning_rate=0.5)
        model = PrivateConformalRegressor(training, y_bounds=BOUNDS, **public)
    return model.fit(X[:N_TRAINING], y[:N_TRAINING])


# ---- the model by hand


def probabilities(X: Array, weights: Array) -> Array:
    """The released linear head by hand: outputs and softmax."""
    z = X.astype(weights.dtype) @ weights[:, :-1].T + weights[:, -1]
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(z / z.sum(axis=1, keepdims=True))


def predictions(X: Array, weights: Array) -> Array:
    """The released linear model by hand."""
    z = X.astype(weights.dtype) @ weights[0, :-1] + weights[0, -1]
    return np.clip(z.astype(np.float64), *BOUNDS)


def sets_numpy(case: Case) -> Turn:
    def turn() -> tuple[Array, Array]:
        p = probabilities(case.X, case.weights)
        return p.argmax(axis=1), (1 - p)[:, :, None] <= case.threshold

    return turn


def intervals_numpy(case: Case) -> Turn:
    def turn() -> tuple[Array, Array]:
        p = predictions(case.X, case.weights)
        return p, np.stack([p[:, None] - case.threshold, p[:, None] + case.threshold], axis=1)

    return turn


# ---- dpscp


def sets_dpscp(case: Case) -> Turn:
    model = fitted("sets", case.X, case.y)
    assert np.array_equal(model.model_.layers[0], case.weights), "another model"
    agree = np.mean(sets_numpy(case)()[1] == model.predict_set(case.X)[1])
    assert agree > 1 - 1e-6, f"the sets agree in {agree:.6%} only"
    return lambda: model.predict_set(case.X)


def intervals_dpscp(case: Case) -> Turn:
    model = fitted("intervals", case.X, case.y)
    assert np.array_equal(model.model_.layers[0], case.weights), "another model"
    np.testing.assert_allclose(intervals_numpy(case)()[1], model.predict_interval(case.X)[1], atol=1e-4)
    return lambda: model.predict_interval(case.X)


# ---- peers that want a scikit-learn estimator


def wrapped(name: str, case: Case) -> Any:
    """The same model as a scikit-learn estimator, which checks its input like every one of them."""
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.validation import validate_data

    class Wrapped(BaseEstimator):
        def fit(self, X: Array, y: Array) -> Any:  # noqa: ARG002
            self.classes_ = np.arange(N_CLASSES)
            validate_data(self, X)
            return self

        def predict_proba(self, X: Array) -> Array:
            return probabilities(validate_data(self, X, reset=False), case.weights)

        def predict(self, X: Array) -> Array:
            if name == "sets":
                return np.asarray(self.predict_proba(X).argmax(axis=1))
            return predictions(validate_data(self, X, reset=False), case.weights)

    mixin = ClassifierMixin if name == "sets" else RegressorMixin
    return type("WrappedModel", (mixin, Wrapped), {})().fit(*case.calibration)


def sets_mapie(case: Case) -> Turn:
    from mapie.classification import SplitConformalClassifier

    peer = SplitConformalClassifier(wrapped("sets", case), confidence_level=1 - ALPHA, prefit=True)
    peer.conformalize(*case.calibration)
    return lambda: peer.predict_set(case.X)


def intervals_mapie(case: Case) -> Turn:
    from mapie.regression import SplitConformalRegressor

    peer = SplitConformalRegressor(wrapped("intervals", case), confidence_level=1 - ALPHA, prefit=True)
    peer.conformalize(*case.calibration)
    return lambda: peer.predict_interval(case.X)


def sets_crepes(case: Case) -> Turn:
    from crepes import WrapClassifier

    peer = WrapClassifier(wrapped("sets", case))
    peer.calibrate(*case.calibration)
    part = case.X[: max(1, len(case.X) // CREPES_SHARE)]
    return lambda: peer.predict_set(part, confidence=1 - ALPHA)


def intervals_crepes(case: Case) -> Turn:
    from crepes import WrapRegressor

    peer = WrapRegressor(wrapped("intervals", case))
    peer.calibrate(*case.calibration)
    return lambda: peer.predict_int(case.X, confidence=1 - ALPHA)


# ---- peers that take a model of any kind


@dataclass(frozen=True)
class Plain:
    """The model as puncc takes it."""

    predict: Callable[[Array], Array]

    def fit(self, X: Array, y: Array) -> "Plain":  # noqa: ARG002
        return self


def puncc_turn(kind: Any, model: Plain, case: Case) -> Turn:
    from deel.puncc.api.prediction import BasePredictor

    peer = kind(BasePredictor(model, is_trained=True), train=False)
    X, y = case.calibration
    peer.fit(X_calib=X, y_calib=y)
    return lambda: peer.predict(case.X, alpha=ALPHA)


def sets_puncc(case: Case) -> Turn:
    from deel.puncc.classification import LAC

    return puncc_turn(LAC, Plain(lambda X: probabilities(X, case.weights)), case)


def intervals_puncc(case: Case) -> Turn:
    from deel.puncc.regression import SplitCP

    return puncc_turn(SplitCP, Plain(lambda X: predictions(X, case.weights)), case)


def torchcp_turn(predictor: Any, case: Case, kind: Any) -> Turn:
    import torch

    torch.set_num_threads(1)
    module = torch.nn.Linear(N_FEATURES, len(case.weights))
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(case.weights[:, :-1]))
        module.bias.copy_(torch.from_numpy(case.weights[:, -1]))
    peer = predictor(module)
    rows = torch.from_numpy(case.X).float()
    peer.calibrate([(rows[:N_CALIBRATION], torch.from_numpy(case.y[:N_CALIBRATION]).to(kind))], ALPHA)

    def turn() -> Any:
        with torch.no_grad():
            return peer.predict(rows)

    return turn


def sets_torchcp(case: Case) -> Turn:
    import torch
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import LAC

    return torchcp_turn(lambda module: SplitPredictor(LAC(), module), case, torch.int64)


def intervals_torchcp(case: Case) -> Turn:
    import torch
    from torchcp.regression.predictor import SplitPredictor
    from torchcp.regression.score import ABS

    return torchcp_turn(lambda module: SplitPredictor(ABS(), module), case, torch.float32)


Makers = dict[str, Callable[[Case], Turn]]
CONTENDERS: dict[str, Makers] = {
    "sets": {
        "raw NumPy": sets_numpy,
        "dpscp": sets_dpscp,
        "MAPIE": sets_mapie,
        "crepes": sets_crepes,
        "puncc": sets_puncc,
        "TorchCP": sets_torchcp,
    },
    "intervals": {
        "raw NumPy": intervals_numpy,
        "dpscp": intervals_dpscp,
        "MAPIE": intervals_mapie,
        "crepes": intervals_crepes,
        "puncc": intervals_puncc,
        "TorchCP": intervals_torchcp,
    },
}
# who gets one in so many rows, its times multiplied by that
SHARES = {("sets", "crepes"): CREPES_SHARE}


def medians(name: str, case: Case, rounds: int) -> dict[str, float]:
    """Milliseconds of every contender that is installed, taking turns."""
    turns: dict[str, Turn] = {}
    for peer, make in CONTENDERS[name].items():
        try:
            turns[peer] = make(case)
        except ImportError:
            print(f"{peer} is not installed: left out")
    taken: dict[str, list[float]] = {peer: [] for peer in turns}
    for _ in range(rounds):
        for peer, turn in turns.items():
            start = time.thread_time()
            turn()
            taken[peer].append(1000 * SHARES.get((name, peer), 1) * (time.thread_time() - start))
    return {peer: statistics.median(times) for peer, times in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    missed = False
    for name, title in (("sets", "predict_set"), ("intervals", "predict_interval")):
        X, y = made(name, options.rows)
        model = fitted(name, X, y)
        found = medians(name, Case(X, y, model.model_.layers[0], float(model.threshold_[0])), options.rounds)
        shape = f"{options.rows:,} rows x {N_FEATURES} features" + (f" x {N_CLASSES} classes" if name == "sets" else "")
        print(f"\n{title}, {shape}")
        for peer, milliseconds in found.items():
            print(f"  {peer:10s} {milliseconds:9.1f} ms   {milliseconds / found['raw NumPy']:6.2f} x raw NumPy")
        missed |= found["dpscp"] > TARGET * found["raw NumPy"]
        missed |= any(found["dpscp"] > used for peer, used in found.items() if peer not in ("dpscp", "raw NumPy"))
    print(f"\ntarget: at most {TARGET} x raw NumPy and ahead of the peers: {'MISSED' if missed else 'met'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
