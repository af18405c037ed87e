"""results/README.md: the whole story on one page, every number read from the CSV files beside it."""

from pathlib import Path

import numpy as np

from experiments.paper_tables import PRINTED_TRIALS, printed
from experiments.progress import minutes_of
from experiments.runner import EPSILONS
from experiments.synthetic_scaling import POOLS
from experiments.table_peers import BOOSTING, NOISELESS, OURS, TITLES, WORLDS
from experiments.tables import (
    NAMES,
    SETS,
    Line,
    commits_of,
    find_row,
    grid,
    machines_of,
    read_csv,
    standard_errors,
    wrapped,
)
from experiments.validity_map import SEARCH_SURPLUS

__all__ = ["write_numbers", "write_story"]

STUDIES = (*SETS, "synthetic_scaling", "validity_map", "stability", "quantile_failures", "sharpness")
# their tables have columns of their own: a section is empty where the study was not run
OWN_COLUMNS = ("persons", "table_peers", "new_promises")
MORE_PAGES = {
    "rivals": "competing methods of calibration",
    "table_recipe": "the recipe on tables",
    "range_ends": "the recipe at the ends of the range",
    "corrected": "coverage of `corrected`",
    "unprinted_settings": "settings that the paper does not print",
    "lost_columns": "fits that lose a column",
    "sharper_promises": "sharper promises",
    "public_tables": "what privacy costs on tables that took no part in development",
}
LARGEST_MAPPED_BUDGET = 8.0
_MARK, _END = "<!-- computed by experiments/story.py from the CSV files in results/ -->", "<!-- end -->"
# how far a printed coverage may be, its rounding included, and how far a size
NEAR_COVERAGE, NEAR_SIZE = 0.004 + 5e-4, 0.03


def write_story(results: Path) -> bool:
    """Write the page from the studies that have left their tables; return whether there is one."""
    tables = {name: read_csv(results / f"{name}.csv") for name in STUDIES if (results / f"{name}.csv").exists()}
    more = {name: read_csv(results / f"{name}.csv") for name in OWN_COLUMNS if (results / f"{name}.csv").exists()}
    if not tables:
        return False
    compared = all(name in tables for name in (*SETS, "synthetic_scaling"))
    blocks = [_opening(results, tables, more)]
    if "housing" in tables:
        blocks += ["## The paper's rows\n\n" + _main_table(tables["housing"], "housing")]
    blocks += [_paper_holds(tables)]
    if "housing" in tables:
        blocks += ["![Housing](housing.png)"]
    if compared:
        blocks += ["## Certified sets beside unproven ones\n\n" + _certified(tables)]
    if compared and "validity_map" in tables:
        blocks += ["## Where reuse of all records still wins\n\n" + _reuse(tables)]
        blocks += ["![coverage against the training budget](validity_map.png)"]
    blocks += [
        _cost(more.get("table_peers")),
        _peers(more.get("table_peers")),
        "## More studies\n\n" + _more(results, tables, more),
        "## What is missing\n\n" + _missing(results, tables),
    ]
    (results / "README.md").write_text("\n\n".join(wrapped(block) for block in blocks if block).rstrip() + "\n")
    return True


def write_numbers(results: Path, page: Path) -> None:
    """Replace the numbers of a page, between its two marks, by those of the CSV files."""
    before, found, rest = page.read_text().partition(_MARK)
    _, ended, after = rest.partition(_END)
    assert found, page
    assert ended, page
    lines = "\n".join(f"- {line}" for line in _numbers(results))
    page.write_text(f"{before}{_MARK}\n{wrapped(lines)}\n{_END}{after}")


def _numbers(results: Path) -> list[str]:
    tables = {name: read_csv(results / f"{name}.csv") for name in (*SETS, "public_tables")}
    gains = _gains(tables, "dp-scp-f", ("housing", "bloodmnist"))
    ratios, covered, errors = [], [], []
    for name in dict.fromkeys(r["table"] for r in tables["public_tables"]):
        rows = [r for r in tables["public_tables"] if r["table"] == name]
        (ours,) = (r for r in rows if (r["model"], r["epsilon"]) == (OURS, "1"))
        ratios.append(float(ours["size"]) / min(float(r["size"]) for r in rows if r["model"] != OURS))
        covered.append(float(ours["coverage"]))
        errors.append(float(ours["coverage_se"]))
    return [
        f"On California Housing and BloodMNIST, certified sets are {min(gains):.0f} to {max(gains):.0f} % smaller "
        "than those of the paper's DP-SCP-F, on the same splits.",
        f"On {len(ratios)} public tables that took no part in development, at epsilon 1, sets are {min(ratios):.2f} to "
        f"{max(ratios):.2f} times as large as those of gradient boosting without privacy. The median is "
        f"{np.median(ratios):.2f}.",
        f"Where 0.90 was promised, these tables have a mean coverage of {min(covered):.3f} to {max(covered):.3f} "
        f"(standard errors up to {max(errors):.3f}).",
    ]


