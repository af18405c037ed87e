"""What the paper's training would cost under Opacus: microseconds a step, times the steps of the studies."""

import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments import bloodmnist, housing, synthetic_scaling, tables
from experiments.data import MissingDataError
from experiments.faithful import SHARES, PaperSettings
from experiments.runner import EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "opacus_time"
STEPS = 300
WARM_UP = 30
# settings, width of a row, records, and how many private trainings on all records and on a half one trial needs
WORK: dict[str, tuple[PaperSettings, int, tuple[int, ...], int]] = {
    "housing": (housing.SETTINGS, 8, (housing.N,), len(EPSILONS) * len(SHARES)),
    "bloodmnist": (bloodmnist.SETTINGS, 512, (bloodmnist.N,), len(EPSILONS) * len(SHARES)),
    "synthetic_scaling": (synthetic_scaling.SETTINGS, 10, synthetic_scaling.SIZES, len(EPSILONS)),
}
PRINTED_TRIALS = 30


def tasks(options: Options) -> list[Task]:
    """Three timings of each network, the median counts."""
    return [
        Task(NAME, study, trial, options.seed) for study in WORK for trial in range(options.trials_of(quick=3, most=3))
    ]


def run(task: Task, data: Path | None) -> list[Row]:  # noqa: ARG001 (made, not loaded)
    """Microseconds of one private step, by Opacus and by the engine, on the same random records."""
    settings, width, sizes, _ = WORK[task.kind]
    n = sizes[0]
    rng = np.random.default_rng(seed_of(task.seed, NAME, task.trial))
    X = rng.normal(size=(n, width)).astype(np.float32)
    y = rng.normal(size=n) if settings.n_classes is None else rng.integers(0, settings.n_classes, size=n)
    theirs = _opacus(settings, X, y)
    _, steps = settings.loader(n)
    started = time.process_time()
    settings.train(X, y, 1.0, 0, 0)
    ours = (time.process_time() - started) / steps * 1e6
    base = {"epsilon": None, "train_share": None, "n": n, "coverage": None, "variant": task.kind}
    return [{**base, "method": "opacus", "size": theirs}, {**base, "method": "engine", "size": ours}]


def _opacus(settings: PaperSettings, X: Any, y: Any) -> float:
    try:
        import torch
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset
    except ImportError:
        raise MissingDataError("torch and Opacus are not installed: pip install torch opacus") from None

    torch.set_num_threads(1)
    widths = (X.shape[1], *settings.hidden, settings.n_classes or 1)
    layers: list[Any] = []
    for into, out in pairwise(widths):
        layers += [torch.nn.Linear(into, out), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    regression = settings.n_classes is None
    target = torch.from_numpy(y.astype(np.float32 if regression else np.int64))
    loader = DataLoader(TensorDataset(torch.from_numpy(X), target), batch_size=settings.batch, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
        )
        loss_of = torch.nn.MSELoss() if regression else torch.nn.CrossEntropyLoss()
        done, started = 0, 0.0
        while True:
            for rows, wanted in loader:
                if done == WARM_UP:
                    started = time.process_time()
                if done == WARM_UP + STEPS:
                    return (time.process_time() - started) / STEPS * 1e6
                optimizer.zero_grad()
                outputs = model(rows)
                loss_of(outputs[:, 0] if regression else outputs, wanted).backward()
                optimizer.step()
                done += 1


def private_steps(study: str) -> int:
    """Steps of all private trainings that the paper's rows of a study need, 30 trials."""
    settings, _, sizes, trainings = WORK[study]
    per_trial = sum(trainings * settings.loader(n)[1] + len(EPSILONS) * settings.loader(n // 2)[1] for n in sizes)
    return PRINTED_TRIALS * per_trial


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """A page with the two columns of hours."""
    rows = tables.rows_of(outcomes)
    head = ["study", "private steps, 30 trials", "Opacus, us a step", "ours", "Opacus, hours of one core", "ours"]
    body, total = [], np.zeros(2)
    for study in WORK:
        steps = private_steps(study)
        each = [
            float(np.median([r["size"] for r in rows if r["variant"] == study and r["method"] == method]))
            for method in ("opacus", "engine")
        ]
        hours = np.array(each) * steps / 3.6e9
        total += hours
        body.append([study, f"{steps:,}", *(f"{v:.0f}" for v in each), *(f"{h:.2f}" for h in hours)])
    body.append(["together", "", "", "", *(f"{h:.2f}" for h in total)])
    tables.write_page(
        options.results / f"{NAME}.md",
        "The same training under Opacus",
        header,
        [
            "The private trainings behind the paper's three tables only (one thread, the same batch sizes, loader and "
            "accountant included for Opacus); median of three timings on random records.",
            "\n".join(tables.grid(head, body)),
        ],
    )


STUDY = Study(NAME, tasks, run, report)
