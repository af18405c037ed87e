"""Every script of the gallery runs in its quick form and covers, or bounds its loss, as promised."""

import re
import runpy
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


# more than a second each: the others fit tables, persons and losses too, and torch/test_opacus.py models of Opacus
LONG = {"choosing", "frozen_features", "groups", "images", "opacus_model", "own_scores", "visits"}


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem in LONG)) for p in EXAMPLES]
)
def test_runs_and_covers(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [path.name, "--quick"])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    found = re.findall(r"level ([\d.]+): coverage ([\d.]+) on (\d+) held-out", printed)
    risks = re.findall(r"risk ([\d.]+): mean loss ([\d.]+) on (\d+) held-out", printed)
    found += [(1 - float(risk), 1 - float(loss), n) for risk, loss, n in risks]
    assert found
    for level, coverage, n in found:
        # five standard errors at a quarter of the held-out records: room for the threshold's own spread as well, whose
        # calibration part is at least a third as large as the held-out one in every script
        level, coverage, n = float(level), float(coverage), int(n)
        assert coverage >= level - 5 * (level * (1 - level) / (n / 4)) ** 0.5


def test_every_script_is_on_the_gallery_page():
    page = (EXAMPLES[0].parents[1] / "docs" / "gallery.md").read_text()
    for path in EXAMPLES:
        assert f"examples/{path.name}" in page
        assert f"docs/outputs/{path.stem}.txt" in page


@pytest.mark.slow
@pytest.mark.parametrize("part", ["concepts", "sizes", "gallery"])
def test_the_committed_pictures_show_what_the_script_draws(part, load_script, monkeypatch, tmp_path):
    """Words and numbers, of which each picture holds a list: the bits depend on the fonts of the machine."""
    pictures = load_script("docs/pictures.py")
    committed = pictures.FOLDER
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    pictures.PARTS[part]()
    drawn = list(tmp_path.rglob("*.svg"))
    assert drawn
    for path in drawn:
        shown = description(path)
        assert len(shown) > 40
        assert shown == description(committed / path.relative_to(tmp_path))


def description(path):
    return ElementTree.parse(path).find(".//{http://purl.org/dc/elements/1.1/}description").text
