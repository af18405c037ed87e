"""The interactive planner: its tables and its formulas are the library's, and the page runs in a browser."""

import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import dpscp as dp
from dpscp.cli.main import main
from dpscp.core.plan import Plan
from dpscp.core.problem import Problem
from dpscp.core.tasks import OwnScores
from dpscp.privacy import Budget, Ledger, epsilon_delta_tradeoff, gaussian_tradeoff, gdp_epsilon, gdp_mu
from dpscp.privacy.noise_search import split_budget
from dpscp.report import planner
from dpscp.report.planning import PLANNED, plan_row, with_value

ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_node = pytest.mark.skipif(NODE is None, reason="no Node.js is installed")
ASK = """
const {makePlanner} = require(process.argv[1]);
const {tables, calls} = JSON.parse(require("fs").readFileSync(0));
const planner = makePlanner(tables);
console.log(JSON.stringify(calls.map(([name, ...args]) => planner[name](...args))));
"""


def ask(*calls):
    """What the page's own script answers to calls of its functions."""
    script = ROOT / "src/dpscp/report/planner.js"
    sent = json.dumps({"tables": planner.planner_tables(), "calls": calls})
    done = subprocess.run(
        [NODE, "-e", ASK, str(script)], input=sent, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def plan():
    return dp.plan(3_000, 1.0, delta=1e-6)


def test_the_offsets_of_the_page_are_those_of_the_library():
    search = planner.planner_tables()["search"]
    grid = search["log_signals"]
    assert grid == sorted(grid)
    assert len(search["offsets"]) == len(search["inner_alphas"]) == len(planner.LEVELS)
    for row, level in enumerate(planner.LEVELS):
        # a smaller level that pays for the released number of scores
        assert 0.98 * (1 - level) < search["inner_alphas"][row] <= 1 - level
        for place in (7 * row % len(grid), (11 * row + 40) % len(grid)):
            scores = max(1_000, round(math.exp(grid[place])))
            problem = Problem(
                task=OwnScores(), budget=Budget(1.0, 1e-5), alphas=(1 - level,), n_records=scores, guarantee="split"
            )
            found, mu = Plan.outline(problem, Ledger()), math.exp(grid[place]) / (scores + 1)
            aim = found.planned_aim(0, mu)
            whole = float(aim.whole_offset(found.guarantee.rank_buffer, None, None, level)) + aim.mean_rise
            assert search["offsets"][row][place] == pytest.approx(whole * mu, rel=1e-3), (level, place)


def test_the_shipped_set_sizes_grow_with_the_level():
    tasks = planner.planner_tables()["tasks"]
    assert [task["classes"] for task in tasks] == [2, 5, 8]
    for task in tasks:
        for by_epsilon in task["size"]:
            for sizes in by_epsilon:
                assert all(0.5 < size <= task["classes"] for size in sizes)
                assert list(sizes) == sorted(sizes)  # a higher level needs larger sets


def planned(problem, epsilon, level):
    problem = with_value(with_value(problem, "epsilon", epsilon), "alpha", round(1 - level, 12))
    return plan_row("split", problem, bare=True)


@needs_node
@pytest.mark.parametrize(("n", "delta"), [(400, 1e-4), (3_000, 1e-6), (150_000, 1e-8)])
def test_the_page_plans_what_the_library_plans(plan, n, delta):
    epsilons, levels = (0.2, 0.8, 3.0, 9.0), (0.7, 0.9, 0.98)
    known = replace(plan, n=n, problem=replace(plan.problem, n_records=n, budget=Budget(1.0, delta)))
    cases = [(e, v) for e in epsilons for v in levels]
    rows = [planned(known.problem, epsilon, level) for epsilon, level in cases]
    found = ask(*(["plan", {"n": n, "epsilon": e, "delta": delta, "level": v}] for e, v in cases))
    assert any(row.useful for row in rows)
    for (epsilon, level), row, page in zip(cases, rows, found, strict=True):
        assert page["useful"] == row.useful, (epsilon, level)
        assert page["fraction"] == pytest.approx(row.calibration_fraction, rel=1e-4)
        assert page["trainEpsilon"] == pytest.approx(row.train_epsilon, rel=1e-3)
        if row.useful:
            assert page["overshoot"] == pytest.approx(max(0.0, row.overshoot), rel=0.06, abs=5e-4), (epsilon, level)


@needs_node
def test_groups_and_rows_without_ids_are_those_of_a_fit():
    asked = {"n": 20_000, "epsilon": 1.0, "delta": 1e-5, "level": 0.9}
    alone, grouped, rows, ids = ask(
        ["plan", asked],
        ["plan", asked | {"groups": 10}],
        ["plan", asked | {"rows": 4, "ids": False}],
        ["plan", asked | {"rows": 4, "ids": True}],
    )
    fraction = alone["fraction"]
    given = {"task": OwnScores(), "budget": Budget(1.0, 1e-5), "guarantee": "split", "group_values": range(10)}
    plan = Plan.outline(Problem(alphas=(0.1,), n_records=20_000, **given), Ledger(), part=fraction)
    mu = split_budget(1.0, 1e-5, fraction, 20_000)[1]
    aim = plan.planned_aim(0, mu)
    offset = float(aim.whole_offset(plan.guarantee.rank_buffer)) + aim.mean_rise
    assert grouped["scores"] == plan.n_nominal == 250
    assert grouped["offset"] == pytest.approx(offset, rel=0.05)
    assert grouped["overshoot"] > 3 * alone["overshoot"]
    assert rows["rowEpsilon"] == pytest.approx(gdp_epsilon(1e-5, gdp_mu(1.0, 1e-5) / 4), rel=1e-3)
    assert ids == alone
    (none,) = ask(["plan", asked | {"delta": 1e-4, "epsilon": 0.1, "rows": 2_000, "ids": False}])
    assert (none["rowEpsilon"], none["useful"]) == (0, False)


@needs_node
def test_odds_and_conversions_are_those_of_the_library():
    cases = [(0.1, 1e-4), (1.0, 1e-5), (8.0, 1e-9)]
    for (epsilon, delta), odds, mu in zip(
        cases, ask(*(["attack", *c, 0.05] for c in cases)), ask(*(["muOf", *c] for c in cases)), strict=True
    ):
        assert mu == pytest.approx(gdp_mu(epsilon, delta), rel=1e-4)
        assert odds["gaussian"] == pytest.approx(1 - gaussian_tradeoff(gdp_mu(epsilon, delta))(0.05), rel=1e-4)
        assert odds["any"] == pytest.approx(1 - epsilon_delta_tradeoff(epsilon, delta)(0.05), rel=1e-9)
    places = [-11.5, -6.0, -2.5, -0.3, 0.0, 1.7]
    for x, shown in zip(places, ask(*(["cdf", x] for x in places)), strict=True):
        assert shown == pytest.approx(0.5 * math.erfc(-x / math.sqrt(2)), rel=2e-5)


@needs_node
def test_set_sizes_are_read_and_interpolated():
    task = planner.planner_tables()["tasks"][1]
    n, epsilon, level = task["n"], task["epsilon"], task["level"]
    exact, between, outside = ask(
        ["setSize", task, n[1], epsilon[2], level[0]],
        ["setSize", task, math.sqrt(n[0] * n[1]), epsilon[2], level[0]],
        ["setSize", task, 1e9, 1e-3, 0.999],
    )
    assert exact == task["size"][1][2][0]
    assert between == pytest.approx((task["size"][0][2][0] + task["size"][1][2][0]) / 2)
    assert outside == task["size"][-1][0][-1]
    found, classes, name = planner.nearest_set_size(task["classes"], n[0], epsilon[2], level[0])
    assert (found, classes, name) == (task["size"][0][2][0], task["classes"], task["name"])
    assert planner.nearest_set_size(classes, math.sqrt(n[0] * n[1]), epsilon[2], level[0])[0] == pytest.approx(between)


def test_the_page_stands_alone_and_starts_at_the_plan(tmp_path, plan, capsys):
    path = tmp_path / "plan.html"
    plan.to_html(path)
    page = path.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"|url\(|@import|fetch\(|XMLHttp', page)
    start = json.loads(re.search(r'"start":(\{[^}]*\})', page)[1])
    assert start == {"n": 3000, "epsilon": 1.0, "delta": 1e-6, "level": 0.9, "classes": 2, "rows": 1}
    assert all(f"<td>{name}" in page for name in PLANNED)
    assert main(["plan", "--n", "500", "--epsilon", "2", "--html", str(path), "--rows-per-person", "3"]) == 0
    assert f"page:   {path}" in capsys.readouterr().out
    start = json.loads(re.search(r'"start":(\{[^}]*\})', path.read_text())[1])
    assert (start["n"], start["rows"]) == (500, 3)
    assert main(["plan", "--n", "500", "--epsilon", "2", "--regression", "--html", str(path)]) == 0
    assert json.loads(re.search(r'"start":(\{[^}]*\})', path.read_text())[1])["classes"] == 1


def test_a_level_of_the_plan_that_the_table_has_not_is_added(plan):
    page = planner.planner_page(replace(plan, alpha=0.07))
    (numbers,) = re.findall(r"const \{tables, start\} = (\{.*\});", page)
    sent = json.loads(numbers)
    levels, search = sent["tables"]["levels"], sent["tables"]["search"]
    assert sent["start"]["level"] == 0.93
    assert levels == sorted({*planner.LEVELS, 0.93})
    place = levels.index(0.93)
    assert search["inner_alphas"][place] == pytest.approx(0.07, rel=0.02)
    assert search["offsets"][place][40] == planner.offset_times_mu(0.93, search["log_signals"][40])
    assert [len(search["offsets"]), len(search["inner_alphas"])] == [len(levels)] * 2
    assert 0.93 not in planner.planner_tables()["levels"]


MOVE = """<script>
const slider = document.querySelector("input[name=epsilon]");
slider.value = slider.max;
slider.dispatchEvent(new Event("input"));
update();
const wide = [...document.querySelectorAll("main *")].filter(e => !e.closest("svg, .scroll")
  && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName);
document.title = JSON.stringify([...document.querySelectorAll(".fact b")].map(b => b.textContent).concat(wide.join(),
  document.querySelectorAll("svg path").length, document.getElementById("command").textContent));
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_runs_in_a_browser_and_follows_its_sliders(tmp_path, plan):
    page = tmp_path / "plan.html"
    page.write_text(planner.planner_page(plan).replace("</body>", MOVE))
    flags = ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "enable-logging=stderr")
    done = subprocess.run(
        [
            CHROMIUM,
            *(f"--{flag}" for flag in flags),
            f"--user-data-dir={tmp_path / 'user'}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    shown = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout)[1]))
    coverage, size, attacker, parts, wide, paths, command = shown
    row = planned(plan.problem, 10.0, 0.9)
    assert float(coverage.split()[1].rstrip("%")) == pytest.approx(100 * (0.9 + row.overshoot), abs=0.11)
    found = 1 - epsilon_delta_tradeoff(10.0, 1e-6)(0.05)
    # rounded up, because it is an upper bound
    assert 0 <= float(attacker.split()[2].rstrip("%")) - 100 * found < 0.1001
    assert int(parts.replace(",", "")) == pytest.approx(3_000 * row.calibration_fraction, abs=1)
    assert 1 < float(size.split()[1]) < 2
    assert (wide, paths) == ("", 6)
    assert command.startswith("dpscp plan --n 3000 --epsilon 10 ")
