"""The tables of docs/recipe.md that show what one part of the recipe changes, from results/table_recipe.csv."""

import math
from pathlib import Path

from experiments.runner import EPSILONS
from experiments.table_recipe import NAME, TABLES
from experiments.tables import Line, grid, read_csv

__all__ = ["write_tables"]

# a column: its title, the variants of which the first one that was run is shown, and what is measured
Column = tuple[str, tuple[str, ...], str]
TITLES = {
    "housing": "Housing (8 columns)",
    "log-normal": "Friedman 1 of log-normal columns (10)",
    "uniform": "Friedman 1 of uniform columns (10)",
    "uniform of 30": "Friedman 1, five columns of 30",
    "products of 30": "products, five columns of 30",
    "lines of 30": "lines, all of 30 columns",
    "deliveries": "deliveries (29)",
    "hotel": "hotel, columns of 98, 125 and 167 values",
    "diabetes130 with diagnoses": "Diabetes 130, three columns of over 700 values",
    "numbers and categories": "Friedman 1 and categories (10 numbers, 18 indicators)",
    "adult, hours": "Adult, hours a week (4, 42)",
    "diabetes130, medications": "Diabetes 130, medications (8, 35)",
    "log-normal and categories": "log-normal numbers and categories (10, 30)",
    "adult": "Adult (5, 42)",
    "bank": "Bank (8, 49)",
    "bank with duration": "Bank with the duration of the call (9, 49)",
    "diabetes130": "Diabetes 130, three classes (9, 35)",
    "two classes": "two synthetic classes (10)",
    "four classes": "four synthetic classes (10)",
    "bloodmnist": "BloodMNIST features (512)",
}
SHOWN: dict[str, tuple[tuple[str, ...], tuple[Column, ...]]] = {
    "quantiles": (
        ("log-normal", "uniform", "housing"),
        (
            ("mean and scale", ("no quantiles",), "size"),
            ("with quantiles", ("all columns", ""), "size"),
            ("with quantiles, nothing declared", ("nothing declared",), "size"),
        ),
    ),
    "wide classifiers": (
        ("log-normal and categories", "adult", "bank", "bank with duration", "diabetes130"),
        (
            ("size without quantiles", ("no quantiles",), "size"),
            ("with quantiles", ("no parts",), "size"),
            ("and indicators of ranges", ("",), "size"),
            ("log loss without quantiles", ("no quantiles",), "log_loss"),
            ("with both", ("",), "log_loss"),
        ),
    ),
    "columns that matter": (
        (
            "deliveries",
            "uniform of 30",
            "products of 30",
            "lines of 30",
            "log-normal",
            "uniform",
            "numbers and categories",
            "two classes",
            "four classes",
        ),
        (("all columns", ("all columns",), "size"), ("columns that matter", ("",), "size")),
    ),
    "indicators": (
        ("numbers and categories", "adult, hours", "diabetes130, medications"),
        (("all columns scaled", ("indicators scaled",), "size"), ("numbers alone", ("",), "size")),
    ),
    "categories": (
        ("hotel", "diabetes130 with diagnoses"),
        (("indicators, or without the columns", ("indicators", "no codes"), "size"), ("encoded", ("",), "size")),
    ),
    "layers": (
        ("log-normal", "uniform", "housing"),
        (
            ("layers by signal", ("layers by signal",), "size"),
            ("ReLU", ("relu",), "size"),
            ("the recipe", ("",), "size"),
        ),
    ),
    "recalibration": (
        ("adult", "bank", "bank with duration", "two classes", "four classes", "diabetes130", "bloodmnist"),
        tuple(
            (f"{title}{', without' if variant else ', with'}", (variant,), measure)
            for title, measure in (("slope", "slope"), ("error", "calibration_error"), ("log loss", "log_loss"))
            for variant in ("no recalibration", "")
        ),
    ),
}


def write_tables(results: Path, page: Path) -> None:
    """Replace every marked table of a page by the numbers of the CSV file."""
    rows = {(row["table"], row["variant"], float(row["epsilon"])): row for row in read_csv(results / f"{NAME}.csv")}
    text = page.read_text()
    for name, (cases, columns) in SHOWN.items():
        start, end = f"<!-- {name}: computed by experiments/recipe_tables.py -->", "<!-- end -->"
        before, found, rest = text.partition(start)
        _, ended, after = rest.partition(end)
        assert found, name
        assert ended, name
        text = f"{before}{start}\n\n{_table(rows, cases, columns)}\n\n{end}{after}"
    page.write_text(text)


def _table(rows: dict[tuple[str, str, float], Line], cases: tuple[str, ...], columns: tuple[Column, ...]) -> str:
    body = []
    for case in cases:
        trials = max(int(rows[case, "", epsilon]["trials"]) for epsilon in EPSILONS)
        cells = [TITLES[case], f"{TABLES[case][0]:,}", str(trials)]
        for _, variants, measure in columns:
            run = [v for v in variants if all((case, v, epsilon) in rows for epsilon in EPSILONS)][:1]
            cells += [" / ".join(_mean(rows[case, v, epsilon], measure) for v in run for epsilon in EPSILONS)]
        body.append(cells)
    return "\n".join(grid(["table", "n", "trials", *(title for title, *_ in columns)], body))


def _mean(row: Line, measure: str) -> str:
    mean, error = float(row[measure]), float(row[f"{measure}_sd"]) / math.sqrt(int(row["trials"]))
    digits = 3 if mean < 10 else 2
    return f"{mean:.{digits}f} ({error:.{digits}f})"
