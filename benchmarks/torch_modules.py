"""Time one private step of torch modules: `dpscp`, every mode of Opacus, and plain torch without privacy, in one run.

Run with `python benchmarks/torch_modules.py [--device cuda] [--rows NAME ...] [--rounds 5] [--threads 1]`. Contenders
take turns; the table prints medians over the rounds, in milliseconds a step: CPU time with one thread, which a busy
machine changes less, and the clock on a GPU. And what steps need at their peak beyond the data: on a processor each
contender runs in a process of its own for that, on a GPU torch counts. And the time from the call to the first step.
"ghost, safe sums" is Opacus' ghost mode with the noise of its `secure_mode`: the sum of four draws, against attacks on
the last bits. Its cryptographic generator (torchcsprng) cannot be installed any more, so torch's own draws here too.
Ours draws Poisson batches, noise by AES in float64, and rounds sums to a grid. Opacus and plain torch get
batches of the expected size that lie on the device, and torch's generators.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dpscp.training import TorchDPSGD

Steps = Callable[[int], None]
Results = dict[str, dict[str, dict[str, float | str]]]
_CLASSES = 10
# Numbers of the single gradients of a batch that Opacus may hold on a processor: 4 GB.
_MOST_HELD = 2**30


def small_cnn(channels: int, side: int) -> nn.Module:
    left = ((side - 2) // 2 - 2) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * left * left, 32), nn.ReLU(), nn.Linear(32, _CLASSES),
    )  # fmt: skip


def dense_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, _CLASSES)
    )  # fmt: skip


def frozen_backbone() -> nn.Module:
    """A larger convolutional net without its head, frozen, and a dense head that is trained."""
    back = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(back.requires_grad_(False), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, _CLASSES))


class Encoder(nn.Module):
    """A transformer of two layers over 32 tokens, width 64, four heads."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2, words: int = 1000) -> None:
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width), "mix": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
                    "after": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.words(tokens.long())
        for layer in self.layers:
            mixed = layer["mix"](layer["before"](values)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            attended = nn.functional.scaled_dot_product_attention(*mixed).transpose(1, 2).flatten(2)
            values = values + layer["out"](attended)
            values = values + layer["down"](layer["up"](layer["after"](values)).relu())
        return self.head(values.mean(1))


class Residual(nn.Module):
    """A block of ResNet-18 with group normalization."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inside, out, 3, stride, 1, bias=False),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
        )
        self.norms = nn.ModuleList([nn.GroupNorm(8, out), nn.GroupNorm(8, out)])
        self.shortcut = nn.Sequential()
        if stride > 1 or inside != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.GroupNorm(8, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(hidden)) + self.shortcut(x)).relu()


def resnet18() -> nn.Module:
    sizes = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(8, 64), nn.ReLU(),
        *(Residual(*size) for size in (*sizes, (512, 512, 1))),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, _CLASSES),
    )  # fmt: skip


class Texts(nn.Module):
    """A model of transformers behind one input, which is token ids as numbers."""

    def __init__(self, lora: bool = False) -> None:
        super().__init__()
        sys.modules.setdefault("torchvision", None)  # not needed, and often for another build of torch
        import transformers

        transformers.logging.set_verbosity_error()
        config = transformers.BertConfig(
            vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
            max_position_embeddings=64, num_labels=_CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.model = transformers.BertForSequenceClassification(config)
        if lora:
            import peft

            self.model = peft.get_peft_model(self.model, peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_dropout=0.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens.long()).logits


@dataclass(frozen=True)
class Row:
    """A module, the shape of a record, and the expected size of a batch."""

    name: str
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    steps: int
    tokens: bool = False
    n: int = 20_000

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        return made_data(self.shape, self.tokens, self.n)


@lru_cache(maxsize=1)
def made_data(shape: tuple[int, ...], tokens: bool, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 1000, (n, *shape)) if tokens else rng.standard_normal((n, *shape), dtype=np.float32)
    return X.astype(np.float32), rng.integers(0, _CLASSES, n)


ROWS = (
    Row("CNN 28x28x1, batch 256", lambda: small_cnn(1, 28), (1, 28, 28), 256, 10),
    Row("CNN 28x28x1, batch 2048", lambda: small_cnn(1, 28), (1, 28, 28), 2048, 2),
    Row("CNN 32x32x3, batch 256", lambda: small_cnn(3, 32), (3, 32, 32), 256, 6),
    Row("CNN 32x32x3, batch 2048", lambda: small_cnn(3, 32), (3, 32, 32), 2048, 1),
    Row("dense 784-512-512-10, batch 256", dense_net, (784,), 256, 10),
    Row("dense 784-512-512-10, batch 4096", dense_net, (784,), 4096, 1),
    Row("frozen backbone and head, batch 256", frozen_backbone, (3, 32, 32), 256, 2),
    Row("transformer, 32 tokens, batch 256", Encoder, (32,), 256, 3, tokens=True),
    Row("ResNet-18 GN 32x32x3, batch 64", resnet18, (3, 32, 32), 64, 1, n=2_000),
    Row("BERT 4 x 256, 32 tokens, batch 64", Texts, (32,), 64, 1, tokens=True, n=2_000),
    Row("LoRA on it, batch 64", lambda: Texts(lora=True), (32,), 64, 1, tokens=True, n=2_000),
)


def make_module(row: Row) -> nn.Module:
    torch.manual_seed(0)
    return row.module()


def ours(row: Row, device: str) -> Steps:
    X, y = row.data()
    mechanism = TorchDPSGD(
        make_module(row), sampling_rate=row.batch / row.n, learning_rate=1e-3, noise_multiplier=1.0, steps=10**6,
        classes=tuple(range(_CLASSES)), device=device,
    )  # fmt: skip
    steps = mechanism._descend(mechanism._prepare(mechanism.source_of_arrays(X, y, None), row.n), None)

    def run(count: int) -> None:
        for _ in islice(steps, count):
            pass

    return run


def batches(row: Row, device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    X, y = (torch.from_numpy(values).to(device) for values in row.data())
    while True:
        index = torch.randint(0, row.n, (row.batch,), device=device)
        yield X[index], y[index]


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, criterion: Callable, row: Row, device: str) -> Steps:
    drawn = batches(row, device)

    def run(count: int) -> None:
        for rows, target in islice(drawn, count):
            optimizer.zero_grad()
            criterion(model(rows), target).backward()
            optimizer.step()

    return run


def plain(row: Row, device: str) -> Steps:
    model = make_module(row).to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    return loop(model, optimizer, nn.CrossEntropyLoss(), row, device)


def opacus_mode(mode: str, *, secure: bool = False) -> Callable[[Row, str], Steps]:
    def make(row: Row, device: str) -> Steps:
        from opacus import PrivacyEngine

        model = make_module(row).to(device)
        numbers = row.batch * sum(p.numel() for p in model.parameters() if p.requires_grad)
        if mode != "ghost" and device == "cpu" and numbers > _MOST_HELD:
            raise MemoryError("too large")
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        criterion = nn.CrossEntropyLoss()
        # the loader is for the engine's account alone
        data = torch.utils.data.TensorDataset(torch.zeros(row.n))
        model, optimizer, *ghost, _ = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, criterion=criterion, noise_multiplier=1.0, max_grad_norm=1.0,
            data_loader=torch.utils.data.DataLoader(data, batch_size=row.batch), poisson_sampling=False,
            grad_sample_mode=mode,
        )  # fmt: skip
        optimizer.secure_mode = secure
        return loop(model, optimizer, ghost[0] if ghost else criterion, row, device)

    return make


CONTENDERS: dict[str, Callable[[Row, str], Steps]] = {
    "dpscp": ours,
    "opacus hooks": opacus_mode("hooks"),
    "opacus functorch": opacus_mode("functorch"),
    "opacus ghost": opacus_mode("ghost"),
    "ghost, safe sums": opacus_mode("ghost", secure=True),
    "plain torch": plain,
}


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def measure(row: Row, rounds: int, device: str) -> dict[str, dict[str, float | str]]:
    """Return the median of each contender in milliseconds a step, or why it did not run.

    And the seconds to its first step, and on a GPU the MB at its peak.
    """
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    found: dict[str, float | str] = {}
    runs: dict[str, Steps] = {}
    firsts: dict[str, float | str] = {}
    peaks: dict[str, float | str] = {}
    warm = 20 if device != "cpu" else 8 if row.steps > 2 else 2
    data = sum(values.nbytes for values in row.data())
    for name, make in CONTENDERS.items():
        gc.collect()
        held = 0 if device == "cpu" else torch.cuda.memory_allocated()
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        begin = clock()
        try:
            runs[name] = make(row, device)
            runs[name](1)
            synchronize(device)
            firsts[name] = clock() - begin
            runs[name](warm if name == "dpscp" else 2)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:120]}"
            runs.pop(name, None)
        if device != "cpu":
            peaks[name] = (torch.cuda.max_memory_allocated() - held - data) / 1e6
    times: dict[str, list[float]] = {name: [] for name in runs}
    count = row.steps * (5 if device != "cpu" else 1)
    for _ in range(rounds):
        for name, steps in runs.items():
            synchronize(device)
            begin = clock()
            steps(count)
            synchronize(device)
            times[name].append((clock() - begin) / count * 1e3)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"ms": found | medians, "first step, s": firsts, "MB": peaks}


def peak_memory(row: Row, name: str) -> float:
    """Return the MB that two steps need at their peak on a processor, beyond data, module and libraries."""
    code = subprocess.run(
        [sys.executable, __file__, "--peak", row.name, name], capture_output=True, text=True, check=False
    )
    return float(code.stdout.split()[-1]) if code.returncode == 0 else float("nan")


def memory(kind: str) -> int:
    """Return kilobytes: VmRSS is what the process holds, VmHWM the most. `getrusage` counts the parent's too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1])


def print_peak(row: Row, name: str) -> None:
    """Print the peak of this process, with few records: making them must not be the peak."""
    torch.set_num_threads(1)
    row = replace(row, n=4 * row.batch)
    row.data()
    nn.functional.conv2d(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 2, 2))
    before = memory("VmRSS")
    CONTENDERS[name](row, "cpu")(2)
    print((memory("VmHWM") - before) / 1e3)


