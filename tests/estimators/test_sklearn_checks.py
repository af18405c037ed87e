"""Both estimators behave as scikit-learn estimators: its own checks, each exception named with its reason."""

import pytest
from sklearn.utils.estimator_checks import check_regressors_train, parametrize_with_checks

from dpscp import PrivateConformalClassifier, PrivateConformalRegressor, PrivateMultilabelClassifier
from dpscp.training import DPSGD
from dpscp.training.preprocessing.rescaled import ScaledTarget

# a tiny data set leaves nothing to promise, and the checks do not declare classes: both warn by design
# fits that other tests trace for coverage too
pytestmark = [pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning"), pytest.mark.no_cover]

# A budget whose noise hides nothing: the checks ask for some accuracy on a hundred records.
COMMON = {"epsilon": 50.0, "accountant": "rdp", "random_state": 0}
REGRESSION = COMMON | {"y_bounds": (-5, 5)}
CLASSIFIER = PrivateConformalClassifier(guarantee="split", **COMMON)
REGRESSOR = PrivateConformalRegressor(guarantee="universal", **REGRESSION)
MULTILABEL = PrivateMultilabelClassifier(DPSGD(steps=20), **COMMON)
OWN_MECHANISM = PrivateConformalRegressor(
    ScaledTarget(DPSGD(loss="huber", steps=30, learning_rate=0.3, dtype="float64"), (-5, 5)),
    guarantee="split",
    **REGRESSION,
)


def expected_failures(estimator):
    return {
        "check_estimators_empty_data_messages": "the wanted text prints the shape of X: the number of rows is private",
    }


@parametrize_with_checks([CLASSIFIER, OWN_MECHANISM], expected_failed_checks=expected_failures)
def test_scikit_learn_check(estimator, check):
    check(estimator)


INDICATORS = "the check passes labels, or one column of values that are not 0 and 1; several labels are indicators"
MULTILABEL_FAILURES = {
    "check_estimators_dtypes": INDICATORS,
    "check_estimators_empty_data_messages": "the wanted text prints the shape of X: the number of rows is private",
    "check_classifier_data_not_an_array": INDICATORS,
    "check_classifiers_one_label": INDICATORS,
    "check_classifiers_classes": INDICATORS,
    "check_classifiers_train": INDICATORS,
    "check_classifier_not_supporting_multiclass": INDICATORS,
    "check_fit2d_1feature": INDICATORS,
    "check_estimator_sparse_array": INDICATORS,
    "check_estimator_sparse_matrix": INDICATORS,
}


@pytest.mark.slow
@parametrize_with_checks([MULTILABEL], expected_failed_checks=lambda _: MULTILABEL_FAILURES)
def test_scikit_learn_check_of_several_labels(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([REGRESSOR], expected_failed_checks=expected_failures)
def test_scikit_learn_check_of_the_recipe(estimator, check):
    check(estimator)


@pytest.mark.parametrize("bounds", [{}, {"feature_bounds": (-4, 4)}, {"feature_bounds": "private"}])
def test_a_regressor_learns_under_sensible_bounds(bounds):
    """The check wants R^2 above 0.5 from 200 records; the default guarantee gives that from epsilon 20 on."""
    check_regressors_train("own", PrivateConformalRegressor(**REGRESSION | {"epsilon": 20.0}, **bounds))
