"""What is installed is whole: a wheel without the source tree fits, saves, loads, predicts and reports."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_of_the_package_is_named_for_the_wheel():
    package = ROOT / "src" / "dpscp"
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dpscp"]
    taken = {path for pattern in named for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others == taken
    assert all(any(package.glob(pattern)) for pattern in named)
