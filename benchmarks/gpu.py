"""Time one DP-SGD step on a GPU in one run: `dpscp` (dense engine, torch path), Opacus, JAX-Privacy, ghost clipping by
hand in torch and in JAX.

Run with `python benchmarks/gpu.py` on a machine with a CUDA device and torch; peers that are not installed are left
out. The records are on the device before the clock starts, for everybody. Contenders take turns; the tables print
medians of the clock over the rounds, in microseconds a step, and how many times ours each peer needs. Batches: ours,
Opacus and torch draw Poisson batches, JAX batches of a fixed size. Noise: ours is ChaCha20 and float64, rounded to a
grid, and its sums are float64; peers use the generators of their libraries (not cryptographic) and float32, JAX with
the shorter products (TF32) that are its default.
"""

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from dpscp.training import DPSGD, OpacusTraining
from dpscp.training.descent import drawn_steps, run
from dpscp.training.dpsgd import Setup
from training import Case, make_data

CASES = (
    Case("head 1280x10, 10^6 records, full batch", 1_000_000, 1280, 10, (), 1_000_000, 20),
    Case("head 1280x10, 10^6 records, batch 4096", 1_000_000, 1280, 10, (), 4096, 100),
    Case("MLP 784-512-512-10, batch 256", 60_000, 784, 10, (512, 512), 256, 100),
    Case("MLP 784-512-512-10, batch 4096", 60_000, 784, 10, (512, 512), 4096, 40),
)
Steps = Callable[[int], None]
# Gradients of single records that are held at once, in numbers: twenty gigabytes.
_MOST_GRADIENTS = 5 * 10**9


class OnDevice:
    """The records of a case on the device, and Poisson batches of them."""

    def __init__(self, case: Case, X: np.ndarray, y: np.ndarray, device: str) -> None:
        self.case = case
        self.rows, self.target = torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)

    def batch(self) -> tuple[Any, Any]:
        if self.case.batch == self.case.n:
            return self.rows, self.target
        drawn = torch.rand(self.case.n, device=self.rows.device) < self.case.batch / self.case.n
        index = torch.nonzero(drawn)[:, 0]
        return self.rows[index], self.target[index]

    def module(self) -> Any:
        layers: list[Any] = []
        for a, b in itertools.pairwise(self.case.widths):
            layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1]).to(self.rows.device)


def ours(case: Case, X: np.ndarray, y: np.ndarray, device: str, dtype: str = "float32") -> Steps:
    mechanism = DPSGD(
        hidden=case.hidden, classes=tuple(range(10)), sampling_rate=case.batch / case.n, learning_rate=1e-3,
        momentum=0.9, noise_multiplier=1.0, steps=100_000, device=device, dtype=dtype,
    )  # fmt: skip
    setup: Setup = mechanism.prepare(X, y, n_records=case.n)
    rng = np.random.default_rng(0)
    drawn = drawn_steps([setup.batches(rng)], setup.grid_noise(rng, None))
    going = run([setup.device_descent()], drawn)

    def steps(count: int) -> None:
        for _ in itertools.islice(going, count):
            pass
        torch.cuda.synchronize()

    return steps


def ours_torch(case: Case, X: np.ndarray, y: np.ndarray, device: str) -> Steps:
    """The path for any torch module: a whole call of `train`, with its checks of module and records."""
    if case.n * case.d > 10**8:
        raise NotImplementedError("a call reads the whole table once, which would be most of its time")
    mechanism = OpacusTraining(
        OnDevice(case, X[:1], y[:1], "cpu").module(), sampling_rate=case.batch / case.n, learning_rate=1e-3,
        momentum=0.9, noise_multiplier=1.0, classes=tuple(range(10)), device=device, physical_batch=2048,
    )  # fmt: skip
    return lambda count: replace(mechanism, steps=count).train(X, y, n_records=case.n) and None


def opacus_samples(kind: str) -> Callable[..., Steps]:
    """Opacus' own optimizer with per-record gradients by `kind`: hooks, functorch or ghost."""

    def make(case: Case, X: np.ndarray, y: np.ndarray, device: str) -> Steps:
        from opacus import PrivacyEngine

        if kind != "ghost" and case.batch * sum(a * b for a, b in itertools.pairwise(case.widths)) > _MOST_GRADIENTS:
            raise MemoryError
        data = OnDevice(case, X, y, device)
        model = data.module()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(data.rows, data.target), batch_size=case.batch
        )
        criterion = torch.nn.CrossEntropyLoss()
        made = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
            poisson_sampling=False, grad_sample_mode=kind, criterion=criterion,
        )  # fmt: skip
        model, optimizer = made[0], made[1]
        if kind == "ghost":
            criterion = made[2]

        def steps(count: int) -> None:
            for _ in range(count):
                rows, target = data.batch()
                optimizer.zero_grad()
                criterion(model(rows), target).backward()
                optimizer.step()
            torch.cuda.synchronize()

        return steps

    return make


