"""Draws the pictures of how_it_works.md from public numbers: ``python docs/pictures.py``."""

from pathlib import Path

import matplotlib as mpl

import dpscp as dp
from dpscp.report.figures import calibration_figure, plan_figure, tradeoff_figure

FOLDER = Path(__file__).parent / "img"


def main() -> None:
    """One file for each picture; nothing in them comes from records."""
    mu = dp.privacy.gdp_mu(1.0, 1e-6)
    ledger = dp.Ledger().add("release", dp.privacy.gaussian_event(1 / mu))
    plan = dp.plan(n=10_000, epsilon=1.0)
    row = plan.row("split")
    n = round(10_000 * row.calibration_fraction)
    rank = row.inner_level * (n + 1) + row.rank_offset
    terms = {"n_records": 10_000, "calibration_records": n, "inner_level": row.inner_level}
    terms |= {"count_noise": row.count_noise, "rank_target": rank}
    certificate = dp.Certificate("split", 0.9, 0.9, (), terms, "")
    figures = {
        "tradeoff": tradeoff_figure(ledger),
        "calibration": calibration_figure(certificate),
        "plan": plan_figure(plan),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, figure in figures.items():
        figure.set_facecolor("white")
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
