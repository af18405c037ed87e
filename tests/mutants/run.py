"""Make small errors one at a time in a copy of the tree and see that the fast tests fail.

    python tests/mutants/run.py                        # the table; exit code 1 if an error goes unnoticed
    python tests/mutants/run.py --check                # only whether each entry still applies (part of the test suite)
    python tests/mutants/run.py ledger torch           # entries whose function, tests or reason hold one of these words
    python tests/mutants/run.py --sample 60 --seed 1   # random errors, and the share that the tests notice

Each error gets a process of its own, forked after the heavy libraries were read. Entries of the table name their tests.
A random error meets the tests of its own package first, then, if it survives, those of the others.
"""

import argparse
import contextlib
import io
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
from draw import RandomMutant, sample  # noqa: E402 (this folder is no package)
from table import MUTANTS, Mutant  # noqa: E402
from trees import PACKAGE, NotFoundError, edited  # noqa: E402

# What the tests need; experiments and results stay where they are.
COPIED = ("src", "tests", "docs", "README.md", "conftest.py", "pyproject.toml")
# Tests of the source text itself, of pages and of packages run no function that a random mutant changes.
LEFT_OUT = ("mutants", "fuzz", "experiments", "docs", "lint")
# An error may make a loop endless: that counts as noticed. A slow test that is not done by then has no answer.
LONGEST_SECONDS, SLOW_SECONDS = 180, 900
# These are seconds of the processor; whoever waits for something may take so many times longer.
WAITING = 5


class Change(Protocol):
    """An error that can be made in a tree."""

    def apply(self, root: Path) -> None: ...


@dataclass(frozen=True)
class Job:
    """A change (None: no change) and the tests to run on it."""

    change: Change | None
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The exit code of pytest, the seconds and what was printed."""

    code: int
    seconds: float
    text: str

    @property
    def first_failure(self) -> str:
        """The test that failed first, in a line of its own."""
        failed = [line for line in self.text.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return f"\n    {failed[0][:150]}" if failed else ""


def problem(mutant: Mutant, root: Path = ROOT) -> str | None:
    """Return why an entry does not apply to this tree; None if it does."""
    try:
        edited(root, mutant.where, mutant.edits)
    except NotFoundError as error:
        return str(error)
    for test in mutant.tests:
        name, *parts = test.split("::")
        if not (root / name).is_file():
            return f"no such file: {name}"
        missing = [part for part in parts if not _defines(root / name, part)]
        if missing:
            return f"{name} has no {missing[0]}"
    return None


def _defines(path: Path, name: str) -> bool:
    text, plain = path.read_text(), name.partition("[")[0]
    return f"def {plain}(" in text or f"class {plain}:" in text


# ---- one process for each change


def run_tests(job: Job) -> Answer:
    """Run pytest on a copy of the tree with the change in it."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name)
            else:
                shutil.copy2(ROOT / name, copy / name)
        if job.change is not None:
            job.change.apply(copy)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # nothing here needs any, and starting them takes longer
        # the folder itself too: tests that start processes name their own module
        sys.path[:0] = [str(copy / "src"), str(copy)]
        sys.dont_write_bytecode = True
        import pytest

        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(text):
            options = ["-q", "-x", "-p", "no:cacheprovider", "--tb=short"]
            seconds = LONGEST_SECONDS
            if isinstance(job.change, RandomMutant):
                options += ["-m", "not slow"]  # simulations then repeat less, as in the fast suite
                seconds = SLOW_SECONDS
            chosen = Chosen(job.tests, None if job.change is None else seconds)
            code = pytest.main([*options, *job.tests], plugins=[chosen])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(ROOT)
    return Answer(int(code), time.monotonic() - start, text.getvalue())


class TooLong(BaseException):
    """The time is up; nothing in a test catches it."""


