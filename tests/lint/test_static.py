"""Rules about randomness and messages while the code runs.

``make lint`` checks where generators are named in the source. Here the unseeded code runs with every other generator
replaced by one that raises. ``test_no_leaks`` and ``test_errors_carry_no_data`` check the messages of the estimators
and of the search; here are those of the training mechanisms.
"""

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
from dpscp.privacy import secure_generator

REPOSITORY = Path(__file__).parents[2]


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


# what the seeds of the ordinary generator may make: nothing of it depends on records
PUBLIC_DRAWS = {("networks.py", "initial"), ("networks.py", "synthetic_rows")}


@pytest.fixture
def trapped(monkeypatch):
    """Every generator but the secure one raises, except for a network's public starting point and synthetic rows."""

    def trap(name, honest):
        def guarded(*args, **kwargs):
            caller = sys._getframe(1)
            if (Path(caller.f_code.co_filename).name, caller.f_code.co_name) in PUBLIC_DRAWS:
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
