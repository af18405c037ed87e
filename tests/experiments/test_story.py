import shutil
from pathlib import Path

import pytest
from experiments.__main__ import NUMBERED_PAGES, RECIPE_PAGE
from experiments.recipe_tables import write_tables
from experiments.story import write_numbers, write_story
from experiments.tables import find_row, read_csv

RESULTS = Path(__file__).parents[2] / "results"


def test_the_page_says_what_the_tables_say(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    (copy / "README.md").unlink()
    assert write_story(copy)
    assert (copy / "README.md").read_text() == (RESULTS / "README.md").read_text()


@pytest.mark.parametrize("page", NUMBERED_PAGES, ids=lambda page: page.name)
def test_the_numbers_of_the_first_pages_are_those_of_the_tables(page: Path, tmp_path: Path) -> None:
    copy = tmp_path / page.name
    copy.write_text(page.read_text().replace("public tables", "tables"))
    write_numbers(RESULTS, copy)
    assert copy.read_text() == page.read_text()


def test_the_tables_of_the_recipe_are_those_of_its_study(tmp_path: Path) -> None:
    copy = tmp_path / RECIPE_PAGE.name
    copy.write_text(RECIPE_PAGE.read_text().replace("deliveries (29)", "deliveries"))
    write_tables(RESULTS, copy)
    assert copy.read_text() == RECIPE_PAGE.read_text()


def test_a_row_outside_and_missing_trials_are_told(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    table = copy / "housing.csv"
    row = find_row(read_csv(table), "dp-scp-f", 1.0)
    changed = table.read_text().replace(f",{row['size']},{row['size_sd']},", ",9.5,0.01,")
    table.write_text(changed.replace(",30,", ",12,"))
    assert write_story(copy)
    text = (copy / "README.md").read_text()
    assert "**In short:** 28 of 29 printed rows" in text
    assert "Outside: DP-SCP-F eps 1 p 0.5 (" in text
    assert "Fewer trials than the paper's 30: housing: 12 trials" in text
