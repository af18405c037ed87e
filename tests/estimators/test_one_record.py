"""One finite record, however strange, never decides whether a fit raises or what it says."""

import re
import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp import PrivateConformalClassifier, PrivateConformalRegressor, PrivateModel
from dpscp.paper import DPSCP, DPSplit
from dpscp.privacy import dpsgd_event
from dpscp.scores import LABEL_SCORES
from dpscp.threshold import search
from dpscp.training import DPSGD, OutputPerturbation, SufficientStatistics

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
    promises = [c.to_dict() for c in getattr(model, "certificates_", ())]
    finite = np.isfinite(model.threshold_).tolist()
    ledger = re.sub(r'"target_spread": \[[^]]*\]', "", model.ledger_.to_json())  # noisy numbers
    return said, certificates, promises, ledger, finite, sorted(vars(model))


def assert_no_record_shows(model, X, y, records):
    honest = search.release_size
    with pytest.MonkeyPatch.context() as patch:
        # a noisy size may move by the record: it is released as if there were as many scores in both worlds
        patch.setattr(search, "release_size", lambda _, *rest: honest(N, *rest))
        usual = outcome(model, X, y)
        assert isinstance(usual[0], list), usual  # a comparison of two errors would prove nothing
        for name, (row, target) in records.items():
            strange = outcome(model, np.vstack([X, row]), np.concatenate([y, np.reshape(target, (1, *y.shape[1:]))]))
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

    @pytest.mark.parametrize("guarantee", [pytest.param("universal", marks=pytest.mark.slow), "split"])
    def test_several_numbers(self, guarantee):
        X, y = measured()
        records = {name: (row, (target, -target)) for name, (row, target) in STRANGE_TARGETS.items()}
        model = regressor(None, guarantee=guarantee, **BOUNDED | {"y_bounds": ((-6, 6), (-60, 60))})
        assert_no_record_shows(model, X, np.column_stack([y, 10 * y]), records=records)

    @pytest.mark.parametrize("guarantee", ["split", "corrected"])
    @pytest.mark.parametrize(
        "estimator",
        [
            None,
            DPSGD(steps=5),
            DPSGD(steps=5, dtype="float64"),
            DPSGD(hidden=(4,), steps=5),
            OutputPerturbation(),
        ],
        ids=["recipe", "linear", "float64", "hidden", "output"],
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


class TestOneRareRecord:
    """A label or a group that no other record has, and a record less than declared."""

    @pytest.mark.parametrize("guarantee", [*GUARANTEES, "auto"])
    @pytest.mark.parametrize("estimator", [None, STABLE], ids=["recipe", "mechanism"])
    @pytest.mark.parametrize("groups", [None, "label"])
    @pytest.mark.covering
    def test_label(self, guarantee, estimator, groups):
        X, y = labeled()
        names = np.array(["u", "v", "w", "rare"])
        model = classifier(estimator, guarantee=guarantee, classes=list(names), groups=groups, **BOUNDED)
        assert_no_record_shows(model, X, names[y], records={"rare": (X[:1], "rare")})

    @pytest.mark.parametrize("guarantee", ["universal", "split", "corrected", "asymptotic"])
    def test_group(self, guarantee):
        X, y = measured()
        groups = dp.Groups(lambda X: X[:, 1] < 2, values=[True, False])
        model = regressor(DPSGD(loss="huber", steps=5), guarantee=guarantee, groups=groups)
        assert_no_record_shows(model, X, y, records={"rare": (np.full((1, 3), 3.0), 0.0)})

    def test_a_record_less_than_declared(self):
        X, y = labeled()
        model = classifier(STABLE, guarantee="split")
        assert_no_record_shows(model, X[:-1], y[:-1], records={"last": (X[-1:], y[-1])})
        model = classifier(STABLE, guarantee="asymptotic", n_records=None)
        with pytest.raises(AssertionError):
            assert_no_record_shows(model, X[:-1], y[:-1], records={"last": (X[-1:], y[-1])})


# ---- scores of the caller


OUTSIDE = [lambda p: -p, lambda p: 2 - p, lambda p: np.log(p), lambda p: p / 0 * 0, lambda p: -np.log(p) / 10]


class TestOwnScores:
    @pytest.mark.parametrize("score", OUTSIDE)
    def test_outside_its_range_is_refused_before_training(self, score, monkeypatch):
        def forbidden(*arguments, **options):
            raise AssertionError("training began")

        monkeypatch.setattr(DPSGD, "train", forbidden)
        with pytest.raises(ValueError, match="conformity_score must return scores between 0 and 1, got"):
            classifier(STABLE, guarantee="split", conformity_score=score).fit(*labeled())