def compare(results: Results) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the names of the columns, a row of cells for each module, and who is ahead."""
    columns = [
        "row",
        *CONTENDERS,
        "ours / plain torch",
        "ours / best Opacus",
        "peak MB, ours / plain torch",
        "first step, s",
    ]
    rows, ahead = [], []
    for row, found in results.items():
        times, peaks = found["ms"], found["MB"]
        modes = {name: t for name, t in times.items() if name.startswith("opacus") and isinstance(t, float)}
        best = min(modes, key=modes.__getitem__, default="")
        cells = [f"{t:.2f}" if isinstance(t, float) else _reason(t) for t in (times[name] for name in CONTENDERS)]
        ours = times["dpscp"]
        ratios = {
            name: ours / times[name]
            for name in (best, "plain torch")
            if name and isinstance(ours, float) and isinstance(times[name], float)
        }
        beside = f"{ratios['plain torch']:.2f}" if "plain torch" in ratios else ""
        against = f"{ratios[best]:.2f} ({best})" if best in ratios else "none runs"
        memory = f"{peaks['dpscp']:.0f} / {peaks['plain torch']:.0f}" if peaks else ""
        first = found["first step, s"].get("dpscp")
        start = f"{first:.1f}" if isinstance(first, float) else ""
        rows.append([row, *cells, beside, against, memory, start])
        ahead += [f"{name} ({row}: {1 / ratio:.2f})" for name, ratio in ratios.items() if ratio > 1]
    return columns, rows, ahead


def table(results: Results) -> str:
    columns, rows, _ = compare(results)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _reason(said: float | str) -> str:
    return "too large" if str(said).startswith("MemoryError") else "failed"


def describe(device: str, threads: int) -> str:
    """Return what was measured where, in one line."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    place = f"{threads} thread(s) of a processor" if device == "cpu" else f"one {torch.cuda.get_device_name()}"
    known = f", commit {commit.stdout.strip()}" if commit.returncode == 0 else ""
    return f"`python benchmarks/torch_modules.py --device {device}`{known}; {place}, torch {torch.__version__}"


