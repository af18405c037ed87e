"""Warnings are errors, except that tests may use seeds.

The filter is added here and not in pyproject.toml: there it would import dpscp before coverage is measured.
"""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Let seeded runs through."""
    config.addinivalue_line("filterwarnings", "ignore::dpscp.SeededWarning")
