"""A caller's functions get copies of the rows, in two different blockings that must agree."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

import dpscp as dp
from dpscp._base import callers
from dpscp._base.assumptions import GROUP_FUNCTION, LIKELIHOOD_RATIO, OWN_SCORE, PREFIT
from dpscp._base.callers import ROUNDING, call_on_rows

RNG, SECRET = np.random.default_rng, 98765.4321


def call(function, table, *, tolerance=0.0, shape=()):
    def read(found, size):
        values = np.asarray(found)
        if values.shape != (size, *shape):
            raise ValueError("one value for each record")
        return values

    empty = np.empty((0, *shape))
    return call_on_rows("groups", function, (table,), len(table), read=read, empty=empty, tolerance=tolerance)


def rows(n=60, d=3):
    return RNG(n).normal(size=(n, d))


FORMS = {
    "array": np.asarray,
    "frame": lambda X: pd.DataFrame(X, columns=list("abc")),
    "list": lambda X: X.tolist(),
    "objects": lambda X: X.astype(object),
}


@pytest.mark.parametrize("n", [1, 2, 3, 7, 60, callers._BLOCK_ROWS + 1, 9 * callers._ROWS_TWICE + 5])
def test_a_function_of_the_row_gives_its_values_at_any_size(n):
    X = rows(n)
    np.testing.assert_array_equal(call(lambda part: part[:, 0] > 0, X), X[:, 0] > 0)
    weights = RNG(0).normal(size=(3, 2))
    found = call(lambda part: part @ weights, X, tolerance=ROUNDING, shape=(2,))
    np.testing.assert_allclose(found, X @ weights, rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_a_function_gets_copies(form):
    table = FORMS[form](rows())
    before = np.array(table, dtype=float)
    kept = []

    def function(part):
        found = np.asarray(part, dtype=float)[:, 0].copy()
        kept.append(part)
        if isinstance(part, list):
            part[0][0] = 0.0
        elif isinstance(part, pd.DataFrame):
            part.iloc[0, 0] = 0.0
        else:
            part[:] = 0.0
        return found

    np.testing.assert_array_equal(call(function, table), before[:, 0])
    np.testing.assert_array_equal(np.array(table, dtype=float), before)
    assert [len(part) for part in kept] == [60, 1, 2, 4, 8, 16, 29]  # two blockings


def test_no_rows_reach_no_function():
    assert call(lambda _: 1 / 0, np.empty((0, 3))).shape == (0,)


class Counts:
    def __init__(self):
        self.calls = 0

    def __call__(self, part):
        self.calls += 1
        return part[:, 0] + self.calls


def largest(part):
    return part[:, 0] == part[:, 0].max()


def text_width(part):
    """Pad to the longest text of the block."""
    texts = [str(value) for value in part[:, 0]]
    width = max(map(len, texts))
    return np.array([len(text.rjust(width)) - len(text) for text in texts])


@pytest.mark.parametrize("n", [61, 62, 20_000])
@pytest.mark.parametrize(
    "function",
    [
        lambda part: part[:, 0] > part[:, 0].mean(),
        lambda part: part[:, 0].argsort().argsort(),
        lambda part: np.arange(len(part)) % 2,
        lambda part: np.arange(len(part)) % 3,
        lambda part: np.roll(part[:, 0], 1),
        lambda part: part[:, 0] - part[0, 0],
        lambda part: np.full(len(part), len(part)),
        lambda part: RNG().random(len(part)),
        Counts(),
        largest,
        text_width,
    ],
)
def test_a_function_that_looks_at_more_than_the_row_is_refused(function, n):
    with pytest.raises(ValueError, match="groups must compute the value of each row from that row alone"):
        call(function, rows(n), tolerance=ROUNDING)


def test_rounding_by_place_is_no_difference_and_a_change_beyond_it_is():
    X = rows(100)

    def by_place(size):
        return lambda part: part[:, 0] + size * np.arange(len(part)) / len(part)

    call(by_place(1e-10), X, tolerance=ROUNDING)
    with pytest.raises(ValueError, match="from that row alone"):
        call(by_place(1e-7), X, tolerance=ROUNDING)
    with pytest.raises(ValueError, match="from that row alone"):
        call(by_place(1e-13), X)  # groups are places and have no rounding


def test_no_error_holds_anything_of_the_records():
    X = rows()
    X[7, 0] = SECRET

    def fails(part):
        raise KeyError(f"{part.max()}")

    for function, words in ((fails, "groups failed on the records with KeyError"), (lambda p: p, "one value for each")):
        with pytest.raises(ValueError, match=words) as refused:
            call(function, X)
        assert str(SECRET) not in str(refused.value)
        assert refused.value.__context__ is None


def test_only_some_blocks_of_a_large_table_come_twice():
    seen = []
    n = 40 * callers._ROWS_TWICE
    call(lambda part: seen.append(len(part)) or part[:, 0], rows(n))
    assert callers._ROWS_TWICE / 2 < sum(seen) - n < 2 * callers._ROWS_TWICE + callers._BLOCK_ROWS


# ---- every use of a caller's function


class Foreign(ClassifierMixin, BaseEstimator):
    """A fitted estimator of the caller."""

    def __init__(self, shift=0.0):
        self.shift = shift

    classes_ = np.array([0, 1])

    def fit(self, X, y):  # noqa: ARG002
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, X):
        X = np.asarray(X)
        share = 1 / (1 + np.exp(-X[:, 0] + self.shift * X[:, 0].mean()))
        return np.column_stack([1 - share, share])


def target_score(shift):
    class Residual:
        natural, outputs = False, 1

        def range(self, y_bounds):
            return 0.0, 2 * (y_bounds[1] - y_bounds[0])

        def of_targets(self, targets, pair):
            return np.abs(targets - pair.center) + shift * targets.max()

        def interval(self, pair, thresholds):
            half = np.broadcast_to(thresholds, (len(pair.lower), np.shape(thresholds)[-1]))
            return np.stack([pair.center[:, None] - half, pair.center[:, None] + half], axis=1)

    return Residual()


def classifier(X, y, **options):
    given = {"epsilon": 4.0, "classes": [0, 1], "feature_bounds": (-4, 4), "guarantee": "split", "n_records": len(y)}
    return dp.PrivateConformalClassifier(**given | options).fit(X, y)


USES = {
    "a score of labels": (
        lambda X, y, shift: classifier(X, y, conformity_score=lambda p: (1 - p) / (1 + shift * p.max(axis=0))),
        OWN_SCORE,
    ),
    "a score of targets": (
        lambda X, y, shift: dp.PrivateConformalRegressor(
            epsilon=4.0, y_bounds=(0, 1), feature_bounds=(-4, 4), conformity_score=target_score(shift), n_records=len(y)
        ).fit(X, y),
        OWN_SCORE,
    ),
    "groups": (
        lambda X, y, shift: classifier(X, y, groups=lambda X: X[:, 0] > shift * X[:, 0].mean()),
        GROUP_FUNCTION,
    ),
    "a population": (
        lambda X, y, shift: classifier(
            X, y, population=dp.Population(lambda X: 1 / (1 + (X[:, 0] - shift * X[:, 0].mean()) ** 2), bound=1.0)
        ),
        LIKELIHOOD_RATIO,
    ),
    "a prefit estimator": (
        lambda X, y, shift: dp.PrivateConformalClassifier(dp.Prefit(Foreign(shift)), epsilon=4.0, n_records=len(y)).fit(
            X, y
        ),
        PREFIT,
    ),
}


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
@pytest.mark.parametrize("use", USES)
def test_every_use_is_checked_on_the_records_and_stated(use, monkeypatch):
    fit, assumed = USES[use]
    X = rows(800)
    X[:, 0] += 0.4
    y = (X[:, 0] + RNG(1).normal(size=800) > 0).astype(int)
    fitted = fit(X, y, 0.0)
    assert assumed in fitted.ledger_.assumptions
    assert "from that row alone" in assumed.sentence.replace("from that row of", "from that row")
    assert "keeps nothing of it" in assumed.sentence
    with pytest.raises(ValueError, match="must compute the value of each row from that row alone") as refused:
        fit(X, y, 1.0)
    assert refused.value.__context__ is None
    # without the second blocking the same fit passes: the check is what refuses it
    monkeypatch.setattr(callers, "_agree", lambda *_: True)
    fit(X, y, 1.0)
