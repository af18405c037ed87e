"""The documents say what the code does: every code block runs, every entry of the paper map exists."""

import ast
import importlib
import json
import re
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import yaml

import dpscp
from dpscp.data import used_records

ROOT = Path(__file__).resolve().parents[2]
MAP_ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in (ROOT / "docs" / "paper_map.md").read_text().splitlines()
    if line.startswith("| `")
]
# Every statement and algorithm of the paper that the library claims to implement.
LABELS = {
    "alg: dp-scp",
    "alg:dp_binary_search",
    "alg:dp-sgd",
    "alg:noisy-midpoint",
    "lem:one_sided_qhat",
    "lemma:search_privacy",
    "thm:overall_privacy",
    "thm:dp_gap_two_sides",
    "cor:blackbox_dpscp",
    "thm: coverage",
    "thm:proj_dpsgd_stability",
    "thm:dpsgd_stability_smooth",
    "cor:dpsgd_coverage",
    "ass:stab",
    "ass:lipschitz",
    "prop:permutation_invariance",
    "supp:privacy_accounting",
    "Result A",
    "Result B",
    "Result C",
    "Result D",
    "Result E",
}


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_map_names_every_statement():
    named = {label for row in MAP_ROWS for label in _code(row[0])}
    assert named >= LABELS