def _opening(results: Path, tables: dict[str, list[Line]], more: dict[str, list[Line]]) -> str:
    pages = [name for name in (*STUDIES, *more) if (results / f"{name}.md").exists()]
    commits = sorted({commit for name in pages for commit in commits_of(results / f"{name}.md")})
    # BloodMNIST is one study with two pages
    spent = sum(minutes_of(results / f"{name}.md") or 0.0 for name in pages if name != "bloodmnist_vgg16")
    machines = sorted({machine for name in pages for machine in machines_of(results / f"{name}.md")})
    return "\n".join(
        [
            "# Results",
            "",
            "What the paper found, what of it holds, and what the library adds. Certified means: proven in finite "
            "samples, for exchangeable records of any distribution. The target coverage is 0.90 and delta is 1e-5. A "
            "cell shows size (coverage). Each number is read from the CSV files beside this page.",
            "",
            *_in_short(tables, more),
            f"- commit {', '.join(commits)}" + (" (each page names its own)" if len(commits) > 1 else ""),
            f"- machine: {' and '.join(machines)}; {spent:.0f} minutes of one core for the studies of this page"
            + _opacus(results),
            "- make everything again: `make reproduce` (30 trials), `make reproduce ARGS=--quick` (minutes)",
            "- pages: "
            + ", ".join(f"[{name}]({name}.md)" for name in pages)
            + "; the same numbers are in CSV files of the same name",
        ]
    )


def _in_short(tables: dict[str, list[Line]], more: dict[str, list[Line]]) -> list[str]:
    """Return the summary of a page that holds every table of the comparison."""
    if not all(name in tables for name in (*SETS, "synthetic_scaling")):
        return []
    gains, ratios = _gains(tables, "dp-scp-f", ("housing", "bloodmnist")), _ratios(tables)
    return [
        f"**In short:** {_housing_match(tables['housing'])[0]} printed rows of Housing hold. The sets of the "
        f"certified default are {min(gains):.0f} to {max(gains):.0f} % smaller than those of the paper's DP-SCP-F "
        "on the same splits and features. Their size differs by "
        f"{_range(ratios)} from that of `corrected`, which reuses all records and is not proven."
        + _cost_in_short(more.get("table_peers")),
        "",
    ]


def _opacus(results: Path) -> str:
    if not (results / "opacus_time.md").exists():
        return ""
    last = (results / "opacus_time.md").read_text().strip().split("\n")[-1].split("|")
    return (
        f". The private trainings of the paper's three tables take {float(last[6]):.1f} hours of them; under Opacus "
        f"they would take {float(last[5]):.0f} ([measured step times](opacus_time.md))"
    )


def _size(rows: list[Line], method: str, epsilon: float | None, n: int | None = None) -> float:
    return float(find_row(rows, method, epsilon, n=n)["size"])


def _gains(tables: dict[str, list[Line]], method: str, names: tuple[str, ...]) -> list[float]:
    """By how many percent the default is smaller."""
    return [
        100 * (1 - _size(tables[name], "default", e) / _size(tables[name], method, e))
        for name in names
        for e in EPSILONS
    ]


def _compared(tables: dict[str, list[Line]]) -> list[tuple[str, list[Line], int | None]]:
    """The tables on which rules of calibration are compared: title, rows and number of records."""
    known = [(title, tables[name], None) for name, title in SETS.items()]
    return known + [(f"Synthetic II, n = {n:,} (size)", tables["synthetic_scaling"], n) for n in (10_000, 30_000)]


def _ratios(tables: dict[str, list[Line]], method: str = "corrected") -> list[float]:
    """How many percent larger the certified default is, on every table and budget."""
    return [
        100 * (_size(rows, "default", e, n) / _size(rows, method, e, n) - 1)
        for _, rows, n in _compared(tables)
        for e in EPSILONS
    ]


