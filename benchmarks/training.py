"""Time one DP-SGD step of `dpscp` against peers in one run: Opacus' PrivacyEngine (hooks, functorch, ghost clipping),
JAX-Privacy, non-private torch, ghost clipping written by hand in torch and in JAX.

Run with `python benchmarks/training.py`, or `--threads 2` to give everybody two threads. Every contender trains the
same model with the same expected batch size. Opacus and torch read their batches through a DataLoader, as their users
do; the others index the table themselves, and JAX takes batches of a fixed size, since its programs have fixed shapes.
Contenders take turns, so that a busy machine slows all of them; the tables print medians over the rounds, in
microseconds of CPU time a step (all threads together) and of the clock, and how many times ours each peer needs. Noise:
ours comes from AES in counter mode, float64 and rounded to a grid, and its sums are float64; peers use the generators
of their libraries and float32.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

_parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
_parser.add_argument("--rounds", type=int, default=7)
_parser.add_argument("--threads", type=int, default=1)
_parser.add_argument("--only", default="", help="part of the name of the cases to run")
OPTIONS = _parser.parse_args() if __name__ == "__main__" else _parser.parse_args([])
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, str(OPTIONS.threads))
if OPTIONS.threads == 1:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np  # noqa: E402 (reads the number of threads)

from dpscp.training import DPSGD  # noqa: E402


@dataclass(frozen=True)
class Case:
    name: str
    n: int
    d: int
    n_classes: int | None
    hidden: tuple[int, ...]
    batch: int
    steps: int
    """Steps a round, see ``steps_of``."""

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.d, *self.hidden, self.n_classes or 1)

    @property
    def gradient_numbers(self) -> int:
        """Numbers in the gradients of the single records of a batch."""
        return self.batch * sum(a * b for a, b in itertools.pairwise(self.widths))


CASES = (
    Case("MLP 8-32-16-1, batch 128", 16_512, 8, None, (32, 16), 128, 150),
    Case("head 512x8, batch 256", 13_671, 512, 8, (), 256, 150),
    Case("MLP 10-16-16-5, batch 32", 10_000, 10, 5, (16, 16), 32, 150),
    Case("MLP 784-512-512-10, batch 256", 20_000, 784, 10, (512, 512), 256, 12),
    Case("head 512x8, full batch", 13_671, 512, 8, (), 13_671, 12),
)
Steps = Callable[[int], None]
# Some peers hold a gradient for every record of a batch: with more numbers than this they take fewer steps a round.
_MANY_NUMBERS = 10**7


def make_data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(case.n, case.d)).astype(np.float32)
    y = X[:, 0] if case.n_classes is None else rng.integers(0, case.n_classes, case.n)
    return X, y


def ours(case: Case, X: np.ndarray, y: np.ndarray) -> Steps:
    """A whole call of `train`, set-up included, from system entropy."""
    loss = "squared" if case.n_classes is None else "cross_entropy"
    classes = None if case.n_classes is None else tuple(range(case.n_classes))
    mechanism = DPSGD(
        hidden=case.hidden, loss=loss, classes=classes, sampling_rate=case.batch / case.n,
        learning_rate=1e-3, momentum=0.9, noise_multiplier=1.0,
    )  # fmt: skip
    return lambda steps: replace(mechanism, steps=steps).train(X, y, n_records=case.n) and None


def torch_parts(case: Case, X: np.ndarray, y: np.ndarray, device: str = "cpu") -> tuple[Any, Any, Any, Any]:
    """Module, optimizer, records on the device, and loss."""
    import torch

    layers: list[Any] = []
    for a, b in itertools.pairwise(case.widths):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    targets = torch.tensor(y)[:, None] if case.n_classes is None else torch.tensor(y)
    data = torch.utils.data.TensorDataset(torch.tensor(X).to(device), targets.to(device))
    loss = torch.nn.MSELoss() if case.n_classes is None else torch.nn.CrossEntropyLoss()
    return model, optimizer, data, loss


def torch_loop(model: Any, optimizer: Any, loader: Iterable[Any], loss: Any) -> Steps:
    def run(steps: int) -> None:
        done = 0
        while True:
            for rows, target in loader:
                optimizer.zero_grad()
                loss(model(rows), target).backward()
                optimizer.step()
                done += 1
                if done == steps:
                    return

    return run


def plain_torch(case: Case, X: np.ndarray, y: np.ndarray) -> Steps:
    import torch

    model, optimizer, data, loss = torch_parts(case, X, y)
    return torch_loop(model, optimizer, torch.utils.data.DataLoader(data, batch_size=case.batch, shuffle=True), loss)


def opacus_engine(case: Case, X: np.ndarray, y: np.ndarray, mode: str = "hooks") -> Steps:
    import torch
    from opacus import PrivacyEngine

    model, optimizer, data, loss = torch_parts(case, X, y)
    loader = torch.utils.data.DataLoader(data, batch_size=case.batch)
    model, optimizer, *criterion, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, criterion=loss, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        grad_sample_mode=mode,
    )  # fmt: skip
    return torch_loop(model, optimizer, loader, criterion[0] if criterion else loss)


def poisson_batch(case: Case, table: Any, targets: Any) -> tuple[Any, Any]:
    """Rows and targets of tensors, drawn where they lie."""
    import torch

    if case.batch == case.n:
        return table, targets
    index = torch.nonzero(torch.rand(case.n, device=table.device) < case.batch / case.n)[:, 0]
    return table[index], targets[index]


def torch_ghost(case: Case, X: np.ndarray, y: np.ndarray, device: str = "cpu") -> Steps:
    """The same formulas as ours: norms from inputs and errors, then one product a layer with scaled errors."""
    import torch

    model, optimizer, data, _ = torch_parts(case, X, y, device)
    layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]

    @torch.no_grad()
    def run(steps: int) -> None:
        for _ in range(steps):
            rows, target = poisson_batch(case, *data.tensors)
            inputs = [rows]
            for layer in layers[:-1]:
                inputs.append(torch.relu(layer(inputs[-1])))
            z = layers[-1](inputs[-1])
            if case.n_classes is None:
                error = 2 * (z - target)
            else:
                error = torch.softmax(z, 1)
                error[torch.arange(len(target), device=device), target] -= 1
            errors = [error]
            for layer, values in zip(layers[:0:-1], inputs[:0:-1], strict=True):
                errors.insert(0, (errors[0] @ layer.weight) * (values > 0))
            squares = sum(((a * a).sum(1) + 1) * (e * e).sum(1) for a, e in zip(inputs, errors, strict=True))
            factors = (1 / squares.sqrt()).clamp(max=1)[:, None]
            for layer, a, e in zip(layers, inputs, errors, strict=True):
                scaled = e * factors
                layer.weight.grad = (scaled.T @ a + torch.randn_like(layer.weight)) / case.batch
                layer.bias.grad = (scaled.sum(0) + torch.randn_like(layer.bias)) / case.batch
            optimizer.step()

    return run


def jax_layers(case: Case) -> list[Any]:
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(a, b)) / a for a, b in itertools.pairwise(case.widths)]
    return [(jnp.asarray(w, jnp.float32), jnp.zeros(w.shape[1])) for w in weights]


def jax_loop(case: Case, step: Any, state: Any, X: np.ndarray, y: np.ndarray) -> Steps:
    """Steps ``state = step(state, key, rows, target)`` compiled by XLA, with batches of a fixed size."""
    import jax
    import jax.numpy as jnp

    constant, key = (jnp.asarray(X), jnp.asarray(y)), jax.random.key(0)
    given = constant if X.size > _MANY_NUMBERS else ()

    @jax.jit
    def drawn(state: Any, key: Any, *given: Any) -> Any:
        # what a program closes over is a constant of it, which XLA computes with once: a gain where it has the room
        table, targets = given or constant
        key, draw, noise = jax.random.split(key, 3)
        index = jax.random.randint(draw, (case.batch,), 0, case.n)
        batch = (table, targets) if case.batch == case.n else (table[index], targets[index])
        return step(state, noise, *batch), key

    def run(steps: int) -> None:
        nonlocal state, key
        for _ in range(steps):
            state, key = drawn(state, key, *given)
        jax.block_until_ready(state)

    return run


def jax_loss(case: Case) -> Callable[[Any, Any, Any], Any]:
    """The mean loss of records at the parameters ``layers``."""
    import jax
    import jax.numpy as jnp
    import optax

    def loss(layers: Any, rows: Any, target: Any) -> Any:
        for w, b in layers[:-1]:
            rows = jax.nn.relu(rows @ w + b)
        z = rows @ layers[-1][0] + layers[-1][1]
        if case.n_classes is None:
            return jnp.mean((z[:, 0] - target) ** 2)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(z, target))

    return loss


def jax_privacy_library(case: Case, X: np.ndarray, y: np.ndarray) -> Steps:
    """JAX-Privacy's clipped gradients and noise, with optax, compiled by XLA."""
    import jax
    import optax
    from jax_privacy import clipped_grad, noise_addition

    gradient = clipped_grad(jax_loss(case), l2_clip_norm=1.0, normalize_by=case.batch, batch_argnums=(1, 2))
    noise = noise_addition.gaussian_privatizer(stddev=1.0 / case.batch, prng_key=jax.random.key(1))
    optimizer = optax.sgd(1e-3, momentum=0.9)
    layers = jax_layers(case)

    def step(state: Any, key: Any, rows: Any, target: Any) -> Any:  # noqa: ARG001 (the library's noise has its own)
        layers, noise_state, optimizer_state = state
        noisy, noise_state = noise.update(gradient(layers, rows, target), noise_state)
        change, optimizer_state = optimizer.update(noisy, optimizer_state)
        return optax.apply_updates(layers, change), noise_state, optimizer_state

    return jax_loop(case, step, (layers, noise.init(layers), optimizer.init(layers)), X, y)