def torch_ghost(case: Case, X: np.ndarray, y: np.ndarray, device: str) -> Steps:
    """The same formulas as ours in float32, with torch's noise."""
    data = OnDevice(case, X, y, device)
    model = data.module()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]

    @torch.no_grad()
    def steps(count: int) -> None:
        for _ in range(count):
            rows, target = data.batch()
            inputs = [rows]
            for layer in layers[:-1]:
                inputs.append(torch.relu(layer(inputs[-1])))
            error = torch.softmax(layers[-1](inputs[-1]), 1)
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
        torch.cuda.synchronize()

    return steps


def jax_steps(gradient: Callable[[Case], Any]) -> Callable[..., Steps]:
    """SGD with momentum compiled by XLA, given the noiseless sum of clipped gradients."""

    def make(case: Case, X: np.ndarray, y: np.ndarray, device: str) -> Steps:  # noqa: ARG001 (JAX chooses itself)
        import jax
        import jax.numpy as jnp

        clipped = gradient(case)
        table, targets = jnp.asarray(X), jnp.asarray(y)
        draws = np.random.default_rng(0)
        weights = [
            (jnp.asarray(draws.normal(size=(a, b)) / a, jnp.float32), jnp.zeros(b)) for a, b in
            itertools.pairwise(case.widths)
        ]  # fmt: skip
        state = (weights, jax.tree.map(jnp.zeros_like, weights), jax.random.key(0))

        @jax.jit
        def step(state: Any, table: Any, targets: Any) -> Any:
            weights, velocity, key = state
            key, draw, *noise = jax.random.split(key, 2 + 2 * len(weights))
            index = jax.random.randint(draw, (case.batch,), 0, case.n)
            rows, target = (table, targets) if case.batch == case.n else (table[index], targets[index])
            total = clipped(weights, rows, target)
            keys = jax.tree.unflatten(jax.tree.structure(weights), noise)
            velocity = jax.tree.map(
                lambda v, g, k: 0.9 * v + (g + jax.random.normal(k, g.shape)) / case.batch, velocity, total, keys
            )
            return jax.tree.map(lambda w, v: w - 1e-3 * v, weights, velocity), velocity, key

        def steps(count: int) -> None:
            nonlocal state
            for _ in range(count):
                state = step(state, table, targets)
            jax.block_until_ready(state)

        return steps

    return make


def ghost_sum(case: Case) -> Any:
    import jax
    import jax.numpy as jnp

    def clipped(weights: Any, rows: Any, target: Any) -> Any:
        inputs = [rows]
        for w, b in weights[:-1]:
            inputs.append(jax.nn.relu(inputs[-1] @ w + b))
        z = inputs[-1] @ weights[-1][0] + weights[-1][1]
        errors = [jax.nn.softmax(z) - jax.nn.one_hot(target, case.n_classes)]
        for (w, _), values in zip(weights[:0:-1], inputs[:0:-1], strict=True):
            errors.insert(0, (errors[0] @ w.T) * (values > 0))
        squares = sum(((a * a).sum(1) + 1) * (e * e).sum(1) for a, e in zip(inputs, errors, strict=True))
        factors = jnp.minimum(1, 1 / jnp.sqrt(squares))[:, None]
        return [(a.T @ (e * factors), (e * factors).sum(0)) for a, e in zip(inputs, errors, strict=True)]

    return clipped


def library_sum(case: Case) -> Any:
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipping

    if case.batch * sum(a * b for a, b in itertools.pairwise(case.widths)) > _MOST_GRADIENTS:
        raise MemoryError

    def loss(weights: Any, rows: Any, target: Any) -> Any:
        for w, b in weights[:-1]:
            rows = jax.nn.relu(rows @ w + b)
        z = rows @ weights[-1][0] + weights[-1][1]
        return -jnp.take_along_axis(jax.nn.log_softmax(z), target[:, None], 1).mean()

    return clipping.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2))


CONTENDERS: dict[str, Callable[..., Steps]] = {
    "dpscp": ours,
    "dpscp, float64": partial(ours, dtype="float64"),
    "dpscp, torch path": ours_torch,
    "torch ghost": torch_ghost,
    "opacus hooks": opacus_samples("hooks"),
    "opacus functorch": opacus_samples("functorch"),
    "opacus ghost": opacus_samples("ghost"),
    "jax ghost": jax_steps(ghost_sum),
    "jax-privacy": jax_steps(library_sum),
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