def _range(values: list[float]) -> str:
    return f"{min(values):+.0f} to {max(values):+.0f} %"


def _shown(row: Line) -> str:
    return "infinite" if row["size"] == "inf" else f"{float(row['size']):.3f} ({float(row['coverage']):.3f})"


# ---- the paper's rows


def _main_table(rows: list[Line], study: str) -> str:
    body = []
    for method in ("dp-scp-f", "dp-scp-a", "dp-split"):
        own = [find_row(rows, method, e) for e in EPSILONS]
        paper = [f"{float(r['paper_size']):.3f} ({float(r['paper_coverage']):.3f})" for r in own]
        body.append([f"{NAMES[method]}, printed in the paper", *paper])
        body.append([f"{NAMES[method]}, ours, the paper's settings", *map(_shown, own)])
    library = ("default", "universal", "stability", "corrected")
    body += [[f"**{NAMES[method]}**", *(_shown(find_row(rows, method, e)) for e in EPSILONS)] for method in library]
    for method in ("naive-full", "split-cp"):
        one = find_row(rows, method, None)
        paper = printed(study, method, None, None, int(one["n"]))
        assert paper is not None
        body.append([NAMES[method], f"{_shown(one)}; paper {paper.size:.3f} ({paper.coverage:.3f})", "", ""])
    return "\n".join(grid(["Housing", *(f"eps {e:g}" for e in EPSILONS)], body))


def _paper_holds(tables: dict[str, list[Line]]) -> str:
    lines = []
    if "housing" in tables:
        lines += [f"- [Housing](housing.md): {' '.join(_housing_match(tables['housing']))}"]
    if "synthetic_scaling" in tables:
        synthetic = [r for r in tables["synthetic_scaling"] if r["paper_size"]]
        worst = max(abs(float(r["size"]) / float(r["paper_size"]) - 1) for r in synthetic)
        pools = min(POOLS, *(int(r["trials"]) for r in synthetic))
        lines += [
            f"- [Synthetic II](synthetic_scaling.md): {len(synthetic)} printed sizes, the largest difference is "
            f"{100 * worst:.0f} %. The paper's pool has an unknown seed; ours are means over {pools} pools."
        ]
    if "bloodmnist" in tables and "bloodmnist_vgg16" in tables:
        same, digits = _accounting(tables["bloodmnist"])
        orders = [
            _size(tables[name], "dp-scp-a", e) < _size(tables[name], "dp-scp-f", e) < _size(tables[name], "dp-split", e)
            for name in ("bloodmnist", "bloodmnist_vgg16")
            for e in EPSILONS
        ]
        lines += [
            f"- [BloodMNIST](bloodmnist.md): {same} of {digits} printed digits of the accounting are equal. The order "
            f"DP-SCP-A < DP-SCP-F < DP-Split holds in {sum(orders)} of {len(orders)} cases. The paper's ImageNet "
            "ResNet-18 weights were not available: other features, so sizes are compared between methods only."
        ]
    return "\n".join(lines)


def _housing_match(rows: list[Line]) -> tuple[str, str]:
    """How many printed rows agree, and what that means."""
    known = [r for r in rows if r["paper_size"]]
    gaps, ratios, outside = [], [], []
    for r in known:
        share = float(r["train_share"]) if r["train_share"] else None
        epsilon = float(r["epsilon"]) if r["epsilon"] else None
        paper = printed("housing", r["method"], epsilon, share, int(r["n"]))
        assert paper is not None
        gaps.append(float(r["coverage"]) - paper.coverage)
        ratios.append(float(r["size"]) / paper.size - 1)
        sd = float(r["size_sd"] or "nan")
        errors = standard_errors(float(r["size"]), sd, int(r["trials"]), paper.size, paper.size_sd)
        near = abs(ratios[-1]) <= NEAR_SIZE or (errors is not None and abs(errors) <= 3)
        if not near or abs(gaps[-1]) > NEAR_COVERAGE:
            label = f"{NAMES[r['method']]} eps {r['epsilon'] or '-'} p {r['train_share'] or '-'}"
            outside.append(f"{label} ({gaps[-1]:+.3f}, {100 * ratios[-1]:+.1f} %)")
    return (
        f"{len(known) - len(outside)} of {len(known)}",
        "printed rows agree: coverage within 0.004 and its rounding, width within 3 % or 3 standard errors. The "
        f"largest differences are {max(map(abs, gaps)):.4f} and {100 * max(map(abs, ratios)):.1f} %."
        + (f" Outside: {'; '.join(outside)}." if outside else ""),
    )


