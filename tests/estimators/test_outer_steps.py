"""scikit-learn code around a fit: what learns from the records outside the ledger is found, said and kept."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier, StackingClassifier
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.utils.discovery import all_estimators

import dpscp as dp
from dpscp import BudgetError, GuaranteeWarning
from dpscp._base.assumptions import OUTER_STEPS
from dpscp.deployment import statement_markdown
from dpscp.estimators.outer_steps import _learns_nothing, _leaves, _steps_that_learn_nothing
from dpscp.guarantees import Certificate
from dpscp.training import DPSGD

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 400)
X = RNG.normal(size=(400, 3)) + 2 * Y[:, None]
OTHER = RNG.normal(size=(50, 3)) + np.repeat([[0], [2]], 25, axis=0)


class AnyRows(BaseEstimator):
    """A classifier for rows of any width, trained on no record."""

    classes_ = np.array([0, 1])

    def fit(self, X, y):  # noqa: ARG002
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, X):
        p = 1 / (1 + np.exp(-np.asarray(X, dtype=float).sum(axis=1)))
        return np.column_stack([1 - p, p])


def classifier(**options):
    return dp.PrivateConformalClassifier(dp.Prefit(AnyRows()), epsilon=2.0, accountant="rdp", **options)


def messages(fit):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit()
    return [str(w.message) for w in seen if issubclass(w.category, GuaranteeWarning)]


def leaks(model, rows=X, y=Y):
    """Fit and return the warnings about leaks and the last step."""
    model = clone(model)
    found = [text for text in messages(lambda: model.fit(rows, y)) if text.startswith("NOT private")]
    inner = model
    while isinstance(inner, Pipeline):
        inner = inner[-1]
    return found, inner


@pytest.fixture(scope="module")
def leaking():
    clf = dp.PrivateConformalClassifier(DPSGD(steps=5), epsilon=2.0, classes=[0, 1], accountant="rdp")
    pipe = make_pipeline(SimpleImputer(), StandardScaler(), PCA(2), clf)
    with pytest.warns(GuaranteeWarning, match="SimpleImputer, StandardScaler, PCA in a Pipeline learned"):
        pipe.fit(X, Y)
    return pipe


def test_a_leak_is_in_every_statement_and_survives_saving(leaking, tmp_path):
    leaking[-1].save(tmp_path / "m")
    for clf in (leaking[-1], dp.load(tmp_path / "m")):
        assert not clf.ledger_.is_private
        assert np.isinf(clf.ledger_.epsilon(1e-5))
        assert "PCA in a Pipeline" in clf.ledger_.summary(1e-5)
        assert "NOT private" in str(clf.ledger_)
        again = dp.Ledger.from_json(clf.ledger_.to_json())
        assert again.not_private_because == clf.ledger_.not_private_because
        (certificate,) = clf.certificates_
        assert "Not certified: SimpleImputer, StandardScaler, PCA in a Pipeline" in str(certificate)
        assert (certificate.coverage, certificate.is_certified, certificate.is_vacuous) == (0.0, False, True)
        assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
        statement = clf.statement()
        assert not statement["is_private"]
        assert "StandardScaler" in statement["not_private_because"][0]
        assert "Neither promise is proven" in statement["verdict"]["proven"]["words"]
        assert "**NOT private**" in statement_markdown(statement)
        assert "NOT private" in clf._repr_html_()


def test_a_fit_outside_is_not_marked():
    found, clf = leaks(classifier())
    assert not found
    assert clf.ledger_.is_private
    assert OUTER_STEPS not in clf.ledger_.assumptions
    assert "void" not in str(clf.certificate_)


FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
ORDINAL = OrdinalEncoder(categories=[["u", "v"]])
CATEGORIES = pd.DataFrame({"a": np.where(Y, "u", "v"), "b": X[:, 1]})


class OwnStateless(TransformerMixin, BaseEstimator):
    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def fit(self, X, y=None):  # noqa: ARG002
        return self

    def transform(self, X):
        return X * 2


@pytest.mark.parametrize(
    ("steps", "rows", "trusted"),
    [
        ([FunctionTransformer(np.tanh)], X, True),
        ([FrozenEstimator(StandardScaler().fit(OTHER))], X, True),
        (
            [SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True), PolynomialFeatures(2)],
            X,
            False,
        ),
        ([ColumnTransformer([("o", ORDINAL, ["a"])], remainder="passthrough")], CATEGORIES, False),
        ([ColumnTransformer([("n", Normalizer(), make_column_selector("a|b"))])], FRAME, False),
    ],
)
def test_steps_that_learn_nothing_stay_private(steps, rows, trusted):
    found, clf = leaks(make_pipeline(*steps, classifier()), rows)
    assert not found
    assert clf.ledger_.is_private
    assert (OUTER_STEPS in clf.ledger_.assumptions) == trusted
    assert clf.certificate_.is_certified


@pytest.mark.parametrize(
    ("steps", "rows", "named"),
    [
        ([StandardScaler()], X, "StandardScaler in a Pipeline"),
        ([OwnStateless()], X, "OwnStateless in a Pipeline"),
        ([ColumnTransformer([("n", Normalizer(), make_column_selector(dtype_include=float))])], FRAME, "ColumnTransf"),
        ([FeatureUnion([("n", Normalizer()), ("p", PCA(1))])], X, "PCA in a Pipeline"),
        ([ColumnTransformer([("n", "passthrough", [0])], remainder=StandardScaler())], X, "StandardScaler"),
        ([Pipeline([("s", StandardScaler()), ("n", Normalizer())])], X, "StandardScaler"),
    ],
)
def test_steps_that_learn_are_named(steps, rows, named):
    found, clf = leaks(make_pipeline(*steps, classifier()), rows)
    assert len(found) == 1
    assert named in found[0]
    assert not clf.ledger_.is_private


def test_both_of_two_nested_pipelines_are_found():
    found, clf = leaks(make_pipeline(StandardScaler(), make_pipeline(PCA(2), classifier())))
    assert len(found) == 1
    assert "PCA in a Pipeline" in found[0]
    assert "StandardScaler in a Pipeline" in found[0]
    assert len(clf.ledger_.not_private_because) == 1


def test_a_subclass_output_frames_and_a_cache_hide_nothing(tmp_path):
    class Sampling(Pipeline):
        def fit(self, X, y):
            rows = self.steps[0][1].fit_transform(X)
            self.steps[-1][1].fit(rows, y)
            return self

    found, _ = leaks(Sampling([("s", StandardScaler()), ("c", classifier())]))
    assert "StandardScaler in a Sampling" in found[0]
    pipe = Pipeline([("s", StandardScaler()), ("c", classifier())], memory=str(tmp_path)).set_output(transform="pandas")
    assert leaks(pipe)[0]


def test_a_store_refuses_steps_and_searches(tmp_path):
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=99, delta=1e-3, dataset="x")
    with pytest.raises(BudgetError, match="StandardScaler in a Pipeline learned"):
        Pipeline([("s", StandardScaler()), ("c", classifier())]).fit(X, Y, c__budget=store)
    grid = {"confidence_level": [0.8, 0.9]}
    with pytest.raises(BudgetError, match="a search chooses the parameters"):
        GridSearchCV(classifier(), grid, cv=2, error_score="raise").fit(X, Y, budget=store)
    assert store.spent(1e-3) == 0 if hasattr(store, "spent") else not store.ledger().entries
    GridSearchCV(classifier(), grid, cv=2, error_score="raise", refit=False).fit(X, Y, budget=store)
    assert len(store.ledger().entries) == 4


def test_a_search_marks_the_estimator_that_it_chose():
    search = GridSearchCV(classifier(), {"epsilon": [1.0, 2.0]}, cv=2)
    said = messages(lambda: search.fit(X, Y))
    assert sum(text.startswith("NOT private") for text in said) == 1
    best = search.best_estimator_
    assert "GridSearchCV chose the parameters" in best.ledger_.not_private_because[0]
    assert best.certificate_.void_because
    with pytest.warns(GuaranteeWarning, match="inside a search"):
        folds = cross_validate(classifier(), X, Y, cv=2, return_estimator=True)["estimator"]
    assert all(fold.ledger_.is_private for fold in folds)  # each is a release about its own records
    pipe = make_pipeline(StandardScaler(), classifier())
    said = messages(lambda: cross_val_score(pipe, X, Y, cv=2))
    assert any("StandardScaler in a Pipeline" in text for text in said)


def test_estimators_that_fit_others_are_named():
    bag = BaggingClassifier(classifier(), n_estimators=1)
    assert any("BaggingClassifier fits this estimator" in text for text in messages(lambda: bag.fit(X, Y)))
    assert not bag.estimators_[0].ledger_.is_private
    calibrated = CalibratedClassifierCV(classifier(), cv=2)
    assert any("CalibratedClassifierCV fits" in text for text in messages(lambda: calibrated.fit(X, Y)))
    stack = StackingClassifier([("l", LogisticRegression())], classifier())
    assert any("StackingClassifier fits" in text for text in messages(lambda: stack.fit(X, Y)))


def test_a_transformed_target_stays_private_by_public_functions_only():
    reg = dp.PrivateConformalRegressor(dp.Prefit(AnyRegression()), y_bounds=(0, 9), epsilon=2.0, accountant="rdp")
    for options in ({"func": np.log, "inverse_func": np.exp}, {}):
        outer = TransformedTargetRegressor(reg, **options)
        said = messages(lambda outer=outer: outer.fit(X, np.exp(X[:, 0])))
        assert not [text for text in said if text.startswith("NOT")]
        assert outer.regressor_.ledger_.is_private
    learned = TransformedTargetRegressor(reg, transformer=StandardScaler())
    said = messages(lambda: learned.fit(X, X[:, 0]))
    assert any("StandardScaler in a TransformedTargetRegressor learned" in text for text in said)


class AnyRegression(AnyRows):
    def predict(self, X):
        return np.asarray(X)[:, 0]


def test_sets_and_intervals_come_through_a_pipeline():
    pipe = make_pipeline(FunctionTransformer(np.tanh), make_pipeline(Normalizer(), classifier())).fit(X, Y)
    rows = Normalizer().transform(np.tanh(X))
    for expected, found in zip(pipe[-1][-1].predict_set(rows), dp.predict_set(pipe, X), strict=True):
        np.testing.assert_array_equal(expected, found)
    np.testing.assert_array_equal(dp.predict_set(make_pipeline(pipe[-1][-1]), rows)[1], dp.predict_set(pipe, X)[1])
    with pytest.raises(TypeError, match="needs a PrivateConformalRegressor as last step, got PrivateConformalClass"):
        dp.predict_interval(pipe, X)
    reg = dp.PrivateConformalRegressor(dp.Prefit(AnyRegression()), y_bounds=(-9, 9), epsilon=2.0, accountant="rdp")
    pipe = make_pipeline(FunctionTransformer(np.tanh), reg).fit(X, X[:, 0])
    np.testing.assert_array_equal(dp.predict_interval(pipe, X)[1], reg.predict_interval(np.tanh(X))[1])
    with pytest.raises(TypeError, match="predict_set needs"):
        dp.predict_set(pipe, X)


def test_a_private_baseline_is_marked_too():
    model = dp.paper.DPSplit(DPSGD(classes=(0, 1), steps=5), epsilon=8.0, accountant="rdp", confidence_level=0.6)
    assert clone(model).fit(X, Y).ledger_.is_private
    said = messages(lambda: make_pipeline(StandardScaler(), model).fit(X, Y))
    assert any("StandardScaler in a Pipeline" in text for text in said)
    assert "StandardScaler" in model.ledger_.not_private_because[0]


# ---- the list of steps of scikit-learn that learn nothing, against what their fit stores

NUMBERS = RNG.normal(size=(8, 3))


def with_record(row, table=NUMBERS):
    """The table with another last record."""
    return np.vstack([table[:-1], [row]])


def with_column(values):
    """The table with another first column."""
    return np.column_stack([np.broadcast_to(np.asarray(values, dtype=float), len(NUMBERS)), NUMBERS[:, 1:]])


LAST_ALONE = [*[np.nan] * (len(NUMBERS) - 1), 0.5]
NUMERIC_TABLES = [
    NUMBERS,
    with_record([1e9, -1e9, 0.0]),
    with_record([np.nan, 0.0, 1.0]),
    with_column(np.nan),
    with_column(LAST_ALONE),
    with_column(2.0),
    NUMBERS[:-1],
    NUMBERS[:1],
]
FINITE_TABLES = [table for table in NUMERIC_TABLES if np.isfinite(table).all()]
CODES = [0, 1, 2, 1, 0, 2, 1]
CODE_TABLES = [
    *(
        pd.DataFrame({"a": pd.array([*CODES, last], dtype=dtype)})
        for last in (0, 2, 7)
        for dtype in ("int64", "float64")
    ),
    pd.DataFrame({"a": [*CODES, None]}),
    pd.DataFrame({"a": [1] * 8}),
    pd.DataFrame({"a": pd.array(CODES[:-1], dtype=object)}),
]
WORDS = ["u", "v", "u", "w", "v", "u", "w"]
WORD_TABLES = [
    *(pd.DataFrame({"a": [*WORDS, last]}) for last in ("u", "w", "unknown", None)),
    pd.DataFrame({"a": ["u"] * 8}),
    pd.DataFrame({"a": WORDS[:-1]}),
    np.array([[word] for word in WORDS]),
]
WORD_OPTIONS = {"categories": [["u", "v", "w"]], "handle_unknown": "ignore", "sparse_output": False}
CODE_OPTIONS = WORD_OPTIONS | {"categories": [[0, 1, 2]]}
PASSED = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
ENTRIES = [
    *((step, FINITE_TABLES) for step in (Binarizer(threshold=0.5), Normalizer(norm="max"), PolynomialFeatures(3))),
    (SimpleImputer(strategy="constant", fill_value=0.5, keep_empty_features=True), NUMERIC_TABLES),
    (OneHotEncoder(**WORD_OPTIONS), WORD_TABLES),
    (OneHotEncoder(**WORD_OPTIONS, drop="if_binary"), WORD_TABLES),
    (OneHotEncoder(**CODE_OPTIONS), CODE_TABLES),
    (OneHotEncoder(**WORD_OPTIONS | {"sparse_output": True}), WORD_TABLES),
    (HashingVectorizer(n_features=8), [WORDS, [*WORDS, "unknown"], ["u"]]),
    (FeatureHasher(n_features=8, input_type="string"), [[[word] for word in WORDS], [["unknown"]]]),
    (OrdinalEncoder(categories=[["u", "v", "w"]], **PASSED), WORD_TABLES),
    (OrdinalEncoder(categories=[[0, 1, 2]], **PASSED), CODE_TABLES),
    (
        ColumnTransformer([("n", Normalizer(), [0, 1])], remainder="passthrough"),
        [NUMBERS, with_record([9.0, 0.0, 1.0])],
    ),
    (
        ColumnTransformer([("n", OneHotEncoder(**WORD_OPTIONS), make_column_selector("a"))], remainder="drop"),
        [table for table in WORD_TABLES if isinstance(table, pd.DataFrame)],
    ),
    (FeatureUnion([("n", Normalizer()), ("p", "passthrough")]), [NUMBERS, with_record([9.0, 0.0, 1.0])]),
]
LEARNING = [
    (StandardScaler(), NUMERIC_TABLES),
    (SimpleImputer(), NUMERIC_TABLES),
    (SimpleImputer(strategy="constant", keep_empty_features=True, add_indicator=True), NUMERIC_TABLES),
    (MissingIndicator(), NUMERIC_TABLES),
    (OneHotEncoder(sparse_output=False), WORD_TABLES[1:3]),
    (OneHotEncoder(**WORD_OPTIONS | {"handle_unknown": "infrequent_if_exist"}, min_frequency=3), WORD_TABLES[:2]),
    (OneHotEncoder(**WORD_OPTIONS | {"handle_unknown": "infrequent_if_exist"}, max_categories=2), WORD_TABLES[1:3]),
    (OneHotEncoder(**CODE_OPTIONS | {"categories": [[0.5, 1.5, 2.5]]}), CODE_TABLES),
    (OrdinalEncoder(categories=[["0", "1", "2"]], **PASSED), CODE_TABLES),
    (OrdinalEncoder(min_frequency=3), WORD_TABLES[:2]),
    (
        ColumnTransformer([("p", "passthrough", make_column_selector(dtype_include=float))]),
        [pd.DataFrame({"a": [*CODES, last], "b": NUMBERS[:, 0]}) for last in (1, None)],
    ),
    (
        ColumnTransformer(
            [("o", OneHotEncoder(**WORD_OPTIONS | {"sparse_output": True}), ["a"])], sparse_threshold=0.25
        ),
        [pd.DataFrame({"a": ["u", *["x"] * k]}) for k in (0, 1)],
    ),
    (ColumnTransformer([("n", "passthrough", lambda rows: [int(rows[0, 0] > 0)])]), [NUMBERS, -NUMBERS]),
]


def learned(value):
    """What a fit has stored, as comparable values: all that is no parameter, and no type or length of a text."""
    if isinstance(value, BaseEstimator):
        names = (
            set(vars(value)) - set(value.get_params(deep=False)) - {"_fit_dtype", "_fill_dtype", "feature_names_in_"}
        )
        return (type(value).__name__, {name: learned(vars(value)[name]) for name in sorted(names)})
    if isinstance(value, np.ndarray):
        return learned(value.tolist())
    if isinstance(value, dict):
        return {key: learned(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [learned(part) for part in value]
    return "NaN" if isinstance(value, float) and np.isnan(value) else value


def fitted_states(step, tables):
    """The states after the fits that were not refused, and the widths of their outputs."""
    found = []
    for table in tables:
        done = clone(step)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                width = done.fit_transform(table).shape[1]
        except ValueError:
            continue  # an error stores nothing
        found.append((width, learned(done)))
    assert len(found) >= 2
    return found


@pytest.mark.parametrize(("step", "tables"), ENTRIES, ids=lambda value: type(value).__name__)
def test_what_is_on_the_list_stores_nothing_of_the_records(step, tables):
    first, *others = fitted_states(step, tables)
    for other in others:
        assert other == first
    assert all(_learns_nothing(leaf) for leaf in _leaves([step]))


@pytest.mark.parametrize(("step", "tables"), LEARNING, ids=lambda value: type(value).__name__)
def test_what_stores_something_of_the_records_is_not_on_the_list(step, tables):
    first, *others = fitted_states(step, tables)
    assert any(other != first for other in others)
    assert not all(_learns_nothing(leaf) for leaf in _leaves([step]))


def test_every_other_transformer_of_scikit_learn_counts_as_one_that_learned():
    listed = {kind.__name__ for kind in _steps_that_learn_nothing()}
    kinds = dict(all_estimators(type_filter="transformer"))
    assert listed - {"FrozenEstimator"} <= set(kinds)
    others = {name: kind for name, kind in kinds.items() if name not in listed}
    assert len(others) > 60
    assert not any(_learns_nothing(kind.__new__(kind)) for kind in others.values())
    own = type("Binarizer", (Binarizer,), {})
    assert not _learns_nothing(own())  # a class of the caller, whatever it inherits


# ---- code of the caller around a fit


class Centering(BaseEstimator):
    """An estimator of the caller that fits another on rows that it transforms itself."""

    def __init__(self, inner):
        self.inner = inner

    def fit(self, X, y):
        self.inner_ = clone(self.inner).fit(X - X.mean(axis=0), y)
        return self


class Remembering:
    """A function that adds a row of its first call to the rows of every later one."""

    def __init__(self):
        self.first = None
        self.calls = 0

    def __call__(self, rows):
        self.calls += 1
        self.first = rows[0].copy() if self.first is None else self.first
        return rows + self.first


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
def test_code_of_the_caller_is_taken_at_its_word_and_never_tried(tmp_path):
    remembering, rows = Remembering(), [X.copy() for _ in range(6)]
    regression = dp.PrivateConformalRegressor(
        dp.Prefit(AnyRegression()), y_bounds=(-9, 9), epsilon=2.0, accountant="rdp"
    )
    center = {"func": lambda y: y - y.mean(), "inverse_func": lambda y: y, "check_inverse": False}
    fits = [
        make_pipeline(FunctionTransformer(remembering), classifier()).fit(rows[0], Y)[-1],
        make_pipeline(FunctionTransformer(lambda rows: rows - rows.mean(axis=0)), classifier()).fit(rows[1], Y)[-1],
        make_pipeline(FrozenEstimator(StandardScaler().fit(X)), classifier()).fit(rows[2], Y)[-1],
        Centering(classifier()).fit(rows[3], Y).inner_,
        TransformedTargetRegressor(regression, **center).fit(rows[4], X[:, 0]).regressor_,
    ]
    assert remembering.calls == 1
    for fitted in fits:
        assert fitted.ledger_.is_private
        said = f"Assumed and not checked: {OUTER_STEPS}."
        for release in (fitted.ledger_, fitted.certificate_):
            assert release.assumptions[0] == OUTER_STEPS
            assert str(release).startswith(said)
            assert said in release._repr_html_()
        assert fitted.ledger_.summary(1e-5).startswith(said)
        assert statement_markdown(fitted.statement()).splitlines()[2] == said
        fitted.report(tmp_path / "r.html")
        page = (tmp_path / "r.html").read_text(encoding="utf-8")
        assert page.index(said) < page.index('id="verdict"')
    multilabel = dp.PrivateMultilabelClassifier(estimator=DPSGD(steps=2), epsilon=9.0, accountant="rdp", random_state=0)
    fitted = make_pipeline(FunctionTransformer(np.tanh), multilabel).fit(X, np.column_stack([Y, 1 - Y]))[-1]
    assert fitted.ledger_.assumptions[0] == fitted.certificate_.assumptions[0] == OUTER_STEPS
    baseline = dp.paper.DPSplit(DPSGD(classes=(0, 1), steps=5), epsilon=8.0, accountant="rdp", confidence_level=0.6)
    assert make_pipeline(FunctionTransformer(np.tanh), baseline).fit(X, Y)[-1].ledger_.assumptions[0] == OUTER_STEPS
    assert OUTER_STEPS not in make_pipeline(Normalizer(), classifier()).fit(rows[5], Y)[-1].ledger_.assumptions
