"""Readers of foreign files raise documented errors only: random mutations always, atheris in ``make test-all``."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import targets

HERE = Path(__file__).parent
# pieces that turn a valid document into a nearly valid one
WORDS = [
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b'""',
    b"[]",
    b"{}",
    b"true",
    b"0",
    b"9" * 30,
    b"\x00",
    b"\xff",
    b'"',
    b"[" * 50,
]


def mutated(rng, seed):
    data = bytearray(seed)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(0, len(data) + 1))
        dropped = int(rng.integers(0, 12))
        word = WORDS[rng.integers(len(WORDS))] if rng.random() < 0.6 else rng.bytes(int(rng.integers(0, 4)))
        data[place : place + dropped] = word
    return bytes(data)


@pytest.mark.parametrize("name", list(targets.TARGETS))
def test_random_mutations(name, is_quick):
    if name == "torch":
        pytest.importorskip("opacus")
    rng = np.random.default_rng(0)
    start = targets.seeds(name)
    for seed in start:
        targets.TARGETS[name](seed)
    runs = {"model": 400, "torch": 100, "store": 400}.get(name, 4000)
    for i in range(runs // 4 if is_quick else runs):
        targets.TARGETS[name](mutated(rng, start[i % len(start)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(targets.TARGETS))
def test_atheris_finds_nothing(name):
    """Fails, and is not skipped, where atheris is missing: a fuzz run that did not run must not look like one."""
    command = [sys.executable, str(HERE / "run.py"), name, "--runs", "1000000", "--seconds", "25"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    executions = re.findall(r"Done (\d+) ", done.stderr)
    assert executions
    assert int(executions[0]) > 1000
    print(f"\n{name}: {executions[0]} executions")
