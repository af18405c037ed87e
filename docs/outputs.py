"""Runs the scripts of the gallery and keeps what they print and draw: ``python docs/outputs.py``."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """One text for each script, and a picture of those that draw; a script that fails leaves the old ones."""
    folder = ROOT / "docs" / "outputs"
    folder.mkdir(exist_ok=True)
    for script in sorted((ROOT / "examples").glob("*.py")):
        command = [sys.executable, "-W", "ignore", str(script)]
        if "--figure" in script.read_text():
            command += ["--figure", str(ROOT / "docs" / "img" / f"{script.stem}.png")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        (folder / f"{script.stem}.txt").write_text(done.stdout.rstrip() + "\n")
        print(f"{script.stem}: {len(done.stdout.splitlines())} lines")


if __name__ == "__main__":
    main()
