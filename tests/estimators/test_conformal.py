"""The estimators: contract, guarantees, scores, mechanisms, levels, groups, randomness, scikit-learn and bad input."""

import math
import warnings

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import dpscp as dp
from dpscp import (
    BudgetError,
    GuaranteeWarning,
    NotFittedError,
    PrivateConformalClassifier,
    PrivateConformalRegressor,
    PrivateModel,
    SeededWarning,
)
from dpscp._base.assumptions import HARD_BOUNDS
from dpscp.exceptions import HintWarning, ReuseWarning
from dpscp.privacy import dpsgd_event
from dpscp.privacy.events import possible_histories
from dpscp.threshold.counts import Halving, midpoint_tree
from dpscp.training import (
    DPSGD,
    OutputPerturbation,
    Preprocessed,
    UnitNorm,
)

CERTIFIED = ("universal", "stability", "split")
GUARANTEES = (*CERTIFIED, "corrected", "finite", "asymptotic")
DELTA = 1e-5
QUICK = DPSGD(steps=20, learning_rate=1.0)
QUICK_REGRESSION = DPSGD(loss="huber", steps=20, learning_rate=0.5)
STABLE = DPSGD(steps=20, learning_rate=0.1, clip_norm=2.0, feature_bound=1.0)


def labeled(n=1237, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 4))
    X[:, 0] += 3 * (y - 1)
    return X, y


def measured(n=1237, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 4))
    return X, X.sum(axis=1) + 0.3 * rng.normal(size=n)


def classifier(estimator=None, **changes):
    settings = {"epsilon": 4.0, "delta": DELTA, "classes": [0, 1, 2], "accountant": "rdp", "random_state": 0}
    return PrivateConformalClassifier(estimator, **settings | changes)


def regressor(estimator=None, **changes):
    settings = {
        "epsilon": 4.0,
        "delta": DELTA,
        "y_bounds": (-6, 6),
        "feature_bounds": (-1, 1),
        "accountant": "rdp",
        "random_state": 0,
    }
    return PrivateConformalRegressor(estimator, **settings | changes)


def coverage(sets, y):
    return sets[np.arange(len(y)), y, 0].mean()


def lower_tolerance(level, n):
    """Four standard deviations of a binomial proportion: a promise kept on average fails this once in 30,000 tests."""
    return level - 4 * math.sqrt(level * (1 - level) / n)


class TestGuarantees:
    @pytest.mark.parametrize("guarantee", [*GUARANTEES, "auto"])
    def test_recipe_classifier(self, guarantee):
        X, y = labeled(2500)
        model = classifier(guarantee=guarantee).fit(X[:1250], y[:1250])
        used = model.certificate_.guarantee
        assert used in CERTIFIED if guarantee == "auto" else used == guarantee
        assert model.ledger_.epsilon(DELTA, "rdp") <= 4.0
        assert coverage(model.predict_set(X[1250:])[1], y[1250:]) >= lower_tolerance(0.9, 1250)
        if used in CERTIFIED:
            assert model.certificate_.coverage == pytest.approx(0.9)
            assert model.certificate_.is_certified
        else:
            assert not model.certificate_.is_certified
            assert "is not proven for finite samples" in str(model.certificate_)

    @pytest.mark.parametrize("guarantee", [*GUARANTEES, "auto"])
    def test_recipe_regressor(self, guarantee):
        X, y = measured(2500)
        model = regressor(guarantee=guarantee).fit(X[:1250], y[:1250])
        used = model.certificate_.guarantee
        assert used in CERTIFIED if guarantee == "auto" else used == guarantee
        assert model.ledger_.epsilon(DELTA, "rdp") <= 4.0
        intervals = model.predict_interval(X[1250:])[1][:, :, 0]
        assert np.mean((intervals[:, 0] <= y[1250:]) & (y[1250:] <= intervals[:, 1])) >= lower_tolerance(0.9, 1250)

    def test_stability_adds_its_buffer_and_names_its_assumptions(self):
        X, y = labeled()
        model = classifier(STABLE, guarantee="stability").fit(X, y)
        buffer = model.certificate_.terms["value_buffer"]
        # u = 20 * 0.1 * sqrt(2) * B / n with B = sqrt(2), h = sqrt(2) / 4 * B * u; rounding adds less than a percent
        assert buffer == pytest.approx(2 * 0.5 * 4 / len(X), rel=0.01)
        points = midpoint_tree(0.0, 1.0, model.certificate_.terms["steps"], Halving.fine((0.0, 1.0), (0.0, 1.0)))
        assert np.abs(points - (model.threshold_ - buffer)).min() < 1e-12
        text = " ".join(map(str, model.certificate_.assumptions))
        assert "convex" in text
        assert "norm at most 1" in text

    @pytest.mark.parametrize("score", ["aps", "raps", lambda p: 1 - p])
    def test_stability_needs_the_score_with_the_known_constant(self, score):
        with pytest.raises(ValueError, match="Lipschitz"):
            classifier(STABLE, guarantee="stability", conformity_score=score).fit(*labeled(200))

    def test_corrected_says_when_it_has_no_correction(self):
        X, y = labeled()
        own = classifier(QUICK, guarantee="corrected").fit(X, y)
        assert any("removed to first order" in a.sentence for a in own.certificate_.assumptions)
        plain = classifier(DPSGD(hidden=(4,), steps=20), guarantee="corrected").fit(X, y)
        assert any("Result F alone" in a.sentence for a in plain.certificate_.assumptions)


