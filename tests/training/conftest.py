"""Warnings of torch about the hooks that Opacus uses are not ours to fix."""

from pathlib import Path

import pytest

FOREIGN = (
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:.*non-full backward hook.*",
    "ignore:Full backward hook is firing",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.stem.startswith(("test_torch_", "test_opacus")):
            for words in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(words))
