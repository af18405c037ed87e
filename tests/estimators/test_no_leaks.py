"""Nothing of the records is in a fitted estimator, its file, its messages or its certificate.

n is a prime and some values are canaries, so that none of them appears by chance.
"""

import dataclasses
import io
import json
import re
import struct
import types
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp import PrivateConformalClassifier, PrivateConformalRegressor, SeededWarning
from dpscp.training import DPSGD, TorchDPSGD

N, NOMINAL = 1237, 1290
CANARY_NUMBER, CANARY_TEXT = 98765.4321, "zebra-canary"
# fits that other tests trace for coverage too
pytestmark = pytest.mark.no_cover

GUARANTEES = ("universal", "split", "corrected", "asymptotic")
QUICK = DPSGD(steps=20, learning_rate=1.0)
QUICK_REGRESSION = DPSGD(loss="huber", steps=20, learning_rate=0.5)
COMMON = {"epsilon": 4.0, "accountant": "rdp", "random_state": 0, "n_records": NOMINAL, "feature_bounds": (-4, 4)}


def labeled():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, N)
    X = rng.normal(size=(N, 4))
    X[:, 0] += 3 * (y - 1)
    return X, y


def measured():
    X, _ = labeled()
    return X, X.sum(axis=1) / 2 + np.random.default_rng(1).normal(size=N)


def area(X):
    return np.digitize(np.asarray(X)[:, 1], [0.0])


def classifier(estimator=QUICK, **changes):
    return PrivateConformalClassifier(estimator, **COMMON | {"classes": [0, 1, 2]} | changes)


def regressor(estimator=QUICK_REGRESSION, **changes):
    return PrivateConformalRegressor(estimator, **COMMON | {"y_bounds": (-8, 8)} | changes)


