"""Coverage-guided fuzzing with atheris: ``python tests/fuzz/run.py TARGET|all [--runs N] [--seconds S]``.

Exits with 0 if only documented errors were seen and, without a time limit, every target ran N times; prints the number
of executions of each. An input that broke something is kept in the folder for temporary files.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

NAMES = ("ledger", "schema", "model", "torch", "store")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=[*NAMES, "all"])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=0, help="for each target; 0: until the runs are done")
    options = parser.parse_args()
    if options.target == "all":
        sys.exit(fuzz_all(options.runs, options.seconds))
    fuzz(options.target, options.runs, options.seconds)


def fuzz_all(runs: int, seconds: int) -> int:
    """Each target in a process of its own: the fuzzer ends the one it runs in."""
    failed = 0
    for name in NAMES:
        began = time.perf_counter()
        command = [sys.executable, __file__, name, "--runs", str(runs), "--seconds", str(seconds)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        counts = re.findall(r"Done (\d+) ", done.stderr)
        executions = int(counts[-1]) if counts else 0
        complete = done.returncode == 0 and (executions >= runs or (seconds > 0 and executions > 0))
        failed += not complete
        took = time.perf_counter() - began
        print(f"{name}: {executions} executions in {took:.0f} s, {'clean' if complete else 'FAILED'}", flush=True)
        if not complete:
            print(done.stderr[-3000:])
    return int(failed > 0)


def fuzz(name: str, runs: int, seconds: int) -> None:
    import atheris

    sys.path.insert(0, str(Path(__file__).parent))
    with atheris.instrument_imports(include=["dpscp", "targets", "json", "tomllib", "zipfile"]):
        import targets

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.seeds(name)):
            Path(corpus, str(number)).write_bytes(seed)
        found = f"{tempfile.gettempdir()}/fuzz-{name}-"
        flags = [f"-atheris_runs={runs}", f"-max_total_time={seconds}", f"-artifact_prefix={found}"]
        flags += ["-max_len=6000", "-rss_limit_mb=4096", "-timeout=30"]
        atheris.Setup([sys.argv[0], *flags, corpus], targets.TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
