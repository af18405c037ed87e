"""What a released object contains of a record."""

import numpy as np
import pytest

import dpscp as dp
from dpscp.audit import find_traces

MARK = np.array([123.4567891, -98.7654321])


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X = rng.uniform(-150, 150, size=(800, 2))
    X[17] = MARK
    y = (X[:, 0] > 0).astype(int)
    model = dp.PrivateConformalClassifier(
        epsilon=2.0, classes=[0, 1], feature_bounds=(-150, 150), n_records=800, random_state=0
    )
    return model.fit(X, y)


def test_a_fitted_estimator_contains_no_number_of_a_record(fitted):
    assert find_traces(fitted, MARK) == ()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_kept_row_is_found_as_attribute_and_in_the_pickle(fitted, dtype):
    fitted.kept_ = {"row": MARK.astype(dtype)}
    try:
        assert find_traces(fitted, MARK) == ("kept_['row']", "pickle")
    finally:
        del fitted.kept_


def test_a_number_in_the_saved_file_is_found():
    class Saved:
        __slots__ = ()

        def save(self, path):
            path.write_bytes(b"head" + MARK[:1].astype("<f4").tobytes())

    assert find_traces(Saved(), MARK) == ("file",)
