"""Random mutants: every kind is found, the draw follows the seed, and each meets its own tests first."""

import ast
from pathlib import Path

import pytest
from draw import LEFT_OUT, PROMISES, candidates, promise_files, sample
from run import ROOT, folders_for

TEXT = '''
"""A module."""
SLACK = 1e-3

class Bound:
    low: float
    high: float
    name: str

    def reach(self, n: int, *, rows: int = 1) -> float:
        """Say how far."""
        if n <= 0:
            raise ValueError(f"n must be above {0}")
        note(n, rows=rows)
        wide = min(self.low, n) + SLACK
        return wide if not rows and n else -wide * 2
'''


@pytest.fixture(scope="module")
def found():
    return list(candidates(Path("src/dpscp/bound.py"), TEXT))


def test_every_kind_of_change_is_found(found):
    changes = {(m.kind, ast.unparse(m.place.nodes[0]), m.after) for m in found}
    expected = {
        ("comparison", "n <= 0", "n < 0"),
        ("comparison", "n <= 0", "n > 0"),
        ("condition", "n <= 0", "not n <= 0"),
        ("keyword", "note(n, rows=rows)", "note(n)"),
        ("statement", "note(n, rows=rows)", ""),
        ("extreme", "min(self.low, n)", "max(self.low, n)"),
        ("field", "self.low", "self.high"),
        ("term", "min(self.low, n) + SLACK", "min(self.low, n)"),
        ("operator", "min(self.low, n) + SLACK", "min(self.low, n) - SLACK"),
        ("boolean", "not rows and n", "not rows or n"),
        ("sign", "-wide", "wide"),
        ("factor", "-wide * 2", "-wide"),
        ("constant", "2", "3"),
        ("constant", "0.001", "0.002"),
        ("branch", "wide if not rows and n else -wide * 2", "wide"),
    }
    assert expected <= changes
    # neither messages nor annotations nor fields of another type
    assert not any("self.name" in after for _, _, after in changes)
    assert {kind for kind, before, _ in changes if "ValueError" in before} == {"statement"}
    assert {m.scope for m in found} == {"<module>", "Bound.reach"}


def test_the_draw_follows_the_seed(tmp_path):
    path = tmp_path / "src/dpscp/core/fit.py"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    names = [[m.name for m in sample(tmp_path, 12, seed)] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    assert len(set(names[0])) == 12
    assert names[0][:5] == [m.name for m in sample(tmp_path, 5, 1)]  # so a run that was stopped can go on
    assert len(sample(tmp_path, 1000, 1)) == len(list(candidates(path, TEXT)))


def test_the_modules_that_carry_promises_are_drawn_from():
    files = {str(path) for path in promise_files(ROOT)}
    assert {
        "src/dpscp/core/fit.py",
        "src/dpscp/privacy/ledger.py",
        "src/dpscp/guarantees/stability.py",
    } <= files
    # a module that was moved would be left out silently
    assert [name for name in (*PROMISES, *LEFT_OUT) if not (ROOT / "src/dpscp" / name).exists()] == []


def test_the_tests_of_its_own_package_come_first():
    own, others = folders_for(Path("src/dpscp/privacy/pld.py"))
    assert own == ("tests/privacy",)
    assert "tests/core" in others
    assert not {"tests/privacy", "tests/mutants", "tests/docs"} & set(others)
    assert folders_for(Path("src/dpscp/exceptions.py"))[0] == ()
