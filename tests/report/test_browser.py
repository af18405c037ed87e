"""The report in a real browser: no sideways scrolling, two color schemes, print, and a quiet console."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import dpscp as dp
from dpscp.report import evaluate, html_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "hide-scrollbars",
    "enable-logging=stderr",
)
# The page runs no script itself: this one is added to a copy, which measures itself in a frame as wide as asked for.
MEASURE = """<script>
const wide = [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll") && !e.closest("svg")
  && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + e.className);
parent.postMessage(JSON.stringify([document.documentElement.scrollWidth, innerWidth, wide.join(),
  getComputedStyle(document.body).backgroundColor]), "*");
</script></body>"""
FRAME = """<!doctype html><title>nothing</title>
<script>addEventListener("message", told => {{ document.title = told.data; }});</script>
<iframe src="measured.html" style="width: {width}px; height: 900px; border: 0"></iframe>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 5))
    y = np.array(["first", "second", "third"])[np.digitize(X[:, 0] + 0.3 * rng.normal(size=1500), [-0.5, 0.5])]
    model = dp.PrivateConformalClassifier(random_state=0, classes=["first", "second", "third"], n_records=1000).fit(
        X[:1000], y[:1000]
    )
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(html_report(model, evaluation=evaluate(model, X[1000:], y[1000:])))
    return file


def chromium(tmp_path, *options):
    done = subprocess.run(
        [CHROMIUM, *(f"--{flag}" for flag in FLAGS), f"--user-data-dir={tmp_path / 'user'}", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    return done.stdout


def measured(page, tmp_path, *options, width=1100):
    (tmp_path / "measured.html").write_text(page.read_text().replace("</body>", MEASURE))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    dumped = chromium(tmp_path, *options, "--virtual-time-budget=2000", "--dump-dom", frame.as_uri())
    title = re.search("<title>(.*?)</title>", dumped)[1]
    return json.loads(html.unescape(title))


@pytest.mark.parametrize("width", [390, pytest.param(1100, marks=pytest.mark.slow)])
def test_nothing_is_wider_than_the_window(page, tmp_path, width):
    scrolled, inner, wide, _ = measured(page, tmp_path, width=width)
    assert scrolled <= inner == width
    assert wide == ""


def test_dark_and_light_differ(page, tmp_path):
    light = measured(page, tmp_path, "--blink-settings=preferredColorScheme=1")[3]
    dark = measured(page, tmp_path, "--blink-settings=preferredColorScheme=0")[3]
    assert light != dark


def test_it_prints_on_few_pages(page, tmp_path):
    chromium(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}", page.as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", (tmp_path / "page.pdf").read_bytes()))
    assert 1 <= pages <= 4
