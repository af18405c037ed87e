"""Preprocessing steps: what they promise about size, noise, sensitivity and cost."""

import json
import math

import numpy as np
import pytest

import dpscp as dp
from dpscp.exceptions import BudgetError
from dpscp.privacy import compose, gaussian_event
from dpscp.training import (
    NormClip,
    Preprocessed,
    PrivateCentering,
    PrivateStandardize,
    PublicBounds,
    QuantileTransform,
    RandomFeatures,
    Recalibrated,
    Step,
    Transform,
    UnitNorm,
)
from dpscp.training.engine.rows import scaled_rows
from dpscp.training.mechanisms.dpsgd import DPSGD
from dpscp.training.preprocessing.projections import PrivateWhitening
from dpscp.training.preprocessing.steps import TRANSFORMS, ColumnScales


class Silent:
    """A generator whose noise is zero: shows the exact statistic (up to the grid)."""

    def normal(self, _loc, _scale, shape):
        return np.zeros(shape)


def rng(seed=0):
    return np.random.default_rng(seed)


STEPS = [
    PublicBounds(-2.0, [1.0, 2.0, 3.0]),
    UnitNorm(),
    NormClip(0.5),
    PrivateCentering(bound=1.5, noise_multiplier=3.0),
    PrivateStandardize(-3.0, 3.0, noise_multiplier=3.0),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda s: type(s).__name__)
def test_steps_give_transforms_that_survive_saving(step):
    X = rng().normal(size=(40, 3)) * 2
    fitted = step.fit(X, n_records=40, rng=rng(1))
    assert isinstance(step, Step)
    assert isinstance(fitted, Transform)
    again = TRANSFORMS[fitted.kind].from_parts(json.loads(json.dumps(fitted.config())), fitted.arrays())
    np.testing.assert_array_equal(again.apply(X), fitted.apply(X))
    # nothing in a fitted transform grows with the records
    assert all(a.shape == (3,) for a in fitted.arrays().values())
    assert fitted.apply(X[:0]).shape == (0, 3)
    if fitted.arrays():
        with pytest.raises(ValueError, match="3 features"):
            fitted.apply(X[:, :2])


def test_public_bounds_rescale_and_clip():
    out = PublicBounds(0.0, [2.0, 4.0]).fit(np.zeros((1, 2)), n_records=1, rng=rng()).apply([[1.0, 4.0], [-5.0, 9.0]])
    np.testing.assert_allclose(out, [[0.0, 1.0], [-1.0, 1.0]])


def test_row_norms_never_exceed_the_bound_even_for_extreme_rows():
    X = np.array([[3e200, -4e200], [3e-200, 4e-200], [0.0, 0.0], [0.3, 0.4], [1e-308, 0.0]])
    unit = scaled_rows(X, 1.0, unit=True)
    norms = np.linalg.norm(unit, axis=1)
    assert np.all(norms <= 1.0)
    np.testing.assert_allclose(norms[[0, 1, 3, 4]], 1.0)
    assert norms[2] == 0.0
    short = scaled_rows(X, 0.45, unit=False)
    np.testing.assert_allclose(short[3], [0.27, 0.36])
    np.testing.assert_allclose(short[1], X[1])
    wide = rng().normal(size=(2000, 300)) * 1e3
    assert np.all(np.linalg.norm(scaled_rows(wide, 1.0, unit=False), axis=1) <= 1.0)


def test_the_public_count_divides_and_not_the_true_one():
    X = np.ones((30, 2)) / math.sqrt(2)
    step = PrivateCentering(bound=1.0, noise_multiplier=1e-3)
    np.testing.assert_allclose(step.fit(X, n_records=60, rng=Silent()).shift, [0.5 / math.sqrt(2)] * 2, atol=1e-6)
    # more rows than declared: the mean is brought back to the ball
    assert np.linalg.norm(step.fit(X, n_records=3, rng=Silent()).shift) <= 1.0


# ---- in front of a mechanism


def records(n=400):
    X = rng(3).normal(size=(n, 4)) + 2.0
    return X, (X[:, 0] > 2).astype(int)


def head(**changes):
    constants = {"classes": (0, 1), "steps": 20, "learning_rate": 1.0, "clip_norm": 2.0, "noise_multiplier": 5.0}
    return DPSGD(**(constants | changes))


def test_steps_and_mechanism_do_not_share_a_seeded_stream():
    X, y = records()
    mean = (
        Preprocessed((PrivateCentering(noise_multiplier=1.0),), head()).train(X, y, random_state=5).model.transforms[0]
    )
    from_inner_stream = PrivateCentering(noise_multiplier=1.0).fit(X, n_records=400, rng=np.random.default_rng(5))
    assert not np.allclose(mean.shift, from_inner_stream.shift)


def test_steps_that_spend_everything_are_a_budget_error():
    greedy = Preprocessed((PrivateCentering(noise_multiplier=0.5),), head(noise_multiplier=None))
    with pytest.raises(BudgetError, match="preprocessing steps alone"):
        greedy.calibrated(0.5, 1e-5)


def test_stability_survives_public_steps_only():
    X, y = records()
    bounded = head(feature_bound=1.0)
    assert Preprocessed((UnitNorm(),), bounded).train(X, y, random_state=0).stability is not None
    private = Preprocessed((UnitNorm(), PrivateCentering(noise_multiplier=9.0)), bounded)
    assert private.train(X, y, random_state=0).stability is None


