"""Every peer in one run: `python benchmarks/peers.py [PART ...]` measures and writes docs/benchmarks.md.

Parts: training, modules, memory, parquet, calibration, accuracy, growth, prediction, accounting, startup; none named:
all. What a part found is kept in benchmarks/peers.json, so that an interrupted run goes on where it stopped with the
parts that are left, and the page holds each part as it was measured last. Peers are installed on demand, each beside
the development environment in a folder of its own (`--cache`), with the versions of peers.toml; one that cannot be
installed is listed with the reason. Contenders take turns in processes of their own; times are medians, CPU seconds of
all threads and of the clock. Nothing is asserted about time.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
from experiments.runner import processor  # noqa: E402 (no package of this folder's)

FOUND, PAGE = HERE / "peers.json", ROOT / "docs" / "benchmarks.md"
THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
Table = dict[str, Any]
OURS = "dpscp"


# ---- environments


@dataclass(frozen=True)
class Peers:
    """The installed peers: folders beside the development environment."""

    cache: Path

    def path_of(self, *names: str) -> str:
        """What to put before the installed packages; raises ``InstallError`` with the reason."""
        return os.pathsep.join([*(str(self._installed(name)) for name in names), str(ROOT / "src")])

    def _installed(self, name: str) -> Path:
        wanted = tomllib.loads((HERE / "peers.toml").read_text())[name]
        folder, stamp = self.cache / name, self.cache / f"{name}.json"
        if stamp.exists() and json.loads(stamp.read_text()) == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        print(f"installing {name}", flush=True)
        environment = dict(os.environ)
        with tempfile.TemporaryDirectory() as tools:
            more = []
            if "build" in wanted:
                self._pip(name, [*wanted["build"], "--target", tools], environment)
                environment["PYTHONPATH"], more = tools, ["--no-build-isolation"]
            if "without" in wanted:
                places = environment["PATH"].split(os.pathsep)
                kept = [place for place in places if not (Path(place) / wanted["without"]).exists()]
                environment["PATH"] = os.pathsep.join(kept)
            self._pip(name, [*wanted["packages"], "--target", str(folder), *more], environment)
        stamp.write_text(json.dumps(wanted))
        return folder

    def _pip(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
            raise InstallError(f"{name} could not be installed: {said[-1] if said else 'pip failed'}")


class InstallError(Exception):
    """The text is the reason, for the table."""


class ContenderError(Exception):
    """A contender's process ended; the text is its last line."""


class Contender:
    """A process of ``contender.py``: prepared, and ready to take turns."""

    def __init__(
        self, peers: Peers, function: str, given: dict[str, Any], needs: Sequence[str] = (), threads: int = 1
    ) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": peers.path_of(*needs),
            **dict.fromkeys(THREAD_COUNTS, str(threads)),
            "JAX_PLATFORMS": "cpu",
        }
        if threads == 1:
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "contender.py"), function, json.dumps(given)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip
        self._answer("ready")

    def turn(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._answer("{"))
        return answer

    def end(self) -> None:
        self._process.communicate()
        self._said.close()

    def _answer(self, start: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line
        self._process.wait()
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        raise ContenderError(lines[-1] if lines else f"exit code {self._process.returncode}")


# name in the table, function of contender.py, its arguments, environments
Entry = tuple[str, str, dict[str, Any], tuple[str, ...]]


def take_turns(peers: Peers, entries: Sequence[Entry], rounds: int, *, together: bool = True) -> dict[str, Any]:
    """Medians of CPU, clock and memory by name, and what was found first; a text for who could not take part."""
    answers: dict[str, Any] = {}
    if not together:  # too large to be held at once
        for entry in entries:
            answers |= take_turns(peers, [entry], rounds)
        return answers
    running: dict[str, tuple[Contender, list[dict[str, Any]]]] = {}
    for name, function, given, needs in entries:
        try:
            running[name] = Contender(peers, function, given, needs), []
            running[name][0].turn()  # what is loaded at the first use
        except (InstallError, ContenderError) as trouble:
            answers[name] = str(trouble)
            running.pop(name, None)
    for _ in range(rounds):
        for contender, taken in running.values():
            taken.append(contender.turn())
    for name, (contender, taken) in running.items():
        contender.end()
        answers[name] = {key: statistics.median(a[key] for a in taken) for key in ("cpu", "clock", "memory")}
        answers[name]["found"] = taken[0].get("found")
    return {name: answers[name] for name, *_ in entries}


# ---- tables


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g}" if seconds < 1 else f"{1000 * seconds:,.0f}"


