"""What the command line costs on a large file: CPU time and peak memory against ``pandas.read_csv`` in the same run.

    python benchmarks/files.py [--records 1000000]

Each line is a process of its own. Memory is its peak above what Python with the libraries takes, in times the file.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

SCHEMA = {
    "task": "classification",
    "target": "bought",
    "classes": ["no", "yes"],
    "columns": {
        **{f"x{i}": {"type": "numeric", "bounds": [-4, 4]} for i in range(6)},
        **{f"c{i}": {"type": "categorical", "categories": ["east", "north", "south", "west"]} for i in range(3)},
    },
}
IMPORTS = "import sys, numpy, pandas, pyarrow.csv, pyarrow.parquet, dpscp.cli.commands; from dpscp.cli import main; "


def made_table(n: int, seed: int) -> pd.DataFrame:
    """Made-up people: six numbers, three categories, a label."""
    rng = np.random.default_rng(seed)
    columns = {f"x{i}": rng.normal(size=n).round(4) for i in range(6)}
    regions = np.array(["east", "north", "south", "west"])
    columns |= {f"c{i}": regions[rng.integers(0, 4, n)] for i in range(3)}
    columns["bought"] = np.where(columns["x0"] + columns["x1"] + rng.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame(columns)


def cost(code: str, *arguments: object) -> tuple[float, float]:
    """CPU seconds and peak bytes of a Python process."""
    told = "import resource; u = resource.getrusage(resource.RUSAGE_SELF); "
    told += "print(u.ru_utime + u.ru_stime, u.ru_maxrss * 1024, file=sys.stderr)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", f"{IMPORTS}{code}; {told}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, peak = done.stderr.split()[-2:]
    return float(seconds), float(peak)


def run(records: int, folder: Path) -> None:
    """Measure every command on a table of so many records and print a line for each."""
    import json

    made_table(records, 0).to_csv(folder / "people.csv", index=False)
    made_table(records, 1).to_csv(folder / "new.csv", index=False)
    made_table(records, 1).to_parquet(folder / "new.parquet", index=False)
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    size = (folder / "new.csv").stat().st_size
    model, schema, new = folder / "model.dpscp", folder / "schema.json", folder / "new.csv"
    commanded = "main(sys.argv[1:]) and sys.exit(1)"
    start, base = cost("pass")
    lines = [
        ("pandas.read_csv", "pandas.read_csv(sys.argv[1])", (new,)),
        ("dpscp fit", commanded, ("fit", folder / "people.csv", "--schema", schema, "-o", model)),
        ("dpscp predict, CSV to CSV", commanded, ("predict", model, new, "-o", folder / "out.csv")),
        ("dpscp predict, Parquet", commanded, ("predict", model, folder / "new.parquet", "-o", folder / "o.parquet")),
        ("dpscp report --evaluate", commanded, ("report", model, "-o", folder / "r.html", "--evaluate", new)),
    ]
    print(f"{records:,} records, {size / 1e6:.0f} MB as CSV; start and imports {start:.1f} s, {base / 1e6:.0f} MB")
    print(f"{'':28s}{'CPU s':>8s}{'x read_csv':>12s}{'extra MB':>10s}{'x file':>8s}")
    peer = None
    for name, code, arguments in lines:
        seconds, peak = cost(code, *arguments)
        seconds, extra = seconds - start, peak - base
        peer = peer or seconds
        print(f"{name:28s}{seconds:8.2f}{seconds / peer:12.1f}{extra / 1e6:10.0f}{extra / size:8.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run(given.records, Path(place))
