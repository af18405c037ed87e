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


def torch_parts(case: Case, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any, Any, Any]:
    import torch

    torch.set_num_threads(OPTIONS.threads)
    layers: list[Any] = []
    for a, b in itertools.pairwise(case.widths):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    targets = torch.tensor(y)[:, None] if case.n_classes is None else torch.tensor(y)
    data = torch.utils.data.TensorDataset(torch.tensor(X), targets)
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


def torch_ghost(case: Case, X: np.ndarray, y: np.ndarray) -> Steps:
    """The same formulas as ours: norms from inputs and errors, then one product a layer with scaled errors."""
    import torch

    model, optimizer, data, _ = torch_parts(case, X, y)
    table, targets = data.tensors
    layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]

    @torch.no_grad()
    def run(steps: int) -> None:
        for _ in range(steps):
            full = case.batch == case.n
            index = slice(None) if full else torch.nonzero(torch.rand(case.n) < case.batch / case.n)[:, 0]
            inputs, target = [table[index]], targets[index]
            for layer in layers[:-1]:
                inputs.append(torch.relu(layer(inputs[-1])))
            z = layers[-1](inputs[-1])
            if case.n_classes is None:
                error = 2 * (z - target)
            else:
                error = torch.softmax(z, 1)
                error[torch.arange(len(target)), target] -= 1
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


def jax_batches(case: Case, X: np.ndarray, y: np.ndarray) -> Callable[[Any], Any]:
    """Rows and targets of a batch of fixed size, drawn with a key."""
    import jax
    import jax.numpy as jnp

    table, targets = jnp.asarray(X), jnp.asarray(y)

    def batch(key: Any) -> Any:
        index = jax.random.randint(key, (case.batch,), 0, case.n)
        return (table, targets) if case.batch == case.n else (table[index], targets[index])

    return batch


def jax_loop(step: Any, state: Any) -> Steps:
    import jax

    key = jax.random.key(0)

    def run(steps: int) -> None:
        nonlocal state, key
        for _ in range(steps):
            state, key = step(state, key)
        jax.block_until_ready(state)

    return run


def jax_privacy_library(case: Case, X: np.ndarray, y: np.ndarray) -> Steps:
    """JAX-Privacy's clipped gradients and noise, with optax, compiled by XLA."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import clipped_grad, noise_addition

    batch = jax_batches(case, X, y)

    def loss(layers: Any, rows: Any, target: Any) -> Any:
        for w, b in layers[:-1]:
            rows = jax.nn.relu(rows @ w + b)
        z = rows @ layers[-1][0] + layers[-1][1]
        if case.n_classes is None:
            return jnp.mean((z[:, 0] - target) ** 2)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(z, target))

    gradient = clipped_grad(loss, l2_clip_norm=1.0, normalize_by=case.batch, batch_argnums=(1, 2))
    noise = noise_addition.gaussian_privatizer(stddev=1.0 / case.batch, prng_key=jax.random.key(1))
    optimizer = optax.sgd(1e-3, momentum=0.9)
    layers = jax_layers(case)

    @jax.jit
    def step(state: Any, key: Any) -> Any:
        layers, noise_state, optimizer_state = state
        key, draw = jax.random.split(key)
        noisy, noise_state = noise.update(gradient(layers, *batch(draw)), noise_state)
        change, optimizer_state = optimizer.update(noisy, optimizer_state)
        return (optax.apply_updates(layers, change), noise_state, optimizer_state), key

    return jax_loop(step, (layers, noise.init(layers), optimizer.init(layers)))


def jax_ghost(case: Case, X: np.ndarray, y: np.ndarray) -> Steps:
    """The same formulas compiled by XLA."""
    import jax
    import jax.numpy as jnp

    batch = jax_batches(case, X, y)
    state = [(w, b, jnp.zeros_like(w), jnp.zeros_like(b)) for w, b in jax_layers(case)]

    @jax.jit
    def step(state: Any, key: Any) -> Any:
        key, draw, *noise = jax.random.split(key, 2 + 2 * len(state))
        rows, target = batch(draw)
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
        return after, key

    return jax_loop(step, state)


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
MATERIALISING = ("opacus", "opacus functorch", "jax-privacy")


def steps_of(name: str, case: Case) -> int:
    """Steps a round: ours takes ten times as many, since its set-up counts."""
    numbers = case.batch * sum(a * b for a, b in itertools.pairwise(case.widths))
    if name in MATERIALISING and numbers > _MANY_NUMBERS:
        return max(1, case.steps * _MANY_NUMBERS // numbers)
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
