"""The command line: ``python -m experiments [study ...]``."""

import os

# before NumPy is loaded, here and in the worker processes: one thread each, the matrices are small
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from importlib import import_module  # noqa: E402
from pathlib import Path  # noqa: E402

from experiments.data import MissingDataError, remember_missing  # noqa: E402
from experiments.progress import describe_plan  # noqa: E402
from experiments.recipe_tables import write_tables  # noqa: E402
from experiments.runner import Options, Study, is_finished, minutes_left, run_study  # noqa: E402
from experiments.story import write_numbers, write_story  # noqa: E402

STUDIES = (
    "quantile_failures",
    "sharpness",
    "stability",
    "housing",
    "bloodmnist",
    "synthetic_scaling",
    "validity_map",
    "adult",
    "bank",
    "persons",
    "rivals",
    "unprinted_settings",
    "corrected",
    "table_recipe",
    "set_sizes",
    "table_peers",
    "new_promises",
    "sharper_promises",
    "lost_columns",
    "range_ends",
    "public_tables",
    "opacus_time",
)
# a quick run leaves out what looks again at the tables of other studies, and the search for defects of the recipe
NOT_QUICK = (
    "unprinted_settings",
    "corrected",
    "table_recipe",
    "set_sizes",
    "sharper_promises",
    "lost_columns",
    "range_ends",
    "opacus_time",
)
QUICK_TRIALS = 3
ROOT = Path(__file__).resolve().parents[1]
# pages with numbers of results/
NUMBERED_PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
RECIPE_PAGE = ROOT / "docs" / "recipe.md"


def main(arguments: list[str] | None = None) -> int:
    """Run the studies named (all of them by default) and write results/."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description="Reproduce the paper's tables and figures."
    )
    parser.add_argument("study", nargs="*", default=[], help=f"one or more of: {', '.join(STUDIES)}; all by default")
    parser.add_argument("--trials", type=int, default=30, help="random splits for each configuration (default 30)")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_TRIALS} trials (1 of the longest parts), into results/quick"
    )
    parser.add_argument("--seed", type=int, default=0, help="every random choice follows from it (default 0)")
    parser.add_argument(
        "--workers", type=int, default=min(2, os.cpu_count() or 1), help="parallel processes (default 2)"
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="folder with the data files, for machines without a network"
    )
    parser.add_argument("--results", type=Path, default=None, help="where tables and pictures go (default results)")
    parser.add_argument(
        "--cache", type=Path, default=Path("build/experiments"), help="finished trials (default build/experiments)"
    )
    parser.add_argument(
        "--kind", action="append", help="compute only tasks of this kind (repeatable) and write no tables"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="forget finished trials and pages of these studies and start again"
    )
    given = parser.parse_args(arguments)
    unknown = [name for name in given.study if name not in STUDIES]
    if unknown:
        parser.error(f"unknown study {', '.join(unknown)}; choose from {', '.join(STUDIES)}")
    if given.trials < 1 or given.workers < 1:
        parser.error("--trials and --workers must be at least 1")
    if given.data is not None and not given.data.is_dir():
        parser.error(f"--data must be a folder with the data files, got {str(given.data)!r}")
    options = Options(
        trials=min(QUICK_TRIALS, given.trials) if given.quick else given.trials,
        quick=given.quick,
        seed=given.seed,
        workers=given.workers,
        data=given.data,
        results=given.results or Path("results/quick" if given.quick else "results"),
        cache=given.cache,
        fresh=given.fresh,
        kinds=tuple(given.kind or ()),
    )
    names = given.study or [name for name in STUDIES if not (given.quick and name in NOT_QUICK)]
    left = {name: minutes_left(load(name), options) for name in names}
    print(describe_plan(left, options.workers), flush=True)
    for name in names:
        started = time.monotonic()
        del left[name]
        # a study that is named is told again from its finished trials
        if not given.study and is_finished(load(name), options):
            print(f"{name}: {options.results}/{name}.md has all trials of this code", flush=True)
            continue
        try:
            run_study(load(name), options, command(given))
        except MissingDataError as missing:
            remember_missing(str(missing))
            print(f"{name}: skipped, {missing}", flush=True)
            continue
        minutes = (time.monotonic() - started) / 60
        if not options.kinds:
            print(f"{name}: {minutes:.1f} minutes, {options.results}/{name}.md", flush=True)
        if left:
            print(describe_plan(left, options.workers), flush=True)
    if not options.kinds and write_story(options.results):
        print(f"the whole story: {options.results}/README.md")
    if not options.kinds and options.results.resolve() == ROOT / "results":
        for page in NUMBERED_PAGES:
            write_numbers(options.results, page)
        write_tables(options.results, RECIPE_PAGE)
    return 0


def load(name: str) -> Study:
    """The study of that name."""
    study: Study = import_module(f"experiments.{name}").STUDY
    return study


def command(given: argparse.Namespace) -> str:
    """The command line without folders: where data lies is nobody's business."""
    words = ["python -m experiments", *given.study, f"--trials {given.trials}", f"--seed {given.seed}"]
    return " ".join(words + (["--quick"] if given.quick else []))


if __name__ == "__main__":
    sys.exit(main())