def write_page(page: Path, device: str, said: str, results: Results) -> None:
    """Replace the part of a page about this device, between its two marks, by the table of these results."""
    begin, end = f"<!-- torch modules, {device} -->", f"<!-- end of torch modules, {device} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no lines {begin!r} and {end!r}")
    page.write_text(f"{before}{begin}\n\n{table(results)}\n\n{said}.\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", nargs="*", help="parts of the rows' names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    parser.add_argument("--page", type=Path, help="write the table into this page, between its marks")
    parser.add_argument("--read", type=Path, help="take the numbers of this file of an earlier run")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.peak:
        print_peak(next(row for row in ROWS if row.name == options.peak[0]), options.peak[1])
        return
    if options.read:
        found = json.loads(options.read.read_text(encoding="utf-8"))
        said, results = found["said"], found["rows"]
    else:
        torch.set_num_threads(options.threads)
        said, results = describe(options.device, options.threads), measure_rows(options)
    print(f"\nmilliseconds a step, {said}\n\n{table(results)}")
    if options.json:
        options.json.write_text(json.dumps({"said": said, "rows": results}, indent=1), encoding="utf-8")
    if options.page:
        write_page(options.page, options.device, said, results)


def measure_rows(options: argparse.Namespace) -> Results:
    """Return times and peaks of all rows with one of these names."""
    results: Results = {}
    for row in ROWS:
        if options.rows and not any(part in row.name for part in options.rows):
            continue
        results[row.name] = measure(row, options.rounds, options.device)
        if options.device == "cpu" and not options.no_memory:
            results[row.name]["MB"] = {n: peak_memory(row, n) for n in ("dpscp", "plain torch")}
        print(row.name, json.dumps(results[row.name]), flush=True)
    return results


if __name__ == "__main__":
    main()