class TestScores:
    @pytest.mark.parametrize("score", ["lac", "aps", "raps", lambda p: (1 - p) ** 2])
    def test_labels(self, score):
        X, y = labeled(2500)
        model = classifier(QUICK, guarantee="split", conformity_score=score).fit(X[:1250], y[:1250])
        sets = model.predict_set(X[1250:])[1]
        assert coverage(sets, y[1250:]) >= lower_tolerance(0.9, 1250)
        assert sets.mean() < 1  # not won by full sets

    def test_a_score_needs_a_model_with_its_outputs(self):
        X, y = measured(200)
        with pytest.raises(ValueError, match="pair of quantiles"):
            regressor(QUICK_REGRESSION, conformity_score="cqr").fit(X, y)
        with pytest.raises(ValueError, match="one output"):
            regressor(DPSGD(loss="pinball", steps=5), guarantee="split").fit(X, y)

    @pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")  # few records get full sets
    @pytest.mark.parametrize(
        ("expected", "changes"),
        [
            ("cqr", {}),
            ("absolute", {"epsilon": 0.5}),
            ("absolute", {"n_records": 100}),  # what is declared decides, not what is there
            ("absolute", {"rows_per_person": 20}),
            ("absolute", {"guarantee": "stability"}),
            ("absolute", {"estimator": QUICK_REGRESSION}),
        ],
    )
    def test_the_score_follows_from_public_numbers(self, expected, changes):
        X, y = measured()
        model = regressor(**{"guarantee": "split", **changes}).fit(X, y)
        assert model.conformity_score == "auto"
        assert model.conformity_score_ == expected
        assert model.ledger_.public_facts["conformity_score"] == expected
        assert f"conformity score {expected}" in str(model.certificate_)

    def test_intervals_end_at_hard_bounds(self):
        X, y = measured()
        y = np.clip(y, -1, 1)
        free, cut = (
            regressor(guarantee="split", y_bounds=(-1, 1), clip_to_bounds=clip).fit(X, y) for clip in (False, True)
        )
        reach, ends = free.predict_interval(X)[1], cut.predict_interval(X)[1]
        assert np.abs(reach).max() > 1
        np.testing.assert_array_equal(ends, np.clip(reach, -1, 1))
        inside = (ends[:, 0, 0] <= y) & (y <= ends[:, 1, 0])
        np.testing.assert_array_equal(inside, (reach[:, 0, 0] <= y) & (y <= reach[:, 1, 0]))
        assert HARD_BOUNDS in cut.certificate_.assumptions
        assert HARD_BOUNDS not in free.certificate_.assumptions
        # the certificate of the fit decides: a change afterwards cannot cut what was promised uncut
        np.testing.assert_array_equal(free.set_params(clip_to_bounds=True).predict_interval(X)[1], reach)