def _accounting(rows: list[Line]) -> tuple[int, int]:
    """How many printed digits of train epsilon and count noise are equal, and how many there are."""
    digits = same = 0
    for r in rows:
        if r["paper_size"] and r["count_noise"]:
            share = float(r["train_share"]) if r["train_share"] else None
            paper = printed("bloodmnist", r["method"], float(r["epsilon"]), share, int(r["n"]))
            assert paper is not None
            digits += 2
            same += f"{float(r['train_epsilon']):.3f}" == f"{paper.train_epsilon:.3f}"
            same += f"{float(r['count_noise']):.2f}" == f"{paper.count_noise:.2f}"
    return same, digits


# ---- certified and unproven rules


def _certified(tables: dict[str, list[Line]]) -> str:
    body, covered = [], []
    for title, rows, n in _compared(tables):
        line = [title]
        for e in EPSILONS:
            ours, other = (find_row(rows, method, e, n=n) for method in ("default", "corrected"))
            covered.append(float(other["coverage"]))
            line += [_shown(ours), _shown(other)]
        body.append(line)
    head = ["", *(f"eps {e:g}: {what}" for e in EPSILONS for what in ("default", "`corrected`"))]
    ratios = _ratios(tables)
    return (
        "The default holds a secret part of the records out. Training and threshold each spend the whole budget, the "
        "threshold's own noise is part of the proof, and nothing is added for failure. `corrected` reuses all records; "
        "its coverage is correct for large numbers of records only.\n\n"
        + "\n".join(grid(head, body))
        + f"\n\nThe default has the smaller sets in {sum(r <= 0 for r in ratios)} of {len(ratios)} cases. Its size "
        f"differs by {_range(ratios)} from that of `corrected`, by {np.mean(ratios):+.1f} % on average. `corrected` "
        f"covers {min(covered):.3f} to {max(covered):.3f} here."
    )


def _reuse(tables: dict[str, list[Line]]) -> str:
    rows = tables["validity_map"]
    made, real = min(int(r["n"]) for r in rows), max(int(r["n"]) for r in rows)
    at = {m: find_row(rows, m, LARGEST_MAPPED_BUDGET, n=made) for m in ("dp-scp-a", "dp-scp-f", "universal", "split")}
    saved = _gains(tables, "universal", tuple(SETS))
    return (
        "- **Tiny budgets and few records.** A held-out part is then too small for its own noise. `universal`, "
        "certified on all records, has smaller sets than the certified split at these training budgets (the split is "
        f"interpolated at the same whole budget): BloodMNIST {_where_reuse_wins(rows, real)}; a task made to overfit "
        f"with {made:,} records {_where_reuse_wins(rows, made)}.\n"
        "- **A model that has seen the records.** Without a held-out part, `universal` is the rule that certifies any "
        f"private training. At usual budgets that is dear: the default's sets are {min(saved):.0f} to "
        f"{max(saved):.0f} % smaller than its sets on the tables above.\n"
        "- **Not without a correction.** On the task made to overfit, at a training budget of "
        f"{LARGEST_MAPPED_BUDGET:g}, DP-SCP-A covers {float(at['dp-scp-a']['coverage']):.3f} and DP-SCP-F "
        f"{float(at['dp-scp-f']['coverage']):.3f} instead of 0.90; `universal` covers "
        f"{float(at['universal']['coverage']):.3f} (size {float(at['universal']['size']):.2f} of 4), the split "
        f"{float(at['split']['coverage']):.3f} ({float(at['split']['size']):.2f}). [The map](validity_map.md)."
    )


