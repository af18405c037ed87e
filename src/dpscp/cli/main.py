"""Parse the arguments before the slow import of libraries; run the command."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import dpscp
from dpscp._base.progress import show_activity
from dpscp._base.suggestions import suggest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; print an error as one line."""
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        options = build_parser().parse_args(words)
        with show_activity(f"dpscp {options.command}"):
            from dpscp.cli.commands import run

            return run(options)
    except KeyboardInterrupt:  # while the libraries load; a running command handles it itself
        sys.stderr.write("dpscp: interrupted before the command started\n")
        return 130


class _Parser(argparse.ArgumentParser):
    """A parser whose errors suggest a correct command or option for a misspelled one."""

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
        if self.prog == "dpscp" and self._given and self._given[0] not in COMMANDS:
            hints.append(suggest(self._given[0], COMMANDS))
        super().error(message + "".join(dict.fromkeys(hints)))


def _share(text: str) -> float | str:
    return text if text == "auto" else float(text)


# The type and the meaning of each option and argument, and its other settings for argparse.
_OPTIONS: dict[str, tuple[Any, str] | tuple[Any, str, dict[str, Any]]] = {
    "model": (Path, "model file of dpscp fit or estimator.save"),
    "table": (Path, "file, folder, pattern or URL with one record in each row"),
    "--schema": (Path, "TOML or JSON file with the public declarations"),
    "--target": (str, "column to predict (default: the target of the schema)"),
    "--epsilon": (float, "privacy budget"),
    "--delta": (float, "privacy budget"),
    "--confidence": (
        float,
        "requested coverage (multilabel: 1 - mean loss), or confidence of an evaluation",
    ),
    "--guarantee": (str, "proof of the coverage", {"metavar": "NAME"}),
    "--score": (str, "conformity score: lac, aps, raps; for regression absolute, cqr, ..."),
    "--side": (str, "one-sided intervals of a regression", {"choices": ("both", "upper", "lower")}),
    "--groups": (str, "cover each category of this column, or each 'label'", {"metavar": "COLUMN", "action": "append"}),
    "--clip-to-bounds": (bool, "cut intervals at the bounds of the target; declares that no target lies outside"),
    "--release-confidence": (float, "probability that this one release covers the level (guarantee split)"),
    "--output": (Path, "file to write"),
    "--report": (Path, "also write an HTML page to this file"),
    "--title": (str, "title of the report"),
    "--purpose": (str, "purpose of the release, for report and statement"),
    "--responsible": (str, "who is responsible for the release, for report and statement"),
    "--data-name": (str, "name of the records, for the report (default: that of the budget store)"),
    "--evaluate": (
        Path,
        "labeled table other than that of the fit; evaluated without privacy, except by report --epsilon",
    ),
    "--size-is-public": (bool, "the number of evaluated records (or persons) may be published; narrower intervals"),
    "--quiet": (bool, "print no hints for the curator, which are computed from the records, on standard error"),
    "--force": (bool, "replace existing files"),
    "--raw": (bool, "write texts to CSV unchanged, also those that look like formulas"),
    "--folder": (Path, "output folder (default: a new one: dpscp-demo, dpscp-demo-2, ...)"),
    "--budget": (Path, "budget store of these records, which pays the cost (see dpscp budget)"),
    "--dataset": (str, "public name of the records of a budget store; every use of the store repeats it"),
    "--seed": (int, "make the run repeatable and therefore NOT private; for tests only"),
    "--header": (bool, "confirm that the first line of the CSV file contains column names"),
    "--separator": (str, "separator of CSV files (default: as the schema declares, or comma; tab for .tsv)"),
    "--encoding": (str, "encoding of CSV files, such as cp1252 (default: as the schema declares, or utf-8)"),
    "--decimal": (str, "decimal mark in CSV files (default: as the schema declares, or .)", {"choices": (".", ",")}),
    "--thousands": (str, "thousands mark in CSV files, or none (default: as the schema declares)", {"metavar": "MARK"}),
    "--state": (Path, "JSON file with the state of the monitor; created if it does not exist"),
    "--batch": (str, "public name of the batch (default: name of the table file)"),
    "--tolerated": (float, "tolerated miss rate of a new monitor (default: that of the certificate)"),
    "--level": (float, "probability that a new monitor ever raises a false alarm (default 0.05)"),
    "--follow": (
        float,
        "let the thresholds of a new monitor follow new records, in steps of this size (default 1)",
        {"nargs": "?", "const": 1.0},
    ),
    "--markdown": (bool, "write Markdown instead of JSON"),
    "--registry": (bool, "write the draft of an entry of the OpenDP deployments registry (YAML)"),
    "--model-card": (bool, "write a model card for Hugging Face"),
    "--language": (str, "language of a report, or of a statement in Markdown", {"choices": ("en", "de")}),
    "--n": (int, "public number of records, or of persons"),
    "--rows-per-person": (int, "limit on the records of one person"),
    "--overshoot": (float, "accepted overshoot; the plan computes the missing one of --n and --epsilon"),
    "--classes": (int, "number of classes (default 2)"),
    "--regression": (bool, "plan prediction intervals instead of label sets"),
    "--features": (int, "number of features"),
    "--train-share": (_share, "share of epsilon for training, or auto"),
    "--n-groups": (int, "number of groups with their own thresholds"),
    "--html": (Path, "write a page with sliders, one file that needs no server"),
    "--figure": (Path, "write a figure (PNG, SVG or PDF)"),
    "--runs": (int, "runs with the record, and runs without it; the records are synthetic"),
    "--null": (bool, "control experiment in which no run has the record: every bound must be 0"),
    "action": (str, "create a new store, or show what is spent and left", {"choices": ("create", "show")}),
    "store": (Path, "file of the budget store"),
    "arguments": (str, "names of studies; options of the experiments follow after --", {"nargs": "*"}),
    "--host": (str, "host name or address of the server (default: reachable from this machine only)"),
    "--port": (int, "port of the server; 0 chooses a free one"),
    "--token-file": (Path, "file with the token that clients must send; required beyond this machine"),
    "--outcomes": (Path, "CSV file that collects the labeled records that clients send, for dpscp monitor"),
    "--json": (bool, "print JSON only"),
    "--debug": (bool, "print the traceback of an unexpected error"),
}
_CSV = "--separator --encoding --decimal --thousands"
_PAYMENT = f"--epsilon --delta --budget --dataset --seed {_CSV}"
_FIT = "dpscp fit people.csv --schema people.schema.toml"


