import re
import shutil
from pathlib import Path

from experiments.history import write_history
from experiments.tables import SETS, find_row, read_csv

RESULTS = Path(__file__).parents[2] / "results"


def test_the_page_shows_every_version_and_the_tables_of_today(tmp_path: Path) -> None:
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy)
    for name in SETS:
        page, table = copy / f"{name}.md", copy / f"{name}.csv"
        page.write_text(re.sub(r"commit .+?, dpscp", "commit 28f54d4, dpscp", page.read_text(), count=1))
        row = find_row(read_csv(table), "default", 2.0)
        table.write_text(table.read_text().replace(f",{row['size']},", ",0.5,"))
    assert write_history(copy)
    old = (copy / "history.md").read_text()
    # the tables are those of the first version: there is nothing to tell of today
    assert "- today: not measured yet" in old
    assert "0.500 (" not in old
    page = copy / "bank.md"
    page.write_text(page.read_text().replace("28f54d4", "abcdef0"))
    assert write_history(copy)
    new = (copy / "history.md").read_text()
    line = new.split("| Bank Marketing (size) | 2 |")[1].split("\n")[0]
    # 0.1, 0.2 and 0.3 as they were measured, then the changed table: .5 / 1.0103 - 1
    assert [cell.split()[0] for cell in line.split("|")[:4]] == ["1.010", "1.003", "1.006", "0.500"]
    assert "-50.5 %" in line
    assert "- today: commit abcdef0, 30 trials" in new
    assert "`default` -50.5 to " in new
    page.unlink()
    assert not write_history(copy)
