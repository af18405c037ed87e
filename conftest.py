"""Warnings are errors, except that tests may use seeds.

The filter is added here and not in pyproject.toml: there it would import dpscp before coverage is measured.
"""

import gc
import sys
from collections.abc import Callable, Hashable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Let seeded runs through."""
    config.addinivalue_line("filterwarnings", "ignore::dpscp.SeededWarning")


def identify(value: Any) -> Hashable:
    """What tells a value of a parameter from the others."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def values_of(case: pytest.Item, names: tuple[str, ...]) -> set[tuple[str, Hashable]]:
    """Name and value of each parameter of a case; only of the named parameters where there are names."""
    found = case.callspec.params.items()  # type: ignore[attr-defined]
    return {(name, identify(value)) for name, value in found if name in names or not names}


def thin(cases: list[pytest.Item], names: tuple[str, ...]) -> None:
    """Mark as slow what is left when each value of each parameter occurs in a case: greedy, the first case wins."""
    values = {case: values_of(case, names) for case in cases}
    missing = set().union(*values.values())
    while missing:
        chosen = max(values, key=lambda case: len(values[case] & missing))
        missing -= values.pop(chosen)
    for case in values:
        case.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Thin the families that ask for it, before the marker expression selects."""
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("covering"):
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in families.values():
        marker = cases[0].get_closest_marker("covering")
        assert marker
        thin(cases, marker.args)


def pytest_collection_finish() -> None:
    """Take what is loaded by now out of the garbage collector's walks: it stays until the end."""
    gc.freeze()


@pytest.fixture(scope="session")
def is_quick(request: pytest.FixtureRequest) -> bool:
    """Whether slow tests are left out: seeded simulations then repeat less, with the wider tolerance that follows."""
    return "not slow" in str(request.config.option.markexpr)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Put a value in the place of a name in every module of the package that holds it: a spy survives moved code."""

    def put(name: str, value: Any) -> None:
        ours = [module for title, module in list(sys.modules.items()) if title.partition(".")[0] == "dpscp"]
        holders = [module for module in ours if name in vars(module)]
        assert holders, f"no module holds {name}"
        for module in holders:
            monkeypatch.setattr(module, name, value)

    return put


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """Load a script that belongs to no package, by its path from the root of the repository."""

    def load(path: str) -> ModuleType:
        file = Path(__file__).parent / path
        spec = spec_from_file_location(file.stem, file)
        assert spec
        assert spec.loader
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
