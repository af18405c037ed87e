"""Properties of the public functions over generated inputs: types, shapes, extremes, unicode, huge and tiny."""

import math
import warnings
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dpscp as dp
from dpscp.audit.bounds import audited_epsilons
from dpscp.privacy import (
    Ledger,
    approximate_dp_event,
    discrete_gaussian_event,
    dpsgd_event,
    epsilon_delta_tradeoff,
    gaussian_event,
    gaussian_tradeoff,
    gdp_delta,
    gdp_mu,
    lattice_noise,
)
from dpscp.privacy.random_streams import sample_discrete_gaussian
from dpscp.training import DPSGD

quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
few = settings(quick, max_examples=12)

probability = st.floats(1e-6, 1 - 1e-6)
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.lists(st.floats(), max_size=3),
    st.binary(max_size=3),
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=2, max_side=3)),
)
DOCUMENTED = (ValueError, TypeError)  # BudgetError is a ValueError


# ---- whatever is passed, the errors are the documented ones

FUNCTIONS = {
    "gdp_mu": lambda a, b, _: gdp_mu(a, b),
    "gdp_delta": lambda a, b, _: gdp_delta(a, b),
    "dpsgd_event": dpsgd_event,
    "gaussian_event": lambda a, b, _: gaussian_event(a, b),
    "discrete_gaussian_event": discrete_gaussian_event,
    "approximate_dp_event": lambda a, b, _: approximate_dp_event(a, b),
    "gaussian_tradeoff": lambda a, b, _: gaussian_tradeoff(a)(b),
    "epsilon_delta_tradeoff": lambda a, b, c: epsilon_delta_tradeoff(a, b)(c),
    "lattice_noise": lambda a, b, _: lattice_noise(a, b),
    "Budget": lambda a, b, _: dp.Budget(a, b),
    "marginal_rank_target": lambda a, b, c: dp.guarantees.marginal_rank_target(a, b, c, 5),
    "union_noise_buffer": dp.guarantees.union_noise_buffer,
    "blackbox_floor": lambda a, b, _: dp.guarantees.blackbox_floor(a, gaussian_tradeoff(0.5), b),
    "universal_alpha": lambda a, _, __: dp.guarantees.universal_alpha(a, gaussian_tradeoff(0.5)),
    "value_buffer": lambda a, b, _: dp.guarantees.value_buffer(a, b),
    "DPSGD": lambda a, b, c: DPSGD(sampling_rate=a, noise_multiplier=b, clip_norm=c),
    "DPSGD hidden": lambda a, b, c: DPSGD(hidden=a, classes=b, quantiles=c),
    "private_quantile": lambda a, b, c: dp.private_quantile(a, alpha=b, score_range=c, mu=1.0),
    "private_quantile noise": lambda a, b, c: dp.private_quantile(
        [0.5] * 9, alpha=0.5, score_range=(0, 1), mu=a, count_noise=b, n_records=c, steps=4
    ),
    "coverage": lambda a, b, _: dp.metrics.coverage(a, b),
    "efficiency": lambda a, _, __: dp.metrics.efficiency(a),
    "informativeness": lambda a, _, __: dp.metrics.informativeness(a),
    "lac": lambda a, b, _: dp.scores.lac(a, b),
    "cqr": dp.scores.cqr,
    "absolute_residual": lambda a, b, _: dp.scores.absolute_residual(a, b),
    "Ledger.from_json": lambda a, _, __: Ledger.from_json(a),
    "Ledger.add": lambda a, b, c: Ledger().add(a, b, c),
    "audited_epsilons": lambda a, b, c: audited_epsilons(a, b, [0.1], c),
    "classifier": lambda a, b, c: dp.PrivateConformalClassifier(epsilon=a, delta=b, n_records=c).fit(
        np.eye(6), [0, 1] * 3
    ),
    "classifier data": lambda a, b, _: dp.PrivateConformalClassifier(classes=[0, 1]).fit(a, b),
    "regressor": lambda a, b, c: dp.PrivateConformalRegressor(y_bounds=a, confidence_level=b, train_share=c).fit(
        np.eye(6), np.arange(6.0)
    ),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
@quick
@given(anything, anything, anything)
def test_only_documented_errors(name, a, b, c):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        with suppress(*DOCUMENTED):
            FUNCTIONS[name](a, b, c)


# ---- the search


@quick
@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.int8]),
        st.integers(1, 60),
        elements=st.integers(-100, 100),
    ),
    probability,
    st.sampled_from(["centered", "linear", "ceil"]),
    st.sampled_from(["minimax", "marginal", "union", "none"]),
    st.integers(1, 30),
)
def test_threshold_is_a_point_of_the_public_grid(scores, alpha, rank, correction, steps):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        q = dp.private_quantile(
            scores, alpha=alpha, score_range=(-50.0, 50.0), mu=1.0, steps=steps, rank=rank, correction=correction
        )
    cells = (q.threshold + 50) / 100 * 2**steps
    assert -50 <= q.threshold <= 50
    assert cells == math.floor(cells)
    assert q.is_finite == (q.threshold < 50)
    assert q.event is not None


@quick
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50),
    st.tuples(st.floats(-4e307, 4e307, allow_subnormal=True), st.floats(-4e307, 4e307)),
)
def test_huge_and_tiny_ranges(scores, ends):
    low, high = sorted(ends)
    ask = partial(dp.private_quantile, scores, alpha=0.2, score_range=(low, high), mu=1.0, steps=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        if low < high:
            assert low <= ask().threshold <= high
        else:
            with pytest.raises(ValueError, match="score_range"):
                ask()


@quick
@given(st.integers(1, 2**40), st.integers(0, 2**32 - 1))
def test_integer_noise_of_any_scale(sigma, seed):
    from dpscp.privacy import IntegerSource

    drawn = [int(z) for z in sample_discrete_gaussian(sigma, 5, IntegerSource(seed))]
    # thirteen standard deviations: probability below 1e-37
    assert all(abs(z) <= 13 * sigma + 1 for z in drawn)


# ---- the estimators


@few
@given(st.lists(st.text(max_size=6).filter(lambda t: not t.endswith("\x00")), min_size=2, max_size=4, unique=True))
def test_unicode_labels_survive_fit_and_saving(tmp_path_factory, labels):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.array(labels)[rng.integers(0, len(labels), 80)]
    clf = dp.PrivateConformalClassifier(
        DPSGD(steps=2, noise_multiplier=10.0), epsilon=2.0, classes=labels, guarantee="asymptotic", random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        clf.fit(X, y)
    path = tmp_path_factory.mktemp("unicode") / "model"
    clf.save(path)
    loaded = dp.load(path)
    assert list(loaded.classes_) == labels
    assert (loaded.predict(X) == clf.predict(X)).all()


@few
@given(st.sampled_from([1e-300, 1e-30, 1.0, 1e30, 1e150]), st.sampled_from([np.float32, np.float64, np.int64]))
def test_features_of_any_size(scale, dtype):
    with np.errstate(all="ignore"):
        X = (np.random.default_rng(0).normal(size=(60, 3)) * scale).astype(dtype)
    y = np.arange(60) % 2
    clf = dp.PrivateConformalClassifier(
        DPSGD(steps=2, noise_multiplier=10.0), epsilon=2.0, classes=[0, 1], guarantee="asymptotic", random_state=0
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        if np.isfinite(X).all():
            assert np.isfinite(clf.fit(X, y).predict_proba(X)).all()
        else:
            with pytest.raises(ValueError, match="infinity"):
                clf.fit(X, y)
