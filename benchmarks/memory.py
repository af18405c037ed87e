"""Time and memory of whole fits and of prediction, as multiples of the table: `python benchmarks/memory.py`.

Each measurement is a process of its own: the table is made, a small fit loads what is loaded once, a fit is timed, and
another one runs between two looks at the process' memory (Linux). With `--against TREE` the code of another checkout
runs in turns with this one. Medians of `--runs`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

SHAPES = ((100_000, 20), (1_000_000, 20), (100_000, 512))
ROOT = Path(__file__).resolve().parents[1]


def memory(kind):
    """Kilobytes: VmRSS is what the process holds now, VmHWM the most since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(kind):
            return int(line.split()[1])
    raise OSError("/proc/self/status tells no memory; run this on Linux")


def measured(work):
    """CPU seconds and extra peak in bytes of a call."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, started = memory("VmRSS"), time.process_time()
    work()
    return time.process_time() - started, 1024 * (memory("VmHWM") - before)


def one(n, width, dtype, seed):
    """A fit and a prediction of one table; printed as JSON."""
    import numpy as np

    import dpscp as dp

    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, width), dtype=dtype)
    y = (X[:, 0] + X[:, 1] + rng.standard_normal(n, dtype=dtype) > 0).astype(np.int64)
    # the same part is held out whatever a tree's recipe would choose: its shares have changed, the work must not
    options = {"classes": [0, 1], "n_records": n, "random_state": seed, "calibration_fraction": 0.2}
    dp.PrivateConformalClassifier(**options | {"n_records": 500}).fit(X[:500], y[:500])
    clf = dp.PrivateConformalClassifier(**options)
    seconds, _ = measured(lambda: clf.fit(X, y))
    fit = seconds, measured(lambda: clf.fit(X, y))[1]  # the accountant's tables are there, and do not grow with X
    predict = measured(lambda: clf.predict_set(X))
    parameters = next(iter(clf.model_.arrays().values()))
    found = [float(np.abs(parameters).sum()), *np.ravel(clf.threshold_).tolist()]
    print(json.dumps({"fit": fit, "predict": predict, "table": X.nbytes, "found": found}))


def run(tree, arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(tree) / "src"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", help="another checkout of this repository")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", default=[f"{n}x{d}" for n, d in SHAPES])
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        n, width, dtype, seed = given.one
        one(int(n), int(width), dtype, int(seed))
        return
    trees = [ROOT, *([Path(given.against)] if given.against else [])]
    print(f"{'table':>14} {'work':>8} {'tree':>20} {'CPU s':>8} {'extra peak / X':>15} {'same result':>12}")
    for shape in given.shapes:
        n, width = shape.split("x")
        results = {tree: [] for tree in trees}
        for seed in range(given.runs):
            for tree in trees:
                results[tree].append(run(tree, (n, width, given.dtype, seed)))
        same = all(r["found"] == s["found"] for r, s in zip(results[trees[0]], results[trees[-1]], strict=True))
        for work in ("fit", "predict"):
            for tree in trees:
                seconds = statistics.median(r[work][0] for r in results[tree])
                peak = statistics.median(r[work][1] / r["table"] for r in results[tree])
                print(f"{shape:>14} {work:>8} {tree.name:>20} {seconds:8.2f} {peak:15.2f} {same!s:>12}", flush=True)


if __name__ == "__main__":
    main()