class TestMechanisms:
    @pytest.mark.parametrize(
        "mechanism",
        [
            OutputPerturbation(feature_bound=3.0),
            Preprocessed((UnitNorm(),), DPSGD(steps=20, feature_bound=1.0, clip_norm=2.0)),
            DPSGD(hidden=(8,), steps=20, sampling_rate=0.2),
            DPSGD(steps=20, classes=(2, 1, 0)),
        ],
        ids=["output", "preprocessed", "network", "own classes"],
    )
    @pytest.mark.parametrize("guarantee", ["universal", "split", "corrected", "stability"])
    @pytest.mark.covering
    def test_classification(self, mechanism, guarantee):
        X, y = labeled()
        model = classifier(mechanism, guarantee=guarantee)
        bounded = isinstance(mechanism, OutputPerturbation | Preprocessed)
        if guarantee == "stability" and not bounded:
            with pytest.raises(ValueError, match="stability"):
                model.fit(X, y)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)  # a wide buffer may fill the sets
            model.fit(X, y)
        assert model.ledger_.epsilon(DELTA, "rdp") <= 4.0
        assert coverage(model.predict_set(X)[1], y) >= 0.85

    def test_noise_that_is_set_is_kept_and_held_against_the_budget(self):
        X, y = labeled()
        model = classifier(DPSGD(steps=20, noise_multiplier=40.0), guarantee="universal").fit(X, y)
        assert model.ledger_.public_facts["noise_multiplier"] == 40.0
        with pytest.raises(BudgetError, match="over the budget"):
            classifier(DPSGD(steps=20, noise_multiplier=0.5), guarantee="universal").fit(X, y)
        with pytest.raises(BudgetError, match="not private"):
            classifier(DPSGD(steps=20, noise_multiplier=0.0), guarantee="split").fit(X, y)

    @pytest.mark.parametrize("wrong", ["logistic", DPSGD, object(), StandardScaler()])
    def test_no_mechanism(self, wrong):
        with pytest.raises(TypeError, match="estimator must be None, a training mechanism"):
            classifier(wrong).fit(*labeled(100))

    def test_targets_are_clipped_for_training_and_not_for_the_promise(self):
        X, y = measured()
        y[:400] = 1e300
        model = regressor(QUICK_REGRESSION, guarantee="split", confidence_level=0.5).fit(X, y)
        assert np.abs(model.predict(X)).max() <= 6
        # a third of the targets lies outside: only an infinite interval would hold 80 % of them
        with pytest.warns(GuaranteeWarning, match="end of the score range"):
            full = regressor(QUICK_REGRESSION, guarantee="split", confidence_level=0.8).fit(X, y)
        assert np.isinf(full.predict_interval(X)[1]).all()


