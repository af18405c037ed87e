import re
from pathlib import Path

import numpy as np
import pytest
from experiments.faithful import RANK_BUFFER
from experiments.paper_tables import printed
from experiments.runner import EPSILONS, Header, Options, Outcome, Row, Task

from experiments import housing, synthetic_scaling, unprinted_settings

HEADER = Header("toy", 0, "abc", "today", "here", 0.0)


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


def _rows(study: str, name: str, factor: float) -> list[Row]:
    """The paper's own sizes, all multiplied."""
    shares = unprinted_settings.BLOOD_SHARES if study == "bloodmnist" else (0.5,)
    out = []
    for method in unprinted_settings.METHODS:
        for epsilon in EPSILONS:
            for share in shares if method != "dp-split" else (None,):
                row = printed(study, method, epsilon, share, unprinted_settings.SIZES[study])
                assert row is not None
                base = {"study": study, "variant": name, "n": unprinted_settings.SIZES[study], "coverage": 0.9}
                out.append(
                    {**base, "method": method, "epsilon": epsilon, "train_share": share, "size": factor * row.size}
                )
    return out


def test_the_page_measures_the_distance_from_the_printed_sizes(tmp_path: Path) -> None:
    outcomes = [
        Outcome(Task(unprinted_settings.NAME, study, 0, 0), _rows(study, "ten percent more", 1.1), 0.0, "abc")
        for study in unprinted_settings.TITLES
    ]
    starts = [
        {"study": unprinted_settings.START, "variant": v, "epsilon": e, "train_share": p, "size": 2.0 + p}
        for v in unprinted_settings.STARTS
        for e in unprinted_settings.START_EPSILONS
        for p in housing.SHARES
    ]
    outcomes.append(Outcome(Task(unprinted_settings.NAME, unprinted_settings.START, 0, 0), starts, 0.0, "abc"))
    unprinted_settings.report(outcomes, HEADER, Options(results=tmp_path))
    page = (tmp_path / "unprinted_settings.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| ten percent more")]
    # Housing, synthetic, and BloodMNIST, where only the pattern counts
    assert [line.split("|")[-2].strip() for line in lines] == ["10.0", "10.0", "0.0"]
    assert page.count("| 0.600 |") == len(starts) / len(housing.SHARES)


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


def test_means_by_pool() -> None:
    rows = [{"pool": pool, "size": size, "wanted": pool < 2} for pool, size in ((0, 1.0), (0, 3.0), (1, 5.0), (2, 9.0))]
    assert synthetic_scaling.pool_means(rows, "size", lambda r: r["wanted"]) == [2.0, 5.0]
