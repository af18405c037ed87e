"""The second moment of the rows: the right noise, and every path that a list of steps takes."""

import numpy as np
import pytest

import dpscp as dp
from dpscp.training import (
    DPSGD,
    PrivateStandardize,
    PrivateWhitening,
)

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.SeededWarning")
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 600)
X = np.column_stack([2.0 * Y - 1 + 0.3 * RNG.normal(size=600), 0.05 * RNG.normal(size=(600, 3))])


def classifier(estimator, **options):
    options = {"epsilon": 8.0, "accountant": "rdp", "guarantee": "split", "classes": [0, 1]} | options
    return dp.PrivateConformalClassifier(estimator, **options)


@pytest.mark.parametrize("mechanism", [(), (DPSGD(steps=20),)])
def test_a_list_of_steps_is_one_mechanism_with_one_entry(mechanism, tmp_path):
    clf = classifier([PrivateStandardize(-3, 3), PrivateWhitening(2.0), *mechanism], random_state=0).fit(X, Y)
    assert clf.ledger_.epsilon(1e-5, "rdp") <= 8.0
    assert (clf.model_.n_features, clf.model_.inner.n_features) == (4, 4)
    assert [type(t).__name__ for t in clf.model_.transforms] == ["FeatureTransform", "MatrixTransform"]
    assert clf.score(X, Y) > 0.9
    clf.save(tmp_path / "m")
    np.testing.assert_array_equal(dp.load(tmp_path / "m").predict_set(X)[1], clf.predict_set(X)[1])
    assert not clf.ledger_.assumptions


def test_a_list_without_a_mechanism_or_step_is_refused():
    with pytest.raises(TypeError, match="a list of private steps and a mechanism"):
        classifier([]).fit(X, Y)
    with pytest.raises(TypeError, match="steps must be instances of subclasses"):
        classifier([DPSGD(), DPSGD()]).fit(X, Y)
