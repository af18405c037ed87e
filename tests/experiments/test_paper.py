import doctest
import math
import warnings

import numpy as np
import pytest
from experiments.accounting import opacus_noise_multiplier, paper_spending
from experiments.faithful import Fold, PaperSettings
from experiments.paper_tables import printed
from experiments.runner import DELTA, EPSILONS

from experiments import accounting, bloodmnist, faithful, housing, paper_tables

BLOOD_RATE, BLOOD_STEPS = 1 / 428, 6420


def _blood_digits(epsilon: float, share: float | None) -> None:
    rate, steps = bloodmnist.SETTINGS.loader(13_671 if share is not None else 13_671 // 2)
    spent = paper_spending(epsilon, share, rate, steps)
    method = "dp-split" if share is None else "dp-scp-f"
    paper = printed("bloodmnist", method, epsilon, share, 13_671)
    assert paper is not None
    assert f"{spent.train_epsilon:.3f}" == f"{paper.train_epsilon:.3f}"
    assert f"{spent.count_noise:.2f}" == f"{paper.count_noise:.2f}"


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_accounting_prints_the_papers_digits(epsilon: float) -> None:
    _blood_digits(epsilon, 0.5)
    _blood_digits(epsilon, None)


@pytest.mark.slow
def test_the_noise_multiplier_is_opacus_own() -> None:
    utils = pytest.importorskip("opacus.accountants.utils")
    with warnings.catch_warnings():
        # at hopeless trial values Opacus would like other orders
        warnings.simplefilter("ignore", UserWarning)
        theirs = utils.get_noise_multiplier(
            target_epsilon=0.5, target_delta=DELTA, sample_rate=1 / 65, steps=3250, accountant="rdp"
        )
    assert opacus_noise_multiplier(0.5, DELTA, 1 / 65, 3250)[0] == theirs


def test_loader_is_opacus_loader() -> None:
    assert bloodmnist.SETTINGS.loader(13_671) == (BLOOD_RATE, BLOOD_STEPS)
    assert housing.SETTINGS.loader(16_512) == (1 / 129, 6450)
    # 64.5 batches: the loader has 65, and Opacus divides by int(n / 65) = 127 records
    assert housing.SETTINGS.loader(8_256) == (1 / 65, 3250)


@pytest.fixture
def small() -> tuple[PaperSettings, Fold]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1500, 3))
    y = X @ np.array([1.0, -1.0, 0.5]) + 0.3 * rng.normal(size=1500)
    settings = PaperSettings(
        batch=100, epochs=5, hidden=(4,), loss="squared", n_classes=None, score_range=(0.0, 10.0), learning_rate=1e-2
    )
    return settings, Fold(X[:1000], y[:1000], X[1000:], y[1000:], standardize_rows=True, standardize_targets=True)


def test_the_five_methods_on_a_small_table(small: tuple[PaperSettings, Fold]) -> None:
    settings, fold = small
    spending = faithful.spending_table(settings, 1000, (0.5,))
    rows = list(faithful.paper_rows(settings, fold, spending, (0.5,), seed=3))
    again = list(faithful.paper_rows(settings, fold, spending, (0.5,), seed=3))
    assert rows == again
    assert [r["method"] for r in rows] == ["dp-scp-f", "dp-scp-a"] * 3 + ["dp-split"] * 3
    for finite, plain in zip(rows[0:6:2], rows[1:6:2], strict=True):
        # same model, same noise, a higher rank: never a smaller threshold
        assert finite["size"] >= plain["size"]
        assert finite["coverage"] >= plain["coverage"]
    baselines = list(faithful.non_private_rows(settings, fold, seed=3))
    assert [r["method"] for r in baselines] == ["naive-full", "split-cp"]
    for row in baselines:
        # 500 test records and 500 calibration scores: four standard deviations around the target
        assert abs(row["coverage"] - 0.9) < 4 * math.sqrt(0.09 / 500 + 0.09 / 500)


def test_examples_in_the_docstrings() -> None:
    for module in (accounting, paper_tables):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0