class TestPrivateModel:
    def trained(self, classes=(0, 1, 2), labels=None):
        X, y = labeled()
        y = y if labels is None else np.asarray(labels)[y]
        mechanism = DPSGD(steps=20, learning_rate=2.0, classes=classes).calibrated(2.0, DELTA, accountant="rdp")
        return PrivateModel.from_trained(mechanism.train(X, y, n_records=len(X)))

    def test_on_its_own_records(self):
        X, y = labeled()
        model = classifier(self.trained(), guarantee="auto", random_state=None).fit(X, y)
        assert model.certificate_.guarantee == "universal"
        assert [e.stage for e in model.ledger_.entries] == ["train", "calibration"]
        assert model.ledger_.epsilon(DELTA, "rdp") <= 4.0
        assert model.ledger_.is_private
        assert coverage(model.predict_set(X)[1], y) >= 0.85

    def test_on_other_records(self):
        X, y = labeled(1237, seed=5)
        model = classifier(self.trained(), guarantee="split", epsilon=2.0).fit(X, y)
        assert [e.stage for e in model.ledger_.entries] == ["training | calibration"]
        assert model.ledger_.epsilon(DELTA, "rdp") <= 2.0
        assert model.certificate_.is_certified

    def test_its_order_of_labels_is_taken_over(self):
        X, y = labeled()
        names = np.array(["low", "middle", "high"])
        foreign = self.trained(("low", "middle", "high"), names)
        model = classifier(foreign, guarantee="universal", classes=None).fit(X, names[y])
        assert model.classes_.tolist() == ["low", "middle", "high"]  # not sorted
        assert model.score(X, names[y]) > 0.6
        with pytest.raises(ValueError, match="in the same order"):
            classifier(foreign, guarantee="universal", classes=["high", "low", "middle"]).fit(X, names[y])
        with pytest.raises(ValueError, match="in the same order"):
            classifier(foreign, guarantee="universal", classes=["low", "middle", "high", "top"]).fit(X, names[y])

    def test_a_function(self):
        X, y = measured()
        foreign = PrivateModel.from_outputs(
            lambda rows: rows.sum(axis=1), spent=dpsgd_event(20.0, 1.0, 10), task="regression", n_features=4
        )
        model = regressor(foreign, guarantee="universal", feature_bounds=None).fit(X, y)
        np.testing.assert_allclose(model.predict(X[:3]), X[:3].sum(axis=1))
        assert model.threshold_[0] == pytest.approx(0.3 * 1.645, rel=0.35)
        with pytest.raises(TypeError, match="cannot be saved"):
            model.save("never-written")
        with pytest.raises(ValueError, match="classification model"):
            classifier(foreign, guarantee="universal").fit(*labeled(100))

    def test_what_it_cannot_do(self):
        X, y = labeled()
        with pytest.raises(ValueError, match="stability"):
            classifier(self.trained(), guarantee="stability").fit(X, y)
        with pytest.raises(ValueError, match="4 features, got 2"):
            classifier(self.trained(), guarantee="universal").fit(X[:, :2], y)


class TestLevels:
    LEVELS = (0.9, 0.8, 0.805, 0.81, 0.815, 0.82)

    @pytest.mark.parametrize("seed", range(5))
    def test_sets_are_nested_though_each_level_has_its_own_noise(self, seed):
        X, y = labeled(1200)
        model = classifier(
            QUICK, guarantee="asymptotic", epsilon=0.7, confidence_level=self.LEVELS, random_state=seed
        ).fit(X, y)
        order = np.argsort(self.LEVELS)
        assert (np.diff(model.threshold_[order]) >= 0).all()
        sets = model.predict_set(X)[1][:, :, order]
        assert (sets[:, :, :-1] <= sets[:, :, 1:]).all()

    def test_each_level_has_its_line_and_all_share_the_budget(self):
        X, y = labeled()
        model = classifier(QUICK, guarantee="universal", confidence_level=[0.7, 0.8, 0.9]).fit(X, y)
        entries = [e for e in model.ledger_.entries if e.stage == "calibration"]
        assert [e.note.split(":")[0] for e in entries] == ["level 0.7", "level 0.8", "level 0.9"]
        assert model.ledger_.epsilon(DELTA, "rdp") <= 4.0
        single = classifier(QUICK, guarantee="universal", confidence_level=0.9).fit(X, y)
        three, one = model.certificates_[2].terms, single.certificate_.terms
        # three paths of N brackets meet 3 N - 3 different ones at most: a count serves every level that passes it
        counts = 3 * three["steps"] - 3
        assert three["count_noise"] == pytest.approx(math.sqrt(counts / one["steps"]) * one["count_noise"], rel=0.03)
        assert [sum(possible_histories(e.event)[0].values()) for e in entries] == [three["steps"] - j for j in range(3)]

    def test_a_level_beyond_reach_gets_full_sets(self):
        with pytest.warns(GuaranteeWarning, match="VACUOUS"):
            model = classifier(QUICK, guarantee="universal", confidence_level=1 - 1e-7).fit(*labeled(200))
        assert np.isinf(model.threshold_).all()
        assert [e.stage for e in model.ledger_.entries] == ["training"]  # nothing was asked of the scores


def third(X):
    return np.digitize(np.asarray(X)[:, 1], [-0.5, 0.5])


