"""Digests of a caller's object follow what its code names: globals of nested code and attributes of modules."""

import functools
import sys
import types

import numpy as np
import pytest

from dpscp._base.object_state import changed_paths, refuse_memory, state_digest
from dpscp._base.used_names import used_values

SEEN, OTHER, WRITTEN = [], [], []


class Holder:
    """Keeps rows by ways that have code of their own."""

    @staticmethod
    def keep(rows):
        SEEN.append(rows)

    @classmethod
    def keep_too(cls, rows):
        SEEN.append(rows)

    @property
    def kept(self):
        SEEN.append(1)
        return 1


HOLDER = Holder()


@functools.lru_cache
def remember(number):
    return number


def build_module(name, **attributes):
    module = types.ModuleType(name)
    vars(module).update(attributes)
    return module


state_module = build_module("state_module", SEEN=[], inner=build_module("state_module.inner", SEEN=[]))
vars(state_module)["keep"] = eval("lambda rows: SEEN.append(rows)", vars(state_module))


def import_inside(rows):
    import state_of_callers

    state_of_callers.SEEN.append(rows)


def import_name_inside(rows):
    from state_of_callers import SEEN

    SEEN.append(rows)


def write_global(rows):
    global WRITTEN
    WRITTEN = [rows for _ in range(1)]


# attributes that somebody put on installed modules: numpy is one
WAYS = {
    "comprehension": lambda rows: [SEEN.append(row) for row in rows],
    "inner function": lambda rows: (lambda: (lambda: SEEN.append(rows))())(),
    "module": lambda rows: state_module.SEEN.append(rows),
    "module in a comprehension": lambda rows: [state_module.SEEN.append(row) for row in rows],
    "module in a module": lambda rows: state_module.inner.SEEN.append(rows),
    "function of a module": lambda rows: state_module.keep(rows),
    "imported inside": import_inside,
    "name imported inside": import_name_inside,
    "static method": lambda rows: HOLDER.keep(rows),
    "class method": lambda rows: HOLDER.keep_too(rows),
    "property": lambda _: HOLDER.kept,
    "cache": lambda rows: [remember(float(row)) for row in rows],
    "list on an installed module": lambda rows: np.seen_by_caller.append(rows),
    "object on an installed module": lambda rows: setattr(np.holder_of_caller, "rows", rows),
    "function on an installed module": lambda rows: np.keep_for_caller(rows),
    "global that is written": write_global,
}


@pytest.fixture(autouse=True)
def _attributes_of_modules(monkeypatch):
    monkeypatch.setitem(sys.modules, "state_of_callers", build_module("state_of_callers", SEEN=[]))
    monkeypatch.setattr(np, "seen_by_caller", [], raising=False)
    monkeypatch.setattr(np, "holder_of_caller", Holder(), raising=False)
    monkeypatch.setattr(np, "keep_for_caller", lambda rows: SEEN.append(rows), raising=False)


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_stores_rows_by_names_in_its_code_is_refused(way):
    for _ in range(2):  # the second time something is there already
        with pytest.raises(ValueError, match="score stores something from the rows"), refuse_memory("score", WAYS[way]):
            WAYS[way](np.random.default_rng().normal(size=3))


def test_functions_that_store_nothing_are_taken():
    def function(rows):
        return np.array([state_module.inner.__name__ + str(np.abs(row)) + str(len(SEEN)) for row in rows])

    with refuse_memory("score", function):
        function(np.arange(3.0))
        OTHER.append(1)  # not named


def test_a_module_that_is_imported_by_the_first_call_is_no_change(monkeypatch):
    module = sys.modules.pop("state_of_callers")
    before = state_digest(import_inside)
    monkeypatch.setitem(sys.modules, "state_of_callers", module)
    after = state_digest(import_inside)
    assert changed_paths(before, after) == ()
    import_inside(1)
    path = "import(state_of_callers).SEEN"
    assert changed_paths(after, state_digest(import_inside)) == (path, f"{path}[0]")


def test_the_standard_library_and_attributes_without_a_name_are_not_followed():
    def function(rows):
        return sys.modules, np.linalg.norm(rows), state_module

    assert dict(used_values(function)) == {".global sys": sys, ".global np": np, ".global state_module": state_module}
