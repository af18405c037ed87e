"""Rules about randomness and messages, checked on the source and while the code runs.

``test_imports`` checks where generators are named in the source; here the unseeded code is run with every other
generator booby-trapped. ``test_no_leaks`` and ``test_errors_carry_no_data`` check the messages of the estimators and of
the search; here are the training mechanisms, and a rule for the text of every ``raise``.
"""

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

import dpscp as dp
from dpscp import training
from dpscp.privacy import IntegerSource, secure_generator

ROOT = Path(dp.__file__).parent
REPOSITORY = Path(__file__).parents[1]
FILES = sorted(ROOT.rglob("*.py"))

# Names that hold records in this code base, and the only things a message may say about them.
RECORDS = {"X", "y", "rows", "targets", "labels", "scores", "values", "array", "chunk", "block", "frame", "texts"}
HARMLESS = (".ndim", ".dtype", ".shape[1]", ".shape[1:]", "__name__")


def formatted_records(tree):
    """Every piece of a raised message that is made from something that holds records."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Raise) and node.exc is not None):
            continue
        for piece in ast.walk(node.exc):
            if isinstance(piece, ast.FormattedValue):
                text = ast.unparse(piece.value)
                names = {n.id for n in ast.walk(piece.value) if isinstance(n, ast.Name)}
                if names & RECORDS and not any(harmless in text for harmless in HARMLESS):
                    yield text


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_no_message_is_made_from_records(file):
    assert not list(formatted_records(ast.parse(file.read_text())))


def test_the_check_sees_records_in_messages():
    for code in ('raise ValueError(f"{X}")', 'raise ValueError(f"{len(rows)} rows")', 'raise E(f"{scores.min():g}")'):
        assert list(formatted_records(ast.parse(code)))
    assert not list(formatted_records(ast.parse('raise ValueError(f"{rows.ndim} and {alpha}")')))


def terms_by_name(tree):
    """Every look at a certificate's terms by a string: the type checker does not see a misspelt one."""
    for node in ast.walk(tree):
        held = None
        if isinstance(node, ast.Subscript):
            held = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            held = node.func.value
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            held = node.comparators[0]
        if held is not None and ast.unparse(held).endswith("terms"):
            yield ast.unparse(node)


def test_no_promise_looks_at_a_term_by_its_name():
    for code in ('c.terms["a"]', 'c.terms.get("a", 1)', '"a" in c.terms', '"a" not in terms'):
        assert list(terms_by_name(ast.parse(code)))
    assert {str(file): found for file in FILES if (found := list(terms_by_name(ast.parse(file.read_text()))))} == {}


def test_every_public_method_is_explained_where_it_is_or_by_what_it_implements():
    """Once: by its own words, or by a protocol's or base class' of the package. Functions and classes are ruff's."""
    classes = [c for file in FILES for c in ast.walk(ast.parse(file.read_text())) if isinstance(c, ast.ClassDef)]
    bases = {base.id for c in classes for base in c.bases if isinstance(base, ast.Name)} - {"BaseEstimator"}
    methods = [(c, m) for c in classes for m in c.body if isinstance(m, ast.FunctionDef) and m.name[0] != "_"]
    explained = {
        m.name
        for c, m in methods
        if ast.get_docstring(m) and (c.name in bases or any("Protocol" in ast.unparse(base) for base in c.bases))
    }
    bare = [f"{c.name}.{m.name}" for c, m in methods if c.name[0] != "_" and not ast.get_docstring(m)]
    assert "DenseModel.config" in bare
    assert [name for name in bare if name.split(".")[1] not in explained] == []


def test_what_the_type_checker_must_ignore_has_a_code_and_a_reason():
    lines = [line for file in FILES for line in file.read_text().splitlines() if "type: ignore" in line]
    assert lines
    assert [line for line in lines if not re.search(r"# type: ignore\[[a-z-]+\]  # \w", line)] == []


def test_every_commit_that_a_document_cites_is_in_the_history():
    """A commit that was rebased away cannot be looked at; a reader could not repeat what was measured there."""
    git = ["git", "-C", str(REPOSITORY)]
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("the history is not here")
    told = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if told.stdout.strip() != "false":
        pytest.skip("the history ends before the commits that are cited")
    known = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True, check=True).stdout.split()
    pages = [*(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "results").glob("*.md")]
    cited = {(page.name, name) for page in pages for name in cited_commits(page.read_text())}
    assert len(cited) > 10
    assert [(page, name) for page, name in sorted(cited) if not any(c.startswith(name) for c in known)] == []


def cited_commits(text):
    """The names after the word commit, one or several."""
    return re.findall(r"[0-9a-f]{7,40}", " ".join(re.findall(r"commits? ((?:[0-9a-f]{7,40}(?:, | and )?)+)", text)))


def test_cited_commits_are_seen():
    assert cited_commits("of commit 14d2537, 28f54d4 (each); commits 0a5a718 and 89cf904, 2026") == [
        *("14d2537", "28f54d4", "0a5a718", "89cf904"),
    ]


# ---- no other generator decides anything private

