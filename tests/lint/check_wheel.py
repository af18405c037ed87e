"""Build wheel and sdist into dist/, and use each extra of the wheel in a new environment of its own.

    python tests/lint/check_wheel.py [EXTRA ...]

``core`` is the wheel without extras. Versions are those of constraints.txt. Python alone is needed. For each extra,
``dist/requirements-EXTRA.txt`` pins all packages with the hashes of the archives that were tried.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIT = """
import numpy as np, warnings, dpscp as dp
X = np.random.default_rng(0).uniform(-1, 1, size=(3000, 4)); y = (X[:, 0] > 0).astype(int)
def fit(estimator=None):
    clf = dp.PrivateConformalClassifier(estimator, epsilon=4, classes=[0, 1], n_records=3000, feature_bounds=(-1, 1))
    return clf.fit(X, y)
"""
FRAME = """
import pandas as pd
columns = {"age": {"type": "numeric", "bounds": [-1, 1]}}
schema = dp.Schema.from_dict({"task": "classification", "target": "ill", "classes": ["0", "1"], "columns": columns})
frame = pd.DataFrame({"age": X[:, 0], "ill": y})
by_schema = dp.PrivateConformalClassifier(epsilon=4, n_records=3000).fit(frame, "ill", schema=schema)
"""
# What each extra is for, in a few lines.
USES = {
    "core": FIT + "clf = fit(); assert clf.score(X, y) > .8; clf.save('m.dpscp'); dp.load('m.dpscp').statement()",
    "tables": FIT
    + FRAME
    + "frame.to_csv('t.csv'); assert (by_schema.predict('t.csv') == by_schema.predict(frame)).all()",
    "torch": FIT + "import torch; assert fit(torch.nn.Linear(4, 2)).predict_set(X)[1].shape == (3000, 2, 1)",
    "dask": FIT + "import dask.array as da; q = dp.private_quantile(da.from_array(X[:, 0]), alpha=.1, "
    "score_range=(-1, 1), mu=1.0); assert q.threshold > .5",
    "report": FIT + "fit().report('r.html'); assert '</html>' in open('r.html').read()",
    "demo": "from dpscp.cli import main; assert main(['demo', '--folder', 'demo']) == 0",
    "serve": FIT + FRAME + "from dpscp.deployment.server import create_app; create_app(by_schema)",
    "mlflow": FIT + "from dpscp.integrations.mlflow import load_model, save_model; clf = fit(); save_model(clf, 'm'); "
    "assert load_model('m').digest() == clf.digest()",
    "onnx": FIT + "import onnxruntime as ort; fit().to_onnx('m.onnx'); "
    "assert ort.InferenceSession('m.onnx').run(None, {'X': X})[2].shape == (3000, 2, 1)",
}


def call(python, *arguments, folder, output=None):
    subprocess.run([str(python), *map(str, arguments)], cwd=folder, check=True, stdout=output)


def environment(folder):
    """Make an empty environment, and return its Python and pip's command line for an installation."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    return python, [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]


def pin(pip, wheel, extra, folder):
    """Write and return the requirements of an extra: each package, its version and the hash of its archive."""
    report = folder / f"{extra}.json"
    wanted = f"{wheel}{'' if extra == 'core' else f'[{extra}]'}"
    call(*pip, "--dry-run", "--report", report, "-c", ROOT / "constraints.txt", wanted, folder=ROOT)
    lines = []
    for found in json.loads(report.read_text())["install"]:
        about, archive = found["metadata"], found["download_info"]["archive_info"]["hashes"]["sha256"]
        if about["name"] != "dpscp":
            lines.append(f"{about['name'].lower()}=={about['version']} --hash=sha256:{archive}\n")
    path = ROOT / "dist" / f"requirements-{extra}.txt"
    title = f"# what {wheel.stem} was tried with on {sys.platform}\n"
    path.write_text(title + "".join(sorted(lines)))
    return path


def main(extras):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python, pip = environment(folder / "build")
        call(*pip, "build", folder=ROOT)
        call(python, "-m", "build", "--outdir", ROOT / "dist", ROOT, folder=ROOT, output=subprocess.DEVNULL)
        wheel = max((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
        for extra in extras or USES:
            python, pip = environment(folder / extra)
            call(*pip, "--require-hashes", "-r", pin(pip, wheel, extra, folder), folder=ROOT)
            call(*pip, "--no-deps", wheel, folder=ROOT)
            work = folder / f"{extra} work"
            work.mkdir()
            call(python, "-c", USES[extra], folder=work)
            print(f"{wheel.name}, {extra}: works", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