def everything_in(thing, seen=None, path="fitted"):
    """(path, object) for all that can be reached: attributes, items, array elements, closures, defaults."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type | types.ModuleType):
        return
    if type(thing).__module__.startswith("torch.fx"):  # a graph of operations, traced before any record is read
        return
    seen.add(id(thing))
    yield path, thing
    parts = []
    if isinstance(thing, dict | types.MappingProxyType):
        parts += [(f"{path}[{k!r}]", v) for k, v in thing.items()] + [(f"key of {path}", k) for k in thing]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts += [(f"{path}[{i}]", v) for i, v in enumerate(thing)]
    if isinstance(thing, types.FunctionType):
        parts += [(f"closure of {path}", c.cell_contents) for c in thing.__closure__ or ()]
        parts += [(f"defaults of {path}", thing.__defaults__)]
    elif isinstance(thing, types.MethodType):
        parts += [(f"self of {path}", thing.__self__)]
    elif not isinstance(thing, np.ndarray | str | bytes | int | float | complex | bool | type(None)):
        parts += [(f"{path}.{k}", v) for k, v in getattr(thing, "__dict__", {}).items()]
        slots = [s for c in type(thing).__mro__ for s in getattr(c, "__slots__", ())]
        parts += [(f"{path}.{s}", getattr(thing, s)) for s in slots if hasattr(thing, s) and s != "__weakref__"]
        if dataclasses.is_dataclass(thing):
            parts += [(f"{path}.{f.name}", getattr(thing, f.name, None)) for f in dataclasses.fields(thing)]
    for name, part in parts:
        yield from everything_in(part, seen, name)


def parse_numbers(thing):
    if hasattr(thing, "detach"):
        thing = thing.detach().cpu().numpy()
    if isinstance(thing, np.ndarray) and thing.dtype.kind in "fiu":
        return thing.ravel().astype(float).tolist()
    return [float(thing)] if isinstance(thing, float | int) and not isinstance(thing, bool) else []


def count_allowed_matches(thing):
    """Hundreds of float32 parameters meet one of the 5,000 float32 numbers of the records in every twentieth fit.

    Then two match in one of 800 fits. A record has four numbers, and float64 numbers never match by chance.
    """
    return int(getattr(thing, "dtype", None) == np.float32 and thing.size > 100)


def secrets(fitted, X, y):
    """Numbers that only the records hold: features, targets, scores; and counts."""
    values = set(X.ravel()) | set(X.astype(np.float32).ravel().astype(float)) | {CANARY_NUMBER}
    task = fitted._task().name
    if task == "regression":
        values |= set(y) | set(np.abs(y - fitted.predict(X)))
    else:
        values |= set(1 - fitted.predict_proba(X)[np.arange(len(y)), y].astype(float))
    counts = {len(y), len(y) + 1, len(y) - 1}
    if task == "classification":
        counts |= set(np.bincount(y).tolist())
    return values, counts


def assert_holds_nothing_of(fitted, X, y):
    values, counts = secrets(fitted, X, y)
    visited = 0
    for path, thing in everything_in(vars(fitted)):
        visited += 1
        numbers = parse_numbers(thing)
        matches = sum(number in values for number in numbers)
        assert matches <= count_allowed_matches(thing), f"{path} holds a value of the records"
        assert not counts.intersection(numbers), f"{path} holds a count of the records"
        if hasattr(thing, "shape") and not isinstance(thing, types.FunctionType):
            assert max([0, *thing.shape]) < 1_100, f"{path} has the shape {thing.shape}"
        elif hasattr(thing, "__len__"):
            # the longest text is a note or an assumption
            assert len(thing) < (500 if isinstance(thing, str) else 100), f"{path} is long: {len(thing)}"
    assert visited > 50, "the walk did not get anywhere"


def assert_file_holds_nothing_of(fitted, X, y, path):
    fitted.save(path)
    content = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        header = json.loads(archive.read("header.json"))
        assert max(info.file_size for info in archive.infolist()) < 20_000
    values, counts = secrets(fitted, X, y)
    for value in values:
        assert struct.pack("<d", value) not in content
        assert repr(float(value)).encode() not in content
    text = json.dumps(header)
    whole_numbers = set(map(int, re.findall(r"(?<![\w.-])\d+(?![\w.])", json.dumps(header["body"]))))
    assert NOMINAL in whole_numbers
    assert not counts & whole_numbers, "a count of the records is in the header"
    assert CANARY_TEXT not in text


class TestFittedObject:
    @pytest.mark.parametrize("guarantee", [*GUARANTEES, "stability", "finite"])
    @pytest.mark.parametrize("kind", ["recipe", "mechanism"])
    @pytest.mark.covering
    def test_classifier(self, tmp_path, guarantee, kind):
        X, y = labeled()
        bounded = DPSGD(steps=20, learning_rate=0.1, clip_norm=4.0, feature_bound=2.0)
        estimator = None if kind == "recipe" else bounded
        fitted = classifier(estimator, guarantee=guarantee, confidence_level=[0.8, 0.9]).fit(X, y)
        assert_holds_nothing_of(fitted, X, y)
        assert_file_holds_nothing_of(fitted, X, y, tmp_path / "model")

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    @pytest.mark.parametrize("score", ["absolute", "cqr"])
    @pytest.mark.covering
    def test_regressor(self, tmp_path, guarantee, score):
        X, y = measured()
        fitted = regressor(None, guarantee=guarantee, conformity_score=score).fit(X, y)
        assert_holds_nothing_of(fitted, X, y)
        assert_file_holds_nothing_of(fitted, X, y, tmp_path / "model")

    @pytest.mark.parametrize("groups", ["label", dp.Groups(area, values=[0, 1])])
    def test_groups(self, tmp_path, groups):
        X, y = labeled()
        fitted = classifier(guarantee="split", groups=groups).fit(X, y)
        assert_holds_nothing_of(fitted, X, y)
        assert_file_holds_nothing_of(fitted, X, y, tmp_path / "model")

    @pytest.mark.filterwarnings("ignore:Full backward hook is firing", "ignore::FutureWarning")
    def test_torch_module(self):
        """Opacus hangs activations and gradients of each record on a module while it trains."""
        torch = pytest.importorskip("torch")
        X, y = labeled()
        module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
        training = TorchDPSGD(module, steps=3, sampling_rate=1.0)
        fitted = classifier(training, guarantee="split", feature_bounds=None).fit(X, y)
        assert_holds_nothing_of(fitted, X, y)

    def test_the_walk_finds_what_is_hidden(self):
        """The check itself can fail: in a closure, behind a slot, in an array, as a count."""
        X, y = labeled()
        fitted = classifier(guarantee="asymptotic").fit(X, y)
        hidden = X[5, 1]
        for plant in (lambda: hidden, X[3:5].copy(), {"deep": [float(X[7, 0])]}, N, X.astype(np.float32)[0]):
            fitted.model_.__dict__["note"] = plant
            with pytest.raises(AssertionError, match="of the records"):
                assert_holds_nothing_of(fitted, X, y)
        fitted.model_.__dict__["note"] = np.zeros(N)
        with pytest.raises(AssertionError, match="has the shape"):
            assert_holds_nothing_of(fitted, X, y)

    @pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")  # half of the declared records: full sets
    @pytest.mark.parametrize("guarantee", GUARANTEES)
    @pytest.mark.parametrize("make", [classifier, regressor])
    @pytest.mark.covering
    def test_nothing_in_it_grows_with_the_records(self, make, guarantee):
        X, y = labeled()
        sizes = []
        for n in (N, 700):
            fitted = make(None, guarantee=guarantee).fit(X[:n], y[:n])
            reached = [(path, thing) for path, thing in everything_in(vars(fitted)) if hasattr(thing, "__len__")]
            # which columns have a quantile, and its knots, follow from noisy counts on a public grid
            released = [path for path, _ in reached if "transforms" in path or path.endswith("inner.parameters")]
            rows = (list, tuple, np.ndarray)
            assert all(len(thing) < 1_100 for path, thing in reached if path in released and isinstance(thing, rows))
            kept = [(path, thing) for path, thing in reached if path not in released and path != "key of fitted"]
            sizes.append([(path, len(thing) if isinstance(thing, rows) else 0) for path, thing in kept])
        assert sizes[0] == sizes[1]


def frame(**columns):
    X, _ = labeled()
    return pd.DataFrame(X, columns=list("abcd")).assign(**columns)


def spoiled(value, dtype=float):
    X = labeled()[0].astype(dtype)
    X[7, 2] = value
    return X


GOOD_X, GOOD_Y = labeled()
BAD_ROWS = {
    "text": spoiled(CANARY_TEXT, object),
    "nan beside a canary": np.where(spoiled(CANARY_NUMBER) > 3, np.nan, spoiled(CANARY_NUMBER)),
    "infinity": spoiled(np.inf),
    "object": spoiled({CANARY_TEXT: CANARY_NUMBER}, object),
    "complex": GOOD_X + CANARY_NUMBER * 1j,
    "ragged": [[CANARY_NUMBER] * 4] * (N - 1) + [[1.0]],
    "one dimension": np.full(N, CANARY_NUMBER),
    "five columns": frame(e=CANARY_NUMBER).to_numpy(),
    "text column": frame(d=CANARY_TEXT),
    "missing": frame(d=pd.array([pd.NA] + [1] * (N - 1), dtype="Int64")),
    "no columns": np.empty((N, 0)),
    "three dimensions": np.full((N, 2, 2), CANARY_NUMBER),
    "duplicate names": frame().rename(columns={"b": "a"}),
    "mixed name types": frame().rename(columns={"b": 1}),
}
BAD_TARGETS = {
    "unknown label": np.append(GOOD_Y[:-1], 98765),
    "unknown text": np.append(GOOD_Y[:-1].astype(str), CANARY_TEXT),
    "continuous": GOOD_Y + CANARY_NUMBER / 3,
    "nan": np.append(GOOD_Y[:-1].astype(float), np.nan),
    "mixed": np.append(GOOD_Y[:-1].astype(object), CANARY_TEXT),
    "short": GOOD_Y[:-1],
    "two columns": np.stack([GOOD_Y, GOOD_Y], axis=1),
    "ragged": [[CANARY_NUMBER]] * (N - 1) + [[1, 2]],
    "objects": np.array([{CANARY_TEXT: 1}] * N),
    "missing": np.array([None, *GOOD_Y[1:]]),
}


def chain(error):
    while error is not None:
        yield str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def assert_says_nothing(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises((ValueError, TypeError)) as error:
            call()
    said = [*chain(error.value), *(str(w.message) for w in caught if w.category is not SeededWarning)]
    for text in said:
        for secret in ("98765", "32921", CANARY_TEXT, str(N), str(N - 1), str(N + 1)):
            assert secret not in text, f"{secret!r} is in {text!r}"


class TestMessages:
    @pytest.mark.parametrize("name", BAD_ROWS)
    @pytest.mark.parametrize("make", [classifier, regressor])
    @pytest.mark.covering
    def test_rows(self, make, name):
        if name != "five columns":
            assert_says_nothing(lambda: make(guarantee="split").fit(BAD_ROWS[name], GOOD_Y))
        fitted = make(guarantee="asymptotic").fit(GOOD_X, GOOD_Y)
        predict = fitted.predict_set if make is classifier else fitted.predict_interval
        assert_says_nothing(lambda: predict(BAD_ROWS[name]))

    @pytest.mark.parametrize("name", BAD_TARGETS)
    @pytest.mark.parametrize("make", [classifier, regressor])
    def test_targets(self, make, name):
        if make is regressor and name in ("unknown label", "continuous", "two columns"):
            make(guarantee="split", confidence_level=0.2).fit(GOOD_X, BAD_TARGETS[name] % 5)  # numbers are fine
            return
        assert_says_nothing(lambda: make(guarantee="split").fit(GOOD_X, BAD_TARGETS[name]))

    def test_groups(self):
        wrong = classifier(guarantee="split", groups=dp.Groups(lambda X: X[:5, 0] * CANARY_NUMBER, values=[0]))
        assert_says_nothing(lambda: wrong.fit(GOOD_X, GOOD_Y))
