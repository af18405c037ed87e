"""Time `predict_set` and `predict_interval` on a million rows against raw NumPy, MAPIE and crepes, on one thread.

Run with `python benchmarks/prediction.py`. Raw NumPy is what a careful user would write by hand for the same model: the
outputs by one matrix product in the model's own precision, softmax and one comparison for the sets; the outputs and
their two ends for the intervals. No check of the input, and no care for the last bit of an interval's end. MAPIE and
crepes wrap a model that does just this, so the difference is their own work; a peer that is not installed is named and
left out. `crepes` computes p-values, far slower: it gets a part of the rows, and its time is scaled up.

Contenders take turns; times are CPU times of the thread, so that a busy machine says little about the ratios. The table
prints medians over the rounds in milliseconds, and ratios against raw NumPy.
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


class RawClassifier(ClassifierMixin, BaseEstimator):
    """The released linear head by hand: outputs and softmax."""

    def __init__(self, weights: NDArray[Any] | None = None) -> None:
        self.weights = weights

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> "RawClassifier":  # noqa: ARG002
        self.classes_ = np.arange(N_CLASSES)
        self.n_features_in_ = X.shape[1]
        return self

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        assert self.weights is not None
        z = X.astype(self.weights.dtype) @ self.weights[:, :-1].T + self.weights[:, -1]
        z = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(z / z.sum(axis=1, keepdims=True))

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.predict_proba(X).argmax(axis=1))


class RawRegressor(RegressorMixin, BaseEstimator):
    """The released linear model by hand."""

    def __init__(self, weights: NDArray[Any] | None = None) -> None:
        self.weights = weights

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> "RawRegressor":  # noqa: ARG002
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        assert self.weights is not None
        z = X.astype(self.weights.dtype) @ self.weights[0, :-1] + self.weights[0, -1]
        return np.clip(z.astype(np.float64), *BOUNDS)


def classification(n: int) -> Contenders:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(N_CLASSES, N_FEATURES))
    y = rng.integers(0, N_CLASSES, n)
    X = centres[y] + rng.normal(size=(n, N_FEATURES))
    model = PrivateConformalClassifier(
        DPSGD(steps=30, learning_rate=0.5), epsilon=8.0, guarantee="split", classes=list(range(N_CLASSES))
    ).fit(X[:20_000], y[:20_000])
    raw, threshold = RawClassifier(model.model_.layers[0]), model.threshold_
    calibration, labels = X[:2000], y[:2000]

    def by_hand() -> tuple[NDArray[Any], NDArray[Any]]:
        p = raw.predict_proba(X)
        return p.argmax(axis=1), (1 - p)[:, :, None] <= threshold

    def ours() -> Any:
        return model.predict_set(X)

    expected, found = by_hand(), ours()
    agree = np.mean(expected[1] == found[1])
    assert agree > 1 - 1e-6, f"the sets agree in {agree:.6%} only"
    contenders: Contenders = {"raw NumPy": Contender(by_hand), "dpscp": Contender(ours)}
    if importlib.util.find_spec("mapie"):
        from mapie.classification import SplitConformalClassifier

        peer = SplitConformalClassifier(raw.fit(calibration, labels), confidence_level=0.9, prefit=True)
        peer.conformalize(calibration, labels)
        contenders["MAPIE"] = Contender(lambda: peer.predict_set(X))
    if importlib.util.find_spec("crepes"):
        from crepes import WrapClassifier

        wrapped = WrapClassifier(raw.fit(calibration, labels))
        wrapped.calibrate(calibration, labels)
        part = X[: max(1, n // CREPES_SHARE)]
        contenders["crepes"] = Contender(lambda: wrapped.predict_set(part, confidence=0.9), CREPES_SHARE)
    return contenders


def regression(n: int) -> Contenders:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(n, N_FEATURES))
    y = X.sum(axis=1) + rng.normal(size=n)
    model = PrivateConformalRegressor(
        DPSGD(loss="huber", steps=30, learning_rate=0.5), epsilon=8.0, guarantee="split", y_bounds=BOUNDS
    ).fit(X[:20_000], y[:20_000])
    raw, threshold = RawRegressor(model.model_.layers[0]), model.threshold_
    calibration, targets = X[:2000], y[:2000]

    def by_hand() -> tuple[NDArray[Any], NDArray[Any]]:
        p = raw.predict(X)
        return p, np.stack([p[:, None] - threshold, p[:, None] + threshold], axis=1)

    def ours() -> Any:
        return model.predict_interval(X)

    np.testing.assert_allclose(by_hand()[1], ours()[1], atol=1e-4)
    contenders: Contenders = {"raw NumPy": Contender(by_hand), "dpscp": Contender(ours)}
    if importlib.util.find_spec("mapie"):
        from mapie.regression import SplitConformalRegressor

        peer = SplitConformalRegressor(raw.fit(calibration, targets), confidence_level=0.9, prefit=True)
        peer.conformalize(calibration, targets)
        contenders["MAPIE"] = Contender(lambda: peer.predict_interval(X))
    if importlib.util.find_spec("crepes"):
        from crepes import WrapRegressor

        wrapped = WrapRegressor(raw.fit(calibration, targets))
        wrapped.calibrate(calibration, targets)
        contenders["crepes"] = Contender(lambda: wrapped.predict_int(X, confidence=0.9))
    return contenders


def medians(contenders: Contenders, rounds: int) -> dict[str, float]:
    """Milliseconds of each contender, taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            start = time.thread_time()
            contender.call()
            taken[name].append(1000 * contender.scale * (time.thread_time() - start))
    return {name: statistics.median(times[min(1, len(times) - 1) :]) for name, times in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=6, help="the first one warms up")
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
