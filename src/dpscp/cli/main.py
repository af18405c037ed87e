"""Parse the arguments, then import the libraries, which takes a second, and run."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import dpscp
from dpscp._base.progress import show_activity
from dpscp._base.suggestions import suggest

_RELEASE_HELP = "cover the level in this single release with probability C, for example 0.95 (guarantee split)"
_EVALUATE_HELP = "labeled table for an evaluation without privacy; not the records of the fit"
_SEED_HELP = "make the run repeatable and therefore NOT private; for tests only"
_DATASET_HELP = "name of the records for which the budget store was created"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; print an error as one line."""
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        options = build_parser().parse_args(words)
        options.words = words  # to repeat the command in a message
        with show_activity(f"dpscp {options.command}"):
            from dpscp.cli.commands import run

            return run(options)
    except KeyboardInterrupt:  # while the libraries load; a running command handles it itself
        sys.stderr.write("dpscp: interrupted before the command started\n")
        return 130


class _Parser(argparse.ArgumentParser):
    """A parser whose errors suggest the command or option that a misspelt one may stand for."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; refuse unknown ones of a command with a suggestion."""
        self._given = list(sys.argv[1:] if args is None else args)
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error with suggestions, and exit."""
        known = self._option_string_actions
        words = [word.split("=")[0] for word in self._given if word.startswith("--")]
        hints = [suggest(word, known) for word in words if not any(option.startswith(word) for option in known)]
        commands = next((a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)), None)
        if commands and self._given and self._given[0] not in commands:
            hints.append(suggest(self._given[0], commands))
        super().error(message + "".join(dict.fromkeys(hints)))


class _GuaranteeNames:
    """List the names for ``--guarantee``; import the guarantees only when needed."""

    def __iter__(self) -> Iterator[str]:
        from dpscp.guarantees import GUARANTEES
        from dpscp.guarantees.registry import AUTO

        return iter((AUTO, *GUARANTEES))


def _share(text: str) -> float | str:
    return text if text == "auto" else float(text)


def build_parser() -> argparse.ArgumentParser:  # noqa: PLR0915 (one statement an option)
    """Build the parser of all commands."""
    parser = _Parser(
        prog="dpscp",
        description="Train differentially private models with prediction sets, and prove privacy and coverage.",
        epilog="Start with dpscp demo or dpscp schema TABLE. Exit codes: 0 success, 1 refused, 2 usage, 3 over budget.",
    )
    parser.add_argument("--version", action="version", version=f"dpscp {dpscp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, *examples: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog="examples:\n  " + "\n  ".join(examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--json", action="store_true", help="print JSON only")
        sub.add_argument("--debug", action="store_true", help="print the traceback of an unexpected error")
        return sub

    def add_csv_format(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--separator", help="separator of CSV files (default: as the schema says, or comma; tab for .tsv)"
        )
        sub.add_argument(
            "--encoding", help="encoding of CSV files, such as cp1252 (default: as the schema says, or utf-8)"
        )
        sub.add_argument(
            "--decimal", choices=(".", ","), help="decimal mark in CSV files (default: as the schema says, or .)"
        )
        sub.add_argument(
            "--thousands", metavar="MARK", help="thousands mark in CSV files, or none (default: as the schema says)"
        )

    def add_header(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--header", action="store_true", help="confirm that the first line of the CSV file contains column names"
        )

    def add_force(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--force", action="store_true", help="replace existing files")

    def add_declarations(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--purpose", help="purpose of the release, for the report")
        sub.add_argument("--data-name", help="name of the records, for the report (default: that of the budget store)")

    def add_unknown(sub: argparse.ArgumentParser, when: str) -> None:
        text = f"treatment of undeclared categories {when} (default: as the schema says)"
        sub.add_argument("--unknown", choices=("refuse", "other"), help=text)

    def add_budget(sub: argparse.ArgumentParser, epsilon: float | None) -> None:
        sub.add_argument(
            "--epsilon",
            type=float,
            default=epsilon,
            help="privacy budget" + ("" if epsilon is None else f" (default {epsilon})"),
        )
        sub.add_argument("--delta", type=float, default=1e-5, help="privacy budget (default 1e-05)")

    sub = command(
        "demo",
        "fit on real personal records, evaluate on held-out records, and write a report",
        "dpscp demo",
        "dpscp demo --folder try --epsilon 0.5",
    )
    add_budget(sub, 1.0)
    sub.add_argument("--confidence", type=float, default=0.9, help="requested coverage (default 0.9)")
    sub.add_argument("--folder", type=Path, help="output folder (default: a new one: dpscp-demo, dpscp-demo-2, ...)")
    add_force(sub)

    sub = command(
        "schema",
        "write a schema template for a table, to declare its columns",
        "dpscp schema people.csv --target income",
        "dpscp schema people.parquet -o people.toml",
    )
    sub.add_argument("table", type=Path, help="file, folder, pattern or URL; only its column names are used")
    sub.add_argument("--target", help="column to predict")
    sub.add_argument("-o", "--output", type=Path, help="output file (default: the name of the table with .schema.toml)")
    add_force(sub)
    add_header(sub)
    add_csv_format(sub)

    sub = command(
        "fit",
        "train and calibrate a private model on a table",
        "dpscp fit people.csv --schema people.schema.toml --epsilon 1 --delta 1e-6",
        "dpscp fit people.csv --schema people.schema.toml --confidence 0.8 0.95 -o model.dpscp --report report.html",
        "dpscp fit people.csv --schema people.schema.toml --budget study.budget --dataset 'people 2025'",
        "dpscp fit export.csv --separator ';' --decimal , --encoding cp1252      # asks for what is not declared",
    )
    sub.add_argument("table", type=Path, help="file, folder, pattern or URL with one record in each row")
    sub.add_argument("--schema", type=Path, help="TOML or JSON file with the public declarations")
    sub.add_argument("--target", help="column to predict (default: the target of the schema)")
    add_budget(sub, 1.0)
    sub.add_argument("--confidence", type=float, nargs="+", default=[0.9], help="requested coverage (default 0.9)")
    sub.add_argument(
        "--guarantee",
        default="auto",
        choices=_GuaranteeNames(),
        metavar="NAME",
        help="proof of the coverage: %(choices)s (default auto)",
    )
    sub.add_argument(
        "--score", help="conformity score: lac (default), aps, raps; for regression: auto (default), absolute, cqr, ..."
    )
    sub.add_argument(
        "--groups",
        metavar="COLUMN",
        action="append",
        help="promise coverage for each category of this column, or for each 'label'; repeat it for overlapping groups",
    )
    add_unknown(sub, "in the training table")
    sub.add_argument(
        "--clip-to-bounds",
        action="store_true",
        help="regression: cut intervals at the bounds of the target; declares that no target lies outside",
    )
    sub.add_argument("--release-confidence", type=float, metavar="C", help=_RELEASE_HELP)
    sub.add_argument("-o", "--output", type=Path, default=Path("model.dpscp"), help="model file (default model.dpscp)")
    sub.add_argument("--report", type=Path, help="also write an HTML report to this file")
    add_declarations(sub)
    add_force(sub)
    sub.add_argument("--evaluate", type=Path, help=_EVALUATE_HELP)
    sub.add_argument("--budget", type=Path, help="budget store that pays for this fit (see dpscp budget)")
    sub.add_argument("--dataset", help=_DATASET_HELP)
    sub.add_argument("--seed", type=int, help=_SEED_HELP)
    add_header(sub)
    add_csv_format(sub)

    sub = command(
        "predict",
        "add predictions and prediction sets or intervals to a table",
        "dpscp predict model.dpscp new.csv -o predicted.csv",
    )
    sub.add_argument("model", type=Path, help="model file of dpscp fit")
    sub.add_argument("table", type=Path, help="file, folder, pattern or URL with the columns of the schema")
    sub.add_argument("-o", "--output", type=Path, required=True, help="CSV or Parquet file to write")
    add_unknown(sub, "in the table to predict")
    sub.add_argument("--raw", action="store_true", help="write texts to CSV as they are, also those like formulas")
    add_csv_format(sub)

    sub = command(
        "report",
        "write an HTML report about a model",
        "dpscp report model.dpscp -o report.html",
        "dpscp report model.dpscp -o report.html --evaluate heldout.csv",
    )
    sub.add_argument("model", type=Path, help="model file of dpscp fit or estimator.save")
    sub.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="report file (default report.html)")
    sub.add_argument("--evaluate", type=Path, help=_EVALUATE_HELP)
    sub.add_argument("--title", help="title of the report")
    add_declarations(sub)
    sub.add_argument("--budget", type=Path, help="budget store, to report the spent and the remaining budget")
    add_csv_format(sub)

    def add_payment(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--budget", type=Path, help="budget store of these records that pays (see dpscp budget)")
        sub.add_argument("--dataset", help=_DATASET_HELP)
        sub.add_argument("--seed", type=int, help=_SEED_HELP)
        add_csv_format(sub)

    sub = command(
        "evaluate",
        "measure coverage, set size and accuracy privately on labeled records",
        "dpscp evaluate model.dpscp heldout.csv --epsilon 0.5 --delta 1e-6",
    )
    sub.add_argument("model", type=Path, help="model file of dpscp fit")
    sub.add_argument("table", type=Path, help="files or URL with labeled records that the fit did not use")
    add_budget(sub, 0.5)
    sub.add_argument("--confidence", type=float, default=0.95, help="confidence of each interval (default 0.95)")
    add_payment(sub)

    sub = command(
        "monitor",
        "test a batch of new labeled records, and raise an alarm if coverage has fallen",
        "dpscp monitor model.dpscp 2026-11.csv --state monitor.json --epsilon 0.5 --delta 1e-6",
        "dpscp monitor model.dpscp 2026-12.csv --state monitor.json",
    )
    sub.add_argument("model", type=Path, help="model file of dpscp fit")
    sub.add_argument("table", type=Path, help="file, folder, pattern or URL with the labeled records of one period")
    sub.add_argument(
        "--state",
        type=Path,
        required=True,
        help="JSON file with the state of the monitor; created if it does not exist",
    )
    sub.add_argument("--batch", help="public name of the batch (default: name of the table file)")
    sub.add_argument("--epsilon", type=float, help="privacy cost of a batch (new monitor only; default 0.5)")
    sub.add_argument("--delta", type=float, help="privacy cost of a batch (new monitor only; default 1e-06)")
    sub.add_argument(
        "--tolerated", type=float, help="tolerated miss rate (new monitor only; default: that of the certificate)"
    )
    sub.add_argument(
        "--level", type=float, help="probability of ever raising a false alarm (new monitor only; default 0.05)"
    )
    sub.add_argument("--report", type=Path, help="also write an HTML page with a plot of the evidence")
    add_payment(sub)

    sub = command(
        "recalibrate",
        "find new thresholds for a model on new labeled records, such as the newest batch after an alarm",
        "dpscp recalibrate model.dpscp 2026-12.csv -o new.dpscp --epsilon 0.5 --delta 1e-6",
    )
    sub.add_argument("model", type=Path, help="model file of dpscp fit")
    sub.add_argument("table", type=Path, help="file, folder, pattern or URL with new labeled records")
    sub.add_argument("-o", "--output", type=Path, required=True, help="model file to write")
    sub.add_argument("--n", type=int, help="public number of records, or of persons (default: counted, and public)")
    add_budget(sub, 0.5)
    add_payment(sub)

    sub = command(
        "statement",
        "write the privacy statement of a model, as JSON or as Markdown for a model card",
        "dpscp statement model.dpscp",
        "dpscp statement model.dpscp --markdown -o privacy.md",
    )
    sub.add_argument("model", type=Path, help="model file of dpscp fit or estimator.save")
    sub.add_argument("--markdown", action="store_true", help="write Markdown instead of JSON")
    sub.add_argument("-o", "--output", type=Path, help="file to write (default: standard output)")
    sub.add_argument("--budget", type=Path, help="budget store of the study: what is spent and left")

    sub = command(
        "plan",
        "compute what a budget can achieve, without any data",
        "dpscp plan --n 10000 --epsilon 1",
        "dpscp plan --n 10000 --overshoot 0.01          # which epsilon is needed?",
        "dpscp plan --epsilon 1 --overshoot 0.01        # how many records are needed?",
        "dpscp plan --n 10000 --epsilon 1 --html plan.html   # a page with sliders",
    )
    sub.add_argument("--n", type=int, help="number of records, or of persons with --rows-per-person")
    sub.add_argument("--rows-per-person", type=int, metavar="K", help="limit on the records of one person")
    add_budget(sub, None)
    sub.add_argument(
        "--overshoot", type=float, help="accepted overshoot; computes the one of --n and --epsilon that is missing"
    )
    sub.add_argument("--confidence", type=float, default=0.9, help="requested coverage (default 0.9)")
    sub.add_argument("--classes", type=int, help="number of classes (default 2)")
    sub.add_argument("--regression", action="store_true", help="plan prediction intervals instead of label sets")
    sub.add_argument("--features", type=int, default=20, help="number of features (default 20)")
    sub.add_argument(
        "--train-share", type=_share, default=0.5, help="share of epsilon for training, or auto (default 0.5)"
    )
    sub.add_argument("--release-confidence", type=float, metavar="C", help=_RELEASE_HELP)
    sub.add_argument("--n-groups", type=int, metavar="G", help="number of groups with their own thresholds")
    sub.add_argument("--groups-per-record", type=int, default=1, metavar="K", help="groups of one record (default 1)")
    sub.add_argument(
        "--evaluation-fraction", type=float, metavar="F", help="share of the records that measures the fit"
    )
    sub.add_argument("--html", type=Path, help="write a page with sliders, one file that needs no server")
    sub.add_argument("--figure", type=Path, help="write a figure (PNG, SVG or PDF)")

    sub = command(
        "audit",
        "attack the privacy claim of a fit, and report a lower bound on epsilon",
        "dpscp audit model.dpscp",
        "dpscp audit model.dpscp --runs 1000 --figure audit.png",
    )
    sub.add_argument("model", type=Path, help="model file; its settings are fitted to synthetic records")
    sub.add_argument("--runs", type=int, default=200, help="runs with the record, and runs without it (default 200)")
    sub.add_argument(
        "--null", action="store_true", help="control experiment without the record in any run: every bound must be 0"
    )
    sub.add_argument("--figure", type=Path, help="write a figure")

    sub = command(
        "budget",
        "create or show a budget store: the privacy budget that all fits on the same records share",
        "dpscp budget create study.budget --epsilon 3 --delta 1e-6 --dataset 'people 2025'",
        "dpscp budget show study.budget",
    )
    sub.add_argument("action", choices=("create", "show"), help="create a new store, or show what is spent and left")
    sub.add_argument("store", type=Path, help="file of the budget store")
    sub.add_argument("--epsilon", type=float, help="total budget of a new store")
    sub.add_argument("--delta", type=float, help="total budget of a new store")
    sub.add_argument("--dataset", help="public name of the records; every fit with this store must repeat it")
    sub.add_argument(
        "--sequence",
        type=Path,
        nargs="+",
        help="JSON ledgers of all planned fits in order: a smaller total, but no other fit is allowed",
    )
    sub.add_argument("--slack", type=float, help="part of delta for costs that a Gaussian-DP bound does not cover")

    sub = command(
        "reproduce",
        "run the paper's experiments (source checkout only)",
        "dpscp reproduce housing -- --quick",
        "dpscp reproduce -- --help",
    )
    sub.add_argument("arguments", nargs="*", help="names of studies; options of the experiments follow after --")

    return parser
