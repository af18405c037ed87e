"""The committed tables hold what the project says about them.

Most of these tests read files and run nothing: they notice a table that was exchanged and a claim that no longer fits
it, not a change of the code. The tests of the last section run the code again where that takes a moment, and compare.
"""

import csv
from importlib import resources
from pathlib import Path

import pytest
from experiments.accounting import paper_spending
from experiments.paper_tables import Printed, printed
from experiments.runner import Task
from experiments.tables import standard_errors

from experiments import bloodmnist, new_promises, sharpness, table_peers

RESULTS = Path(__file__).parents[2] / "results"
STUDIES = (
    "bloodmnist",
    "bloodmnist_vgg16",
    "housing",
    "synthetic_scaling",
    "stability",
    "quantile_failures",
    "sharpness",
    "validity_map",
    "adult",
    "bank",
)
COLUMNS = (
    "method,epsilon,train_share,n,coverage,coverage_sd,size,size_sd,informativeness,informativeness_sd,"
    "train_epsilon,count_noise,trials,paper_coverage,paper_size,paper_informativeness"
)
PERSONS = "persons"
COLUMNS_OF_PERSONS = (
    "kind,epsilon,unit,trials,guarantee,coverage_persons,coverage_persons_sd,coverage_rows,coverage_rows_sd,"
    "size,size_sd,epsilon_of_a_person,epsilon_of_a_person_sd"
)
EPSILONS = ("0.5", "1", "2")