@pytest.mark.parametrize("row", MAP_ROWS, ids=lambda row: row[0])
def test_mapped_code_and_tests_exist(row):
    functions, tests = _code(row[2]), _code(row[3])
    assert functions
    assert tests
    for dotted in functions:
        module, _, name = dotted.rpartition(".")
        while module:
            try:
                found = importlib.import_module(module)
                break
            except ModuleNotFoundError:
                module, _, outer = module.rpartition(".")
                name = f"{outer}.{name}"
        for part in name.split("."):
            found = getattr(found, part)
    for node in tests:
        path, _, name = node.partition("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert set(name.split("::")) <= names, node


THEORY = "\n".join((ROOT / "docs" / name).read_text() for name in ("guarantees.md", "torch_isolation.md"))


def theory_references():
    """Every ``Theory:`` line of the package, in its parts."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for found in re.findall(r"Theory: ([^\"\n]+)", path.read_text()):
            yield from ((path.name, part.strip()) for part in found.rstrip(".").split(";"))


def is_in_the_documents(part):
    results, facts = re.findall(r"\b[A-M]\b", part), re.findall(r"\b\d\b", part)
    if part.startswith("Result"):
        return bool(results) and all(f"\n## Result {name}: " in THEORY for name in results)
    if part.startswith("Fact"):
        return bool(facts) and all(f"\n**Fact {number}: " in THEORY for number in facts)
    return re.search(rf"^#+ {re.escape(part)}", THEORY, re.MULTILINE | re.IGNORECASE) is not None


def test_what_docstrings_cite_as_theory_is_in_the_documents():
    references = list(theory_references())
    assert len(references) > 100
    assert not [reference for reference in references if not is_in_the_documents(reference[1])]
    assert not is_in_the_documents("Result Z")
    assert not is_in_the_documents("section 9")


def test_the_version_is_that_of_changelog_and_citation():
    released = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (dpscp.__version__, cited["date-released"]) == released[0]
    assert cited["version"] == dpscp.__version__
    (paper,) = cited["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Cho", "Awan"]
    assert paper["year"] == 2026


def test_the_lowest_versions_are_those_that_packaging_allows():
    packaging = tomllib.loads((ROOT / "pyproject.toml").read_text())
    allowed = {line.partition(",")[0].replace(">=", "==") for line in packaging["project"]["dependencies"]}
    pinned = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    assert all(any(line in (version, f"{version}.0") for line in pinned) for version in allowed)


NAMED = re.compile(r"`((?:[\w.]+/)+\w+\.(?:py|md|json|csv|html))(?:::\w+)*`|`(dpscp(?:\.\w+)+)(?:\(|`)")


def _find_named(dotted: str):
    """Import the longest part of a dotted name that is a module and look up the rest."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise AssertionError(dotted)


@pytest.mark.parametrize(
    "path",
    [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_named_files_and_modules_exist(path):
    text = path.read_text()
    if path.stem == "upgrade":  # its first column has the names that are gone
        text = re.sub(r"^\|[^|]*\|", "", text, flags=re.MULTILINE)
    for file, dotted in NAMED.findall(text):
        if dotted:
            assert _find_named(dotted) is not None
        elif "NAME" not in file:
            folders = (ROOT, ROOT / "src", ROOT / "src" / "dpscp", ROOT / "tests")
            assert any((folder / file).exists() for folder in folders), file


def test_the_layers_in_contributing_are_those_that_the_linter_checks():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [
        [name.strip().removeprefix("dpscp.") for name in re.split(r"[:|]", row)] for row in contracts[0]["layers"]
    ]
    assert "".join(f"    {', '.join(row)}\n" for row in layers) in (ROOT / "CONTRIBUTING.md").read_text()


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def _blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


DOCUMENTS = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if _blocks(p)]


# a second or more each, of estimators that other tests of this suite fit too
LONG = {
    "choosing",
    "groups",
    "maintainers",
    "monitoring",
    "opacus",
    "other_populations",
    "own_model",
    "persons",
    "pitfalls",
}
LONG |= {"pitfalls", "privacy_model", "risk", "statement"}
LONG_NOTEBOOKS = {"fine_tune", "from_opacus", "persons", "torch_cnn"}


def _cases(paths, long):
    return [pytest.param(p, id=p.name, marks=[pytest.mark.slow] * (p.stem in long)) for p in paths]


@pytest.mark.parametrize("path", _cases(DOCUMENTS, LONG))
def test_code_blocks_run(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for block in _blocks(path):
        monkeypatch.setattr(used_records, "_USES", [])  # each block is a program of its own
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(block, str(path), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed
    # whole percents: the level follows the noisy number of held-out records
    for least in re.findall(r"19 of 20 such releases cover at least (\d+) %", path.read_text()):
        assert least in re.findall(r"cover at least (\d+)[.\d]*%", printed)


LINKS = re.compile(r"""\]\(([^)#]+)(?:#[^)]*)?\)|(?:src|srcset)="([^"#]+)\"""")


@pytest.mark.parametrize(
    "path",
    [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_links_point_to_files(path):
    for link, source in LINKS.findall(path.read_text()):
        target = link or source
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", _cases(NOTEBOOKS, LONG_NOTEBOOKS))
def test_notebooks_run(path, tmp_path, monkeypatch, load_script):
    """Without Jupyter, with smaller numbers. A text that a cell keeps comes from a run: the same cells print."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(used_records, "_USES", [])  # a notebook is a program of its own
    if path.stem == "fine_tune":
        monkeypatch.setitem(sys.modules, "torchvision", None)  # not needed, and often for another build of torch
        pytest.importorskip("peft")
    notebook = json.loads(path.read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cell, printed in load_script("docs/notebooks.py").run_cells(notebook, fast=True):
            assert bool(printed) == bool(cell["outputs"]), "python docs/notebooks.py keeps what the notebooks print"
            assert cell["execution_count"] is None


def test_the_cost_model_of_large_data_is_what_its_command_writes(load_script):
    scale = load_script("benchmarks/scale.py")
    told = json.loads(scale.FOUND.read_text())
    assert scale.FROM + scale.tables(told) + scale.TO in scale.PAGE.read_text()
    # n * reading / workers, and one round of the driver for each step
    told |= {"block_ms": 1, "round_ms": 2, "driver_ms": 3}
    told["parquet"] |= {"checks": 1, "moments": 1, "preparing": 1, "scoring": 1}
    told["memory"]["gradient"] = 2
    assert scale.predicted(10**8, 10, told)[2:7] == ["10", "40 s", "8 s", "48 s", "96 s"]