class TestGroups:
    def test_labels(self):
        X, y = labeled(4000)
        model = classifier(QUICK, guarantee="split", groups="label", confidence_level=[0.8, 0.9]).fit(X, y)
        assert model.threshold_.shape == (3, 2)
        sets = model.predict_set(X)[1]
        np.testing.assert_array_equal(sets, (1 - model.predict_proba(X))[:, :, None] <= model.threshold_)
        for label in range(3):
            assert sets[y == label][:, label, 1].mean() >= 0.85
        assert "3 disjoint groups in parallel" in model.ledger_.entries[0].note
        assert "fewer than" in str(model.certificate_)

    @pytest.mark.parametrize("guarantee", ["universal", "split", "corrected"])
    def test_function(self, guarantee):
        X, y = measured(4000)
        model = regressor(
            QUICK_REGRESSION,
            guarantee=guarantee,
            groups=dp.Groups(third, values=[0, 1, 2]),
            confidence_level=[0.8, 0.9],
        ).fit(X, y)
        assert model.threshold_.shape == (3, 2)
        prediction, intervals = model.predict_interval(X)
        np.testing.assert_allclose(intervals[:, 1] - prediction[:, None], model.threshold_[third(X)])
        for group in range(3):
            inside = (intervals[:, 0, 1] <= y) & (y <= intervals[:, 1, 1])
            assert inside[third(X) == group].mean() >= 0.85

    def test_an_unknown_group_gets_full_sets(self):
        X, y = labeled(2000)
        model = classifier(QUICK, guarantee="split", groups=dp.Groups(third, values=[1])).fit(X, y)
        sets = model.predict_set(X)[1]
        assert sets[third(X) != 1].all()
        assert not sets[third(X) == 1].all()
        X, y = measured(2000)
        model = regressor(QUICK_REGRESSION, guarantee="split", groups=dp.Groups(third, values=[2])).fit(X, y)
        intervals = model.predict_interval(X)[1]
        assert np.isinf(intervals[third(X) != 2]).all()
        assert np.isfinite(intervals[third(X) == 2]).all()

    @pytest.mark.parametrize("guarantee", GUARANTEES)
    def test_an_empty_group_is_a_group_like_any_other(self, guarantee):
        X, y = labeled()
        estimator = STABLE if guarantee == "stability" else QUICK
        model = classifier(estimator, guarantee=guarantee, groups="label", classes=[0, 1, 2, 3])
        with pytest.warns(GuaranteeWarning) as caught:
            model.fit(X, y)
        assert model.predict_set(X)[1].shape == (len(X), 4, 1)
        told = [str(w.message) for w in caught if not issubclass(w.category, SeededWarning)]
        assert len(told) == 1
        if guarantee in CERTIFIED or guarantee == "corrected":
            assert np.isinf(model.threshold_[3]).all()
            assert "for group 3 is at the end of the score range" in told[0]
        else:
            assert "VACUOUS" in told[0]  # nothing is proven for groups of unknown size


class TestRandomness:
    @pytest.mark.parametrize("guarantee", ["universal", "split"])
    def test_a_seed_repeats_everything(self, guarantee):
        X, y = labeled()
        first, second = (classifier(QUICK, guarantee=guarantee, random_state=7).fit(X, y) for _ in range(2))
        np.testing.assert_array_equal(first.threshold_, second.threshold_)
        np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
        assert first.ledger_ == second.ledger_
        other = classifier(QUICK, guarantee=guarantee, random_state=8).fit(X, y)
        assert not np.array_equal(first.predict_proba(X), other.predict_proba(X))

    def test_without_a_seed_runs_differ_and_are_private(self):
        X, y = measured()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ReuseWarning)  # a second fit on the same records
            first, second = (
                regressor(QUICK_REGRESSION, guarantee="universal", random_state=None).fit(X.copy(), y) for _ in range(2)
            )
        assert not np.array_equal(first.predict(X), second.predict(X))
        assert first.ledger_.is_private

    @pytest.mark.parametrize("guarantee", ["universal", "split"])
    @pytest.mark.parametrize("make", ["classifier", "regressor"])
    @pytest.mark.covering
    def test_a_seeded_run_says_once_that_it_is_not_private(self, make, guarantee):
        model, data = (classifier(), labeled()) if make == "classifier" else (regressor(), measured())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.set_params(guarantee=guarantee, confidence_level=[0.8, 0.9]).fit(*data)
        assert [w.category for w in caught if w.category is not HintWarning] == [SeededWarning]
        assert not model.ledger_.is_private


