"""One finite record, however strange, never decides whether a fit raises or what it says.

And a function of the caller that answers for a record by looking at the others is refused: with it, one record would
change the groups or scores of all.
"""

import warnings

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp import PrivateConformalClassifier, PrivateConformalRegressor, PrivateModel
from dpscp.paper import DPSCP, DPSplit
from dpscp.privacy import dpsgd_event
from dpscp.scores import LABEL_SCORES
from dpscp.threshold import search
from dpscp.training import DPSGD, ObjectivePerturbation, OutputPerturbation, SufficientStatistics

# fits that other tests trace for coverage too
pytestmark = pytest.mark.no_cover

N = 200
LARGEST = np.finfo(np.float64).max
LARGEST_SINGLE = float(np.finfo(np.float32).max)
GUARANTEES = ("universal", "stability", "split", "corrected", "finite", "asymptotic")
COMMON = {"epsilon": 8.0, "confidence_level": 0.7, "accountant": "rdp", "random_state": 0, "n_records": N}
STABLE = DPSGD(steps=5, learning_rate=0.1, clip_norm=2.0, feature_bound=1.0, dtype="float64")


def one(*values):
    return np.array([values], dtype=np.float64)


# huge, beyond float32, squares beyond float32, denormal, nothing, minus nothing
ROWS = {
    "largest": np.full((1, 3), LARGEST),
    "one minus largest": one(0.3, -LARGEST, 0.1),
    "opposite ends": one(LARGEST, -LARGEST, 1e300),
    "1e39": np.full((1, 3), 1e39),
    "1e20": np.full((1, 3), -1e20),
    "denormal": one(5e-324, -5e-324, 1e-310),
    "minus zero": np.full((1, 3), -0.0),
}
TARGETS = {"1.7e308": 1.7e308, "-largest": -LARGEST, "1e39": 1e39, "denormal": 5e-324, "minus zero": -0.0}


def labeled(n=N):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 3))
    X[:, 0] += 3 * (y - 1)
    return X, y


def measured(n=N):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, X.sum(axis=1) + 0.3 * rng.normal(size=n)


def classifier(estimator, **changes):
    return PrivateConformalClassifier(estimator, **COMMON | {"classes": [0, 1, 2]} | changes)


def regressor(estimator, **changes):
    return PrivateConformalRegressor(estimator, **COMMON | {"y_bounds": (-6, 6)} | changes)


def outcome(model, X, y):
    """What a fit says: its error, or its warnings and everything public that is not a noisy number."""
    with warnings.catch_warnings(record=True) as heard, np.errstate(over="raise", invalid="raise", divide="raise"):
        warnings.simplefilter("always")
        try:
            model.fit(X, y)
        except Exception as error:
            return type(error), str(error)
    said = [(w.category, str(w.message)) for w in heard]
    certificates = [str(c) for c in getattr(model, "certificates_", ())]
    return said, certificates, model.ledger_.to_json(), np.isfinite(model.threshold_).tolist()


def assert_no_record_shows(model, X, y, records):
    honest = search.release_size
    with pytest.MonkeyPatch.context() as patch:
        # a noisy size may move by the record: it is released as if there were as many scores in both worlds
        patch.setattr(search, "release_size", lambda _, *rest: honest(N, *rest))
        usual = outcome(model, X, y)
        assert isinstance(usual[0], list), usual  # a comparison of two errors would prove nothing
        for name, (row, target) in records.items():
            strange = outcome(model, np.vstack([X, row]), np.append(y, target))
            assert strange == usual, name


def strange_rows(target, largest=LARGEST):
    return {name: (np.clip(row, -largest, largest), target) for name, row in ROWS.items()}


STRANGE_TARGETS = {f"y = {name}": (np.zeros((1, 3)), value) for name, value in TARGETS.items()}
BOUNDED = {"feature_bounds": (-4, 4)}


def squared(p):
    return (1 - p) ** 2


def with_a_proof(scores):
    """Every guarantee with every score; 'stability' needs the first one, whose Lipschitz constant is known."""
    return [(g, s) for g in GUARANTEES for s in (scores[:1] if g == "stability" else scores)]


