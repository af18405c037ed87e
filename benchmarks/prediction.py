"""Time `predict_set` and `predict_interval` on a million rows against raw NumPy, MAPIE and crepes, on one thread.

Run with `python benchmarks/prediction.py`. Raw NumPy is what a careful user would write by hand for the same model: the
outputs by one matrix product in the model's own precision, softmax and one comparison for the sets; the outputs and
their two ends for the intervals. No check of the input, and no care for the last bit of an interval's end. MAPIE and
crepes wrap the same model as a scikit-learn estimator, which like all of them (and like dpscp) checks its input; a peer
that is not installed is named and left out. The sets of `crepes` come from p-values and take far longer: it gets a part
of the rows, and its time is scaled up.

Contenders take turns, and times are CPU times of the thread: other work on the machine changes the ratios little. The
table prints medians of the rounds in milliseconds, and ratios against raw NumPy.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import importlib.util
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import validate_data

from dpscp import PrivateConformalClassifier, PrivateConformalRegressor
from dpscp.training import DPSGD

TARGET = 1.3
N_CLASSES, N_FEATURES, BOUNDS = 10, 20, (-10.0, 10.0)
# crepes' sets cost about 0.4 ms a row
CREPES_SHARE = 100


@dataclass(frozen=True)
class Contender:
    call: Callable[[], Any]
    scale: int = 1


Contenders = dict[str, Contender]


def probabilities(X: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """The released linear head by hand: outputs and softmax."""
    z = X.astype(weights.dtype) @ weights[:, :-1].T + weights[:, -1]
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(z / z.sum(axis=1, keepdims=True))


def predictions(X: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """The released linear model by hand."""
    z = X.astype(weights.dtype) @ weights[0, :-1] + weights[0, -1]
    return np.clip(z.astype(np.float64), *BOUNDS)


class WrappedClassifier(ClassifierMixin, BaseEstimator):
    """The same head as a scikit-learn estimator, which checks its input like every one of them."""

    def __init__(self, weights: NDArray[Any] | None = None) -> None:
        self.weights = weights

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> "WrappedClassifier":  # noqa: ARG002
        self.classes_ = np.arange(N_CLASSES)
        validate_data(self, X)
        return self

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        assert self.weights is not None
        return probabilities(validate_data(self, X, reset=False), self.weights)

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.predict_proba(X).argmax(axis=1))


class WrappedRegressor(RegressorMixin, BaseEstimator):
    """The same linear model as a scikit-learn estimator."""

    def __init__(self, weights: NDArray[Any] | None = None) -> None:
        self.weights = weights

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> "WrappedRegressor":  # noqa: ARG002
        validate_data(self, X)
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        assert self.weights is not None
        return predictions(validate_data(self, X, reset=False), self.weights)


def classification(n: int) -> Contenders:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(N_CLASSES, N_FEATURES))
    y = rng.integers(0, N_CLASSES, n)
    X = centres[y] + rng.normal(size=(n, N_FEATURES))
    model = PrivateConformalClassifier(
        DPSGD(steps=30, learning_rate=0.5), epsilon=8.0, guarantee="split", classes=list(range(N_CLASSES))
    ).fit(X[:20_000], y[:20_000])
    weights, threshold = model.model_.layers[0], model.threshold_
    wrapped = WrappedClassifier(weights)
    calibration, labels = X[:2000], y[:2000]

    def by_hand() -> tuple[NDArray[Any], NDArray[Any]]:
        p = probabilities(X, weights)
        return p.argmax(axis=1), (1 - p)[:, :, None] <= threshold

    def ours() -> Any:
        return model.predict_set(X)

    expected, found = by_hand(), ours()
    agree = np.mean(expected[1] == found[1])
    assert agree > 1 - 1e-6, f"the sets agree in {agree:.6%} only"
    contenders: Contenders = {"raw NumPy": Contender(by_hand), "dpscp": Contender(ours)}
    if importlib.util.find_spec("mapie"):
        from mapie.classification import SplitConformalClassifier

        peer = SplitConformalClassifier(wrapped.fit(calibration, labels), confidence_level=0.9, prefit=True)
        peer.conformalize(calibration, labels)
        contenders["MAPIE"] = Contender(lambda: peer.predict_set(X))
    if importlib.util.find_spec("crepes"):
        from crepes import WrapClassifier

        other = WrapClassifier(wrapped.fit(calibration, labels))
        other.calibrate(calibration, labels)
        part = X[: max(1, n // CREPES_SHARE)]
        contenders["crepes"] = Contender(lambda: other.predict_set(part, confidence=0.9), CREPES_SHARE)
    return contenders


def regression(n: int) -> Contenders:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(n, N_FEATURES))
    y = X.sum(axis=1) + rng.normal(size=n)
    model = PrivateConformalRegressor(
        DPSGD(loss="huber", steps=30, learning_rate=0.5), epsilon=8.0, guarantee="split", y_bounds=BOUNDS
    ).fit(X[:20_000], y[:20_000])
    weights, threshold = model.model_.layers[0], model.threshold_
    wrapped = WrappedRegressor(weights)
    calibration, targets = X[:2000], y[:2000]

    def by_hand() -> tuple[NDArray[Any], NDArray[Any]]:
        p = predictions(X, weights)
        return p, np.stack([p[:, None] - threshold, p[:, None] + threshold], axis=1)

    def ours() -> Any:
        return model.predict_interval(X)

    np.testing.assert_allclose(by_hand()[1], ours()[1], atol=1e-4)
    contenders: Contenders = {"raw NumPy": Contender(by_hand), "dpscp": Contender(ours)}
    if importlib.util.find_spec("mapie"):
        from mapie.regression import SplitConformalRegressor

        peer = SplitConformalRegressor(wrapped.fit(calibration, targets), confidence_level=0.9, prefit=True)
        peer.conformalize(calibration, targets)
        contenders["MAPIE"] = Contender(lambda: peer.predict_interval(X))
    if importlib.util.find_spec("crepes"):
        from crepes import WrapRegressor

        other = WrapRegressor(wrapped.fit(calibration, targets))
        other.calibrate(calibration, targets)
        contenders["crepes"] = Contender(lambda: other.predict_int(X, confidence=0.9))
    return contenders


def medians(contenders: Contenders, rounds: int) -> dict[str, float]:
    """Milliseconds of each contender, taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            start = time.thread_time()
            contender.call()
            taken[name].append(1000 * contender.scale * (time.thread_time() - start))
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("mapie", "crepes"):
        if not importlib.util.find_spec(name):
            print(f"{name} is not installed: left out")
    missed = False
    cases = {"predict_set": classification, "predict_interval": regression}
    for title, case in cases.items():
        found = medians(case(options.rows), options.rounds)
        shape = f"{options.rows:,} rows x {N_FEATURES} features" + (
            f" x {N_CLASSES} classes" if title == "predict_set" else ""
        )
        print(f"\n{title}, {shape}")
        for name, milliseconds in found.items():
            print(f"  {name:10s} {milliseconds:9.1f} ms   {milliseconds / found['raw NumPy']:6.2f} x raw NumPy")
        missed |= found["dpscp"] > TARGET * found["raw NumPy"]
        missed |= any(found["dpscp"] > found[peer] for peer in ("MAPIE", "crepes") if peer in found)
    print(f"\ntarget: at most {TARGET} x raw NumPy and ahead of the peers: {'MISSED' if missed else 'met'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
