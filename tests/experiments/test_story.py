import shutil
from pathlib import Path

from experiments.story import write_story

RESULTS = Path(__file__).parents[2] / "results"


def test_the_page_says_what_the_tables_say(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    (copy / "README.md").unlink()
    assert write_story(copy)
    assert (copy / "README.md").read_text() == (RESULTS / "README.md").read_text()


def test_no_page_before_every_study_has_left_its_table(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    (copy / "adult.csv").unlink()
    (copy / "README.md").write_text("old")
    assert not write_story(copy)
    assert (copy / "README.md").read_text() == "old"
