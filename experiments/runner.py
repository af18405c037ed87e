"""Runs the trials of a study: in parallel processes, resumable, deterministic for a seed.

Every finished task is appended to one JSON-lines file for its study, under a key that is a hash of everything that
decides its outcome: study, kind, configuration, trial, seed, and the library's source code. A killed run continues
where it stopped, and results of another configuration or another library are never picked up. Randomness comes from the
task's parts, never from the order or the number of the processes. A page carries a digest of all its tasks, so a study
whose page is complete is left out, on another machine too.
"""

import ast
import hashlib
import json
import os
import platform
import subprocess
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import dpscp
from experiments.progress import Bar, expected_minutes, minutes_of

__all__ = [
    "Header",
    "Options",
    "Outcome",
    "Study",
    "Task",
    "digest_of",
    "is_finished",
    "machine",
    "minutes_left",
    "name_commits",
    "processor",
    "run_study",
    "seed_of",
]

Row = dict[str, Any]
DELTA = 1e-5
ALPHA = 0.1
EPSILONS = (0.5, 1.0, 2.0)
# what the cache keeps of a finished task for its outcome, in the order of `Outcome`
_KEPT = ("rows", "seconds", "commit", "machine")


@dataclass(frozen=True)
class Options:
    """What the command line decides."""

    trials: int = 30
    quick: bool = False
    seed: int = 0
    workers: int = 2
    data: Path | None = None
    results: Path = Path("results")
    cache: Path = Path("build/experiments")
    fresh: bool = False
    kinds: tuple[str, ...] = ()

    def trials_of(self, *, quick: int, most: int | None = None) -> int:
        """The trials of a part that has at most ``quick`` in a quick run and at most ``most`` in a full one."""
        limit = quick if self.quick else most
        return self.trials if limit is None else min(limit, self.trials)


