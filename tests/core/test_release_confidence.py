"""The stronger promise on demand: this one release covers the level, with a given probability; and what is printed."""

import re
import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp.exceptions import GuaranteeWarning
from dpscp.privacy import dpsgd_event
from dpscp.threshold import KnownSize, release_level, release_miss_bound, step_rises
from dpscp.training import DPSGD

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 4))
Y = (X[:, 0] + 0.5 * RNG.normal(size=3000) > 0).astype(int)
T = X[:, 0] + 0.3 * RNG.normal(size=3000)
SCORES = RNG.uniform(size=3000)
REUSING = ("universal", "stability", "corrected", "finite", "asymptotic")


def classifier(**options):
    shared = {"epsilon": 2.0, "random_state": 0, "n_records": 3000, "classes": [0, 1], "feature_bounds": (-4, 4)}
    return dp.PrivateConformalClassifier(**shared | {"estimator": DPSGD(steps=10)} | options)


def calibrated(**options):
    shared = {"epsilon": 1.0, "delta": 1e-5, "score_range": (0, 1), "held_out": True, "random_state": 0}
    return dp.calibrate(SCORES, **shared | options)


@pytest.fixture(scope="module")
def plain():
    return classifier(guarantee="split").fit(X, Y)


# ---- refusals


@pytest.mark.parametrize("guarantee", REUSING)
def test_refused_where_training_records_are_reused(guarantee):
    refusal = pytest.raises(ValueError, match=r"release_confidence=0.95 needs guarantee='split'.*no bound for a single")
    with refusal:
        classifier(guarantee=guarantee, release_confidence=0.95).fit(X, Y)
    with refusal:
        dp.PrivateConformalRegressor(guarantee=guarantee, release_confidence=0.95, y_bounds=(-5, 5)).fit(X, T)
    if guarantee != "corrected":
        with refusal:
            spent = dpsgd_event(40.0, 1.0, 50)
            calibrated(training=spent, guarantee=guarantee, held_out=False, release_confidence=0.95)


def test_a_model_from_elsewhere_must_be_said_to_be_new_to_the_records():
    outputs = {"spent": dpsgd_event(40.0, 1.0, 50), "task": "classification", "n_features": 4, "classes": (0, 1)}
    model = dp.PrivateModel.from_outputs(lambda rows: np.stack([-rows[:, 0], rows[:, 0]], axis=1), **outputs)
    own = {"estimator": model, "feature_bounds": None, "release_confidence": 0.9}
    with pytest.raises(ValueError, match=re.escape("release_confidence=0.9 needs guarantee='split'")):
        classifier(**own).fit(X, Y)
    found = classifier(**own, guarantee="split").fit(X, Y)
    assert "9 of 10 such releases cover at least 90.0%" in str(found.certificate_)


@pytest.mark.parametrize("value", [0.0, 1.0, 2, -0.5])
def test_it_is_a_probability(value):
    with pytest.raises(ValueError, match="release_confidence"):
        classifier(release_confidence=value).fit(X, Y)
    with pytest.raises(ValueError, match="release_confidence"):
        calibrated(release_confidence=value)


# ---- what is promised


def test_a_split_certificate_says_what_one_release_covers(plain):
    terms = plain.certificate_.terms
    assert terms["release_confidence"] == 0.95
    assert 0.8 < terms["release_level"] < 0.9
    said = re.search(r"19 of 20 such releases cover at least (\d+\.\d)%", str(plain.certificate_))
    assert terms["release_level"] - 0.001 <= float(said[1]) / 100 <= terms["release_level"]
    assert any("independent" in assumption.sentence for assumption in plain.certificate_.assumptions)


@pytest.mark.parametrize(("confidence", "words"), [(0.95, "19 of 20"), (0.99, "99 of 100"), (0.9, "9 of 10")])
def test_on_demand_the_release_covers_the_level(plain, confidence, words):
    model = classifier(release_confidence=confidence).fit(X, Y)
    assert model.certificate_.guarantee == "split"
    assert model.certificate_.terms["release_confidence"] == confidence
    assert model.certificate_.terms["release_level"] >= 0.9
    assert f"{words} such releases cover at least 90.0%" in str(model.certificate_)
    assert model.certificate_.coverage == pytest.approx(0.9)  # and so does the average
    assert model.certificate_.terms["noise_offset"] > plain.certificate_.terms["noise_offset"] + 5
    assert model.ledger_.epsilon(1e-5) == pytest.approx(plain.ledger_.epsilon(1e-5))  # it costs size, not privacy


