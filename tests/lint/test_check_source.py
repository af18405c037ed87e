"""Every rule of ``check_source`` sees what breaks it."""

import ast
import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("check_source", Path(__file__).with_name("check_source.py"))
rules = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(rules)

BROKEN = [
    (rules.records_in_messages, 'raise ValueError(f"{X}")'),
    (rules.records_in_messages, 'raise ValueError(f"{len(rows)} rows")'),
    (rules.other_randomness, "np.random.seed(0)"),
    (rules.other_randomness, "import random"),
    (rules.other_randomness, "from numpy import random"),
    (rules.other_randomness, "from numpy.random import default_rng"),
    (rules.patched_names, "setattr(owner, name, value)"),
    (rules.reachable_observers, "release(observer=print)"),
    (rules.terms_by_name, 'c.terms["a"]'),
    (rules.terms_by_name, 'c.terms.get("a", 1)'),
    (rules.terms_by_name, '"a" not in terms'),
    (rules.decisions_by_prose, '"signal" in ledger.public_facts'),
    (rules.decisions_by_prose, 'ledger.public_facts.get("y_scale")'),
    (rules.decisions_by_prose, 'found = estimator.ledger_.public_facts["y_bounds"]'),
    (rules.decisions_by_prose, 'entry.note == "no privacy"'),
    (rules.decisions_by_prose, "OWN_SCORE.sentence in texts"),
]


@pytest.mark.parametrize(("rule", "code"), BROKEN)
def test_a_rule_sees_what_breaks_it(rule, code):
    assert list(rule(ast.parse(code), "cli/new.py"))


KEPT = '''"""Do something."""
import numpy as np
from dpscp.privacy import Ledger
def f(rows, alpha, generator: np.random.Generator):
    object.__setattr__(generator, "steps", 3)
    raise ValueError(f"{rows.ndim} and {alpha}")
'''


def test_plain_code_breaks_no_rule():
    assert [broken for rule in rules.RULES for broken in rule(ast.parse(KEPT), "cli/new.py")] == []


def test_retired_words_are_seen_in_prose_only():
    retired = {"room": "package", "rehears*": "dry run"}
    assert list(rules.retired_words("# a room\n", retired))
    assert list(rules.retired_words('raise ValueError("no rehearsal here")\n', retired))
    assert not list(rules.retired_words("room = 3  # `room` of the public interface\n", retired))
    assert "made-up" in rules.read_retired_words(rules.GLOSSARY.read_text())


def test_rules_about_several_modules_see_what_breaks_them():
    assert list(rules.unexplained_ignores("x = 1  # type: ignore"))
    assert not list(rules.unexplained_ignores("x = 1  # type: ignore[attr-defined]  # scipy has no types"))
    assert list(rules.unexplained_methods([ast.parse("class A:\n    def f(self): pass")]))
    front = ast.parse('from dpscp.a import f, Hidden\n__all__ = ["f", "Hidden"]')
    plain = ast.parse('def f(x) -> int:\n    """Do."""\nclass Hidden:\n    """Say."""\n    def __init__(self, y): pass')
    assert len(list(rules.undocumented_names({"__init__.py": front, "a.py": plain}))) == 5
    told = ast.parse(
        'def f(x) -> int:\n    """Do.\n\n    Parameters\n    ----\n    x : int\n\n    Returns\n    ----\n    """'
    )
    assert not list(rules.undocumented_names({"__init__.py": front, "a.py": told}))
    base = "class A:\n    def f(self): pass\nclass B(A):\n    def f(self): pass"
    assert list(rules.overridden_methods([ast.parse(base)])) == ["B.f overrides A.f; make that one abstract"]
    assert not list(rules.overridden_methods([ast.parse(base.replace("    def", "    @abstractmethod\n    def", 1))]))
