"""Both estimators behave as scikit-learn estimators: its own checks, each exception named with its reason."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpscp import PrivateConformalClassifier, PrivateConformalRegressor
from dpscp.training import DPSGD
from dpscp.training.preprocessing.scaling import ScaledTarget

# a tiny data set leaves nothing to promise, and the checks do not declare classes: both warn by design
# fits that other tests trace for coverage too
pytestmark = [pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning"), pytest.mark.no_cover]

# A budget whose noise drowns nothing: the checks ask for some accuracy on a hundred records.
COMMON = {"epsilon": 50.0, "accountant": "rdp", "random_state": 0}
REGRESSION = COMMON | {"y_bounds": (-5, 5)}
CLASSIFIER = PrivateConformalClassifier(guarantee="split", **COMMON)
REGRESSOR = PrivateConformalRegressor(guarantee="universal", **REGRESSION)
OWN_MECHANISM = PrivateConformalRegressor(
    ScaledTarget(DPSGD(loss="huber", steps=30, learning_rate=0.3, dtype="float64"), (-5, 5)),
    guarantee="split",
    **REGRESSION,
)


def expected_failures(estimator):
    return {
        "check_estimators_empty_data_messages": "the wanted text prints the shape of X: the number of rows is private",
    }


@parametrize_with_checks([CLASSIFIER, REGRESSOR, OWN_MECHANISM], expected_failed_checks=expected_failures)
def test_scikit_learn_check(estimator, check):
    check(estimator)
