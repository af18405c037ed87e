"""Arguments. The libraries behind the commands take a second to import, so that is left until a command is to run."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import dpscp
from dpscp.audit.run import GAMES

_RELEASE_HELP = "cover the level with this one release, with probability C (e.g. 0.95); holds records out"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are one line on standard error."""
    try:
        given = build_parser().parse_args(arguments)
        from dpscp.cli.commands import run
    except KeyboardInterrupt:  # while the libraries load; once a command runs, it answers for itself
        sys.stderr.write("dpscp: interrupted before anything was done\n")
        return 130
    return run(given)


class _GuaranteeNames:
    """The names that ``--guarantee`` takes, asked of the guarantees when one is given or help is shown."""

    def __iter__(self) -> Iterator[str]:
        from dpscp.guarantees import GUARANTEES
        from dpscp.guarantees.registry import AUTO

        return iter((AUTO, *GUARANTEES))


def _share(text: str) -> float | str:
    return text if text == "auto" else float(text)


def build_parser() -> argparse.ArgumentParser:  # noqa: PLR0915 (one statement an option)
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="dpscp",
        description="Private models with prediction sets: how private and how often right, both in writing.",
        epilog="start with: dpscp demo, or dpscp schema TABLE. Exit codes: 0 done, 1 refused, 2 usage, 3 over budget.",
    )
    parser.add_argument("--version", action="version", version=f"dpscp {dpscp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, *examples: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog="examples:\n  " + "\n  ".join(examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.add_argument("--json", action="store_true", help="print JSON and nothing else on standard output")
        made.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
        return made

    def separated(made: argparse.ArgumentParser) -> None:
        made.add_argument("--separator", help="of CSV files (default: a comma; a tab for .tsv)")

    def headed(made: argparse.ArgumentParser) -> None:
        made.add_argument("--header", action="store_true", help="say that the first line of a CSV file holds names")

    def forced(made: argparse.ArgumentParser) -> None:
        made.add_argument("--force", action="store_true", help="replace files that exist")

    def declared(made: argparse.ArgumentParser) -> None:
        made.add_argument("--purpose", help="of the release, for the report")
        made.add_argument("--data-name", help="of the records, for the report (default: the budget store's)")

    def unknowns(made: argparse.ArgumentParser, when: str) -> None:
        text = f"what a category that is not declared means {when} (default: what each column of the schema says)"
        made.add_argument("--unknown", choices=("refuse", "other"), help=text)

    def budgeted(made: argparse.ArgumentParser, epsilon: float | None) -> None:
        made.add_argument("--epsilon", type=float, default=epsilon, help=f"privacy budget (default {epsilon})")
        made.add_argument("--delta", type=float, default=1e-5, help="privacy budget (default 1e-05)")

    made = command(
        "demo",
        "fit on real personal records, check on held-out ones, write a report",
        "dpscp demo",
        "dpscp demo --folder try --epsilon 0.5",
    )
    budgeted(made, 1.0)
    made.add_argument("--confidence", type=float, default=0.9, help="wanted coverage (default 0.9)")
    made.add_argument("--folder", type=Path, help="where to write (default: dpscp-demo, dpscp-demo-2, ..., a new one)")
    forced(made)

    made = command(
        "schema",
        "write a template for the public declarations of a table's columns",
        "dpscp schema people.csv --target income",
        "dpscp schema people.parquet -o people.toml",
    )
    made.add_argument("table", type=Path, help="CSV or Parquet file; only its column names are used")
    made.add_argument("--target", help="the column to predict")
    made.add_argument("-o", "--output", type=Path, help="default: the table's name with .schema.toml")
    forced(made)
    headed(made)
    separated(made)

    made = command(
        "fit",
        "train and calibrate privately on a table",
        "dpscp fit people.csv --schema people.schema.toml --epsilon 1 --delta 1e-6",
        "dpscp fit people.csv --schema people.schema.toml --confidence 0.8 0.95 -o model.dpscp --report report.html",
        "dpscp fit people.csv --schema people.schema.toml --budget study.budget --dataset 'people 2025'",
    )
    made.add_argument("table", type=Path, help="CSV or Parquet file with one record a row (see schema key 'person')")
    made.add_argument("--schema", type=Path, help="TOML or JSON file with the public declarations")
    made.add_argument("--target", help="the column to predict (default: the schema's)")
    budgeted(made, 1.0)
    made.add_argument("--confidence", type=float, nargs="+", default=[0.9], help="wanted coverage (default 0.9)")
    made.add_argument(
        "--guarantee",
        default="auto",
        choices=_GuaranteeNames(),
        metavar="NAME",
        help="how coverage is guaranteed: %(choices)s (default auto)",
    )
    made.add_argument("--score", help="lac (default), aps, raps; regression: auto (default), absolute, cqr, ...")
    made.add_argument("--groups", metavar="COLUMN", help="a promise for each category of this column, or 'label'")
    unknowns(made, "to the model")
    made.add_argument("--device", help="where the model is trained: cuda, cuda:1, ... (default: the processor)")
    made.add_argument("--release-confidence", type=float, metavar="C", help=_RELEASE_HELP)
    made.add_argument("-o", "--output", type=Path, default=Path("model.dpscp"), help="default model.dpscp")
    made.add_argument("--report", type=Path, help="write an HTML report as well")
    declared(made)
    forced(made)
    made.add_argument("--evaluate", type=Path, help="labelled table outside the promise, to check on")
    made.add_argument("--budget", type=Path, help="budget store that this fit spends from (see 'dpscp budget')")
    made.add_argument("--dataset", help="repeats the name of the records that the budget store was created for")
    made.add_argument("--seed", type=int, help="repeatable and therefore NOT private; for tests")
    headed(made)
    separated(made)

    made = command(
        "predict",
        "add prediction and set (or interval) columns to a table",
        "dpscp predict model.dpscp new.csv -o predicted.csv",
    )
    made.add_argument("model", type=Path, help="written by 'dpscp fit'")
    made.add_argument("table", type=Path, help="CSV or Parquet file with the schema's columns")
    made.add_argument("-o", "--output", type=Path, required=True, help="CSV or Parquet file to write")
    unknowns(made, "at prediction")
    separated(made)

    made = command(
        "report",
        "write an HTML report about a model",
        "dpscp report model.dpscp -o report.html",
        "dpscp report model.dpscp -o report.html --evaluate heldout.csv",
    )
    made.add_argument("model", type=Path, help="written by 'dpscp fit' or estimator.save")
    made.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="default report.html")
    made.add_argument("--evaluate", type=Path, help="labelled table outside the promise, to check on")
    made.add_argument("--title", help="of the page")
    declared(made)
    made.add_argument("--budget", type=Path, help="budget store of the study: the page says what is spent and left")
    separated(made)

    def paid(made: argparse.ArgumentParser) -> None:
        made.add_argument("--budget", type=Path, help="budget store of these records, which pays (see 'dpscp budget')")
        made.add_argument("--dataset", help="repeats the name of the records that the budget store was created for")
        made.add_argument("--seed", type=int, help="repeatable and therefore NOT private; for tests")
        separated(made)

    made = command(
        "evaluate",
        "measure coverage, set size and accuracy on labeled records, privately",
        "dpscp evaluate model.dpscp heldout.csv --epsilon 0.5 --delta 1e-6",
    )
    made.add_argument("model", type=Path, help="written by 'dpscp fit'")
    made.add_argument("table", type=Path, help="CSV or Parquet file with labeled records that the fit did not use")
    budgeted(made, 0.5)
    made.add_argument("--confidence", type=float, default=0.95, help="of each interval (default 0.95)")
    paid(made)

    made = command(
        "monitor",
        "count a batch of new labeled records and raise an alarm when coverage falls",
        "dpscp monitor model.dpscp 2026-11.csv --state monitor.json --epsilon 0.5 --delta 1e-6",
        "dpscp monitor model.dpscp 2026-12.csv --state monitor.json",
    )
    made.add_argument("model", type=Path, help="written by 'dpscp fit'")
    made.add_argument("table", type=Path, help="CSV or Parquet file with the labeled records of one period")
    made.add_argument("--state", type=Path, required=True, help="JSON file of the monitor; made if it does not exist")
    made.add_argument("--batch", help="public name of the batch (default: the name of the table's file)")
    made.add_argument("--epsilon", type=float, help="cost of a batch to each of its records (new monitor; default 0.5)")
    made.add_argument("--delta", type=float, help="likewise (new monitor; default 1e-06)")
    made.add_argument("--tolerated", type=float, help="miss rate that is still fine (new monitor; default: Result I)")
    made.add_argument("--level", type=float, help="probability of a false alarm, ever (new monitor; default 0.05)")
    paid(made)

    made = command(
        "statement",
        "write the privacy statement of a model, for programs (JSON) or for a model card (Markdown)",
        "dpscp statement model.dpscp",
        "dpscp statement model.dpscp --markdown -o privacy.md",
    )
    made.add_argument("model", type=Path, help="written by 'dpscp fit' or estimator.save")
    made.add_argument("--markdown", action="store_true", help="Markdown instead of JSON")
    made.add_argument("-o", "--output", type=Path, help="file to write (default: standard output)")
    made.add_argument("--budget", type=Path, help="budget store of the study: what is spent and left")

    made = command(
        "plan",
        "say what a budget buys before any data is touched",
        "dpscp plan --n 10000 --epsilon 1",
        "dpscp plan --n 10000 --overshoot 0.01          # what epsilon do I need?",
        "dpscp plan --epsilon 1 --overshoot 0.01        # how many records do I need?",
    )
    made.add_argument("--n", type=int, help="nominal number of records (of persons, with --rows-per-person)")
    made.add_argument("--rows-per-person", type=int, metavar="K", help="cap on the rows of one person that are used")
    budgeted(made, None)
    made.add_argument("--overshoot", type=float, help="solve for the missing one of --n and --epsilon")
    made.add_argument("--confidence", type=float, default=0.9, help="wanted coverage (default 0.9)")
    made.add_argument("--classes", type=int, help="number of labels (default 2)")
    made.add_argument("--regression", action="store_true", help="plan intervals instead of label sets")
    made.add_argument("--features", type=int, default=20, help="width of a row (default 20)")
    made.add_argument("--train-share", type=_share, default=0.5, help="share of epsilon for training, or auto")
    made.add_argument("--release-confidence", type=float, metavar="C", help=_RELEASE_HELP)
    made.add_argument("--figure", type=Path, help="write a picture (PNG, SVG or PDF)")

    made = command(
        "audit",
        "try to break the privacy claim by a distinguishing game",
        "dpscp audit search",
        "dpscp audit pipeline --runs 300 --figure audit.png",
        "dpscp audit --model model.dpscp",
    )
    made.add_argument("game", nargs="?", choices=GAMES, help="default search")
    made.add_argument("--model", type=Path, help="play with the settings of this model file, on made-up records")
    made.add_argument("--knowledge", default="white-box", choices=("white-box", "black-box"), help="of the attacker")
    made.add_argument("--runs", type=int, help="games in each world (default: about a minute of work)")
    made.add_argument("--null", action="store_true", help="control: both worlds the same, every bound must be 0")
    made.add_argument("--figure", type=Path, help="write a picture")

    made = command(
        "budget",
        "create or show the budget store of a study",
        "dpscp budget create study.budget --epsilon 3 --delta 1e-6 --dataset 'people 2025'",
        "dpscp budget show study.budget",
    )
    made.add_argument("action", choices=("create", "show"))
    made.add_argument("store", type=Path)
    made.add_argument("--epsilon", type=float, help="total of a new store")
    made.add_argument("--delta", type=float, help="total of a new store")
    made.add_argument("--dataset", help="a public name for the records; every fit from this store repeats it")
    made.add_argument(
        "--sequence", type=Path, nargs="+", help="ledgers (JSON) of all fits in their order: a tighter sum, no choices"
    )
    made.add_argument("--slack", type=float, help="part of delta for steps that Gaussian noise does not cover")

    made = command(
        "reproduce",
        "run the paper's experiments (source checkout only)",
        "dpscp reproduce housing -- --quick",
        "dpscp reproduce -- --help",
    )
    made.add_argument("arguments", nargs="*", help="studies, and after -- options of the experiments")
    return parser