def test_auto_holds_records_out_when_asked():
    small = {"epsilon": 0.1, "n_records": 300}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)
        assert classifier(**small).fit(X[:300], Y[:300]).certificate_.guarantee == "universal"
        asked = classifier(release_confidence=0.9, **small).fit(X[:300], Y[:300])
    assert asked.certificate_.guarantee == "split"


def test_scores_of_a_known_number():
    """What is printed is Result I at the offset that was used; on demand the offset is the smallest that is enough."""
    free, asked = calibrated(), calibrated(release_confidence=0.95)
    q, n = free.quantile, len(SCORES)
    search = {"alpha": q.alpha, "count_noise": q.count_noise, "steps": q.steps, "graded": True}
    above_last = q.count_noise * step_rises(q.steps).mean()  # what is told is the mean over the steps
    exact = release_level(0.95, KnownSize(n), offset=q.offset - above_last, **search)
    assert exact - 2e-3 <= free.certificate.terms["release_level"] <= exact
    needed = asked.quantile.offset - above_last
    assert release_miss_bound(0.9, KnownSize(n), offset=needed, **search) <= 0.05
    assert release_miss_bound(0.9, KnownSize(n), offset=needed - 0.3, **search) > 0.05
    assert asked.certificate.terms["release_level"] >= 0.9


def test_each_group_keeps_it():
    grouped = {"estimator": None, "groups": "label", "confidence_level": 0.8}
    model = classifier(release_confidence=0.9, **grouped).fit(X, Y)
    assert np.isfinite(model.threshold_).all()
    assert model.certificate_.terms["release_level"] == pytest.approx(0.8)
    free = classifier(guarantee="split", **grouped).fit(X, Y)
    assert 0.6 < free.certificate_.terms["release_level"] < 0.8
    assert (model.threshold_ > free.threshold_).all()


# ---- releases of parts of random size


def share_below(law, releases, release_confidence):
    """Parts of a table whose number of scores is private and released; the share that covers less than .9."""
    rng = np.random.default_rng(0)
    search = {"alpha": 0.1, "count_noise": 2.0, "steps": 8, "size_noise": 8.0, "score_range": (0, 1)}
    released = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeded, and sometimes at the end of the range
        for _ in range(releases):
            scores, seed = law(rng.uniform(size=rng.binomial(4000, 0.2))), int(rng.integers(2**32))
            found = dp.private_quantile(scores, release_confidence=release_confidence, random_state=seed, **search)
            released.append(found.threshold if found.is_finite else 2.0)
    quantiles = law(np.linspace(0, 1, 100_001)[1:] - 5e-6)
    return float(np.mean(np.searchsorted(quantiles, released, side="right") / 100_000 < 0.9 - 5e-5))


LAWS = {
    "smooth": lambda u: u,
    "tied": lambda u: np.ceil(u * 20) / 20,
    "atom just below": lambda u: np.where(u < 0.9 - 1e-4, 0.3, u),
}


@pytest.fixture
def releases(is_quick):
    return 70 if is_quick else 150


def allowed(releases):
    return 0.05 + 4 * np.sqrt(0.05 * 0.95 / releases)


@pytest.mark.parametrize("law", list(LAWS))
def test_19_of_20_releases_of_a_random_part_cover_the_level(law, releases):
    assert share_below(LAWS[law], releases, 0.95) <= allowed(releases)


@pytest.mark.parametrize("law", ["smooth", "atom just below"])
def test_without_it_they_do_not(law, releases):
    assert share_below(LAWS[law], releases, None) > allowed(releases)


def test_it_needs_a_number_of_scores():
    search = {"alpha": 0.1, "count_noise": 2.0, "score_range": (0, 1), "release_confidence": 0.9, "random_state": 0}
    for wrong in ({"size": KnownSize(100, 10)}, {"correction": "none"}, {"correction": "union"}):
        with pytest.raises(ValueError, match=r"release_confidence=0\.9 needs a known number of scores"):
            dp.private_quantile(SCORES, **search, **wrong)


# ---- the plan


def test_the_plan_knows_the_price():
    free, asked = (dp.plan(n=3000, epsilon=2.0, n_features=4, release_confidence=c) for c in (None, 0.95))
    assert asked.automatic == "split"
    assert asked.row("split").rank_offset > free.row("split").rank_offset + 5
    assert asked.row("split").overshoot > free.row("split").overshoot
    assert free.row("split").release_level < 0.9 <= asked.row("split").release_level
    assert asked.row("universal").release_level is None
    terms = classifier(release_confidence=0.95).fit(X, Y).certificate_.terms
    # the plan takes the number it plans with, the fit the one it released
    assert asked.row("split").rank_offset == pytest.approx(terms["noise_offset"], rel=0.1)
    assert "one release" in str(asked)