def timed(
    title: str, note: str, answers: dict[str, Any], ours: str = OURS, by: str = "CPU", **more: Callable[[Any], str]
) -> Table:
    """Contenders with CPU, clock and their multiple of ours; ``more``: columns from what was found."""
    base = answers[ours]
    columns = ["", "CPU, ms", "clock, ms", f"{by}, times ours", *more]
    rows, ahead = [], []
    for name, answer in answers.items():
        if isinstance(answer, str):
            rows.append([name, f"not measured: {answer}", *[""] * (len(columns) - 2)])
            continue
        ratio = answer[by.lower()] / base[by.lower()]
        times = [milliseconds(answer["cpu"]), milliseconds(answer["clock"]), f"{ratio:.2f}"]
        rows.append([name, *times, *(show(answer) for show in more.values())])
        if ratio < 1 and OURS not in name:
            ahead.append(f"{name} ({ratio:.2f})")
    return {"title": title, "note": note, "columns": columns, "rows": rows, "ahead": ahead}


def megabytes(answer: dict[str, Any]) -> str:
    return f"{answer['memory'] / 1e6:,.0f}"


# ---- parts


def calibration(peers: Peers, rounds: int) -> list[Table]:
    entries: list[Entry] = [
        (OURS, "calibrate_dpscp", {}, ()),
        ("np.partition", "calibrate_partition", {}, ()),
        ("np.quantile", "calibrate_quantile", {}, ()),
        ("MAPIE", "calibrate_mapie", {}, ("mapie",)),
        ("crepes", "calibrate_crepes", {}, ("crepes",)),
        ("puncc", "calibrate_puncc", {}, ("puncc",)),
        ("TorchCP", "calibrate_torchcp", {}, ("torchcp",)),
        ("OpenDP, private quantile", "quantile_time", {"which": "opendp_pure"}, ("opendp",)),
        ("diffprivlib, private quantile", "quantile_time", {"which": "diffprivlib"}, ("diffprivlib",)),
        ("exponential mechanism", "quantile_time", {"which": "exponential_aimed"}, ()),
    ]
    tables = []
    for n in (10**5, 10**6):
        at_n = [(name, function, given | {"n": n}, needs) for name, function, given, needs in entries]
        tables.append(
            timed(
                f"A threshold from {n:,} predictions and targets",
                "From predictions and targets to the 0.9 quantile of their distances (and the first interval, where a "
                "library finds its quantile only then). Ours, OpenDP's, diffprivlib's and the exponential mechanism's "
                "are private, the others are not.",
                take_turns(peers, at_n, rounds),
                **{"extra MB": megabytes},
            )
        )
    return tables


REPETITIONS = 100
LAWS = {
    "uniform": "uniform scores in a range that fits",
    "crowded": "scores crowded at one end (the 8th power of uniform ones)",
    "wide": "uniform scores in a range ten times too wide",
}