def _where_reuse_wins(rows: list[Line], n: int) -> str:
    """Budgets of training; full-data rules spend a surplus on the search, so the split is read at the larger budget."""
    budgets = sorted({float(r["epsilon"]) for r in rows})
    full, held = ([_size(rows, m, e, n) for e in budgets] for m in ("universal", "split"))
    won = []
    # above the last budget the split is not known
    for epsilon, size in zip(budgets[:-1], full[:-1], strict=True):
        whole = np.log((1 + SEARCH_SURPLUS) * epsilon)
        other = float(np.exp(np.interp(whole, np.log(budgets), np.log(held))))
        if size < other:
            won.append(f"{epsilon:g} ({size:.2f} against {other:.2f})")
    return ", ".join(won) or "none"


# ---- what privacy costs, and other private models


def _largest(peers: list[Line]) -> dict[str, dict[tuple[str, str], Line]]:
    """For each table, the rows of its largest number of records by model and epsilon."""
    found: dict[str, dict[tuple[str, str], Line]] = {}
    for row in sorted(peers, key=lambda r: int(r["n"])):
        found.setdefault(row["table"], {})[row["model"], row["epsilon"]] = row
    return found


def _cost_in_short(peers: list[Line] | None) -> str:
    if peers is None:
        return ""
    at = _largest(peers)["housing"]
    ours, same, best = (float(at[key]["size"]) for key in ((OURS, "1"), (NOISELESS, ""), (BOOSTING, "")))
    return (
        f" Privacy costs {100 * (ours / same - 1):.0f} % in width on Housing at epsilon 1 against the same model "
        f"without noise, and {100 * (ours / best - 1):.0f} % against gradient boosting without privacy."
    )


def _cost(peers: list[Line] | None) -> str:
    if peers is None:
        return ""
    titles = {name: f"{world.title} ({'size' if world.is_labeled else 'width'})" for name, world in WORLDS.items()}
    head = ["", *(f"default, eps {e:g}" for e in EPSILONS), "same model, no noise", "gradient boosting"]
    keys = [*((OURS, f"{e:g}") for e in EPSILONS), (NOISELESS, ""), (BOOSTING, "")]
    found = _largest(peers)
    body = [
        [f"{title}, n = {int(found[name][keys[0]]['n']):,}", *(_shown(found[name][key]) for key in keys)]
        for name, title in titles.items()
    ]
    cost = {
        other: [100 * (float(found[n][keys[1]]["size"]) / float(found[n][other, ""]["size"]) - 1) for n in titles]
        for other in (NOISELESS, BOOSTING)
    }
    told = {other: " / ".join(f"{c:+.0f}" for c in values) for other, values in cost.items()}
    return (
        "## What privacy costs\n\nNothing is taken from the records here: public bounds, as a user would fit. The last "
        "two columns are not private and have exact thresholds: the default's model without noise, and scikit-learn's "
        "HistGradientBoosting, the strongest model that a user would pick.\n\n"
        + "\n".join(grid(head, body))
        + f"\n\nAt epsilon 1 the size of the default's sets differs by {told[NOISELESS]} % from that of the same "
        f"model, and by {told[BOOSTING]} % from that of gradient boosting, on the three tables in this order."
    )


def _peers(peers: list[Line] | None) -> str:
    if peers is None:
        return ""
    cells: dict[tuple[str, str, str], dict[str, Line]] = {}
    for row in peers:
        if row["epsilon"]:
            cells.setdefault((row["table"], row["n"], row["epsilon"]), {})[row["model"]] = row
    models = [m for m in dict.fromkeys(r["model"] for r in peers if r["epsilon"]) if not m.startswith("default")]
    told = []
    for model in models:
        shared = [found for found in cells.values() if model in found]
        wins = sum(float(found["default"]["size"]) < float(found[model]["size"]) for found in shared)
        change = [100 * (float(f["default"]["size"]) / float(f[model]["size"]) - 1) for f in shared]
        told.append(
            f"- {TITLES[model]}: the default's sets are smaller in {wins} of {len(shared)} cells ({_range(change)})"
        )
    return (
        "## Beside other private models for tables\n\nThe same rows, the same budget and a certified threshold for all "
        f"of them; trials: {peers[0]['trials']}. [All numbers](table_peers.md).\n\n" + "\n".join(told)
    )


# ---- the rest