def test_every_private_step_has_its_entry_in_a_ledger():
    class Own(Step):
        """A step of a caller, which has no name for a ledger."""

        event = gaussian_event(6.0)

        def fit_source(self, source, *, n_records, rng, random_state=None):
            return UnitNorm().fit_source(source, n_records=n_records, rng=rng, random_state=random_state)

    steps = (
        PrivateStandardize(-3.0, 3.0, noise_multiplier=9.0),
        UnitNorm(),
        PrivateCentering(noise_multiplier=8.0),
        PrivateWhitening(noise_multiplier=7.0),
        Own(),
    )
    mechanism = Preprocessed(steps, DPSGD(steps=2, classes=(0, 1), noise_multiplier=5.0))
    stages = [
        ("means and scales of the features", gaussian_event(9.0)),
        ("mean of the rows", gaussian_event(8.0)),
        ("second moment of the rows", gaussian_event(7.0)),
        ("preprocessing", gaussian_event(6.0)),
        ("training", mechanism.mechanism.event),
    ]
    assert list(mechanism.stages) == stages
    X = rng().normal(size=(50, 3))
    trained = mechanism.train(X, (X[:, 0] > 0).astype(int), random_state=0)
    assert list(trained.stages) == stages
    assert compose(*(event for _, event in trained.stages)) == trained.event


THREE = [-4.0, -4.0, -4.0]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([QuantileTransform(-4, 4, 3)], "QuantileTransform is for rows of 3 features, but X has 4;"),
        ([PrivateStandardize(THREE, 4)], "PrivateStandardize is for rows of 3 features, but X has 4;"),
        ([PublicBounds(-4, [4.0] * 5)], "PublicBounds is for rows of 5 features, but X has 4;"),
        ([ColumnScales(("log",))], "ColumnScales is for rows of 1 features, but X has 4;"),
        ([RandomFeatures(2.0, 2), PublicBounds(THREE, 4)], "3 features, but X has 4, 6 after the steps before it"),
        ([QuantileTransform(-4, 4, 4), PublicBounds([-4.0] * 4, 4)], "known only after its release; put PublicBounds"),
    ],
)
@pytest.mark.parametrize(
    "wrap", [lambda steps: [*steps, DPSGD()], lambda steps: Recalibrated(Preprocessed(steps, DPSGD()))]
)
def test_a_step_for_another_width_is_refused_before_anything_is_spent(steps, message, wrap, tmp_path):
    X = rng().normal(size=(200, 4))
    store = dp.BudgetStore.create(tmp_path / "b", 2.0, 1e-5, dataset="d")
    clf = dp.PrivateConformalClassifier(wrap(steps), epsilon=1.0, classes=[0, 1])
    with pytest.raises(ValueError, match=message):
        clf.fit(X, (X[:, 0] > 0).astype(int), budget=store)
    assert len(store.lines()) == 1


def test_steps_alone_train_a_regression_on_the_scale_of_its_target():
    X = rng().uniform(-1, 1, size=(2000, 2))
    y = np.exp(5 * X[:, 0])
    reg = dp.PrivateConformalRegressor(
        [PublicBounds(-1.0, 1.0)], epsilon=8.0, y_bounds=(1e-3, 1e3), y_scale="log", random_state=0
    ).fit(X, y)
    assert np.corrcoef(np.log(reg.predict(X)), X[:, 0])[0, 1] > 0.99
    assert np.log(reg.predict(X)).std() > 1  # on the scale of units all predictions were near 1


def test_bad_input_is_named_without_data():
    with pytest.raises(ValueError, match="low < high"):
        PublicBounds(1.0, [2.0, 1.0])
    with pytest.raises(TypeError, match="low and high"):
        PublicBounds("a", 1.0)
    with pytest.raises(ValueError, match="one number per feature"):
        PublicBounds(np.zeros((2, 2)), 1.0)
    with pytest.raises(ValueError, match="each of the 3 features, got 2"):
        PublicBounds([0.0, 0.0], 1.0).fit(np.zeros((2, 3)), n_records=2, rng=rng())
    with pytest.raises(ValueError, match="bound must be greater than 0"):
        NormClip(0.0)
    with pytest.raises(ValueError, match="noise_multiplier must be greater"):
        PrivateCentering(noise_multiplier=-1.0)
    # a step with public constants reads the width alone; whoever holds it, and whatever sums, looks at the numbers
    for number in (np.nan, np.inf):
        for step in (PrivateCentering(noise_multiplier=1.0), PrivateStandardize(-1.0, 1.0, noise_multiplier=1.0)):
            with pytest.raises(ValueError, match="NaN"):
                step.fit([[number, 1.0]], n_records=1, rng=rng())
        for step in (UnitNorm(), PublicBounds(-1.0, 1.0), NormClip(1.0)):
            with pytest.raises(ValueError, match="NaN"):
                Preprocessed((step,), head(noise_multiplier=1.0)).train([[number, 1.0]], [0], n_records=1)
            fitted = Preprocessed((step,), head(noise_multiplier=1.0)).train([[0.5, 1.0]], [0], n_records=1)
            with pytest.raises(ValueError, match="NaN"):
                fitted.model.outputs([[number, 1.0]])
    with pytest.raises(TypeError, match="steps must be instances of subclasses"):
        Preprocessed(("scale",), head())
    with pytest.raises(TypeError, match="must be an instance of a subclass"):
        Preprocessed((PrivateCentering(),), object()).calibrated(1.0, 1e-5)
