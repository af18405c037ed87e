"""The table keeps up with the code: every mistake can still be made, and the tests that must notice exist."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from run import Chosen, Mutant, plant, problem
from table import MUTANTS


def test_every_mistake_can_still_be_made():
    assert {f"{m.file}: {m.why}": why for m in MUTANTS if (why := problem(m)) is not None} == {}
    assert len({m.edits for m in MUTANTS}) == len(MUTANTS) >= 80
    assert all(m.tests and m.why for m in MUTANTS)
    # what no fast test notices is the exception, and has its reason
    assert sum(bool(m.harmless) for m in MUTANTS) <= 0.05 * len(MUTANTS)


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "code.py").write_text("x = 1\ny = x + x\n")
    (tmp_path / "test_code.py").write_text("def test_y():\n    pass\n")
    return tmp_path


def entry(old="x = 1", new="x = 2", tests=("test_code.py::test_y",)):
    return Mutant("code.py", ((old, new),), "a mistake", tests)


def test_a_mistake_is_planted(tree):
    assert problem(entry(), tree) is None
    plant(entry(), tree)
    assert (tree / "code.py").read_text() == "x = 2\ny = x + x\n"
    assert "found 0 times" in problem(entry(), tree)


def test_slow_tests_run_where_they_are_named():
    slow, fast = (
        SimpleNamespace(nodeid=f"test_code.py::test_{name}", get_closest_marker={"slow": name == "slow" or None}.get)
        for name in ("slow", "fast")
    )
    for tests, chosen in ((["test_code.py::test_slow"], [slow, fast]), (["test_code.py"], [fast])):
        items = [slow, fast]
        Chosen(tests, limited=False).pytest_collection_modifyitems(items)
        assert items == chosen


def test_what_does_not_apply_is_said(tree):
    assert "found 3 times" in problem(entry(old="x"), tree)
    assert "has no test_z" in problem(entry(tests=("test_code.py::test_z",)), tree)
    assert "no such file" in problem(entry(tests=("elsewhere.py",)), tree)
    assert "no such file" in problem(Mutant("gone.py", (("a", "b"),), "a mistake", ()), tree)
