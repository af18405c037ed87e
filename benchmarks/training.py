"""Time one DP-SGD step of `dpscp` against Opacus' PrivacyEngine and non-private torch, in one run on one
thread.

Run with `python benchmarks/training.py`. Every contender trains the same model with the same expected batch
size; Opacus and torch read their batches through a DataLoader, as their users do. Contenders take turns, so
that a busy machine slows all of them; the table prints medians over the rounds in microseconds a step, and
ratios against `dpscp`.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpscp.training import DPSGD


@dataclass(frozen=True)
class Case:
    name: str
    n: int
    d: int
    n_classes: int | None
    hidden: tuple[int, ...]
    batch: int
    target: float


CASES = (
    Case("MLP 8-32-16-1, batch 128", 16_512, 8, None, (32, 16), 128, 20),
    Case("head 512x8, batch 256", 13_671, 512, 8, (), 256, 10),
    Case("MLP 10-16-16-5, batch 32", 10_000, 10, 5, (16, 16), 32, 20),
)


def make_data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(case.n, case.d)).astype(np.float32)
    y = X[:, 0] if case.n_classes is None else rng.integers(0, case.n_classes, case.n)
    return X, y


def mechanism_for(case: Case) -> DPSGD:
    loss = "squared" if case.n_classes is None else "cross_entropy"
    classes = None if case.n_classes is None else tuple(range(case.n_classes))
    return DPSGD(
        hidden=case.hidden, loss=loss, classes=classes, sampling_rate=case.batch / case.n,
        learning_rate=1e-3, momentum=0.9, noise_multiplier=1.0,
    )  # fmt: skip


def ours(case: Case, X: np.ndarray, y: np.ndarray) -> Callable[[int], float]:
    """A whole call of `train`, set-up included, from system entropy."""
    mechanism = mechanism_for(case)

    def step_time(steps: int) -> float:
        start = time.perf_counter()
        replace(mechanism, steps=steps).train(X, y, n_records=case.n)
        return (time.perf_counter() - start) / steps

    return step_time


def torch_parts(case: Case, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any, Any, Any]:
    import torch

    widths = (case.d, *case.hidden, case.n_classes or 1)
    layers: list[Any] = []
    for a, b in itertools.pairwise(widths):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    targets = torch.tensor(y)[:, None] if case.n_classes is None else torch.tensor(y)
    data = torch.utils.data.TensorDataset(torch.tensor(X), targets)
    loss = torch.nn.MSELoss() if case.n_classes is None else torch.nn.CrossEntropyLoss()
    return model, optimizer, data, loss


def torch_loop(model: Any, optimizer: Any, loader: Iterable[Any], loss: Any) -> Callable[[int], float]:
    def step_time(steps: int) -> float:
        done, start = 0, time.perf_counter()
        while True:
            for rows, target in loader:
                optimizer.zero_grad()
                loss(model(rows), target).backward()
                optimizer.step()
                done += 1
                if done == steps:
                    return (time.perf_counter() - start) / steps

    return step_time


def plain_torch(case: Case, X: np.ndarray, y: np.ndarray) -> Callable[[int], float]:
    import torch

    model, optimizer, data, loss = torch_parts(case, X, y)
    return torch_loop(model, optimizer, torch.utils.data.DataLoader(data, batch_size=case.batch, shuffle=True), loss)


def opacus_engine(case: Case, X: np.ndarray, y: np.ndarray) -> Callable[[int], float]:
    import torch
    from opacus import PrivacyEngine

    model, optimizer, data, loss = torch_parts(case, X, y)
    loader = torch.utils.data.DataLoader(data, batch_size=case.batch)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    return torch_loop(model, optimizer, loader, loss)


def measure(case: Case, rounds: int, steps: int) -> dict[str, float]:
    X, y = make_data(case)
    contenders = {"dpscp": ours(case, X, y)}
    try:
        import opacus  # noqa: F401
        import torch

        torch.set_num_threads(1)
        contenders |= {"opacus": opacus_engine(case, X, y), "torch": plain_torch(case, X, y)}
    except ImportError:
        print("install dpscp[torch] to measure Opacus and torch", file=sys.stderr)
    for step_time in contenders.values():
        step_time(20)
    # ours is short: more steps a round, so that set-up weighs as in real training
    plan = {name: 2000 if name == "dpscp" else steps for name in contenders}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step_time in contenders.items():
            times[name].append(step_time(plan[name]) * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def full_batch_seconds() -> float:
    X, y = make_data(Case("full", 13_671, 512, 8, (), 13_671, 0))
    mechanism = DPSGD(classes=tuple(range(8)), steps=300, learning_rate=1.0, noise_multiplier=50.0)
    start = time.perf_counter()
    mechanism.train(X, y, n_records=13_671)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150, help="steps a round for Opacus and torch")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG")
    head = f"{'':26} {'dpscp':>9} {'opacus':>9} {'torch':>9}   {'opacus/dpscp':>12} {'torch/dpscp':>11}  target"
    print("microseconds a step, medians, one thread\n" + head)
    for case in CASES:
        t = measure(case, options.rounds, options.steps)
        line = f"{case.name:26} {t['dpscp']:9.1f}"
        if "opacus" in t:
            ratios = t["opacus"] / t["dpscp"], t["torch"] / t["dpscp"]
            line += f" {t['opacus']:9.1f} {t['torch']:9.1f}   {ratios[0]:12.1f} {ratios[1]:11.1f}  >= {case.target:g}"
        print(line)
    print(f"full batch, 13671 x 512, 8 classes, 300 steps: {full_batch_seconds():.2f} s")


if __name__ == "__main__":
    main()
