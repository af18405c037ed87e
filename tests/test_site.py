"""The documentation site builds offline without a warning, and no code block of it goes unexecuted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_site_builds_with_warnings_as_errors(tmp_path):
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "marriage" in (tmp_path / "site" / "gallery.html").read_text(encoding="utf-8")  # the scripts are on the page
    pages = {p.stem for p in (tmp_path / "site").glob("*.html")}
    assert {p.stem for p in PAGES if p.stem != "README"} <= pages
    for page in (tmp_path / "site").glob("*.html"):
        # nothing is loaded from elsewhere; links that a reader may follow are fine
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="https?:', page.read_text(encoding="utf-8"))
        assert not re.search(
            r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:', page.read_text(encoding="utf-8")
        )


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_every_code_block_is_executed_somewhere(path):
    """python: test_docs; bash: test_cli, lines that begin with dpscp; { .python }: a script that test_gallery runs."""
    for language, body in re.findall(r"^```(\S*)[^\n]*\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE):
        if language == "bash":
            assert all(line.startswith("dpscp ") for line in body.splitlines() if line.strip())
        elif language == "{":
            assert re.fullmatch(r'--8<-- "examples/\w+\.py"\n', body)
        else:
            assert language == "python", language
