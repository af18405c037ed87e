"""What is installed is whole: a wheel without the source tree fits, saves, loads, predicts and reports."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMOKE = """
import sys, numpy as np, dpscp as dp
assert dp.__file__.startswith(sys.argv[1]), dp.__file__
rng = np.random.default_rng(0)
X = rng.normal(size=(2000, 4))
y = (X[:, 0] + 0.3 * rng.normal(size=2000) > 0).astype(int)
clf = dp.PrivateConformalClassifier(classes=[0, 1], feature_bounds=(-5, 5), n_records=1500).fit(X[:1500], y[:1500])
clf.save("model.dpscp")
again = dp.load("model.dpscp")
assert (again.predict_set(X[1500:])[1] == clf.predict_set(X[1500:])[1]).all()
again.report("report.html", X[1500:], y[1500:])
assert "privacy strength" in open("report.html").read()
"""


def test_every_file_of_the_package_is_named_for_the_wheel():
    package = ROOT / "src" / "dpscp"
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dpscp"]
    taken = {path for pattern in named for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others == taken
    assert all(any(package.glob(pattern)) for pattern in named)


@pytest.mark.slow
def test_a_wheel_alone_fits_saves_loads_predicts_and_reports(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = tmp_path / "source"  # a copy: building leaves files behind
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(wheel, check=True)
    (built,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), str(built)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    line = [sys.executable, "-W", "ignore", "-c", SMOKE, str(installed)]
    subprocess.run(line, cwd=tmp_path, env=environment, check=True)
