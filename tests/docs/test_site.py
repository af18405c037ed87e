"""The documentation site builds offline without a warning, and no code block of it goes unexecuted."""

import html
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dpscp

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_with_warnings_as_errors(site):
    assert "marriage" in (site / "gallery.html").read_text(encoding="utf-8")  # the scripts are on the page
    for page in PAGES[1:]:
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    for page in site.rglob("*.html"):
        # nothing is loaded from elsewhere; links that a reader may follow are fine
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="https?:', text)
        assert not re.search(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:', text)


@pytest.mark.slow
def test_every_link_and_picture_of_the_site_exists(site):
    """mkdocs checks the links in Markdown; this sees those in HTML as well, and the anchors of both."""
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    checked = 0
    for page, text in pages.items():
        body = text[text.index("<article") : text.index("</article")]
        for target in re.findall(r'(?:href|src)="([^"]+)"', body):
            if not re.match(r"[a-z]+:", target):
                name, _, anchor = html.unescape(target).partition("#")
                file = (page.parent / name).resolve() if name else page
                assert file.exists(), (page.name, target)
                if anchor and file in anchors and anchor not in {"only-light", "only-dark"}:
                    assert anchor in anchors[file], (page.name, target)
                checked += 1
    assert checked > 500


@pytest.mark.slow
def test_the_api_pages_have_signatures_and_tables(site):
    page = (site / "api" / "estimators.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", html.unescape(page))
    assert 'guarantee="auto"' in text  # in the signature
    assert re.search(r"<td><code>confidence_level</code></td>\s*<td>float or list of floats, default 0.9</td>", page)


def test_the_reference_lists_every_public_name_and_every_page():
    overview = (ROOT / "docs" / "reference.md").read_text()
    for name in dpscp.__all__:
        assert name == "__version__" or re.search(rf"`(?:dpscp\.)?{name}`", overview), name
    for page in (ROOT / "docs" / "api").glob("*.md"):
        assert f"(api/{page.name})" in overview


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_code_block_is_executed_somewhere(path):
    """python: test_docs; bash: test_cli, lines that begin with dpscp; { .python }: a script that test_gallery runs;
    text: what such a script printed; toml: a part of a schema, which is only read; py: tests of another library.
    """
    for language, body in re.findall(r"^```(\S*)[^\n]*\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE):
        if language == "bash":
            assert all(line.startswith("dpscp ") for line in body.splitlines() if line.strip())
        elif language == "text":  # what a script printed
            assert re.fullmatch(r'--8<-- "docs/outputs/\w+\.txt"\n', body)
        elif language == "{":
            assert re.fullmatch(r'--8<-- "examples/\w+\.py"\n', body)
        elif language == "toml":  # a part of a schema
            assert tomllib.loads(body)
        else:
            assert language in ("python", "py"), language
