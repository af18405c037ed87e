"""The example of a release in service: its files fit together, and its monitor counts each period once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import dpscp as dp
from dpscp.deployment.monitoring import CoverageMonitor

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "in_service"


def test_the_services_are_started_by_commands_that_exist():
    composed = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    services = composed["services"]
    assert list(services) == ["release", "serve", "monitor"]
    assert (EXAMPLE / composed["configs"]["monitor"]["file"]).exists()
    assert services["serve"]["ports"] == ["127.0.0.1:8000:8000"]  # this machine alone
    command = services["serve"]["command"]
    shown = subprocess.run(
        [sys.executable, "-m", "dpscp", "serve", "--help"], capture_output=True, text=True, check=True
    )
    assert all(word in shown.stdout for word in command.split() if word.startswith("--"))


def records(n):
    x = np.random.default_rng(n).uniform(-1, 1, size=n)
    return pd.DataFrame({"x": x, "y": np.where(x > 0, "a", "b")})


@pytest.mark.slow
def test_each_period_is_counted_once_and_its_records_are_deleted(tmp_path):
    columns = {"x": {"type": "numeric", "bounds": [-1, 1]}}
    declared = {"task": "classification", "target": "y", "classes": ["a", "b"], "columns": columns}
    clf = dp.PrivateConformalClassifier(epsilon=2.0, n_records=1_000)
    clf.fit(records(1_000), "y", schema=dp.Schema.from_dict(declared))
    (tmp_path / "demo").mkdir()
    clf.save(tmp_path / "demo" / "model.dpscp")
    records(200).to_csv(tmp_path / "outcomes.csv", index=False)
    command = tmp_path / "bin" / "dpscp"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dpscp "$@"\n')
    command.chmod(0o700)
    environment = {**os.environ, "PERIOD": "1", "PATH": f"{command.parent}:{os.environ['PATH']}"}
    script = ["sh", str(EXAMPLE / "monitor.sh")]
    running = subprocess.Popen(script, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        state, end = tmp_path / "monitor.json", time.monotonic() + 120
        counted = 0
        while counted < 2 and time.monotonic() < end:
            time.sleep(0.5)
            counted = CoverageMonitor.from_json(state.read_text(), clf).n_batches if state.exists() else 0
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait()
    assert counted >= 2  # the second one has no record
    assert not (tmp_path / "outcomes.csv").exists()
    assert len(list((tmp_path / "batches").glob("*.csv"))) <= 1  # the one that was being counted
    assert dp.load(tmp_path / "following.dpscp").certificate_.void_because
