"""Another population: held-out records are thinned by secret coins, and the promise is for the declared one."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.core.release import ANOTHER_POPULATION, NORMALIZED_RATIO
from dpscp.data.populations import Population, keep_by_ratio
from dpscp.data.schema import parse_schema
from dpscp.data.sources import TableSource

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")

RNG = np.random.default_rng
EVEN = Population(lambda X: np.ones(len(X)), bound=4.0)


def calibrated(scores, ratios, **options):
    given = {"epsilon": 2.0, "delta": 1e-6, "score_range": (0, 1), "held_out": True, "random_state": 0}
    normalized = options.pop("normalized", False)
    population = None if ratios is None else Population(ratios, bound=options.pop("bound", 4.0), normalized=normalized)
    return dp.calibrate(scores, population=population, **given | options)


def scores_of(x, rng):
    """Scores that grow with x: a shift to large x misses more often."""
    return np.minimum(np.abs(rng.normal(size=len(x))) * (1 + 3 * x) / 20, 1)


def coverage_at(threshold, rng, x=None):
    x = rng.random(4_000) ** 0.25 if x is None else x
    return (scores_of(x, rng) <= threshold).mean()


@pytest.mark.parametrize(("has_persons", "normalized"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_declared_population_is_covered(has_persons, normalized, is_quick):
    """Rows of a person are copies of each other here: only one random row of each may count."""
    rng, kept, ignored = RNG(2), [], []
    for seed in range(16 if is_quick else 40):
        x = rng.random(800)
        scores, options = scores_of(x, rng), {"n_records": 800}
        if has_persons:
            rows = np.repeat(np.arange(800), np.where(x < 0.5, 5, 1))
            x, scores = x[rows], scores[rows]
            options = {"persons": rows, "rows_per_person": 5, "n_persons": 800}
        found = calibrated(scores, 4 * x**3, random_state=seed, normalized=normalized, **options)
        kept.append(coverage_at(found.threshold, rng))
        if seed < (5 if is_quick else 10):
            plain = calibrated(scores, None, random_state=seed, **options)
            ignored.append(coverage_at(plain.threshold, rng))
    assert np.mean(kept) >= 0.9 - 3 * np.std(kept) / len(kept) ** 0.5
    assert np.mean(kept) < 0.95
    assert np.mean(ignored) < 0.85  # without the ratio the promise would fail


def test_coins_follow_the_ratio():
    ratios = np.repeat([0.0, 0.5, 1.0, 2.0], 20_000)
    kept = keep_by_ratio(ratios, 2.0, RNG(0).random(80_000)).reshape(4, -1).mean(axis=1)
    assert kept[0] == 0.0
    assert kept[3] == 1.0
    assert np.allclose(kept[1:3], [0.25, 0.5], atol=5 * (0.25 / 20_000) ** 0.5)


def test_the_number_of_kept_records_is_released_with_noise_and_planned():
    scores = RNG(0).random(4_000)
    found = calibrated(scores, np.ones(4_000))
    assert found.certificate.terms.size_noise is not None
    assert found.certificate.terms.calibration_units == 1_000
    assert abs(found.certificate.terms.released_size - 1_000) < 200
    assert found.certificate.terms.ratio_bound == 4.0
    assert ANOTHER_POPULATION in found.certificate.assumptions
    assert "exchangeable with the ones used" not in str(found.certificate)
    assert "For a new record of the declared population" in str(found.certificate)
    assert dp.Certificate.from_dict(found.certificate.to_dict()) == found.certificate
    whole, part = (dp.plan(n=8_000, epsilon=1.0, population=other).row("split") for other in (None, EVEN))
    assert part.overshoot > whole.overshoot


@pytest.mark.parametrize("bad", [4.5, -0.125, np.nan, np.inf])
def test_a_ratio_outside_its_bounds_is_refused_without_naming_the_record(bad):
    ratios = np.ones(500)
    ratios[137] = bad
    with pytest.raises(ValueError, match="between 0 and bound=4") as refused:
        calibrated(np.linspace(0, 1, 500), ratios)
    assert str(bad) not in str(refused.value)
    assert "137" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bound": 0.5}, "at least 1"),
        ({"ratios": np.ones(3)}, "one number for each record"),
        ({"ratios": lambda X: X[:, 0]}, "needs an array with the ratio of each record"),
        ({"held_out": False, "training": dp.privacy.gaussian_event(20.0)}, "guarantee='split'"),
    ],
)
def test_wrong_arguments_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        calibrated(np.linspace(0, 1, 200), options.pop("ratios", np.ones(200)), **options)


def test_a_population_is_a_value_that_is_checked_where_it_is_made():
    assert Population(np.mean, bound=2) == Population(np.mean, bound=2.0)
    for wrong, error, words in (
        (lambda: Population(3.0, bound=2.0), TypeError, "must be a function of X"),
        (lambda: Population(np.mean, bound=np.nan), ValueError, "bound must be finite"),
        (lambda: Population(np.mean, bound=2.0, normalized=1), TypeError, "True or False"),
        (lambda: Population.from_class_priors({0: 1.0}, [0.5]), TypeError, "source must be a dictionary"),
        (lambda: Population.from_class_priors({0: 0.7, 1: 0.2}, {0: 0.5, 1: 0.5}), ValueError, "add up to 1"),
        (lambda: Population.from_class_priors({0: 0.8, 1: 0.2}, {0: 1.0, 1: 0.0}), ValueError, "positive"),
        (lambda: Population.from_class_priors({0: 0.8, 2: 0.2}, {0: 0.5, 1: 0.5}), ValueError, "the same classes"),
    ):
        with pytest.raises(error, match=words):
            wrong()
    with pytest.raises(TypeError, match=r"must be a dp\.Population"):
        dp.calibrate(np.ones(5), population=2.0, epsilon=1.0, delta=1e-6, score_range=(0, 1), held_out=True)


def data(n, seed=0):
    rng = RNG(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    y = (X[:, 0] + rng.normal(size=n) * (0.1 + 0.9 * (X[:, 1] > 0)) > 0).astype(int)
    return X, y


def ratio_of_rows(X):
    return 2.0 * (X[:, 1] > 0)


def mean_ratio(X):
    return X[:, 1] - X[:, 1].mean() + 1.5


def classifier(**options):
    given = {"epsilon": 2.0, "delta": 1e-6, "classes": [0, 1], "feature_bounds": (-1, 1), "random_state": 0}
    return dp.PrivateConformalClassifier(**given | {"calibration_fraction": 0.4} | options)


def test_an_estimator_covers_the_declared_population():
    X, y = data(6_000)
    new_X, new_y = data(8_000, seed=1)
    hard = new_X[:, 1] > 0
    found = []
    others = [Population(ratio_of_rows, bound=2.0, normalized=normalized) for normalized in (False, True)]
    for options in ({}, *({"population": other} for other in others)):
        fitted = classifier(**options).fit(X, y)
        sets = fitted.predict_set(new_X[hard])[1][:, :, 0]
        found.append(sets[np.arange(hard.sum()), new_y[hard]].mean())
        assert fitted.ledger_.epsilon(1e-6) <= 2.0
    assert found[0] < 0.87
    assert 0.88 < min(found[1:]) <= max(found[1:]) < 0.95
    assert fitted.certificate_.guarantee == "split"
    assert fitted.ledger_.public_facts["ratio_bound"] == 2.0


def test_a_normalized_ratio_weights_misses_and_drops_nobody():
    """A miss counts w / W, so alpha / W is searched among all records; with groups the coins drop records."""
    X, y = data(600)
    weighted = Population(ratio_of_rows, bound=2.0, normalized=True)
    fits = [
        classifier(epsilon=0.5, population=other).fit(X, y) for other in (replace(weighted, normalized=False), weighted)
    ]
    terms = [fitted.certificate_.terms for fitted in fits]
    assert [term.calibration_units for term in terms] == [120, 240]
    assert [term.inner_level for term in terms] == pytest.approx([0.9 + 1e-4, 0.95])
    assert ["released_sizes" in fitted.ledger_.public_facts for fitted in fits] == [True, False]
    assert [NORMALIZED_RATIO in fitted.certificate_.assumptions for fitted in fits] == [False, True]
    by_group = classifier(population=weighted, groups="label").fit(X, y)
    assert by_group.certificate_.terms.calibration_units == 60
    assert NORMALIZED_RATIO not in by_group.certificate_.assumptions
    even = [Population(len, bound=2.0, normalized=normalized) for normalized in (False, True)]
    thinned, plain = (dp.plan(600, 0.5, counted=True, population=other).row("split").overshoot for other in even)
    assert plain < thinned


def test_a_single_release_states_what_new_records_of_the_population_are_covered(is_quick):
    """Result I is about misses that count w / W, so what is left to one is W times as large."""
    rng, missed, releases = RNG(8), 0, 16 if is_quick else 100
    for seed in range(releases):
        x = rng.random(1_500)
        found = calibrated(scores_of(x, rng), 4 * x**3, random_state=seed, normalized=True)
        missed += coverage_at(found.threshold, RNG(9)) < found.certificate.terms.release_level
    assert 0.8 < found.certificate.terms.release_level < 0.9
    assert missed <= stats.binom.isf(1e-3, releases, 0.05)


def test_records_that_training_has_seen_may_carry_a_normalized_ratio(is_quick):
    """Result B for a loss: the worst model that its privacy allows is covered, once the level is alpha / W."""
    rng, covered, spent = RNG(4), [], dp.privacy.gaussian_event(4.0)
    for seed in range(12 if is_quick else 60):
        x = rng.random(3_000)
        given = {"training": spent, "held_out": False, "guarantee": "universal", "random_state": seed}
        found = calibrated(scores_of(x, rng), 4 * x**3, normalized=True, **given)
        covered.append(coverage_at(found.threshold, rng))
    tradeoff = dp.Ledger().add("training", spent).tradeoff_function("add")
    inner = 1 - found.certificate.terms.inner_level
    assert tradeoff(inner) == pytest.approx(1 - 0.1 / 4, abs=1e-4)
    ideal = 1 - 4 * inner  # the scores do not depend on training here
    assert np.mean(covered) >= ideal - 3 * np.std(covered) / len(covered) ** 0.5
    assert found.certificate.coverage == pytest.approx(0.9)


def test_a_loaded_fit_does_not_forget_its_population(tmp_path):
    """Set to its default, the parameter would move the promise of a new fit to another population in silence."""
    X, y = data(800)
    fitted = classifier(population=Population(ratio_of_rows, bound=2.0), groups=lambda X: X[:, 0] > 0).fit(X, y)
    fitted.save(tmp_path / "model.dpscp")
    loaded = dp.load(tmp_path / "model.dpscp")
    with pytest.raises(ValueError, match=r"does not hold groups, population. To fit again, set them first"):
        loaded.fit(X, y)
    with pytest.raises(ValueError, match="set it first"):
        loaded.set_params(groups=fitted.groups).fit(X, y)
    again = loaded.set_params(population=fitted.population).fit(X, y)
    np.testing.assert_array_equal(again.threshold_, fitted.threshold_)
    again.save(tmp_path / "again.dpscp")
    whole = classifier(feature_bounds=dp.RowNorm(2.0)).fit(X, y)
    whole.save(tmp_path / "whole.dpscp")
    assert dp.load(tmp_path / "whole.dpscp").fit(X, y).get_params() == whole.get_params()


def test_persons_of_a_file_have_the_coins_of_those_in_memory(tmp_path):
    pd = pytest.importorskip("pandas")
    X, y = data(3_000)
    persons = RNG(2).permutation(np.arange(3_000) % 1_000)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "who": persons, "label": np.where(y, "yes", "no")})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    numeric = {"type": "numeric", "bounds": [-1, 1]}
    declared = {"task": "classification", "target": "label", "classes": ["no", "yes"], "person": "who"}
    declared |= {"rows_per_person": 2, "n_persons": 1_000, "columns": {"a": numeric, "b": numeric}}
    schema = parse_schema(json.dumps(declared))
    priors = Population.from_class_priors({"no": 0.8, "yes": 0.2}, {"no": 0.5, "yes": 0.5})
    fitted = dp.PrivateConformalClassifier(epsilon=4.0, delta=1e-6, random_state=0, population=priors)
    whole = fitted.fit(frame, "label", schema=schema).threshold_
    source = TableSource(tmp_path / "t.parquet", schema)
    assert np.array_equal(fitted.fit(source, schema=schema).threshold_, whole)
    assert whole[0] < 1


def test_known_class_shares_are_a_ratio_of_labels():
    X, y = data(4_000)
    priors = Population.from_class_priors({0: 0.8, 1: 0.2}, {0: 0.5, 1: 0.5})
    fitted = classifier(population=priors).fit(X, y)
    assert fitted.certificate_.terms.ratio_bound == pytest.approx(1.6)
    assert np.allclose(priors.ratios_of(X[:4], np.array([0, 1, 1, 0]), 4), [1.6, 0.4, 0.4, 1.6])


def test_a_class_that_is_declared_rare_gets_a_hint_at_its_own_promise():
    X, y = data(1_000)
    rare = Population.from_class_priors({0: 0.95, 1: 0.05}, {0: 0.5, 1: 0.5})
    with pytest.warns(dp.HintWarning, match=r"declared under 10% of new records: 1\..*groups=\"label\""):
        classifier(population=rare).fit(X, y)
    tenth = Population.from_class_priors({0: 0.9, 1: 0.1}, {0: 0.5, 1: 0.5})
    for options in ({"groups": "label"}, {"population": tenth}):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            classifier(**{"population": rare} | options).fit(X, y)
        assert not [one for one in seen if "declared under" in str(one.message)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"population": Population(ratio_of_rows, bound=1.5)}, "between 0 and bound"),
        ({"population": Population(mean_ratio, bound=3.0)}, "from that row alone"),
        ({"population": Population(ratio_of_rows, bound=2.0), "guarantee": "universal"}, "guarantee='split'"),
        ({"population": Population(np.ones(300), bound=2.0)}, "an array of ratios is for calibrate"),
        ({"population": Population.from_class_priors({0: 0.8, 2: 0.2}, {0: 0.5, 2: 0.5})}, "each of these classes"),
    ],
)
def test_an_estimator_names_wrong_arguments_before_anything_is_spent(tmp_path, options, words):
    store = dp.BudgetStore.create(tmp_path / "store", epsilon=3.0, delta=1e-5, dataset="d")
    X, y = data(300)
    with pytest.raises(ValueError, match=words):
        classifier(random_state=None, **options).fit(X, y, budget=store)
    assert store.ledger().entries == ()


@pytest.mark.parametrize(("has_persons", "normalized"), [(False, False), (True, False), (True, True)])
def test_the_risk_of_the_declared_population_is_bounded(has_persons, normalized, is_quick):
    """A loss that grows with x: a shift to large x loses more, unless the coins follow the ratio."""
    rng, kept, ignored = RNG(3), [], []

    def needs(x):
        return np.clip(x + 0.3 * rng.random(len(x)), 0, 1)

    for seed in range(16 if is_quick else 40):
        x = rng.random(800)
        options = {"n_records": 800}
        if has_persons:
            ids = np.repeat(np.arange(800), np.where(x < 0.5, 5, 1))
            x, options = x[ids], {"persons": ids, "rows_per_person": 5, "n_persons": 800}
        need, given = needs(x), {"epsilon": 2.0, "delta": 1e-6, "accountant": "rdp", "random_state": seed}
        table = {"threshold_range": (0, 1), "alpha": 0.1, **given, **options}
        other = Population(4 * x**3, bound=4.0, normalized=normalized)
        found = dp.control_risk(lambda t, need=need: np.clip(2 * (need - t), 0, 1), population=other, **table)
        new = needs(rng.random(4_000) ** 0.25)
        kept.append(np.clip(2 * (new - found.threshold), 0, 1).mean())
        if seed < (5 if is_quick else 10):
            plain = dp.control_risk(lambda t, need=need: np.clip(2 * (need - t), 0, 1), **table)
            ignored.append(np.clip(2 * (new - plain.threshold), 0, 1).mean())
    assert np.mean(kept) <= 0.1 + 3 * np.std(kept) / len(kept) ** 0.5
    assert np.mean(kept) > 0.05
    assert np.mean(ignored) > 0.13  # without the ratio the promise would fail
    assert found.certificate.terms.ratio_bound == 4.0
    assert "of the declared population is at most" in str(found.certificate)
