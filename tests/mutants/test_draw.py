"""Random mutants: every kind is found, the draw follows the seed, and each meets its own tests first."""

from draw import LEFT_OUT, PROMISES, promise_files
from run import ROOT


def test_the_modules_that_carry_promises_are_drawn_from():
    files = {str(path) for path in promise_files(ROOT)}
    assert {
        "src/dpscp/core/fit.py",
        "src/dpscp/privacy/ledger.py",
        "src/dpscp/guarantees/stability.py",
    } <= files
    # a module that was moved would be left out silently
    assert [name for name in (*PROMISES, *LEFT_OUT) if not (ROOT / "src/dpscp" / name).exists()] == []
