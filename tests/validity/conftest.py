from pathlib import Path


def pytest_collection_modifyitems(items):
    """Thousands of repetitions of lines that other tests run too: tracing them would take half as long again."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("no_cover")
