"""Time one DP-SGD step on a GPU in one run: `dpscp` (dense engine, torch path), Opacus, JAX-Privacy, ghost clipping by
hand in torch and in JAX.

Run with `python benchmarks/gpu.py` on a machine with a CUDA device and torch; peers that are not installed are left
out. The records are on the device before the clock starts, for everybody. Contenders take turns; the tables print
medians of the clock over the rounds, in microseconds a step, and how many times ours each peer needs. Batches: ours,
Opacus and torch draw Poisson batches, JAX batches of a fixed size. Noise: ours is ChaCha20 and float64, rounded to a
grid, and its sums are float64; peers use the generators of their libraries (not cryptographic) and float32, JAX with
the shorter products (TF32) that are its default. One row of ours has those too.
"""

import argparse
import itertools
import os
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from dpscp.training import DPSGD, OpacusTraining
from dpscp.training.engine.loop import draw_steps, run
from dpscp.training.mechanisms.dpsgd import Setup
from training import (
    Case,
    Steps,
    jax_ghost,
    jax_privacy_library,
    make_data,
    poisson_batch,
    torch_ghost,
    torch_loop,
    torch_parts,
)

CASES = (
    Case("head 1280x10, 10^6 records, full batch", 1_000_000, 1280, 10, (), 1_000_000, 20),
    Case("head 1280x10, 10^6 records, batch 4096", 1_000_000, 1280, 10, (), 4096, 100),
    Case("MLP 784-512-512-10, batch 256", 60_000, 784, 10, (512, 512), 256, 100),
    Case("MLP 784-512-512-10, batch 4096", 60_000, 784, 10, (512, 512), 4096, 40),
)
# else JAX takes three quarters of the card's memory before the others have theirs
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Gradients of single records that are held at once, in numbers: twenty gigabytes.
_MOST_GRADIENTS = 5 * 10**9


def on_the_clock(steps: Steps) -> Steps:
    """The same steps, done when they return."""

    def run(count: int) -> None:
        steps(count)
        torch.cuda.synchronize()

    return run


def ours(case: Case, X: np.ndarray, y: np.ndarray, device: str, dtype: str = "float32") -> Steps:
    mechanism = DPSGD(
        hidden=case.hidden, classes=tuple(range(10)), sampling_rate=case.batch / case.n, learning_rate=1e-3,
        momentum=0.9, noise_multiplier=1.0, steps=100_000, device=device, dtype=dtype,
    )  # fmt: skip
    setup: Setup = mechanism.prepare(X, y, n_records=case.n)
    rng = np.random.default_rng(0)
    drawn = draw_steps([setup.batches(rng)], setup.grid_noise(rng, None))
    going = run([setup.start_run(None, None)], drawn)
    return on_the_clock(lambda count: deque(itertools.islice(going, count), maxlen=0) and None)


def ours_tf32(case: Case, X: np.ndarray, y: np.ndarray, device: str) -> Steps:
    """The same with float32 products in TF32, as JAX multiplies by default."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        steps = ours(case, X, y, device)
        steps(3)  # what is recorded now is replayed later
    finally:
        torch.set_float32_matmul_precision(precision)
    return steps


def ours_torch(case: Case, X: np.ndarray, y: np.ndarray, device: str) -> Steps:
    """The path for any torch module: a whole call of `train`, with its checks of module and records."""
    if case.n * case.d > 10**8:
        raise NotImplementedError("a call reads the whole table once, which would be most of its time")
    mechanism = OpacusTraining(
        torch_parts(case, X[:1], y[:1])[0], sampling_rate=case.batch / case.n, learning_rate=1e-3,
        momentum=0.9, noise_multiplier=1.0, classes=tuple(range(10)), device=device, physical_batch=2048,
    )  # fmt: skip
    return lambda count: replace(mechanism, steps=count).train(X, y, n_records=case.n) and None


def opacus_samples(kind: str) -> Callable[..., Steps]:
    """Opacus' own optimizer with per-record gradients by `kind`: hooks, functorch or ghost."""

    def make(case: Case, X: np.ndarray, y: np.ndarray, device: str) -> Steps:
        from opacus import PrivacyEngine

        if kind != "ghost" and case.gradient_numbers > _MOST_GRADIENTS:
            raise MemoryError
        model, optimizer, data, criterion = torch_parts(case, X, y, device)
        # the loader is for the engine's account alone: records are on the device already
        model, optimizer, *ghost, _ = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=torch.utils.data.DataLoader(data, batch_size=case.batch),
            criterion=criterion, noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False,
            grad_sample_mode=kind,
        )  # fmt: skip
        batches = iter(lambda: poisson_batch(case, *data.tensors), None)
        return on_the_clock(torch_loop(model, optimizer, batches, ghost[0] if ghost else criterion))

    return make


def jax_alone(make: Callable[..., Steps], case: Case, X: np.ndarray, y: np.ndarray, device: str) -> Steps:  # noqa: ARG001
    """JAX chooses its device itself and waits for its results."""
    if make is jax_privacy_library and case.gradient_numbers > _MOST_GRADIENTS:
        raise MemoryError
    return make(case, X, y)


CONTENDERS: dict[str, Callable[..., Steps]] = {
    "dpscp": ours,
    "dpscp, TF32": ours_tf32,
    "dpscp, float64": partial(ours, dtype="float64"),
    "dpscp, torch path": ours_torch,
    "torch ghost": lambda *given: on_the_clock(torch_ghost(*given)),
    "opacus hooks": opacus_samples("hooks"),
    "opacus functorch": opacus_samples("functorch"),
    "opacus ghost": opacus_samples("ghost"),
    "jax ghost": partial(jax_alone, jax_ghost),
    "jax-privacy": partial(jax_alone, jax_privacy_library),
}


def measure(case: Case, rounds: int, device: str) -> dict[str, float | str]:
    """Medians of the clock in microseconds a step; the reason for a contender that did not run."""
    X, y = make_data(case)
    found: dict[str, float | str] = {}
    runs: dict[str, Steps] = {}
    for name, make in CONTENDERS.items():
        try:
            runs[name] = make(case, X, y, device)
            runs[name](3)
        except ImportError:
            found[name] = "not installed"
        except (MemoryError, torch.OutOfMemoryError):
            found[name] = "its gradients of single records do not fit"
        except Exception as error:
            found[name] = f"not measured: {type(error).__name__}: {str(error)[:200]}"
        if name in found:
            runs.pop(name, None)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, steps in runs.items():
            begin = time.perf_counter()
            steps(case.steps)
            times[name].append((time.perf_counter() - begin) / case.steps * 1e6)
    found |= {name: statistics.median(values) for name, values in times.items()}
    return {name: found[name] for name in CONTENDERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="part of the name of the cases to run")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds a step, medians of {options.rounds}"
    )
    for case in CASES:
        if options.only not in case.name:
            continue
        found = measure(case, options.rounds, options.device)
        base = found["dpscp"]
        print(f"\n{case.name}\n{'':18} {'clock':>10}   times ours", flush=True)
        for name, used in found.items():
            if isinstance(used, str):
                print(f"{name:18} {used}")
            else:
                print(
                    f"{name:18} {used:10.1f}   {used / base:6.2f}"
                    if isinstance(base, float)
                    else f"{name:18} {used:10.1f}"
                )


if __name__ == "__main__":
    main()
