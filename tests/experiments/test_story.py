import shutil
from pathlib import Path

import numpy as np
from experiments.story import write_story
from experiments.tables import find_row, read_csv
from matplotlib import image

from experiments import plots

RESULTS = Path(__file__).parents[2] / "results"


def test_the_page_says_what_the_tables_say(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    (copy / "README.md").unlink()
    assert write_story(copy)
    assert (copy / "README.md").read_text() == (RESULTS / "README.md").read_text()


def test_the_page_is_written_from_what_ran_and_names_what_did_not(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    copy.mkdir()
    assert not write_story(copy)
    for name in ("sharpness", "stability", "housing"):
        for ending in ("csv", "md"):
            shutil.copy(RESULTS / f"{name}.{ending}", copy)
        assert write_story(copy)
        text = " ".join((copy / "README.md").read_text().split())
        assert f"[{name}]({name}.md)" in text
        assert "(adult.md)" not in text
        assert "Studies without results here: " in text
        assert "adult" in text.split("Studies without results here: ")[1]
    assert "28 of 29" in text or "29 of 29" in text
    whole = RESULTS.parent / "results" / "README.md"
    assert "Studies without results" not in whole.read_text()


def _with_peers(results: Path, trees: float) -> None:
    lines = ["table,n,epsilon,model,trials,coverage,size"]
    for table in ("adult", "bank", "housing"):
        for n in (2_000, 20_000):
            for epsilon in ("0.5", "1", "2"):
                lines += [f"{table},{n},{epsilon},default,10,0.9,{1.2 * n / 20_000}"]
                lines += [f"{table},{n},{epsilon},random trees,10,0.9,{trees}"]
            lines += [f"{table},{n},,default,no noise,10,0.9,1".replace("default,no noise", '"default, no noise"')]
            lines += [f"{table},{n},,boosting,10,0.9,0.8"]
    (results / "table_peers.csv").write_text("\n".join(lines) + "\n")


def test_costs_and_peers_are_computed_from_their_table(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    (copy / "table_peers.md").unlink(missing_ok=True)
    _with_peers(copy, trees=0.6)
    assert write_story(copy)
    text = " ".join((copy / "README.md").read_text().split())
    # at the largest number of records: 1.2 against 1 and against .8; 1.2 or .12 against .6 for both numbers
    assert "Privacy costs 20 % in width on Housing at epsilon 1" in text
    assert "and 50 % against gradient boosting without privacy" in text
    assert "differs by +20 / +20 / +20 % from that of the same model" in text
    assert "random tests: the default's sets are smaller in 9 of 18 cells (-80 to +100 %)" in text


def test_promises_are_counted_for_each_part(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    (copy / "new_promises.md").unlink(missing_ok=True)
    head, line = "part,case,measure,trials,value,value_se,promise,kept", "a,b,10,0.1,0.01,<= 0.1"
    lines = [head, f"Risk control,{line},yes", f"Risk control,{line},no", "Months,a,b,10,0.1,0.01,,"]
    for rows, told in ((lines, "risk control 1 of 2."), (lines[:1], "none was judged.")):
        (copy / "new_promises.csv").write_text("\n".join(rows) + "\n")
        assert write_story(copy)
        assert f"promised to be: {told}" in " ".join((copy / "README.md").read_text().split())


def test_sections_of_studies_that_were_not_run_are_left_out(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    for name in ("table_peers", "new_promises", "persons", "opacus_time", "rivals"):
        for ending in ("csv", "md"):
            (copy / f"{name}.{ending}").unlink(missing_ok=True)
    assert write_story(copy)
    text = (copy / "README.md").read_text()
    assert not any(f"({name}.md)" in text for name in ("table_peers", "new_promises", "persons", "opacus_time"))
    assert "What privacy costs" not in text
    assert "(rivals.md)" not in text


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


def test_pictures_have_no_background_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    plots.lines(path, "title", {"panel": {"split": ([1, 2], [0.8, 0.9], None)}}, x_name="x", y_name="y", target=0.9)
    pixels = image.imread(path)
    assert pixels.shape[2] == 4
    assert (pixels[..., 3] == 0).mean() > 0.8
    # letters and axes are grey, so they show on white and on black
    grey = pixels[(pixels[..., 3] > 0.95) & (np.ptp(pixels[..., :3], axis=2) < 0.02)]
    assert abs(np.median(grey[:, 0]) - 0x77 / 255) < 0.02