def rows(study: str) -> list[dict[str, str]]:
    with (RESULTS / f"{study}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def size(study: str, method: str, epsilon: str) -> float:
    share = ("0.5", "") if method in ("dp-scp-f", "dp-scp-a") else None
    found = [r for r in rows(study) if r["method"] == method and r["epsilon"] == epsilon]
    return next(float(r["size"]) for r in found if share is None or r["train_share"] in share)


@pytest.mark.parametrize("study", [*STUDIES, PERSONS])
def test_tables_have_the_agreed_columns_and_say_where_they_come_from(study: str) -> None:
    columns = (RESULTS / f"{study}.csv").read_text().split("\n")[0]
    assert columns == (COLUMNS_OF_PERSONS if study == PERSONS else COLUMNS)
    page = (RESULTS / f"{study}.md").read_text()
    for word in ("command: ", "seed ", "commit ", "machine: "):
        assert word in page


def paper_row(study: str, row: dict[str, str]) -> Printed:
    epsilon, share = (float(row[name]) if row[name] else None for name in ("epsilon", "train_share"))
    found = printed(study, row["method"], epsilon, share, int(row["n"]))
    assert found is not None
    return found


def test_the_accounting_columns_hold_the_papers_digits() -> None:
    known = [r for r in rows("bloodmnist") if r["paper_size"] and r["count_noise"]]
    assert len(known) == 27
    for row in known:
        paper = paper_row("bloodmnist", row)
        assert f"{float(row['train_epsilon']):.3f}" == f"{paper.train_epsilon:.3f}"
        assert f"{float(row['count_noise']):.2f}" == f"{paper.count_noise:.2f}"


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_methods_are_ordered_as_in_the_paper(epsilon: str) -> None:
    for study in ("bloodmnist", "bloodmnist_vgg16"):
        assert size(study, "dp-scp-a", epsilon) < size(study, "dp-scp-f", epsilon) < size(study, "dp-split", epsilon)
    assert size("housing", "dp-scp-a", epsilon) < size("housing", "dp-split", epsilon)


def test_the_default_is_narrower_than_the_papers_method() -> None:
    widths = {"0.5": 2.306, "1": 2.209, "2": 2.160}
    for epsilon, share in (("0.5", 0.90), ("1", 0.89), ("2", 0.85)):
        assert size("housing", "default", epsilon) <= share * widths[epsilon]
    for epsilon, share in (("0.5", 0.80), ("2", 0.85)):
        assert size("bloodmnist", "default", epsilon) <= share * size("bloodmnist", "dp-scp-f", epsilon)
    for epsilon, share in (("0.5", 0.80), ("1", 0.90), ("2", 0.90)):
        assert size("bloodmnist", "corrected", epsilon) <= share * size("bloodmnist", "dp-scp-f", epsilon)


def test_certified_methods_cover_in_the_tables() -> None:
    for study in ("housing", "bloodmnist", "bloodmnist_vgg16", "adult", "bank", "validity_map"):
        for row in rows(study):
            if row["method"] in ("default", "split", "universal", "stability") and row["coverage_sd"]:
                # trials share their records, so their mean is less exact than independent ones: four errors allowed
                error = float(row["coverage_sd"]) / int(row["trials"]) ** 0.5
                assert float(row["coverage"]) >= 0.9 - 4 * error, f"{study} {row['method']} {row['epsilon']}"


def test_persons_are_covered_and_the_page_tells_of_them() -> None:
    for row in rows(PERSONS):
        if row["unit"] != "rows":
            # a handful of trials: four errors, of at least the spread that any of the rows shows
            error = max(float(r["coverage_persons_sd"]) for r in rows(PERSONS)) / int(row["trials"]) ** 0.5
            assert float(row["coverage_persons"]) >= 0.9 - 4 * error
            assert float(row["epsilon_of_a_person"]) <= float(row["epsilon"]) + 1e-3
    assert "(persons.md)" in (RESULTS / "README.md").read_text()


def test_peers_and_promises_have_errors_and_certified_sets_cover() -> None:
    peers = rows("table_peers")
    assert {r["model"] for r in peers} == set(table_peers.TITLES)
    spread = max(float(r["coverage_se"]) for r in peers if r["model"] == table_peers.OURS)
    for row in peers:
        assert int(row["trials"]) >= 3
        assert row["size_se"] or row["size"] == "inf"
        # every threshold is certified; a few trials: four errors, of at least the spread of ours
        error = max(spread, float(row["coverage_se"]))
        assert float(row["coverage"]) >= 0.9 - 4 * error, f"{row['table']} {row['n']} {row['model']}"
    promises = rows("new_promises")
    assert {r["part"] for r in promises} == set(new_promises.TITLES.values())
    for row in promises:
        assert int(row["trials"]) >= 1
        if row["promise"]:
            sign, limit = row["promise"].split()
            beyond = (float(row["value"]) - float(limit)) * (1 if sign == "<=" else -1)
            assert beyond <= 4 * float(row["value_se"]) + 1e-9, f"{row['part']}: {row['case']}"


def test_the_housing_table_is_near_the_printed_rows() -> None:
    known = [r for r in rows("housing") if r["paper_size"]]
    assert len(known) == 29
    for row in known:
        paper = paper_row("housing", row)
        # the paper's rounding may add half a thousandth
        assert abs(float(row["coverage"]) - paper.coverage) <= 0.004 + 0.0005
        ours, sd = float(row["size"]), float(row["size_sd"])
        errors = standard_errors(ours, sd, int(row["trials"]), paper.size, paper.size_sd)
        assert errors is not None
        assert abs(ours / paper.size - 1) <= 0.03 or abs(errors) <= 3


def test_synthetic_sizes_are_near_the_printed_ones_and_scale_like_them() -> None:
    known = {
        (r["method"], r["epsilon"], r["n"]): (float(r["size"]), float(r["paper_size"]))
        for r in rows("synthetic_scaling")
        if r["paper_size"]
    }
    assert len(known) == 45
    for ours, paper in known.values():
        assert abs(ours / paper - 1) <= 0.12
    for method in ("dp-scp-f", "dp-scp-a", "dp-split"):
        for epsilon in EPSILONS:
            small, large = known[method, epsilon, "10000"], known[method, epsilon, "30000"]
            assert abs((large[0] / small[0]) / (large[1] / small[1]) - 1) <= 0.05


def test_the_uncorrected_rule_breaks_where_the_model_overfits() -> None:
    made = [r for r in rows("validity_map") if r["n"] == "2000" and r["epsilon"] == "8"]
    coverage = {r["method"]: float(r["coverage"]) for r in made}
    assert coverage["dp-scp-a"] < 0.85
    assert min(coverage["universal"], coverage["split"]) >= 0.89


def test_the_floor_is_sharp_on_the_hard_instance() -> None:
    for row in rows("sharpness"):
        if row["method"] == "universal":
            assert abs(float(row["coverage"]) - 0.9) < 0.002
        else:
            assert float(row["coverage"]) < 0.89


# ---- what the code of today gives


def test_the_accounting_of_today_gives_the_committed_columns() -> None:
    made = {(r["method"], r["epsilon"], r["train_share"]): r for r in rows("bloodmnist")}
    for method, share, n in (("dp-scp-f", 0.5, 13_671), ("dp-split", None, 13_671 // 2)):
        spent = paper_spending(1.0, share, *bloodmnist.SETTINGS.loader(n))
        row = made[method, "1", "" if share is None else f"{share:g}"]
        assert float(row["train_epsilon"]) == pytest.approx(spent.train_epsilon, rel=1e-5)
        assert float(row["count_noise"]) == pytest.approx(spent.count_noise, rel=1e-5)


def test_the_hard_instance_of_today_gives_the_committed_coverage() -> None:
    again = sharpness.run(Task(sharpness.NAME, "draws", 0, 0), None)
    coverage = {(r["method"], f"{r['epsilon']:g}"): r["coverage"] for r in again if r["variant"] == "Gaussian"}
    for row in rows("sharpness"):
        # one trial against the mean of thirty: six of their standard deviations
        gap = abs(coverage[row["method"], row["epsilon"]] - float(row["coverage"]))
        assert gap <= 6 * float(row["coverage_sd"])


def test_the_set_sizes_of_the_planner_are_the_measured_ones():
    shipped = resources.files("dpscp.report").joinpath("set_sizes.csv").read_text(encoding="utf-8")
    assert shipped == (RESULTS / "set_sizes.csv").read_text()