class TestOneFiniteRecord:
    @pytest.mark.parametrize(("guarantee", "score"), with_a_proof([*LABEL_SCORES, squared]))
    @pytest.mark.covering
    def test_labels(self, guarantee, score):
        model = classifier(STABLE, guarantee=guarantee, conformity_score=score)
        assert_no_record_shows(model, *labeled(), records=strange_rows(1))

    @pytest.mark.parametrize(("guarantee", "score"), with_a_proof(["absolute", "normalized", "cqr"]))
    @pytest.mark.covering
    def test_numbers(self, guarantee, score):
        model = regressor(None, guarantee=guarantee, conformity_score=score, **BOUNDED)
        assert_no_record_shows(model, *measured(), records=STRANGE_TARGETS | {"both": (ROWS["largest"], -LARGEST)})

    @pytest.mark.parametrize("guarantee", ["split", "corrected"])
    @pytest.mark.parametrize(
        "estimator",
        [
            None,
            DPSGD(steps=5),
            DPSGD(steps=5, dtype="float64"),
            DPSGD(hidden=(4,), steps=5),
            OutputPerturbation(),
            ObjectivePerturbation(noise_multiplier=2.0),
        ],
        ids=["recipe", "linear", "float64", "hidden", "output", "objective"],
    )
    @pytest.mark.parametrize(
        "bounds", [{}, {"feature_bounds": dp.RowNorm(3.0)}, BOUNDED], ids=["unbounded", "norm", "features"]
    )
    @pytest.mark.covering
    def test_classifiers(self, guarantee, estimator, bounds):
        records = strange_rows(1, LARGEST if bounds else LARGEST_SINGLE)
        assert_no_record_shows(classifier(estimator, guarantee=guarantee, **bounds), *labeled(), records=records)

    @pytest.mark.parametrize("guarantee", ["split", "corrected"])
    @pytest.mark.parametrize(
        "estimator",
        [
            DPSGD(loss="huber", steps=5),
            DPSGD(loss="squared", hidden=(4,), steps=5),
            SufficientStatistics(2.0, (-6.0, 6.0)),
        ],
        ids=["linear", "hidden", "summaries"],
    )
    @pytest.mark.covering
    def test_regressors(self, guarantee, estimator):
        assert_no_record_shows(
            regressor(estimator, guarantee=guarantee), *measured(), records=strange_rows(1e300, LARGEST_SINGLE)
        )

    @pytest.mark.parametrize("score", ["absolute", "normalized", "cqr"])
    def test_a_wide_target_range(self, score):
        """y - prediction itself overflows."""
        X, y = measured()
        model = regressor(None, guarantee="split", conformity_score=score, y_bounds=(-4e307, 4e307), **BOUNDED)
        assert_no_record_shows(model, X, y * 6e306, STRANGE_TARGETS)

    @pytest.mark.parametrize("task", ["classification", "regression"])
    def test_a_model_from_elsewhere_that_gives_no_number(self, task):
        def outputs(rows):
            wild = np.abs(rows).max(axis=1, keepdims=True) > 1e10
            return np.where(wild, np.nan, rows if task == "classification" else rows[:, :1])

        classes = (0, 1, 2) if task == "classification" else None
        spent = dpsgd_event(20.0, 1.0, 10)
        foreign = PrivateModel.from_outputs(outputs, spent=spent, task=task, n_features=3, classes=classes)
        make, records = (classifier, labeled()) if classes else (regressor, measured())
        model = make(foreign, guarantee="universal")
        assert_no_record_shows(model, *records, records=strange_rows(1))
        wild = np.full((2, 3), 1e300)
        if classes:
            assert not model.predict_set(wild)[1].any()
            model.threshold_ = np.array([np.inf])
            assert model.predict_set(wild)[1].all()
        else:
            assert np.isfinite(model.predict_interval(wild)[1]).all()

    def test_a_score_of_ones_own_that_overflows(self):
        def steep(p):
            return np.clip(-np.log(p) * np.where(p < 1e-200, np.inf, 0.1), 0, 1)

        model = classifier(STABLE, guarantee="split", conformity_score=steep)
        assert_no_record_shows(model, *labeled(), records=strange_rows(1))

    def test_a_group_function_that_overflows(self):
        def far(X):
            return (X**2).sum(axis=1) > 1e300

        model = classifier(STABLE, guarantee="split", groups=dp.Groups(far, values=[False]))
        assert_no_record_shows(model, *labeled(), records=strange_rows(1))

    @pytest.mark.parametrize("method", [DPSplit, DPSCP])
    @pytest.mark.parametrize("task", ["classification", "regression"])
    @pytest.mark.covering
    def test_the_private_methods_of_the_paper(self, task, method):
        if task == "classification":
            estimator, records, target = DPSGD(steps=5, classes=(0, 1, 2)), labeled(), 1
        else:
            estimator, records, target = DPSGD(steps=5, loss="huber"), measured(), LARGEST
        settings = {
            key: COMMON[key] for key in ("epsilon", "confidence_level", "accountant", "random_state", "n_records")
        }
        score_range = None if task == "classification" else (0, 6)
        model = method(estimator, score_range=score_range, **settings)
        assert_no_record_shows(model, *records, records=strange_rows(target, LARGEST_SINGLE))

    def test_the_comparison_can_fail(self):
        model = classifier(STABLE, guarantee="split")
        with pytest.raises(AssertionError, match="NaN"):
            assert_no_record_shows(model, *labeled(), records={"NaN": (np.full((1, 3), np.nan), 1)})


