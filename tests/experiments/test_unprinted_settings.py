import numpy as np

from experiments import synthetic_scaling


def test_a_pool_keeps_its_test_part_and_never_trains_on_it() -> None:
    first, seed = synthetic_scaling.fold_of(0, 1, 10_000)
    again, other = synthetic_scaling.fold_of(0, 1 + synthetic_scaling.POOLS, 15_000)
    assert seed != other
    np.testing.assert_array_equal(first.X_test, again.X_test)
    assert len(first.X_test) == synthetic_scaling.N_TEST
    test = {row.tobytes() for row in first.X_test}
    assert not any(row.tobytes() in test for row in np.vstack([first.X, again.X]))
    assert len({row.tobytes() for row in first.X}) == 10_000
    elsewhere, _ = synthetic_scaling.fold_of(0, 2, 10_000)
    assert not np.array_equal(first.X_test, elsewhere.X_test)
