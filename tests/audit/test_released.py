"""What a released object contains of a record."""

import pickle

import numpy as np
import pytest

import dpscp as dp

MARK = np.array([123.4567891, -98.7654321])
# A pickle stores a single number in big-endian order.
KINDS = ("<f4", "<f8", ">f8")


def has_mark(content):
    return any(np.asarray(number, dtype=kind).tobytes() in content for number in MARK for kind in KINDS)


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


def test_a_fitted_estimator_and_its_file_contain_no_number_of_a_record(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    assert not has_mark(pickle.dumps(fitted))
    assert not has_mark((tmp_path / "model").read_bytes())


@pytest.mark.parametrize("kept", [{"row": MARK.astype(np.float32)}, MARK, [float(MARK[1])]])
def test_a_kept_number_would_be_found(fitted, kept):
    fitted.kept_ = kept
    try:
        assert has_mark(pickle.dumps(fitted))
    finally:
        del fitted.kept_
