"""Warnings are errors, except that tests may use seeds.

The filter is added here and not in pyproject.toml: there it would import dpscp before coverage is measured.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Triton is there with torch's CUDA builds only
collect_ignore = [] if find_spec("triton") else ["src/dpscp/training/engine/triton_chacha.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Let seeded runs through."""
    config.addinivalue_line("filterwarnings", "ignore::dpscp.SeededWarning")


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