@dataclass(frozen=True)
class Task:
    """One piece of work: everything in here, and nothing else, decides its result."""

    study: str
    kind: str
    trial: int
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A hash of all that decides the result, the library's code included."""
        parts = {
            "study": self.study,
            "kind": self.kind,
            "trial": self.trial,
            "seed": self.seed,
            "config": dict(self.config),
            "library": source_digest(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Outcome:
    """The rows of a finished task, the processor time they took, the commit, the machine, and whether it is new."""

    task: Task
    rows: Sequence[Row]
    seconds: float
    commit: str
    machine: str = ""
    fresh: bool = True


@dataclass(frozen=True)
class Header:
    """Where a result comes from."""

    command: str
    seed: int
    commit: str
    date: str
    machine: str
    cpu_minutes: float
    digest: str = ""

    def lines(self) -> list[str]:
        """Markdown lines for the top of a page."""
        return [
            f"- command: `{self.command}`, seed {self.seed}",
            f"- commit {self.commit}, dpscp {dpscp.__version__}, {self.date}, tasks {self.digest}",
            f"- machine: {self.machine}; {self.cpu_minutes:.1f} minutes of one core for all tasks of this study",
        ]


@dataclass(frozen=True)
class Study:
    """A study: which tasks it has, how one is run (a top-level function), and how all of them are told."""

    name: str
    tasks: Callable[[Options], list[Task]]
    run: Callable[[Task, Path | None], list[Row]]
    report: Callable[[list[Outcome], Header, Options], None]


def seed_of(*parts: Any) -> int:
    """A 31-bit seed that is a fixed function of its parts."""
    entropy = [zlib.crc32(str(part).encode()) for part in parts]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def digest_of(tasks: Iterable[Task]) -> str:
    """A fingerprint of all tasks of a study: configurations, trials, seeds and the library's source code."""
    return hashlib.sha256(" ".join(task.key for task in tasks).encode()).hexdigest()[:12]


def is_finished(study: Study, options: Options) -> bool:
    """Whether the study's page was written from exactly these tasks by this source code."""
    page = options.results / f"{study.name}.md"
    if options.fresh or options.kinds or not page.exists():
        return False
    return f"tasks {digest_of(study.tasks(options))}" in page.read_text().replace("\n  ", " ")


def run_study(study: Study, options: Options, command: str) -> list[Outcome]:
    """Run what is not in the cache yet, report on everything, and return the outcomes in the order of the tasks.

    With ``options.kinds`` only tasks of these kinds are run, and nothing is reported.
    """
    tasks = [task for task in study.tasks(options) if not options.kinds or task.kind in options.kinds]
    store = Cache(options.cache / f"{study.name}.jsonl")
    if options.fresh:
        store.path.unlink(missing_ok=True)
    done = store.read()
    waiting = [task for task in tasks if task.key not in done]
    with Bar(study.name, len(tasks), len(tasks) - len(waiting)) as bar:
        for task, record in _execute(study, waiting, options, Code(_commit(), source_digest())):
            store.append(record)
            done[task.key] = record
            bar.advance()
    computed = {task.key for task in waiting}
    outcomes = [Outcome(task, *(done[task.key][part] for part in _KEPT), fresh=task.key in computed) for task in tasks]
    if not options.kinds:
        study.report(outcomes, header(command, options, outcomes), options)
    return outcomes


@dataclass(frozen=True)
class Code:
    """The commit and the library's source with which a run began."""

    commit: str
    digest: str = ""


def minutes_left(study: Study, options: Options) -> float | None:
    """Minutes of one core for the tasks that are not in the cache, as far as earlier runs tell; None: nobody knows."""
    if is_finished(study, options):
        return 0.0
    records = Cache(options.cache / f"{study.name}.jsonl").read()
    finished = {} if options.fresh else records
    waiting = [task.kind for task in study.tasks(options) if task.key not in finished]
    page = minutes_of(Path("results") / f"{study.name}.md")
    return expected_minutes(waiting, list(records.values()), page, len(study.tasks(Options())))


def _execute(
    study: Study, tasks: Sequence[Task], options: Options, code: Code
) -> Iterator[tuple[Task, dict[str, Any]]]:
    if options.workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield task, _work(study.run.__module__, task, options.data, code)
        return
    # spawn: a fresh interpreter in each process, so that results cannot depend on what the parent did before
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        futures: dict[Future[dict[str, Any]], Task] = {
            pool.submit(_work, study.run.__module__, task, options.data, code): task for task in tasks
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _work(module: str, task: Task, data: Path | None, code: Code) -> dict[str, Any]:
    """Run one task in this process; a process that started after a change of the library computes nothing."""
    if source_digest() != code.digest:
        raise RuntimeError("the library's source files changed while the study ran: start it again")
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpscp.SeededWarning)  # every trial follows from a seed, and nothing is released
        rows = import_module(module).run(task, data)
    return {
        "key": task.key,
        "study": task.study,
        "kind": task.kind,
        "trial": task.trial,
        "seed": task.seed,
        "config": dict(task.config),
        "commit": code.commit,
        "machine": machine(),
        "seconds": time.process_time() - started,
        "rows": rows,
    }


class Cache:
    """An append-only file of finished tasks; a line cut short by a kill is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, dict[str, Any]]:
        """Finished tasks by key."""
        records: dict[str, dict[str, Any]] = {}
        if not self.path.exists():
            return records
        for line in self.path.read_text().splitlines():
            try:
                record = json.loads(line)
                if record.keys() >= set(_KEPT):
                    records[record["key"]] = record
            except (json.JSONDecodeError, KeyError, AttributeError):
                continue
        return records

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one finished task; on disk before this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


@cache
def source_digest() -> str:
    """A fingerprint of what the library computes: its code without comments, docstrings and layout, and its tables."""
    digest = hashlib.sha256()
    root = Path(dpscp.__file__).parent
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.npz")]):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(_code(path) if path.suffix == ".py" else path.read_bytes())
    return digest.hexdigest()[:12]


def _code(path: Path) -> bytes:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        may_have_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if may_have_one and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree).encode()


def header(command: str, options: Options, outcomes: Iterable[Outcome]) -> Header:
    """Command, seed, commit, date and machine of this run."""
    outcomes = list(outcomes)
    return Header(
        command=command,
        seed=options.seed,
        commit=name_commits(o.commit for o in outcomes) or _commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=" and ".join(sorted({o.machine for o in outcomes})) or machine(),
        cpu_minutes=sum(o.seconds for o in outcomes) / 60,
        digest=digest_of(o.task for o in outcomes),
    )


def name_commits(commits: Iterable[str]) -> str:
    """The commits at which tasks were computed; more than one of them means that a run was resumed."""
    found = sorted(set(commits))
    return ", ".join(found) + (" (the run was resumed)" if len(found) > 1 else "")


@cache
def _commit() -> str:
    head, changed = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", "src", "experiments")
    if head is None:
        return "unknown"
    return f"{head} (with uncommitted changes)" if changed else head


def _git(*words: str) -> str | None:
    root = Path(__file__).parents[1]
    answer = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def processor() -> str:
    """What the processor of this machine is called."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def machine() -> str:
    """Processor, cores and versions, as the head of a page names them."""
    return f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"
