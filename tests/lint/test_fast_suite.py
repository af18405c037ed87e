"""What the fast suite leaves out: cases without a new value of a parameter, and nothing else."""

from itertools import product
from types import SimpleNamespace

import pytest


class Case:
    """A parametrized test as the collector sees it."""

    def __init__(self, **values):
        self.callspec, self.marks = SimpleNamespace(params=values), []

    def add_marker(self, mark):
        self.marks.append(mark.name)


@pytest.mark.parametrize("values", [(0, False, 0.5), ([1], [1], {})], ids=["hashable", "not hashable"])
def test_each_value_of_each_parameter_keeps_a_fast_case(load_script, values):
    cases = [Case(letter=letter, value=value) for letter, value in product("abcd", values)]
    load_script("conftest.py").thin(cases, ())
    kept = [case.callspec.params for case in cases if not case.marks]
    assert len(kept) == 4  # as many as the longest parameter has values
    assert {params["letter"] for params in kept} == set("abcd")
    assert {id(params["value"]) for params in kept} == set(map(id, values))
    assert all(case.marks in ([], ["slow"]) for case in cases)


def test_only_named_parameters_count(load_script):
    cases = [Case(letter=letter, value=value) for letter, value in product("ab", range(5))]
    load_script("conftest.py").thin(cases, ("letter",))
    assert [case.callspec.params["letter"] for case in cases if not case.marks] == ["a", "b"]


def test_simulations_know_which_suite_runs(is_quick, request):
    assert is_quick == ("not slow" in request.config.option.markexpr)