def _more(results: Path, tables: dict[str, list[Line]], more: dict[str, list[Line]]) -> str:
    lines = [*_persons(more.get("persons")), *_promises(more.get("new_promises"))]
    if "stability" in tables:
        gap = max(float(r["size"]) for r in tables["stability"] if r["method"] == "stability-gap")
        error = min(float(r["size"]) for r in tables["stability"] if r["method"] == "estimation-error")
        lines += [
            f"[Stability](stability.md): two coupled trainings that differ by one record end at most {gap:.3f} apart "
            f"on average. The estimate is {error:.2f} or more from the truth."
        ]
    if "quantile_failures" in tables:
        midpoint = [1 - float(r["coverage"]) for r in tables["quantile_failures"] if r["method"] == "dp-split"]
        union = [1 - float(r["coverage"]) for r in tables["quantile_failures"] if r["method"] == "dp-scp-f"]
        lines += [
            "[Midpoint rule](quantile_failures.md): in the paper's two examples (and one with more records) the noisy "
            f"midpoint ends below the quantile with probability {min(midpoint):.2f} to {max(midpoint):.2f}; the "
            f"right-endpoint rule with its buffer with at most {max(union):.3f} (promised: 0.05)."
        ]
    if "sharpness" in tables:
        plain, inner = (
            " / ".join(f"{float(find_row(tables['sharpness'], m, e)['coverage']):.3f}" for e in EPSILONS)
            for m in ("dp-scp-a", "universal")
        )
        lines += [
            f"[Sharpness](sharpness.md): on the hard instance of Theorem 2 coverage falls to {plain} at epsilon .5 / 1 "
            f"/ 2 without correction and is {inner} with Result B."
        ]
    pages = [f"[{title}]({name}.md)" for name, title in MORE_PAGES.items() if (results / f"{name}.md").exists()]
    return "\n".join(f"- {line}" for line in [*lines, *(["More pages: " + ", ".join(pages)] if pages else [])])


def _persons(rows: list[Line] | None) -> list[str]:
    """What a promise to persons costs, beside a promise to rows."""
    if rows is None:
        return []
    told = {}
    for unit in ("rows", "k = 3"):
        at = [r for r in rows if (r["kind"], r["unit"]) == ("diabetes", unit)]
        told[unit] = " / ".join(f"{float(r['size']):.2f} ({float(r['coverage_persons']):.3f})" for r in at)
        if unit == "rows":
            dearest = " / ".join(f"{float(r['epsilon_of_a_person']):.1f}" for r in at)
    return [
        "[Persons](persons.md), diabetes130, size (coverage of persons) at epsilon .5 / 1 / 2: a fit on rows "
        f"{told['rows']}, where somebody with 5 rows has epsilon {dearest}; with `persons=` and 3 rows each "
        f"{told['k = 3']}, at the requested epsilon."
    ]


def _promises(rows: list[Line] | None) -> list[str]:
    """How many measured promises were kept, for each part of the study."""
    if rows is None:
        return []
    told = []
    for part in dict.fromkeys(r["part"] for r in rows):
        judged = [r["kept"] for r in rows if r["part"] == part and r["kept"]]
        if judged:
            told.append(f"{part.lower()} {judged.count('yes')} of {len(judged)}")
    return [
        "[Promises after a fit](new_promises.md) on real tables, means that are where they were promised to be: "
        + ("; ".join(told) or "none was judged")
        + "."
    ]


def _missing(results: Path, tables: dict[str, list[Line]]) -> str:
    short = []
    for name, rows in tables.items():
        counts = sorted({int(r["trials"]) for r in rows})
        if name not in ("stability", "sharpness", "quantile_failures") and counts[0] < PRINTED_TRIALS:
            ends = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
            short.append(f"{name}: {ends} {'trial' if ends == '1' else 'trials'}")
    text = (
        "- ResNet-18 features: `python -m experiments.features resnet18` extracts them where torchvision's weights can "
        "be downloaded. Then add the backbone to `experiments/bloodmnist.py`.\n- The paper's standardization with the "
        "pool's own statistics is not private. It is used where its rows are reproduced and, for comparison, for the "
        "library's rows of Housing and Synthetic II. Neither the privacy nor the certificate of those rows covers that "
        "step." + (" [housing.md](housing.md) also has the default with public bounds." if "housing" in tables else "")
    )
    absent = [name for name in (*STUDIES, *OWN_COLUMNS, *MORE_PAGES) if not (results / f"{name}.md").exists()]
    return (
        text
        + ("\n- Studies without results here: " + ", ".join(absent) + "." if absent else "")
        + ("\n- Fewer trials than the paper's 30: " + "; ".join(short) + "." if short else "")
    )
