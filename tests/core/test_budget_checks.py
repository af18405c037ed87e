"""A budget that promises little is warned about by every release, before it spends, and on record afterwards."""

import json
import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp.privacy import Budget, Relation
from dpscp.privacy.units import BudgetCheck, check_budget
from dpscp.report import html_report
from dpscp.training import DPSGD

N = 400
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(N, 2))
Y = (X[:, 0] > 0).astype(int)
SCORES = RNG.uniform(size=N)
CASES = {
    "fine": (1.0, 1e-5, set()),
    "delta": (1.0, 0.004, {"delta"}),
    "epsilon": (12.0, 1e-5, {"epsilon"}),
}


def classifier(epsilon, delta):
    settings = {"guarantee": "split", "feature_bounds": (-1, 1), "classes": [0, 1], "n_records": N, "accountant": "rdp"}
    return dp.PrivateConformalClassifier(DPSGD(steps=5), epsilon=epsilon, delta=delta, random_state=0, **settings).fit(
        X, Y
    )


def multilabel(epsilon, delta):
    settings = {"risk": 0.3, "feature_bounds": (-1, 1), "n_records": N, "accountant": "rdp", "random_state": 0}
    model = dp.PrivateMultilabelClassifier(DPSGD(steps=5), epsilon=epsilon, delta=delta, **settings)
    return model.fit(X, np.column_stack([Y, 1 - Y]))


def calibrate(epsilon, delta):
    settings = {"score_range": (0, 1), "held_out": True, "guarantee": "split", "n_records": N, "random_state": 0}
    return dp.calibrate(SCORES, epsilon=epsilon, delta=delta, **settings)


def control_risk(epsilon, delta):
    settings = {"threshold_range": (0, 1), "n_records": N, "random_state": 0}
    return dp.control_risk(lambda t: np.clip(1 - t / (SCORES + 0.1), 0, 1), epsilon=epsilon, delta=delta, **settings)


def failures(checks):
    return {check.name for check in checks if not check.passed}


@pytest.mark.parametrize("release", [classifier, multilabel, calibrate, control_risk])
@pytest.mark.parametrize("case", CASES)
def test_a_release_warns_and_records_the_outcome(release, case):
    epsilon, delta, expected = CASES[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = release(epsilon, delta)
    said = {str(w.message) for w in caught if issubclass(w.category, dp.GuaranteeWarning)}
    for name in ("delta", "epsilon"):
        assert (BudgetCheck(name, False).sentence in said) == (name in expected)
    certificate = made.certificate if hasattr(made, "certificate") else made.certificate_
    assert failures(certificate.checks) == expected
    assert ("Weak:" in str(certificate)) == bool(expected)
    again = dp.Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
    assert again.checks == certificate.checks
    assert len(again.checks) == 3


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
def test_statement_and_report_show_the_outcome():
    weak, fine = classifier(12.0, 0.004), classifier(1.0, 1e-5)
    for model, result in ((weak, "no"), (fine, "yes")):
        found = {check["check"]: check["result"] for check in model.statement()["checks"]}
        for name in ("delta", "epsilon"):
            assert found[BudgetCheck(name, True).question] == result
            assert (BudgetCheck(name, False).sentence in html_report(model)) == (result == "no")


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
def test_what_is_released_later_warns_too():
    model = classifier(1.0, 1e-5)
    with pytest.warns(dp.GuaranteeWarning, match="epsilon is above 10"):
        dp.evaluate(model, X, Y, epsilon=11.0, delta=1e-5, random_state=0)
    with pytest.warns(dp.GuaranteeWarning, match="delta is above 1 / n"):
        dp.CoverageMonitor(model, epsilon=1.0, delta=0.01, expected_batch=200, random_state=0)


def test_the_limits_are_exact_and_use_the_public_number():
    for delta, n, passed in ((0.01, 100, True), (0.0101, 100, False), (0.0101, None, None)):
        found = {check.name: check.passed for check in check_budget(Budget(10.0, delta), n)}
        assert found.get("delta") is passed
        assert found["epsilon"]
    assert failures(check_budget(Budget(10.001, 1e-5), 100)) == {"epsilon"}
    assert failures(check_budget(Budget(1.0, 1e-5), 100, Relation.REPLACE_ONE)) == {"relation"}
