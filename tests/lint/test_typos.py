"""The type checker sees typos in the estimators: scikit-learn's base has no types, and would hide every one of them.

A misspelt attribute is planted in each file, and mypy is run on these files alone.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import dpscp

ROOT = Path(dpscp.__file__).parent
# In each file one use of an attribute, which is misspelt.
PLANTED = {
    "estimators/base.py": "self.ledger_.declare(n_features",
    "estimators/fitted.py": "self.certificates_[0]",
    "estimators/classifier.py": "self.model_.predict_proba",
    "estimators/regressor.py": "self.model_.outputs",
    "paper/base.py": "self._predictor.classes is None",
    "paper/split.py": "self._predictor.predict(rows)",
}
TYPED_BASE = ROOT / "_base/sklearn_compat.py"
UNTYPED = "from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin\n"


def misspelt(text):
    """'self.model_xyz.outputs' for 'self.model_.outputs'."""
    name = text.removeprefix("self.").split(".")[0].split("[")[0].split(" ")[0]
    return text.replace(name, f"{name}xyz", 1)


def said(folder, shadows):
    """What mypy says about the estimators when some files are read from elsewhere."""
    files = [TYPED_BASE, ROOT / "core/release.py", *(ROOT / name for name in PLANTED)]
    line = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=skip", "--ignore-missing-imports"]
    line += [f"--cache-dir={folder / 'cache'}", "--hide-error-context", "--no-error-summary"]
    for number, (file, text) in enumerate(shadows.items()):
        shadow = folder / f"{number}.py"
        shadow.write_text(text)
        line += ["--shadow-file", str(file), str(shadow)]
    done = subprocess.run([*line, *map(str, files)], capture_output=True, text=True, check=False, cwd=ROOT.parent)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all runs: mypy reads its own library once."""
    return tmp_path_factory.mktemp("typos")


@pytest.fixture(scope="module")
def planted():
    shadows = {}
    for name, text in PLANTED.items():
        source = (ROOT / name).read_text()
        assert text in source, f"{name} no longer holds {text!r}: plant another typo"
        shadows[ROOT / name] = source.replace(text, misspelt(text), 1)
    return shadows


def test_a_typo_in_an_estimator_is_seen(folder, planted):
    errors = said(folder, planted).splitlines()
    for name in PLANTED:
        assert any(f"{name}:" in line and "xyz" in line and "[attr-defined]" in line for line in errors), name


def test_only_the_typed_base_makes_it_so(folder, planted):
    """With scikit-learn's own classes the checker is blind: the test above would fail."""
    assert "xyz" not in said(folder, planted | {TYPED_BASE: UNTYPED})
