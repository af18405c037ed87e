"""The documentation site builds offline without a warning, and no code block of it goes unexecuted."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--virtual-time-budget=9000")
# Types a word into the search and tells what came of it.
SEARCH = """<script>
setTimeout(() => {
  const asked = document.querySelector("[data-md-component=search-query]");
  asked.focus();
  asked.value = "certificate";
  asked.dispatchEvent(new Event("keyup", { bubbles: true }));
}, 1500);
setTimeout(() => {
  document.title = "found " + document.querySelectorAll(".md-search-result__item").length;
}, 6000);
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_with_warnings_as_errors(site):
    assert "marriage" in (site / "gallery.html").read_text(encoding="utf-8")  # the scripts are on the page
    pages = {p.stem for p in site.glob("*.html")}
    assert {p.stem for p in PAGES if p.stem != "README"} <= pages
    for page in site.glob("*.html"):
        # nothing is loaded from elsewhere; links that a reader may follow are fine
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="https?:', page.read_text(encoding="utf-8"))
        assert not re.search(
            r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:', page.read_text(encoding="utf-8")
        )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_search_works_from_disk(site, tmp_path):
    page = site / "searched.html"
    page.write_text((site / "index.html").read_text(encoding="utf-8").replace("</body>", SEARCH), encoding="utf-8")
    line = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path}", "--dump-dom", page.as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert int(re.search(r"<title>found (\d+)</title>", done.stdout)[1]) > 3


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_every_code_block_is_executed_somewhere(path):
    """python: test_docs; bash: test_cli, lines that begin with dpscp; { .python }: a script that test_gallery runs;
    text: what such a script printed.
    """
    for language, body in re.findall(r"^```(\S*)[^\n]*\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE):
        if language == "bash":
            assert all(line.startswith("dpscp ") for line in body.splitlines() if line.strip())
        elif language == "text":  # what a script printed
            assert re.fullmatch(r'--8<-- "docs/outputs/\w+\.txt"\n', body)
        elif language == "{":
            assert re.fullmatch(r'--8<-- "examples/\w+\.py"\n', body)
        else:
            assert language == "python", language
