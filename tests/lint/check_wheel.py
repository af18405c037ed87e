"""Build wheel and sdist into dist/, and use each extra of the wheel in a new environment of its own.

    python tests/lint/check_wheel.py [EXTRA ...]

``core`` is the wheel without extras. Versions are those of constraints.txt. Python alone is needed.
"""

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


def call(python, *arguments, folder):
    subprocess.run([str(python), *map(str, arguments)], cwd=folder, check=True)


def environment(folder, *packages):
    """Make an environment with these packages and return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    call(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *packages, folder=ROOT)
    return python


def main(extras):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environment(folder / "build", "build")
        call(python, "-m", "build", "--outdir", ROOT / "dist", ROOT, folder=ROOT)
        wheel = max((ROOT / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
        for extra in extras or USES:
            suffix = "" if extra == "core" else f"[{extra}]"
            python = environment(folder / extra, f"{wheel}{suffix}")
            work = folder / f"{extra} work"
            work.mkdir()
            call(python, "-c", USES[extra], folder=work)
            print(f"{wheel.name}{suffix}: works", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