def jax_ghost(case: Case, X: np.ndarray, y: np.ndarray) -> Steps:
    """The same formulas compiled by XLA."""
    import jax
    import jax.numpy as jnp

    def step(state: Any, key: Any, rows: Any, target: Any) -> Any:
        noise = jax.random.split(key, 2 * len(state))
        inputs = [rows]
        for w, b, _, _ in state[:-1]:
            inputs.append(jax.nn.relu(inputs[-1] @ w + b))
        z = inputs[-1] @ state[-1][0] + state[-1][1]
        if case.n_classes is None:
            errors = [2 * (z - target[:, None])]
        else:
            errors = [jax.nn.softmax(z) - jax.nn.one_hot(target, case.n_classes)]
        for (w, _, _, _), values in zip(state[:0:-1], inputs[:0:-1], strict=True):
            errors.insert(0, (errors[0] @ w.T) * (values > 0))
        squares = sum(((a * a).sum(1) + 1) * (e * e).sum(1) for a, e in zip(inputs, errors, strict=True))
        factors = jnp.minimum(1, 1 / jnp.sqrt(squares))[:, None]
        after = []
        for i, (w, b, v, u) in enumerate(state):
            scaled = errors[i] * factors
            v = 0.9 * v + (inputs[i].T @ scaled + jax.random.normal(noise[2 * i], w.shape)) / case.batch
            u = 0.9 * u + (scaled.sum(0) + jax.random.normal(noise[2 * i + 1], b.shape)) / case.batch
            after.append((w - 1e-3 * v, b - 1e-3 * u, v, u))
        return after

    state = [(w, b, jnp.zeros_like(w), jnp.zeros_like(b)) for w, b in jax_layers(case)]
    return jax_loop(case, step, state, X, y)