def accuracy(peers: Peers, rounds: int) -> list[Table]:  # noqa: ARG001 (nothing is timed)
    contenders = {
        "dpscp, aimed at the rank": ("dpscp_aimed", ()),
        "OpenDP, epsilon": ("opendp_pure", ("opendp",)),
        "OpenDP, zCDP": ("opendp_zcdp", ("opendp",)),
        "diffprivlib, epsilon": ("diffprivlib", ("diffprivlib",)),
        "exponential mechanism": ("exponential_aimed", ()),
        "dpscp, with its promise of coverage": ("dpscp_promised", ()),
        "exponential mechanism, with a promise": ("exponential_promised", ()),
    }
    settings = [(law, n, epsilon) for law in LAWS for n in (1000, 20_000) for epsilon in (0.1, 1.0)]
    answers: dict[str, Any] = {}
    for name, (which, needs) in contenders.items():
        try:
            given = {"which": which, "settings": settings, "repetitions": REPETITIONS}
            contender = Contender(peers, "quantile_ranks", given, needs)
            answers[name] = contender.turn()["found"]
            contender.end()
        except (InstallError, ContenderError) as trouble:
            answers[name] = str(trouble)
    tables = []
    for law, words in LAWS.items():
        places = [i for i, setting in enumerate(settings) if setting[0] == law]
        columns = ["", *("n = {1:,}, epsilon = {2:g}".format(*settings[i]) for i in places)]
        rows, ahead = [], []
        for name, found in answers.items():
            if isinstance(found, str):
                rows.append([name, f"not measured: {found}", *[""] * (len(places) - 1)])
                continue
            rows.append([name, *("{:.1f} ± {:.1f}".format(*found[i]) for i in places)])
            ours = answers["dpscp, with its promise of coverage" if "promise" in name else "dpscp, aimed at the rank"]
            better = [columns[1 + k] for k, i in enumerate(places) if found[i][0] < ours[i][0]]
            ahead += [f"{name} ({'; '.join(better)})"] if better else []
        note = (
            f"Mean number of scores between the released threshold and the 0.9 order statistic, with its standard error"
            f" ({REPETITIONS} data sets): {words}. All are (epsilon, 1e-5)-DP for adding or removing one score, by the "
            "accounting of their own library; those marked epsilon are even (epsilon, 0)-DP. OpenDP chooses among 1,001"
            " grid points. A promise of coverage is bought with ranks: it aims higher. The exponential mechanism is "
            "that of Private Prediction Sets (Angelopoulos and others, 2022)."
        )
        tables.append({"title": f"Ranks off, {law}", "note": note, "columns": columns, "rows": rows, "ahead": ahead})
    return tables


ENTRY_POINTS = (
    "np.partition",
    "array",
    "chunks, read again (16)",
    "stream, read once (16)",
    "Dask array (16 partitions)",
)


def growth(peers: Peers, rounds: int) -> list[Table]:
    columns = [
        "n",
        *(f"{name}, ns a score" for name in ENTRY_POINTS),
        *(f"{name}, times np.partition" for name in ENTRY_POINTS[1:]),
    ]
    rows, memory = [], []
    for n in (10**4, 10**5, 10**6, 10**7, 10**8):
        entries: list[Entry] = [(name, "growth", {"entry_point": name, "n": n}, ()) for name in ENTRY_POINTS]
        large = n == 10**8
        answers = take_turns(peers, entries, 3 if large else rounds, together=not large)
        costs = [answers[name]["cpu"] for name in ENTRY_POINTS]
        each = [f"{1e9 * cost / n:,.1f}" for cost in costs]
        rows.append([f"{n:,}", *each, *(f"{cost / costs[0]:.2f}" for cost in costs[1:])])
        if large:
            memory = [[name, f"{answers[name]['memory'] / 1e6:,.0f}"] for name in ENTRY_POINTS]
    return [
        {
            "title": "Growth with the number of scores",
            "note": "The private threshold of uniform float64 scores through every entry point, 20 counts, CPU "
            "nanoseconds a score, and as multiples of np.partition on the same scores. Reading chunks is "
            "not counted: they lie in memory.",
            "columns": columns,
            "rows": rows,
        },
        {
            "title": "Memory at 100,000,000 scores",
            "note": "Peak beside the scores themselves (800 MB).",
            "columns": ["", "extra MB"],
            "rows": memory,
        },
    ]


# the case that has enough work for a second thread
WIDE_NET = "MLP 784-512-512-10, batch 256"


def training(peers: Peers, rounds: int) -> list[Table]:
    import training as steps

    tables = []
    for name, threads in (*((case.name, 1) for case in steps.CASES), (WIDE_NET, 2)):
        contender = Contender(peers, "training_case", {"name": name, "rounds": rounds}, ("jax-privacy",), threads)
        found = contender.turn()["found"]
        contender.end()
        answers = {
            peer: "not installed" if used is None else {"cpu": used[0] / 1e6, "clock": used[1] / 1e6}
            for peer, used in found.items()
        }
        note = (
            "One step of DP-SGD, set-up included for ours. Plain torch is not private; the two by hand are the "
            "formulas of ghost clipping without any library. Ours draws its noise from AES and sums in float64."
        )
        if threads == 1:
            tables.append(timed(name, note, answers))
        else:
            note += f" Each contender may use {threads} threads, so the clock is compared."
            tables.append(timed(f"{name}, {threads} threads", note, answers, by="clock"))
    return tables


