"""Which fast tests reach which functions, and how long each takes: recorded once on a copy of the tree.

In the copy every function of the package notes its name when it starts, which costs next to nothing. A test reaches
what ran in it and what ran in its fixtures. Results of cached functions are forgotten before each file of tests.
"""

import ast
import builtins
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trees import MODULE, PACKAGE, Scope, module_name, parse, scopes

NOTED = "_reached_functions"
# The seconds of a test that fails on the tree as it is: it is never chosen.
FAILED = 1e9
# Tests of the source text itself, of pages and of packages run no function that a mutant changes.
LEFT_OUT = ("tests/mutants", "tests/fuzz", "tests/experiments", "tests/docs", "tests/lint", "tests/test_imports.py")


def instrument(root: Path) -> None:
    """Let every function under ``root`` note its name, in this process and in those that tests start."""
    for path in (root / PACKAGE).rglob("*.py"):
        if not path.name.startswith("triton_"):  # compiled for a graphics card from its own text
            path.write_text(_instrumented(path.read_text(), module_name(path.relative_to(root))))
    (root / "src" / "sitecustomize.py").write_text(f"import builtins\nbuiltins.{NOTED} = set()\n")
    setattr(builtins, NOTED, set())


def _instrumented(text: str, module: str) -> str:
    lines = text.splitlines(keepends=True)
    starts = [
        (_first(scope), name) for name, scope in scopes(parse(text)) if not isinstance(scope, ast.Module | ast.ClassDef)
    ]
    for (line, column), name in sorted(starts, reverse=True):
        note = f"{NOTED}.add({module + ':' + name!r})"
        head, tail = lines[line - 1][:column], lines[line - 1][column:]
        lines[line - 1] = f"{head}{note}; {tail}" if head.strip() else f"{head}{note}\n{head}{tail}"
    return "".join(lines)


def _first(scope: Scope) -> tuple[int, int]:
    """Return line and column of the first statement after the doc string."""
    body = scope.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1
    first = body[int(documented)]
    line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    return line, first.col_offset


class Recorder:
    """A pytest plugin: notes what each test reached and how long it took, and writes it to a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, ""
        self._failed: set[str] = set()
        self._by_fixture: dict[Any, set[str]] = {}
        self._found: dict[str, Any] = {"seconds": {}, "tests": {}}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Keep what a fixture reached: its users share it."""
        noted = getattr(builtins, NOTED)
        before = set(noted)
        noted.clear()
        try:
            return (yield)
        finally:
            self._by_fixture[fixturedef] = set(noted)
            noted |= before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Keep what a test reached, its fixtures included."""
        if item.location[0] != self._file:
            self._file = item.location[0]
            self._write()
            _forget_results()
        noted = getattr(builtins, NOTED)
        noted.clear()
        start = time.process_time()  # of this process alone: others may slow the clock on the wall
        result = yield
        self._found["seconds"][item.nodeid] = FAILED if item.nodeid in self._failed else time.process_time() - start
        reached = set(noted)
        for definitions in getattr(item, "_fixtureinfo").name2fixturedefs.values():  # noqa: B009 (no public name)
            reached |= self._by_fixture.get(definitions[-1], set())
        for name in reached:
            self._found["tests"].setdefault(name, []).append(item.nodeid)
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember what fails on the tree as it is: such a test is no use."""
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write down what the last file reached too."""
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps(self._found))


def _forget_results() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("dpscp"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and not isinstance(value, type):
                    value.cache_clear()


class Reach:
    """The recorded map: tests for a function, the likeliest to notice first."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        self._seconds: dict[str, float] = recorded["seconds"]
        self._tests: dict[str, list[str]] = recorded["tests"]
        self._breadth = Counter(test for tests in self._tests.values() for test in tests)

    @classmethod
    def load(cls, path: Path) -> "Reach":
        """Read what a ``Recorder`` wrote."""
        return cls(json.loads(path.read_text()))

    def tests(self, module: str, scope: str, after: float, until: float) -> list[str]:
        """Return the tests of a function that start after and before so many seconds of all its tests.

        A test that is quick and reaches few other functions comes first.
        """
        names = [n for n in self._tests if n == f"{module}:{scope}" or n.startswith(f"{module}:{scope}.")]
        if scope == MODULE or not names:
            names = [n for n in self._tests if n.startswith(f"{module}:")]
        reached = {test for name in names for test in self._tests[name] if self._seconds[test] < FAILED}
        chosen, total = [], 0.0
        for test in sorted(reached, key=lambda test: (self._seconds[test] + 0.02) * self._breadth[test]):
            if after <= total < until:
                chosen.append(test)
            total += self._seconds[test] + 0.005
        return chosen