@dataclass(frozen=True)
class _Command:
    """Describe a command: purpose, options, defaults and examples.

    An ellipsis as default means that the option is required.
    """

    purpose: str
    options: str
    defaults: dict[str, Any]
    examples: tuple[str, ...]


COMMANDS = {
    "demo": _Command(
        "fit on real personal records, evaluate on held-out records, and write a report",
        "--epsilon --delta --confidence --folder --force",
        {"epsilon": 1.0, "delta": 1e-5, "confidence": 0.9},
        ("dpscp demo", "dpscp demo --folder try --epsilon 0.5"),
    ),
    "schema": _Command(
        "write a schema template for a table, to declare its columns; only the column names are used",
        f"table --target --output --force --header {_CSV}",
        {},
        ("dpscp schema people.csv --target income", "dpscp schema people.parquet -o people.toml"),
    ),
    "check": _Command(
        "read a table before a fit, and list what the fit would refuse; the output is NOT private",
        f"table --schema --quiet {_CSV}",
        {"schema": ...},
        ("dpscp check people.csv --schema people.schema.toml",),
    ),
    "fit": _Command(
        "train and calibrate a private model on a table",
        "table --schema --target --confidence --guarantee --score --side --groups --clip-to-bounds --output "
        "--report --release-confidence "
        f"--purpose --responsible --data-name --force --evaluate --quiet {_PAYMENT}",
        {
            "schema": ...,
            "epsilon": 1.0,
            "delta": 1e-5,
            "confidence": [0.9],
            "guarantee": "auto",
            "output": Path("model.dpscp"),
        },
        (
            f"{_FIT} --epsilon 1 --delta 1e-6",
            f"{_FIT} --confidence 0.8 0.95 -o model.dpscp --report report.html",
            f"{_FIT} --budget study.budget --dataset 'people 2025'",
        ),
    ),
    "predict": _Command(
        "add predictions and prediction sets or intervals to a table",
        f"model table --output --raw {_CSV}",
        {"output": ...},
        ("dpscp predict model.dpscp new.csv -o predicted.csv",),
    ),
    "report": _Command(
        "write an HTML report about a model",
        f"model --output --evaluate --title --language --purpose --responsible --data-name {_PAYMENT}",
        {"output": Path("report.html"), "delta": 1e-5, "language": "en"},
        (
            "dpscp report model.dpscp",
            "dpscp report model.dpscp --evaluate heldout.csv                  # internal: exact numbers",
            "dpscp report model.dpscp --evaluate heldout.csv --epsilon 0.5    # public: a private evaluation",
        ),
    ),
    "evaluate": _Command(
        "measure coverage, set size and accuracy privately on labeled records that the fit did not use",
        f"model table --confidence --size-is-public {_PAYMENT}",
        {"epsilon": 0.5, "delta": 1e-5, "confidence": 0.95},
        ("dpscp evaluate model.dpscp heldout.csv --epsilon 0.5 --delta 1e-6",),
    ),
    "monitor": _Command(
        "test the labeled records of a new period, and raise an alarm if coverage has fallen; a new monitor gets its "
        "budget of each batch (default epsilon 0.5, delta 1e-06), tolerated miss rate and level",
        f"model table --state --batch --tolerated --level --follow --output --report {_PAYMENT}",
        {"state": ...},
        (
            "dpscp monitor model.dpscp 2026-11.csv --state monitor.json --epsilon 0.5 --delta 1e-6",
            "dpscp monitor model.dpscp 2026-12.csv --state monitor.json",
            "dpscp monitor model.dpscp 2026-11.csv --state monitor.json --follow 1 -o following.dpscp",
        ),
    ),
    "recalibrate": _Command(
        "find new thresholds for a model on new labeled records, such as the newest batch after an alarm",
        f"model table --output --n {_PAYMENT}",
        {"epsilon": 0.5, "delta": 1e-5, "output": ...},
        ("dpscp recalibrate model.dpscp 2026-12.csv -o new.dpscp --epsilon 0.5 --delta 1e-6",),
    ),
    "statement": _Command(
        "write the privacy statement of a release, as JSON or as Markdown for a model card",
        "model --markdown --registry --model-card --language --output --purpose --responsible --data-name --budget",
        {"language": "en"},
        (
            "dpscp statement model.dpscp",
            "dpscp statement model.dpscp --markdown -o privacy.md",
            "dpscp statement model.dpscp --language de -o erklaerung.md",
            "dpscp statement model.dpscp --registry -o entry.yaml",
        ),
    ),
    "serve": _Command(
        "answer requests for predictions over HTTP, with a page for a browser",
        "model --host --port --token-file --outcomes",
        {"host": "127.0.0.1", "port": 8000},
        (
            "dpscp serve model.dpscp",
            "dpscp serve model.dpscp --outcomes outcomes.csv      # then: dpscp monitor model.dpscp outcomes.csv ...",
            "dpscp serve model.dpscp --host 0.0.0.0 --token-file token.txt",
        ),
    ),
    "plan": _Command(
        "compute what a budget can achieve, without any data",
        "--n --rows-per-person --epsilon --delta --overshoot --confidence --classes --regression --features "
        "--train-share --release-confidence --n-groups --html",
        {"delta": 1e-5, "confidence": 0.9, "features": 20, "train_share": 0.5},
        (
            "dpscp plan --n 10000 --epsilon 1",
            "dpscp plan --n 10000 --overshoot 0.01          # which epsilon is needed?",
            "dpscp plan --epsilon 1 --overshoot 0.01        # how many records are needed?",
            "dpscp plan --n 10000 --epsilon 1 --html plan.html   # a page with sliders",
        ),
    ),
    "audit": _Command(
        "attack the privacy claim of a fit, and report a lower bound on epsilon",
        "model --runs --null --figure",
        {"runs": 200},
        ("dpscp audit model.dpscp", "dpscp audit model.dpscp --runs 1000 --figure audit.png"),
    ),
    "budget": _Command(
        "create or show a budget store: the privacy budget that all fits on the same records share",
        "action store --epsilon --delta --dataset",
        {},
        (
            "dpscp budget create study.budget --epsilon 3 --delta 1e-6 --dataset 'people 2025'",
            "dpscp budget show study.budget",
        ),
    ),
    "reproduce": _Command(
        "run the paper's experiments (source checkout only)",
        "arguments",
        {},
        ("dpscp reproduce housing -- --quick", "dpscp reproduce -- --help"),
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    parser = _Parser(
        prog="dpscp",
        description="Train differentially private models with prediction sets, and prove privacy and coverage.",
        epilog="Start with dpscp demo or dpscp schema TABLE. Exit codes: 0 success, 1 refused, 2 usage, 3 over budget, "
        "4 alarm of a monitor.",
    )
    parser.add_argument("--version", action="version", version=f"dpscp {dpscp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.purpose,
            description=command.purpose[0].upper() + command.purpose[1:] + ".",
            epilog="examples:\n  " + "\n  ".join(command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option in (*command.options.split(), "--json", "--debug"):
            _add_option(sub, option, command.defaults.get(option.lstrip("-").replace("-", "_")))
    return parser


def _add_option(parser: argparse.ArgumentParser, name: str, default: Any) -> None:
    kind, text, *others = _OPTIONS[name]
    settings: dict[str, Any] = dict(*others)
    if default is ...:
        settings["required"] = True
    elif default is not None:
        settings["default"] = default
        text += f" (default {' '.join(map(str, default)) if isinstance(default, list) else default})"
    if isinstance(default, list):
        settings["nargs"] = "+"
    settings |= {"action": "store_true"} if kind is bool else {"type": kind}
    names = ("-o", name) if name == "--output" else (name,)
    parser.add_argument(*names, help=text, **settings)
