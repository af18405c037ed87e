"""Results do not depend on threads, BLAS kernels or precision beyond stated tolerances; counts are exact.

Stated tolerance of training: noisy sums are rounded to a grid of 2^-20 noise standard deviations. A different order of
summation moves a sum by far less than a grid step, so a coordinate moves by at most one step where it lies next to a
rounding boundary: after T nonexpansive steps the parameters differ by at most T * rate * sqrt(d) * grid / normalizer,
plus what float32 gradients lose.
"""

import json
import math
import os
import subprocess
import sys

import numpy as np
from threadpoolctl import threadpool_limits

import dpscp as dp
from dpscp.training import DPSGD
from dpscp.training.engine.noise import GRID

STEPS, RATE, NOISE, CLIP, N = 40, 0.5, 2.0, 1.0, 3000


def mechanism(dtype):
    return DPSGD(
        classes=(0, 1, 2), steps=STEPS, learning_rate=RATE, noise_multiplier=NOISE, clip_norm=CLIP, dtype=dtype,
        feature_bound=1.0,
    )  # fmt: skip


def records():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 20))
    return X, rng.integers(0, 3, N)


def parameters(dtype):
    X, y = records()
    return np.asarray(mechanism(dtype).train(X, y, random_state=1, n_records=N).model.parameters, dtype=float)


def tolerance(dtype, size):
    """The grid's part, and the rounding of the mean of N clipped gradients, each good to some twenty roundings."""
    grid = GRID * NOISE * CLIP * math.sqrt(size) / N
    rounding = 20 * float(np.finfo(dtype).eps) * CLIP
    return STEPS * RATE * (grid + rounding)


def test_float32_and_float64_agree():
    single, double = parameters("float32"), parameters("float64")
    assert np.abs(single - double).max() <= tolerance("float32", single.size)


def release():
    """Parameters and the threshold of a seeded run."""
    X, y = records()
    model = mechanism("float64").train(X, y, random_state=3, n_records=N).model
    scores = dp.scores.lac(model.predict_proba(X), y)
    found = dp.private_quantile(scores, alpha=0.1, score_range=(0, 1), mu=1.0, n_records=N, random_state=3)
    return [model.parameters.tolist(), found.threshold]


CODE = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
import test_numerics
print(json.dumps(test_numerics.release()))
"""


def in_another_process(**environment):
    code = CODE.format(folder=os.path.dirname(__file__))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def test_other_kernels_and_thread_counts_give_the_same_release():
    """OpenBLAS can be told to use the kernels of an older processor: a stand-in for another machine."""
    with threadpool_limits(1):
        here = release()
    there = in_another_process(OPENBLAS_NUM_THREADS="2", OPENBLAS_CORETYPE="Nehalem")
    assert np.abs(np.subtract(here[0], there[0])).max() <= tolerance("float64", len(here[0]))
    # a threshold is one of 2^steps grid points: it moves only if a score crosses one, and here none does
    assert here[1] == there[1] < 1
