"""Coverage-guided fuzzing with atheris: ``python tests/fuzz/run.py TARGET [--runs N] [--seconds S]``.

Exits with 0 if only documented errors were seen, and prints the number of executions.
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path


def main() -> None:
    import atheris

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=["ledger", "schema", "model", "store"])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=0, help="0: until the runs are done")
    options = parser.parse_args()

    sys.path.insert(0, str(Path(__file__).parent))
    with atheris.instrument_imports(include=["dpscp", "targets", "json", "tomllib", "zipfile"]):
        import targets

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.seeds(options.target)):
            Path(corpus, str(number)).write_bytes(seed)
        found = f"{tempfile.gettempdir()}/fuzz-{options.target}-"
        flags = [f"-atheris_runs={options.runs}", f"-max_total_time={options.seconds}", f"-artifact_prefix={found}"]
        flags += ["-max_len=6000", "-rss_limit_mb=4096", "-timeout=30"]
        atheris.Setup([sys.argv[0], *flags, corpus], targets.TARGETS[options.target])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