# ---- functions of the caller that look at more than the row


def above_the_mean(X):
    return np.asarray(X)[:, 0] > np.asarray(X)[:, 0].mean()


def quantile_bins(X):
    return np.digitize(np.asarray(X)[:, 0], np.quantile(np.asarray(X)[:, 0], [0.25, 0.5, 0.75]))


def position(X):
    return np.arange(len(X)) % 2


def neighbor(X):
    return np.roll(np.asarray(X)[:, 0], 1) > 0


LOOKING_AROUND = [above_the_mean, quantile_bins, position, neighbor]
GROUP_VALUES = [0, 1, 2, 3]


class TestGroupFunctionsThatLookAtTheTable:
    @pytest.mark.parametrize("look", LOOKING_AROUND)
    @pytest.mark.parametrize("form", [np.asarray, lambda X: pd.DataFrame(X, columns=list("abc")), lambda X: X.tolist()])
    def test_refused_before_anything_is_spent(self, look, form, tmp_path):
        X, y = labeled()
        store = dp.BudgetStore.create(tmp_path / "budget", epsilon=10.0, delta=1e-3, dataset="made up")
        model = classifier(STABLE, guarantee="split", groups=dp.Groups(look, values=GROUP_VALUES), random_state=None)
        with pytest.raises(ValueError, match="groups must compute the value of each row from that row alone") as caught:
            model.fit(form(X), y, budget=store)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None  # what the function itself said could hold records
        assert store.ledger().entries == ()


# ---- scores of the caller


def by_column(p):
    return (p - p.min(axis=0)) / (p.max(axis=0) - p.min(axis=0) + 1e-9)


def by_rank(p):
    return 1 - p.argsort(axis=0).argsort(axis=0) / len(p)


def first_row(p):
    return np.abs(p - p[:1])


def in_large_tables(p):
    return 1 - p if len(p) < 100 else 1 - p / p.max()


OUTSIDE = [lambda p: -p, lambda p: 2 - p, lambda p: np.log(p), lambda p: p / 0 * 0, lambda p: -np.log(p) / 10]


class TestOwnScores:
    @pytest.mark.parametrize("score", [by_column, by_rank, first_row])
    def test_looking_at_other_rows_is_refused_before_anything_is_spent(self, score, tmp_path):
        X, y = labeled()
        store = dp.BudgetStore.create(tmp_path / "budget", epsilon=10.0, delta=1e-3, dataset="made up")
        model = classifier(STABLE, guarantee="split", conformity_score=score, random_state=None)
        with pytest.raises(ValueError, match="conformity_score must compute the value of each row from that row alone"):
            model.fit(X, y, budget=store)
        assert store.ledger().entries == ()

    @pytest.mark.parametrize("score", OUTSIDE)
    def test_outside_its_range_is_refused_before_training(self, score, monkeypatch):
        def forbidden(*arguments, **options):
            raise AssertionError("training began")

        monkeypatch.setattr(DPSGD, "train", forbidden)
        with pytest.raises(ValueError, match="conformity_score must return scores between 0 and 1, got"):
            classifier(STABLE, guarantee="split", conformity_score=score).fit(*labeled())

    @pytest.mark.parametrize("score", [lambda p: p[0], lambda p: p + 0j, lambda p: p.astype(str), lambda p: [p]])
    def test_other_shapes_and_kinds(self, score):
        with pytest.raises(ValueError, match="one real number for each row and label"):
            classifier(STABLE, guarantee="split", conformity_score=score).fit(*labeled())

    def test_one_that_changes_with_the_size_of_the_table_is_found_on_the_records(self):
        with pytest.raises(ValueError, match="conformity_score must compute the value of each row"):
            classifier(STABLE, guarantee="universal", conformity_score=in_large_tables).fit(*labeled())

    def test_a_loaded_model_wants_its_function_back(self, tmp_path):
        """It used the default score with thresholds of another one, in silence."""
        X, y = labeled()
        model = classifier(STABLE, guarantee="split", conformity_score=squared).fit(X, y)
        model.save(tmp_path / "model")
        loaded = dp.load(tmp_path / "model")
        with pytest.raises(ValueError, match="set it after loading"):
            loaded.predict_set(X)
        loaded.set_params(conformity_score=squared)
        np.testing.assert_array_equal(loaded.predict_set(X)[1], model.predict_set(X)[1])
