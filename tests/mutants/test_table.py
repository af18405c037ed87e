"""The table keeps up with the code: every error can still be made, and the tests that must notice exist."""

import ast
from types import SimpleNamespace

import pytest
from run import Chosen, Mutant, problem
from table import MUTANTS
from trees import NotFoundError, edited

TEXT = '''
class Account:
    def total(self, *, rows=1):
        """The sum."""
        # why
        return self.spent + sum(
            rows * cost for cost in self.costs)

    def told(self):
        return f"spent {self.total(rows=2)} of {self.budget:.3g}"

def total(rows):
    if rows:
        check(rows)
        save(rows)
    return rows
'''


def test_an_entry_says_what_is_wrong_and_who_notices():
    """Whether each still applies is checked by ``make lint``."""
    assert len({(m.where, m.edits) for m in MUTANTS}) == len(MUTANTS) >= 80
    assert all(m.tests and m.why for m in MUTANTS)


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "src/dpscp/privacy"
    folder.mkdir(parents=True)
    (folder / "account.py").write_text(TEXT)
    (tmp_path / "test_code.py").write_text("def test_y():\n    pass\n")
    return tmp_path


def entry(where="privacy.account:Account.total", before="rows * cost", after="cost", tests=("test_code.py::test_y",)):
    return Mutant(where, ((before, after),), "an error", tests)


def changed(tree, **options):
    entry(**options).apply(tree)
    return (tree / "src/dpscp/privacy/account.py").read_text()


def test_an_expression_is_replaced_whatever_its_layout(tree):
    assert problem(entry(), tree) is None
    text = changed(tree, before="sum(rows * cost   for cost in\n self.costs)", after="0")
    assert text == TEXT.replace("sum(\n            rows * cost for cost in self.costs)", "(0)")
    assert "found 0 times" in problem(entry(), tree)


def test_statements_are_replaced_and_removed(tree):
    text = changed(tree, where="privacy.account:total", before="check(rows)\nsave(rows)", after="pass")
    assert text == TEXT.replace("check(rows)\n        save(rows)", "pass")
    assert "if" not in changed(tree, where="privacy.account:total", before="if rows:\n  pass", after="rows += 1")


def test_a_part_of_a_formatted_text_is_replaced(tree):
    text = changed(tree, where="privacy.account:Account.told", before="self.total(rows=2)", after="self.total()")
    ast.parse(text)
    assert "spent {self.total()} of {self.budget:.3g}" in text


def test_a_function_that_moved_is_found_by_its_name(tree):
    old = tree / "src/dpscp/privacy/account.py"
    old.rename(tree / "src/dpscp/costs.py")
    assert problem(entry(), tree) is None
    path, text = edited(tree, "privacy.account:Account.total", (("rows * cost", "cost"),))
    assert path.name == "costs.py"
    assert "(cost) for cost in" in text
    with pytest.raises(NotFoundError, match=r"no module has Account\.lost"):
        edited(tree, "privacy.account:Account.lost", (("rows * cost", "cost"),))


def test_what_does_not_apply_is_said(tree):
    assert "found 4 times" in problem(entry(where="privacy.account:total", before="rows"), tree)
    assert "has no test_z" in problem(entry(tests=("test_code.py::test_z",)), tree)
    assert "no such file" in problem(entry(tests=("elsewhere.py",)), tree)


def test_slow_tests_run_where_they_are_named():
    slow, fast = (
        SimpleNamespace(nodeid=f"test_code.py::test_{name}", get_closest_marker={"slow": name == "slow" or None}.get)
        for name in ("slow", "fast")
    )
    for tests, chosen in ((["test_code.py::test_slow"], [slow, fast]), (["test_code.py"], [fast])):
        items = [slow, fast]
        Chosen(tests, None).pytest_collection_modifyitems(items)
        assert items == chosen