class TestBadInput:
    @pytest.mark.parametrize("make", [classifier, regressor])
    @pytest.mark.parametrize(
        ("name", "value", "error", "text"),
        [
            ("confidence_level", 90, ValueError, r"did you mean 0\.9"),
            ("confidence_level", [], ValueError, "at least one level"),
            ("guarantee", "exact", ValueError, "guarantee must be one of 'auto'"),
            ("conformity_score", "margin", ValueError, "conformity_score must be one of"),
            ("train_share", 1.5, ValueError, "train_share"),
            ("train_share", "most", TypeError, "train_share"),
            ("calibration_fraction", 0, ValueError, "calibration_fraction"),
            ("accountant", "prv", ValueError, "accountant must be one of 'pld', 'rdp'"),
            ("n_records", 0, ValueError, "n_records"),
            ("epsilon", "1", TypeError, "epsilon"),
            ("delta", 0, ValueError, "delta"),
            ("feature_bounds", (1, -1), ValueError, "low|high"),
            ("feature_bounds", (np.zeros(3), np.ones(3)), ValueError, "feature"),
            ("random_state", -1, ValueError, "random_state"),
        ],
    )
    def test_parameters(self, make, name, value, error, text):
        X, y = (labeled if make is classifier else measured)(50)
        with pytest.raises(error, match=text):
            make(**{name: value}).fit(X, y)

    @pytest.mark.parametrize("bounds", [(1, 1), (2, -2), (0, np.inf), (0, 1, 2), "ab"])
    def test_target_bounds(self, bounds):
        with pytest.raises((ValueError, TypeError), match="y_bounds"):
            regressor(y_bounds=bounds).fit(*measured(50))

    @pytest.mark.parametrize("make", [classifier, regressor])
    def test_weights_are_refused(self, make):
        X, y = (labeled if make is classifier else measured)(50)
        with pytest.raises(ValueError, match="sensitivity"):
            make().fit(X, y, sample_weight=np.ones(50))
        with pytest.raises(TypeError, match="unexpected arguments: epochs"):
            make().fit(X, y, epochs=3)

    @pytest.mark.parametrize("guarantee", CERTIFIED)
    @pytest.mark.parametrize("n", [1, 2, 20])
    @pytest.mark.covering
    def test_too_few_records_is_a_warning_and_full_sets(self, guarantee, n):
        X, y = labeled(n)
        with pytest.warns(GuaranteeWarning, match="VACUOUS"):
            model = classifier(guarantee=guarantee, epsilon=1.0).fit(X, y)
        assert model.certificate_.is_vacuous
        assert model.predict_set(X)[1].all()
        X, y = measured(n)
        with pytest.warns(GuaranteeWarning, match="VACUOUS"):
            model = regressor(guarantee=guarantee, epsilon=1.0).fit(X, y)
        if n == 1:  # among more the noise may find a threshold; the certificate still says not to count on it
            low, high = model.predict_interval(X)[1][:, :, 0].T
            assert (low <= -6).all()
            assert (high >= 6).all()

    def test_a_failed_fit_leaves_nothing_behind(self):
        X, y = labeled(100)
        model = classifier(QUICK, guarantee="asymptotic").fit(X, y)
        with pytest.raises(ValueError, match="not in classes"):
            model.fit(X[:, :2], y + 5)
        with pytest.raises(NotFittedError):
            model.predict(X)
        with pytest.raises(BudgetError):
            model.set_params(estimator=DPSGD(steps=5, noise_multiplier=0.1)).fit(X, y)
        with pytest.raises(NotFittedError):
            model.predict_set(X)
