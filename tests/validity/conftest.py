import pytest


@pytest.fixture(autouse=True)
def untraced(no_cover):
    """Thousands of repetitions of lines that other tests run too: tracing them would take half as long again."""