def modules(peers: Peers, rounds: int) -> list[Table]:  # noqa: ARG001 (Opacus is in the development environment)
    import torch_modules

    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "found.json"
        command = [sys.executable, str(HERE / "torch_modules.py"), "--rounds", str(rounds), "--json", str(written)]
        environment = os.environ | dict.fromkeys(THREAD_COUNTS, "1")
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        columns, rows, ahead = torch_modules.compare(json.loads(written.read_text())["rows"])
    note = (
        "CPU milliseconds a step of `TorchDPSGD`, of every mode of Opacus, and of plain torch without privacy. "
        '"Ghost, safe sums" is Opacus\' ghost mode with the noise of its `secure_mode`, the sum of four draws against '
        "attacks on the last bits. It protects its sums as the grid protects ours. Its cryptographic generator cannot "
        "be installed any more, so torch's own draws. The peak includes everything before the first step, with the "
        "tracing. [Measurements](measurements.md#torch-modules-on-a-processor) says where the time goes."
    )
    return [{"title": "Any torch module", "note": note, "columns": columns, "rows": rows, "ahead": ahead}]


def memory(peers: Peers, rounds: int) -> list[Table]:  # noqa: ARG001 (nobody else fits such a table privately)
    import memory as fits

    rows = []
    for n, width in fits.SHAPES:
        for dtype in ("float32", "float64"):
            found = [fits.run(ROOT, (n, width, dtype, seed)) for seed in range(max(1, rounds // 2))]
            peaks = [
                statistics.median(answer[work][1] / answer["table"] for answer in found) for work in ("fit", "predict")
            ]
            seconds = statistics.median(answer["fit"][0] for answer in found)
            rows.append([f"{n:,} x {width}, {dtype}", f"{seconds:.1f}", *(f"{peak:.2f}" for peak in peaks)])
    note = (
        "Peak memory beside the table and what the process held before, as a multiple of the table: the default fit "
        "of two classes, and its prediction sets for all rows. A table of 20 columns is trained on with the quantile "
        "of each, 40 numbers a record."
    )
    columns = ["table", "fit, CPU s", "fit, extra peak / X", "prediction, extra peak / X"]
    return [{"title": "A table in memory", "note": note, "columns": columns, "rows": rows}]


def parquet(peers: Peers, rounds: int) -> list[Table]:  # noqa: ARG001 (both are in the development environment)
    """What a default fit from a file costs, beside one scan and a pipeline without privacy."""
    import parquet_fit

    tables = []
    for records, own_rounds in ((400_000, rounds), (3_000_000, 1)):
        with tempfile.TemporaryDirectory() as folder:
            rows = parquet_fit.compare(records, 40, own_rounds, Path(folder))
        note = (
            "40 numbers and a label of two classes, on one core. The fit is PrivateConformalClassifier(epsilon=1) with "
            "a path and a schema: no model is given, so quantiles, mean, whitening, 400 steps, recalibration and the "
            "threshold belong to it. The pipeline has no privacy: scaled numbers and quantiles, logistic regression, "
            f"split conformal sets. Memory is that above the imports. Medians of {own_rounds}."
        )
        tables.append({"title": f"{records:,} records", "note": note, "columns": parquet_fit.COLUMNS, "rows": rows})
    return tables


PREDICTED = 10**6


def prediction(peers: Peers, rounds: int) -> list[Table]:
    import prediction as cases

    tables = []
    needs = {"MAPIE": ("mapie",), "crepes": ("crepes",), "puncc": ("puncc",), "TorchCP": ("torchcp",)}
    for name, title in (("sets", "10 classes: prediction sets"), ("intervals", "Prediction intervals")):
        given: dict[str, Any] = {"name": name, "rows": PREDICTED}
        model = Contender(peers, "prediction_model", given)
        given |= model.turn()["found"]
        model.end()
        entries: list[Entry] = [
            (peer, "prediction_turn", given | {"peer": peer}, needs.get(peer, ())) for peer in cases.CONTENDERS[name]
        ]
        answers = take_turns(peers, entries, rounds)
        for (case, peer), share in cases.SHARES.items():
            if case == name and not isinstance(answers[peer], str):
                answers[peer] |= {key: share * answers[peer][key] for key in ("cpu", "clock")}
        note = (
            f"{PREDICTED:,} rows of 20 features, the same linear model for all. Raw NumPy is what one would write by "
            "hand, without any check of the input. MAPIE and crepes wrap the model as a scikit-learn estimator, puncc "
            "as it is; TorchCP gets its rows as a float32 tensor that is there before the clock starts."
        )
        if name == "sets":
            note += f" crepes predicts one row in {cases.CREPES_SHARE}, its times multiplied by that."
        tables.append(timed(title, note, answers, **{"extra MB": megabytes}))
    return tables


def accounting(peers: Peers, rounds: int) -> list[Table]:
    def found(answer: Any) -> str:
        return f"{answer['found']:.4f}"

    losses: list[Entry] = [
        ("dpscp, PLD", "epsilon_dpscp", {"accountant": "pld"}, ()),
        ("dp_accounting, PLD", "epsilon_dp_accounting", {"accountant": "pld"}, ()),
        ("Opacus, PRV", "epsilon_opacus", {"accountant": "prv"}, ()),
        ("prv_accountant", "epsilon_prv", {}, ("prv-accountant",)),
    ]
    renyi: list[Entry] = [
        ("dpscp, RDP", "epsilon_dpscp", {"accountant": "rdp"}, ()),
        ("dp_accounting, RDP", "epsilon_dp_accounting", {"accountant": "rdp"}, ()),
        ("Opacus, RDP", "epsilon_opacus", {"accountant": "rdp"}, ()),
    ]
    loss_noises: list[Entry] = [
        ("dpscp, PLD", "noise_dpscp", {"accountant": "pld"}, ()),
        ("dp_accounting, PLD", "noise_dp_accounting", {}, ()),
        ("Opacus, PRV", "noise_opacus", {"accountant": "prv"}, ()),
    ]
    renyi_noises: list[Entry] = [
        ("dpscp, RDP", "noise_dpscp", {"accountant": "rdp"}, ()),
        ("Opacus, RDP", "noise_opacus", {"accountant": "rdp"}, ()),
    ]
    setting = "5,000 steps at sampling rate 0.01, delta 1e-5; no answer is computed twice"
    epsilon = f"Noise multiplier 1.001, {setting}."
    noise = f"The smallest noise multiplier for epsilon 1.001, {setting}."
    fewer = max(1, rounds // 2)
    return [
        timed(
            "Epsilon of sampled training, by privacy losses",
            f"{epsilon} A smaller epsilon is the tighter proof.",
            take_turns(peers, losses, rounds),
            losses[0][0],
            epsilon=found,
        ),
        timed(
            "Epsilon of sampled training, by Rényi divergences",
            f"{epsilon} Looser and quicker.",
            take_turns(peers, renyi, rounds),
            renyi[0][0],
            epsilon=found,
        ),
        timed(
            "Noise for a budget, by privacy losses",
            f"{noise} dp_accounting looks between 1 and 10; it and Opacus to 0.001.",
            take_turns(peers, loss_noises, fewer),
            loss_noises[0][0],
            noise=found,
        ),
        timed(
            "Noise for a budget, by Rényi divergences",
            noise,
            take_turns(peers, renyi_noises, fewer),
            renyi_noises[0][0],
            noise=found,
        ),
    ]


STARTS = {
    "python -m dpscp.cli --help": (["-m", "dpscp.cli", "--help"], ()),
    "dpscp, every public name": (["-c", "from dpscp import *"], ()),
    "dpscp, one estimator": (["-c", "from dpscp import PrivateConformalClassifier"], ()),
    "numpy": (["-c", "import numpy"], ()),
    "scikit-learn, a linear model": (["-c", "import sklearn.linear_model"], ()),
    "MAPIE": (["-c", "import mapie.classification"], ("mapie",)),
    "crepes": (["-c", "import crepes"], ("crepes",)),
    "puncc": (["-c", "import deel.puncc.regression"], ("puncc",)),
    "TorchCP": (["-c", "import torchcp.regression"], ("torchcp",)),
    "OpenDP": (["-c", "import opendp.prelude"], ("opendp",)),
    "diffprivlib": (["-c", "import diffprivlib.models"], ("diffprivlib",)),
    "Opacus": (["-c", "import opacus"], ()),
    "JAX-Privacy": (["-c", "import jax_privacy"], ("jax-privacy",)),
    "dp_accounting, PLD and RDP": (["-c", "import dp_accounting.pld, dp_accounting.rdp"], ()),
}


def startup(peers: Peers, rounds: int) -> list[Table]:
    import resource

    def once(arguments: list[str], needs: Sequence[str]) -> dict[str, float]:
        environment = {**os.environ, "PYTHONPATH": peers.path_of(*needs), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the first turn compiles
        before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise ContenderError(done.stderr.strip().splitlines()[-1])
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"cpu": cpu, "clock": time.perf_counter() - clock}

    answers: dict[str, Any] = {}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in STARTS}
    for turn in range(-1, rounds):
        for name, (arguments, needs) in STARTS.items():
            if name in answers:
                continue
            try:
                used = once(arguments, needs)
            except (InstallError, ContenderError) as trouble:
                answers[name] = str(trouble)
                continue
            taken[name] += [used] if turn >= 0 else []
    for name in STARTS:
        if name not in answers:
            answers[name] = {key: statistics.median(a[key] for a in taken[name]) for key in ("cpu", "clock")}
    ordered = {name: answers[name] for name in STARTS}
    note = "A fresh process, the interpreter included, compiled files in place."
    return [timed("Start-up", note, ordered, "dpscp, every public name")]


PARTS = {
    "training": ("Training", training),
    "modules": ("Torch modules", modules),
    "memory": ("Memory", memory),
    "parquet": ("A default fit from Parquet", parquet),
    "calibration": ("Calibration", calibration),
    "accuracy": ("Accuracy of private quantiles at equal privacy", accuracy),
    "growth": ("Growth", growth),
    "prediction": ("Prediction", prediction),
    "accounting": ("Accounting", accounting),
    "startup": ("Start-up", startup),
}


# ---- the page


def machine() -> str:
    return f"{os.cpu_count()} cores of {processor()}, {platform.system()}, Python {platform.python_version()}"


def circumstances(rounds: int) -> str:
    """Medians of what, and how busy the machine was: the clock says little on a busy one."""
    return f"medians of {rounds} rounds, load {os.getloadavg()[1]:.1f} over the last five minutes"


def commit() -> str:
    """The last one that changed the library."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src").strip()
    return git("log", "-1", "--format=%h", "--abbrev=12", "--", "src").strip() + (" with changes" if changed else "")


def known() -> dict[str, Any]:
    """What was found so far, by part."""
    found: dict[str, Any] = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    return found


def wrapped(prose: str) -> str:
    """Break a paragraph at 120 characters; a link stays in one piece."""
    return textwrap.fill(prose, 120, break_long_words=False, break_on_hyphens=False)


# why a peer is ahead, by the beginning of a table's title
REASONS = {
    "MLP 784": "Sums are float64 for the proof of the clipped sum, and a third of a wide net's step is noise from AES.",
    "head 512x8, full batch": "Rows come from memory, and each is widened to float64 for the proof of the clipped sum.",
    "Any torch module": "Plain torch protects nothing: the sums of clipped gradients are float64 for their proof, and "
    "noise is drawn for each parameter.",
    "A threshold from 100,000": "They find an exact quantile without privacy; plan and noise of a search cost the same "
    "for few scores as for many.",
    "Ranks off": "One draw of the exponential mechanism is closer to the rank where records and budget are few. It has "
    "no promise of coverage, and one level only.",
    "Prediction intervals": "TorchCP gets float32 rows as a tensor before the clock starts; ours reads and checks "
    "float64.",
    "Start-up": "dpscp imports scikit-learn, SciPy and dp-accounting; each of these peers needs fewer of them.",
}


def reason_for(title: str) -> str:
    """Why peers are ahead in the table of this title."""
    return next((reason for start, reason in REASONS.items() if title.startswith(start)), "The reason is not known.")


def as_page(found: dict[str, Any]) -> str:
    """The page, from everything that was found so far."""
    text = [
        "# Benchmarks",
        "",
        wrapped(
            "dpscp against its peers, written by `python benchmarks/peers.py`: one command that installs each peer "
            "beside the development environment and lets all take turns, in processes of their own and with one "
            "thread each where nothing else is said. Times are medians; CPU time counts all threads, and the clock is "
            "that of a machine with other work. *times ours* is the peer's time as a multiple of dpscp's: below 1 the "
            "peer is ahead, and the line under the table says so and why. What could not be measured is listed with "
            "the reason."
        ),
        "",
    ]
    behind = [t for part in PARTS if part in found for t in found[part]["tables"] if t.get("ahead")]
    compared = sum("ahead" in t for part in PARTS if part in found for t in found[part]["tables"])
    titles = "; ".join(t["title"] for t in behind) or "none"
    text += [wrapped(f"A peer is ahead in {len(behind)} of {compared} tables: {titles}."), ""]
    for part, (title, _) in PARTS.items():
        if part not in found:
            continue
        result = found[part]
        measured = f"Measured {result['date']}, the library as of commit {result['commit']}, {result['machine']}."
        text += [f"## {title}", "", wrapped(measured), ""]
        for table in result["tables"]:
            text += [f"### {table['title']}", "", wrapped(table["note"]), ""]
            text += ["| " + " | ".join(table["columns"]) + " |"]
            text += ["|" + "---|" * len(table["columns"])]
            text += ["| " + " | ".join(row) + " |" for row in table["rows"]]
            text += [""]
            if "ahead" in table:
                ahead = ", ".join(table["ahead"]) or "nobody"
                why = f" {reason_for(table['title'])}" if table["ahead"] else ""
                text += [wrapped(f"Ahead of dpscp: {ahead}.{why}"), ""]
    pinned = tomllib.loads((HERE / "peers.toml").read_text())
    shown = ", ".join(wanted["packages"][0].replace("==", " ") for wanted in pinned.values())
    text += ["## Versions", "", wrapped(f"{shown}; everything else as in constraints.txt."), ""]
    return "\n".join(text)


def install(peers: Peers) -> None:
    """Install every peer, so that a run later is measurement alone."""
    for name in tomllib.loads((HERE / "peers.toml").read_text()):
        try:
            peers.path_of(name)
            print(f"{name}: installed")
        except InstallError as trouble:
            print(trouble)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "dpscp-peers")
    parser.add_argument("--again", action="store_true", help="also what was measured at this commit already")
    parser.add_argument("--install", action="store_true", help="only install the peers, each in a folder of its own")
    parser.add_argument("--page", action="store_true", help="only write the page from what was found")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    given.cache.mkdir(parents=True, exist_ok=True)
    if given.install:
        install(Peers(given.cache))
        return
    here = commit()
    for part in () if given.page else given.parts or PARTS:
        if not given.parts and not given.again and known().get(part, {}).get("commit") == here:
            print(f"{part}: measured at this commit")
            continue
        print(f"{part}: {circumstances(given.rounds)}", flush=True)
        started = time.monotonic()
        tables = PARTS[part][1](Peers(given.cache), given.rounds)
        print(f"{part}: {(time.monotonic() - started) / 60:.1f} minutes", flush=True)
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        result = {
            "date": today,
            "commit": here,
            "machine": f"{machine()}; {circumstances(given.rounds)}",
            "tables": tables,
        }
        # read anew: another run may have measured other parts meanwhile
        FOUND.write_text(json.dumps(known() | {part: result}, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(as_page(known()))
    PAGE.write_text(as_page(known()))


if __name__ == "__main__":
    main()