class Chosen:
    """A pytest plugin: slow tests run where they are named, not where their file is; and all have so much time."""

    def __init__(self, tests: Sequence[str], seconds: int | None) -> None:
        self._named, self._seconds = tuple(test for test in tests if "::" in test), seconds

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out slow tests that nobody named, and start the clock."""
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        left_out = [item for item in slow if not item.nodeid.startswith(self._named)]
        items[:] = [item for item in items if item not in left_out]
        if self._seconds is not None:
            some_slow = len(left_out) < len(slow)
            handler, seconds = (_no_answer, SLOW_SECONDS) if some_slow else (_too_long, self._seconds)
            # an endless loop uses the processor; on a busy machine the clock on the wall says little
            for timer, clock, limit in (
                (signal.SIGPROF, signal.ITIMER_PROF, seconds),
                (signal.SIGALRM, signal.ITIMER_REAL, WAITING * seconds),
            ):
                signal.signal(timer, handler)
                signal.setitimer(clock, limit)


def _too_long(*_: object) -> None:
    raise TooLong


def _no_answer(*_: object) -> None:
    import pytest

    pytest.exit(f"a slow test took more than {SLOW_SECONDS} seconds", returncode=2)


def each_in_its_own_process(jobs: Sequence[Job], at_once: int) -> Iterator[tuple[Job, Answer]]:
    """Yield the answer of each job as it comes. No pool: its processes may not start any, and some tests do."""
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(jobs)), {}
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.pop()
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=lambda job=job, there=there: there.send(run_tests(job)))
            process.start()
            there.close()
            running[here] = process, job
        for here in connection.wait(list(running)):
            process, job = running.pop(here)
            try:
                answer = here.recv()
            except EOFError:
                answer = Answer(-1, 0.0, "the process ended without an answer")
            process.join()
            yield job, answer


def _read_libraries() -> None:
    """Read everything heavy that tests use and that is not under test."""
    import importlib

    names = ("dp_accounting.pld.privacy_loss_distribution", "opacus", "pandas", "pytest", "randomgen")
    more = ("dp_accounting.rdp", "scipy.optimize", "scipy.stats", "sklearn.linear_model", "threadpoolctl", "torch")
    for name in (*names, *more):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _no_shrinking() -> None:
    """A property that fails has failed: its simplest counterexample takes long and is not needed."""
    import hypothesis

    hypothesis.settings.register_profile(
        "mutants", phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate), derandomize=True, deadline=None
    )
    hypothesis.settings.load_profile("mutants")


# ---- random mutants


def folders_for(file: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folder of tests that mirrors the package of a file, and all other folders."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))} - set(LEFT_OUT)
    own = {file.relative_to(PACKAGE).parts[0]} & folders
    first, rest = (tuple(f"tests/{name}" for name in sorted(names)) for names in (own, folders - own))
    return first, rest


def run_sample(size: int, seed: int, jobs: int) -> int:
    """Draw mutants, run the tests and print the share that was noticed, with the survivors."""
    survivors: Sequence[RandomMutant] = sample(ROOT, size, seed)
    for place in (0, 1):
        work = [Job(mutant, tests) for mutant in survivors if (tests := folders_for(mutant.file)[place])]
        killed = set()
        for job, answer in each_in_its_own_process(work, jobs):
            assert isinstance(job.change, RandomMutant)
            if answer.code:
                killed.add(job.change)
            verdict = "killed" if answer.code else "survived"
            print(f"{verdict:9} {answer.seconds:4.0f} s  {job.change.name}", flush=True)
        survivors = [mutant for mutant in survivors if mutant not in killed]
    print(f"{size - len(survivors)} of {size} noticed ({1 - len(survivors) / size:.0%}), seed {seed}", flush=True)
    for mutant in survivors:
        print(f"survived  {mutant.name}")
    return 0


# ---- the table


def run_table(words: Sequence[str], jobs: int, *, check: bool, show: bool) -> int:
    """Make each error of the table; return 0 if every one was noticed that should be."""
    chosen = [m for m in MUTANTS if not words or any(word in m.text for word in words)]
    lost = {m: why for m in chosen if (why := problem(m)) is not None}
    for mutant, why in lost.items():
        print(f"could not apply  {mutant.where}: {mutant.why}\n    {why}")
    if check:
        print(f"{len(chosen)} mutants, {len(lost)} no longer apply")
        return 1 if lost else 0
    start = time.monotonic()
    work = [Job(m, m.tests) for m in chosen if m not in lost]
    work.insert(0, Job(None, tuple(sorted({test for job in work for test in job.tests}))))
    outcome: dict[str, int] = {}
    for job, answer in each_in_its_own_process(work, jobs):
        if not isinstance(job.change, Mutant):
            print(f"without any error the {len(job.tests)} named tests take {answer.seconds:.0f} s")
            if answer.code:
                print(answer.text, "the tests fail on the tree as it is: nothing is learned from them", sep="\n")
                outcome["broken"] = 1
            continue
        # 0: all tests passed, 1: one failed; anything else is no answer
        verdict = {0: "survived", 1: "killed"}.get(answer.code, "broken")
        outcome[verdict] = outcome.get(verdict, 0) + 1
        if verdict != "killed" or show:
            where = f"{job.change.where}: {job.change.why}{answer.first_failure}"
            print(f"{verdict:16} {answer.seconds:5.1f} s  {where}", flush=True)
            if verdict == "broken":
                print(answer.text)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(outcome.items()))
    print(f"{counts}, {len(lost)} could not be applied; {time.monotonic() - start:.0f} s")
    return 1 if lost or outcome.keys() - {"killed"} else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table or a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only entries that mention one of these")
    parser.add_argument("--check", action="store_true", help="only say which entries no longer apply")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default 2)")
    parser.add_argument("--show", action="store_true", help="print a line about each, with the test that noticed")
    parser.add_argument("--sample", type=int, help="draw so many random mutants instead")
    parser.add_argument("--seed", type=int, default=1, help="of the random mutants (default 1)")
    given = parser.parse_args(arguments)
    jobs = max(1, given.jobs)
    if not given.check:
        _read_libraries()
        _no_shrinking()
    if given.sample is not None:
        return run_sample(given.sample, given.seed, jobs)
    return run_table(given.words, jobs, check=given.check, show=given.show)


if __name__ == "__main__":
    sys.exit(main())
