"""Plants the mistakes of ``table.py`` one at a time in a copy of the tree and runs the tests that should notice.

    python tests/mutants/run.py              # all of them; exit code 1 if one goes unnoticed or no longer applies
    python tests/mutants/run.py --check      # only whether each still applies (a moment; part of the test suite)
    python tests/mutants/run.py ledger torch # those whose file, tests or reason hold one of these words

Each mistake gets a process of its own, forked after the heavy libraries were read: what is left is the tests. Slow
ones run where an entry names them one by one.
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
from multiprocessing import connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
from table import MUTANTS, Mutant  # noqa: E402 (this folder is no package)

# What the tests of a mutant need; experiments and results stay where they are.
COPIED = ("src", "tests", "docs", "README.md", "conftest.py", "pyproject.toml")
# A mistake may make a loop endless: that counts as noticed. A slow test that is not done by then has told nothing.
LONGEST_SECONDS, SLOW_SECONDS = 180, 900
Job = tuple[Mutant | None, tuple[str, ...]]
Answer = tuple[int, float, str]


def problem(mutant: Mutant, root: Path = ROOT) -> str | None:
    """Why the entry does not apply to this tree; None if it does."""
    path = root / mutant.file
    if not path.is_file():
        return "no such file"
    text = path.read_text()
    for old, _ in mutant.edits:
        if text.count(old) != 1:
            return f"found {text.count(old)} times: {old!r}"
        text = text.replace(old, "")
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


def plant(mutant: Mutant, root: Path) -> None:
    """Make the mistake in the tree at ``root``."""
    path = root / mutant.file
    text = path.read_text()
    for old, new in mutant.edits:
        if old not in text:
            raise ValueError(f"{mutant.file} has changed: {old!r} is not there")
        text = text.replace(old, new)
    path.write_text(text)


def noticed(mutant: Mutant | None, tests: Sequence[str]) -> Answer:
    """pytest's exit code on a copy of the tree with the mistake in it (None: without), the seconds, what it printed."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / name, copy / name)
        if mutant is not None:
            plant(mutant, copy)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # nothing here needs any, and starting them takes longer
        # the folder itself too: tests that start processes name their own module
        sys.path[:0] = [str(copy / "src"), str(copy)]
        sys.dont_write_bytecode = True
        import pytest

        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
            options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=short"]
            code = pytest.main([*options, *tests], plugins=[Chosen(tests, limited=mutant is not None)])
        signal.alarm(0)
        os.chdir(ROOT)
    return int(code), time.monotonic() - start, said.getvalue()


class TooLong(BaseException):
    """Nothing in a test catches it."""


class Chosen:
    """A pytest plugin: slow tests run where they are named, not where their file is; and all have so much time."""

    def __init__(self, tests: Sequence[str], *, limited: bool) -> None:
        self._named, self._limited = tuple(test for test in tests if "::" in test), limited

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out what is not asked for, and start the clock."""
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        left_out = [item for item in slow if not item.nodeid.startswith(self._named)]
        items[:] = [item for item in items if item not in left_out]
        if self._limited:
            signal.signal(signal.SIGALRM, _no_answer if len(left_out) < len(slow) else _too_long)
            signal.alarm(SLOW_SECONDS if len(left_out) < len(slow) else LONGEST_SECONDS)


def _too_long(*_: object) -> None:
    raise TooLong


def _no_answer(*_: object) -> None:
    import pytest

    pytest.exit(f"a slow test took more than {SLOW_SECONDS} seconds", returncode=2)


def each_in_its_own_process(jobs: Sequence[Job], at_once: int) -> Iterator[tuple[Mutant | None, Answer]]:
    """The answer of each job as it comes. No pool: its processes may not start any, and some tests do."""
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(jobs)), {}
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.pop()
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=lambda job=job, there=there: there.send(noticed(*job)))
            process.start()
            there.close()
            running[here] = process, job[0]
        for here in connection.wait(list(running)):
            process, mutant = running.pop(here)
            try:
                answer = here.recv()
            except EOFError:
                answer = -1, 0.0, "the process ended without an answer"
            process.join()
            yield mutant, answer


def _read_libraries() -> None:
    """Everything heavy that tests use and that is not under test."""
    import importlib

    for name in (
        "dp_accounting.pld.privacy_loss_distribution",
        "opacus",
        "pandas",
        "pytest",
        "randomgen",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in (
        "dp_accounting.rdp",
        "scipy.optimize",
        "scipy.stats",
        "sklearn.linear_model",
        "threadpoolctl",
        "torch",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _no_shrinking() -> None:
    """A property that fails has failed: its simplest counterexample takes long and is not asked for."""
    import hypothesis

    hypothesis.settings.register_profile(
        "mutants", phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate), derandomize=True, deadline=None
    )
    hypothesis.settings.load_profile("mutants")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 0 if every mistake was noticed that should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutants that mention one of these")
    parser.add_argument("--check", action="store_true", help="only say which entries no longer apply")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default 2)")
    parser.add_argument("--show", action="store_true", help="print a line about each, with the test that noticed")
    parser.add_argument("--no-baseline", action="store_true", help="trust that the tests pass on the tree as it is")
    given = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if not given.words or any(word in m.text for word in given.words)]
    lost = [(m, why) for m in chosen if (why := problem(m)) is not None]
    for mutant, why in lost:
        print(f"could not apply  {mutant.file}: {mutant.why}\n    {why}")
    if given.check:
        print(f"{len(chosen)} mutants, {len(lost)} no longer apply")
        return 1 if lost else 0
    start = time.monotonic()
    _read_libraries()
    _no_shrinking()
    lost_ones = [m for m, _ in lost]
    chosen = [m for m in chosen if m not in lost_ones]
    jobs: list[Job] = [(m, m.tests) for m in chosen]
    if not given.no_baseline:
        jobs.insert(0, (None, tuple(sorted({test for m in chosen for test in m.tests}))))
    outcome: dict[str, int] = {}
    for mutant, (code, seconds, said) in each_in_its_own_process(jobs, max(1, given.jobs)):
        if mutant is None:
            print(f"without any mistake the {len(jobs[0][1])} named tests take {seconds:.0f} s")
            if code:
                print(said, "the tests fail on the tree as it is: nothing is learned from them", sep="\n")
                outcome["broken"] = 1
            continue
        verdict = _verdict(mutant, code)
        outcome[verdict] = outcome.get(verdict, 0) + 1
        if verdict != "killed" or given.show:
            print(f"{verdict:16} {seconds:5.1f} s  {mutant.file}: {mutant.why}{_first_failure(said)}", flush=True)
            if verdict == "broken":
                print(said)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(outcome.items()))
    print(f"{counts}, {len(lost)} could not be applied; {time.monotonic() - start:.0f} s")
    return 1 if lost or outcome.keys() - {"killed", "harmless"} else 0


def _verdict(mutant: Mutant, code: int) -> str:
    """0: all tests passed, 1: one failed; anything else is no answer."""
    if code == 0:
        return "harmless" if mutant.harmless else "survived"
    return "killed" if code == 1 else "broken"


def _first_failure(said: str) -> str:
    """The test that failed first, in a line of its own."""
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"\n    {failed[0][:150]}" if failed else ""


if __name__ == "__main__":
    sys.exit(main())