PEERS: dict[str, Callable[[Case, np.ndarray, np.ndarray], Steps]] = {
    "opacus": opacus_engine,
    "opacus functorch": lambda case, X, y: opacus_engine(case, X, y, "functorch"),
    "opacus ghost": lambda case, X, y: opacus_engine(case, X, y, "ghost"),
    "jax-privacy": jax_privacy_library,
    "torch": plain_torch,
    "torch ghost": torch_ghost,
    "jax ghost": jax_ghost,
}
# those that hold a gradient for every record
MATERIALIZING = ("opacus", "opacus functorch", "jax-privacy")


def steps_of(name: str, case: Case) -> int:
    """Steps a round: ours takes ten times as many, since its set-up counts."""
    if name in MATERIALIZING and case.gradient_numbers > _MANY_NUMBERS:
        return max(1, case.steps * _MANY_NUMBERS // case.gradient_numbers)
    return case.steps * (10 if name == "dpscp" else 1)


def measure(case: Case, rounds: int) -> dict[str, tuple[float, float] | None]:
    """Medians of CPU time and of the clock, microseconds a step; None for a peer that is not installed."""
    X, y = make_data(case)
    runs: dict[str, Steps | None] = {"dpscp": ours(case, X, y)}
    for name, make in PEERS.items():
        try:
            runs[name] = make(case, X, y)
        except ImportError:
            runs[name] = None
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, run in runs.items() if run is not None}
    for turn in range(-1, rounds):
        for name in times:
            plan, run = steps_of(name, case), runs[name]
            steps = plan if turn >= 0 else min(5, plan)
            cpu, clock = time.process_time(), time.perf_counter()
            assert run is not None
            run(steps)
            if turn >= 0:
                used = time.process_time() - cpu, time.perf_counter() - clock
                times[name].append((used[0] / steps * 1e6, used[1] / steps * 1e6))
    return {
        name: None
        if name not in times
        else tuple(statistics.median(column) for column in zip(*times[name], strict=True))
        for name in runs
    }  # type: ignore[return-value]


def main() -> None:
    warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG")
    print(f"microseconds a step, medians of {OPTIONS.rounds} rounds, {OPTIONS.threads} thread(s) each")
    for case in CASES:
        if OPTIONS.only not in case.name:
            continue
        print(f"\n{case.name}\n{'':16} {'CPU':>10} {'clock':>10}   times ours: {'CPU':>6} {'clock':>6}")
        found = measure(case, OPTIONS.rounds)
        base = found["dpscp"]
        assert base is not None
        for name, used in found.items():
            if used is None:
                print(f"{name:16} not installed")
            else:
                ratios = f"{used[0] / base[0]:18.2f} {used[1] / base[1]:6.2f}"
                print(f"{name:16} {used[0]:10.1f} {used[1]:10.1f}   {ratios}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
