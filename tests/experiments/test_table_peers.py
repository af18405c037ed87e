"""The peers of tables: what each is told, that its noise fits its budget, and what the page says."""

import numpy as np
import pytest
from experiments.runner import Task
from experiments.table_models import Layout, Records

from dpscp.privacy import gdp_delta, gdp_mu
from experiments import table_models, table_peers

LAYOUT = Layout(np.array([0.0, -10.0]), np.array([4.0, 10.0]), (3, 2))


def drawn(n: int, *, is_labeled: bool, seed: int = 0) -> Records:
    """Two numbers and two groups of categories; the target follows the first of each."""
    rng = np.random.default_rng(seed)
    numbers = rng.uniform([0.0, -10.0], [4.0, 10.0], (n, 2))
    first, second = rng.integers(3, size=n), rng.integers(3, size=n)
    X = np.column_stack([numbers, np.eye(3)[first], np.eye(3)[second][:, :2]])
    signal = numbers[:, 0] / 2 - 1 + (first == 2)
    if is_labeled:
        return Records(X, (signal + 0.3 * rng.normal(size=n) > 0.3).astype(int), LAYOUT)
    return Records(X, np.clip(signal + 0.1 * rng.normal(size=n), -2, 3), LAYOUT, (-2.0, 3.0))


def test_the_noise_of_all_trees_together_fits_the_budget() -> None:
    rng = np.random.default_rng(0)
    for is_labeled, weight in ((True, 2.0), (False, 0.5)):
        reach = table_models.tree_reach(weight, is_labeled=is_labeled)
        # the largest that one record adds to its leaf, over chances and residuals
        chance, residual = rng.random(1_000), rng.uniform(-1, 1, 1_000)
        added = np.hypot(1 - chance, weight * chance * (1 - chance)) if is_labeled else np.hypot(residual, weight)
        assert added.max() <= reach
        noise = reach * np.sqrt(400) / gdp_mu(1.0, 1e-5)
        assert gdp_delta(1.0, np.sqrt(400) * reach / noise) <= 1.001e-5


@pytest.mark.slow
@pytest.mark.parametrize("is_labeled", [True, False])
def test_every_kind_of_model_gives_sets_that_cover(is_labeled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    records = drawn(2_600, is_labeled=is_labeled)
    monkeypatch.setattr(table_peers, "load_records", lambda *_: records)
    table = "adult" if is_labeled else "housing"
    for model in ("random trees", table_peers.OURS, table_peers.NOISELESS, table_peers.BOOSTING):
        epsilon = None if model in table_peers.NOT_PRIVATE else 4.0
        config = {"n": 1_000, "n_test": 1_600, "model": model, "epsilon": epsilon}
        (row,) = table_peers.run(Task("table_peers", table, 0, 0, config), None)
        # 150 records or more decide a threshold: five standard deviations
        assert row["coverage"] > 0.9 - 5 * (0.09 / 150) ** 0.5, model
        assert row["size"] < (1.7 if is_labeled else 4.0), model
    assert ("log_loss" in row) == is_labeled
