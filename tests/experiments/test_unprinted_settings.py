import re

import numpy as np
import pytest
from experiments.faithful import RANK_BUFFER
from experiments.paper_tables import printed
from experiments.runner import EPSILONS, Row

from experiments import housing, synthetic_scaling


@pytest.mark.parametrize("multiple", [4.0, 5.7, 7.0])
def test_the_fit_of_the_buffer_finds_the_one_that_made_the_gaps(
    multiple: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps made with a known multiple of the noise, with noise and rounding: the fit must lead back to it."""
    rng = np.random.default_rng(7)
    # a rank is worth this much width
    unit = 2e-3
    noise = {(e, p): 20.0 / e / (1.1 - p) for e in EPSILONS for p in housing.SHARES}
    rows: list[Row] = []
    for (epsilon, share), sigma in noise.items():
        for variant, buffer, counts in (("", 5.73, 20), ("beta = 1/n", 4.52, 20), ("beta = 1/n, K = 30", 4.61, 30)):
            own = sigma * np.sqrt(counts / 20)
            base = {"epsilon": epsilon, "train_share": share, "variant": variant, "count_noise": own}
            for _ in range(30):
                gap = unit * (buffer * own + RANK_BUFFER + own * rng.normal())
                rows.append({**base, "method": "dp-scp-f", "size": 2.1 + gap})
                rows.append({**base, "method": "dp-scp-a", "size": 2.1})
    real = printed("housing", "dp-scp-f", 0.5, 0.5, housing.N)

    def made(study: str, method: str, epsilon: float, share: float, n: int) -> object:
        sigma = noise[epsilon, share]
        gap = unit * (multiple * sigma + RANK_BUFFER + sigma * rng.normal() / 30**0.5)
        return type(real)(**{**vars(real), "size": round(2.1 + gap * (method == "dp-scp-f"), 3)})

    monkeypatch.setattr(housing, "printed", made)
    text = housing.implied_buffer(rows)
    found, error = map(float, re.search(r"gives ([\d.]+) times .* error ([\d.]+);", text).groups())
    # twelve means of 30 with a standard deviation of one multiple, the paper's and ours
    assert error == pytest.approx((2 / 30 / 12) ** 0.5, rel=0.25)
    # the line through two noisy readings is a little tilted far from them: four errors, and its own at 7
    assert abs(found - multiple) <= 4 * error + 0.1 * abs(multiple - 5.1)
    near = text.split("Within two standard errors: ")[1]
    assert ("beta = 1e-7" in near) == (multiple == 5.7)


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