CLASSIFIERS = {
    "DPSGD": training.DPSGD(steps=3, noise_multiplier=5.0, classes=(0, 1)),
    "sampled DPSGD": training.DPSGD(hidden=(3,), steps=3, sampling_rate=0.1, noise_multiplier=5.0, classes=(0, 1)),
    "output": training.OutputPerturbation(noise_multiplier=5.0, classes=(0, 1)),
    "objective": training.ObjectivePerturbation(noise_multiplier=5.0, classes=(0, 1)),
    "preprocessed": training.Preprocessed(
        (training.PrivateStandardize(-3.0, 3.0, noise_multiplier=20.0),),
        training.DPSGD(steps=3, noise_multiplier=5.0, classes=(0, 1)),
    ),
}
REGRESSORS = {
    "squared DPSGD": training.DPSGD(loss="squared", steps=3, noise_multiplier=5.0),
    "summaries": training.SufficientStatistics(3.0, (-4.0, 4.0), noise_multiplier=5.0),
}
MECHANISMS = {**CLASSIFIERS, **REGRESSORS}


def records(name, n=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, (X[:, 0] > 0).astype(int) if name in CLASSIFIERS else X[:, 0]


@pytest.fixture
def trapped(monkeypatch):
    """Every generator but the secure one raises, except for the public starting point of a network."""

    def trap(name, honest):
        def guarded(*args, **kwargs):
            caller = sys._getframe(1)
            if Path(caller.f_code.co_filename).name == "networks.py" and caller.f_code.co_name == "initial":
                return honest(*args, **kwargs)
            raise AssertionError(f"{name} was used on a private path, in {caller.f_code.co_name}")

        return guarded

    for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64", "default_rng", "RandomState", "normal", "random"):
        monkeypatch.setattr(np.random, name, trap(name, getattr(np.random, name)))
    for name in ("random", "gauss", "randint", "getrandbits", "Random"):
        monkeypatch.setattr(random, name, trap(name, getattr(random, name)))


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_training_uses_the_secure_generator_only(name, monkeypatch, request):
    X, y = records(name)
    request.getfixturevalue("trapped")
    first = MECHANISMS[name].train(X, y, n_records=60).model
    second = MECHANISMS[name].train(X, y, n_records=60).model
    assert not np.array_equal(first.outputs(X), second.outputs(X))


@pytest.mark.parametrize("guarantee", ["universal", "split", "corrected"])
def test_fit_uses_the_secure_generator_only(guarantee, request):
    X, y = records("DPSGD", 400)
    request.getfixturevalue("trapped")
    clf = dp.PrivateConformalClassifier(CLASSIFIERS["DPSGD"], epsilon=8.0, classes=[0, 1], guarantee=guarantee)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        clf.fit(X, y)
    assert clf.ledger_.is_private


def test_the_trap_works(trapped):
    with pytest.raises(AssertionError, match="private path"):
        np.random.default_rng()
    with pytest.raises(AssertionError, match="private path"):
        secure_generator(3)


def test_noise_starts_from_the_operating_system(monkeypatch):
    asked = []
    honest = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or honest(size))
    secure_generator()
    assert sum(asked) >= 16
    asked.clear()
    IntegerSource().below(10, 100)
    assert sum(asked) >= 100


# ---- what the training mechanisms say about bad records

CANARY = "98765.4321"
N = 48_611  # a length that no message has a reason to hold


def bad_records(name):
    X, y = records(name, N)
    for place in (3, 17):
        X[place, 0] = float(CANARY)
    yield "nan", np.where(X > 5, np.nan, X), y
    yield "infinite", np.where(X > 5, np.inf, X), y
    yield "text", np.where(X > 5, CANARY, X.astype(object)), y
    yield "one dimension", X[:, 0], y
    yield "three dimensions", X[:, :, None], y
    yield "complex", X + 1j, y
    yield "short target", X, y[:-1]
    yield "two-column target", X, np.stack([y, y], axis=1)
    yield "text target", X, np.where(X[:, 0] > 5, CANARY, y.astype(object))
    yield "missing target", X, np.where(X[:, 0] > 5, np.nan, y.astype(float))
    yield "objects", X, np.where(X[:, 0] > 5, {CANARY: 1}, y.astype(object))
    if name in CLASSIFIERS:
        yield "unknown label", X, np.where(X[:, 0] > 5, 98765, y)
        yield "fractional label", X, np.where(X[:, 0] > 5, float(CANARY), y.astype(float))


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_refusals_of_training_say_nothing_about_the_records(name):
    refused = 0
    for kind, X, y in bad_records(name):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                MECHANISMS[name].train(X, y, n_records=N - 1000)
            except (ValueError, TypeError) as error:
                refused += 1
                # the whole traceback, as a person would paste it into a report; source lines hold no records
                said = "".join(traceback.format_exception(error))
                said = "\n".join(line for line in said.splitlines() if not line.startswith("    "))
            else:
                said = ""
        said += "".join(str(w.message) for w in caught)
        for secret in ("98765", str(N), str(N - 1)):
            assert secret not in said, f"{kind}: {said}"
    assert refused >= 8
