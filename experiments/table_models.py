"""Models that a user could train privately on a table: packages of others, and two algorithms written for the study.

A model is a function of a table and a budget. It returns a function from rows to the probability of class 1, or to the
predicted target. All models know the same public facts: the ranges of the numbers, the categories, and the range of
the target. Noise of the two algorithms written here is solved by Gaussian differential privacy, so that nobody pays for
loose accounting.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpscp.privacy import gdp_mu

__all__ = ["MODELS", "Layout", "Records", "Settings", "fit_model", "missing_models"]

Array = NDArray[Any]
Predict = Callable[[Array], Array]
# names of models that need a package, and the module that it brings
PACKAGES = {"dp-ebm": "interpret", "diffprivlib": "diffprivlib"}
_MOST_LOGIT = 8.0


@dataclass(frozen=True)
class Layout:
    """Public facts of a table: the range of each number, then the sizes of the groups of indicators after them."""

    low: Array
    high: Array
    groups: tuple[int, ...] = ()

    @property
    def n_numbers(self) -> int:
        """How many columns are numbers."""
        return len(self.low)

    @property
    def longest_row(self) -> float:
        """No scaled row is longer: numbers lie within a half of zero, and a group has at most one indicator."""
        return float(np.sqrt(self.n_numbers / 4 + len(self.groups)))

    def scaled(self, X: Array) -> Array:
        """Numbers from -1/2 to 1/2; indicators as they are."""
        numbers = (np.clip(X[:, : self.n_numbers], self.low, self.high) - self.low) / (self.high - self.low)
        return np.column_stack([numbers - 0.5, X[:, self.n_numbers :]])

    def codes(self, X: Array) -> Array:
        """The category of each group as a whole number; 0 where it is none of those listed."""
        columns, start = [], self.n_numbers
        for size in self.groups:
            part = X[:, start : start + size]
            columns.append(np.where(part.any(axis=1), part.argmax(axis=1) + 1, 0))
            start += size
        return np.column_stack(columns) if columns else np.zeros((len(X), 0), dtype=np.int64)


@dataclass(frozen=True)
class Records:
    """Rows and targets with their public facts; ``y_range`` is None for two classes."""

    X: Array
    y: Array
    layout: Layout
    y_range: tuple[float, float] | None = None

    @cached_property
    def targets(self) -> Array:
        """Targets from -1 to 1."""
        if self.y_range is None:
            return 2.0 * self.y - 1.0
        low, high = self.y_range
        return (2 * np.clip(self.y, low, high) - low - high) / (high - low)

    def restored(self, predicted: Array) -> Array:
        """Predicted targets in their own units, or probabilities of class 1, from predictions between -1 and 1."""
        inside = np.clip(predicted, -1.0, 1.0)
        if self.y_range is None:
            return (1 + inside) / 2
        low, high = self.y_range
        return (low + high + inside * (high - low)) / 2


@dataclass(frozen=True)
class Settings:
    """Number of random trees, tests on the way to a leaf, and size of a step."""

    trees: int
    depth: int
    rate: float


def fit_model(name: str, records: Records, epsilon: float, delta: float, seed: int) -> Predict:
    """Train the named model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MODELS[name](records, epsilon, delta, seed)


# ---- boosted trees with random tests


def settings_of(n: int, epsilon: float, delta: float) -> Settings:
    """Chosen on splits that are not in the tables; depth from public numbers."""
    return Settings(400, 3 if n * gdp_mu(epsilon, delta) < 4_000 else 4, 0.1)


def random_trees(
    records: Records, epsilon: float, delta: float, seed: int, settings: Settings | None = None
) -> Predict:
    """Boosted trees whose tests are drawn without looking at records; each leaf has a noisy sum and a noisy weight.

    All nodes of one depth have the same test: a number against a uniform place in its public range, or a category
    against a random half of its group. A record is in one leaf of each tree, where it adds its gradient and
    ``weight`` times its curvature: a Gaussian mechanism for each tree, and the squares of their mu add up.
    """
    chosen = settings or settings_of(len(records.y), epsilon, delta)
    rng = np.random.default_rng(seed)
    is_labeled = records.y_range is None
    weight = 2.0 if is_labeled else 0.5
    noise = tree_reach(weight, is_labeled=is_labeled) * np.sqrt(chosen.trees) / gdp_mu(epsilon, delta)
    least = max(1.0, 2 * noise / weight)
    columns, labels = _columns(records.layout, records.X), (records.targets + 1) / 2
    margin = np.zeros(len(records.y))
    trees = []
    for place in range(chosen.trees):
        tests = [_draw_test(records.layout, rng) for _ in range(chosen.depth if place else 0)]
        leaf, n_leaves = _leaves(tests, columns), 2 ** len(tests)
        if is_labeled:
            chance = expit(margin)
            gradient, curvature = labels - chance, chance * (1 - chance)
        else:
            gradient, curvature = np.clip(records.targets - margin, -1, 1), np.ones(len(margin))
        sums = np.bincount(leaf, gradient, n_leaves) + rng.normal(0, noise, n_leaves)
        weights = np.bincount(leaf, curvature, n_leaves) + rng.normal(0, noise / weight, n_leaves)
        # the first tree is one leaf, the mean: it takes a whole step
        values = (chosen.rate if place else 1.0) * sums / (np.maximum(weights, 0.0) + least)
        margin = np.clip(margin + values[leaf], -_MOST_LOGIT, _MOST_LOGIT)
        trees.append((tests, values))

    def predict(X: Array) -> Array:
        rows = _columns(records.layout, X)
        total = np.zeros(len(X))
        for tests, values in trees:
            total = np.clip(total + values[_leaves(tests, rows)], -_MOST_LOGIT, _MOST_LOGIT)
        return expit(total) if is_labeled else records.restored(total)

    return predict


def tree_reach(weight: float, *, is_labeled: bool) -> float:
    """How far one record moves the sums of a tree.

    The largest curvature is 1/4 for a logistic loss and 1 for a squared one; both have gradients of at most 1.
    """
    return float(np.hypot(1.0, weight * (0.25 if is_labeled else 1.0)))


@dataclass(frozen=True)
class _Test:
    """Which rows go to the right: those above a place of a number, or those in a part of the categories."""

    column: int
    place: float | None = None
    categories: Array | None = None


def _columns(layout: Layout, X: Array) -> tuple[Array, Array]:
    return np.ascontiguousarray(layout.scaled(X)[:, : layout.n_numbers].T), np.ascontiguousarray(layout.codes(X).T)


def _draw_test(layout: Layout, rng: np.random.Generator) -> _Test:
    column = int(rng.integers(layout.n_numbers + len(layout.groups)))
    if column < layout.n_numbers:
        return _Test(column, place=float(rng.uniform(-0.5, 0.5)))
    group = column - layout.n_numbers
    return _Test(group, categories=rng.random(layout.groups[group] + 1) < 0.5)


def _leaves(tests: list[_Test], columns: tuple[Array, Array]) -> Array:
    numbers, codes = columns
    leaf = np.zeros(numbers.shape[1] if len(numbers) else codes.shape[1], dtype=np.int64)
    for test in tests:
        right = numbers[test.column] > test.place if test.categories is None else test.categories[codes[test.column]]
        leaf = 2 * leaf + right
    return leaf


# ---- AdaSSP


def adaptive_ridge(records: Records, epsilon: float, delta: float, seed: int) -> Predict:
    """AdaSSP (Wang 2018): noisy second moments, with a ridge that grows where they are poorly conditioned.

    Three Gaussian releases with a third of mu squared each: the smallest eigenvalue, the second moments of the rows,
    and those of rows and targets. Two classes are targets of -1 and 1.
    """
    rng = np.random.default_rng(seed)
    rows = np.column_stack([records.layout.scaled(records.X), np.ones(len(records.X))])
    d, longest = rows.shape[1], records.layout.longest_row**2 + 1
    spread = np.sqrt(3.0) / gdp_mu(epsilon, delta)
    moments = rows.T @ rows
    # less than the eigenvalue with probability .95, as the ridge asks
    smallest = max(0.0, np.linalg.eigvalsh(moments)[0] + longest * spread * (rng.normal() - 1.645))
    ridge = max(0.0, longest * spread * np.sqrt(d * np.log(2 * d**2 / 0.05)) - smallest)
    upper = np.triu(rng.normal(0, longest * spread, (d, d)))
    noisy = moments + upper + np.triu(upper, 1).T + ridge * np.eye(d)
    products = rows.T @ records.targets + rng.normal(0, np.sqrt(longest) * spread, d)
    weights = np.linalg.lstsq(noisy, products, rcond=None)[0]
    return lambda X: records.restored(records.layout.scaled(X) @ weights[:-1] + weights[-1])


# ---- packages of others


def boosted_machine(records: Records, epsilon: float, delta: float, seed: int) -> Predict:
    """DP-EBM of ``interpret`` as it comes, with numbers and categories. It reads the categories and the number of rows
    from the records."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    layout = records.layout
    ranges = dict(enumerate(zip(layout.low.tolist(), layout.high.tolist(), strict=True)))
    settings: dict[str, Any] = {
        "feature_types": ["continuous"] * layout.n_numbers + ["nominal"] * len(layout.groups),
        "privacy_bounds": ranges,
        "epsilon": epsilon,
        "delta": delta,
        "n_jobs": 1,
        "random_state": seed,
    }

    def mixed(X: Array) -> Array:
        names = layout.codes(X).astype(str).astype(object)
        return np.column_stack([X[:, : layout.n_numbers].astype(object), names])

    if records.y_range is None:
        classifier = DPExplainableBoostingClassifier(**settings).fit(mixed(records.X), records.y)
        return lambda X: classifier.predict_proba(mixed(X))[:, 1]
    low, high = records.y_range
    regressor = DPExplainableBoostingRegressor(**settings, privacy_target_min=low, privacy_target_max=high)
    regressor.fit(mixed(records.X), records.y)
    return lambda X: np.clip(regressor.predict(mixed(X)), low, high)


def noisy_linear_model(records: Records, epsilon: float, delta: float, seed: int) -> Predict:  # noqa: ARG001
    """``diffprivlib``: logistic regression by a noisy objective, or linear regression by noisy moments; without delta.

    Its logistic class asks scikit-learn for an option that no longer exists, so the function behind it is called. It
    reads the number of rows from the records.
    """
    _prepare_diffprivlib()
    rows, longest = records.layout.scaled(records.X), records.layout.longest_row
    if records.y_range is None:
        from diffprivlib.models.logistic_regression import _logistic_regression_path

        found, _, _ = _logistic_regression_path(
            rows, records.y, epsilon, longest, pos_class=1, Cs=[1.0], random_state=seed
        )
        weights = found[0]
        return lambda X: expit(records.layout.scaled(X) @ weights[:-1] + weights[-1])
    from diffprivlib.models import LinearRegression

    bounds = (np.full(rows.shape[1], -0.5), np.full(rows.shape[1], 0.5))
    model = LinearRegression(epsilon=epsilon, bounds_X=bounds, bounds_y=records.y_range, random_state=seed)
    model.fit(rows, records.y)
    return lambda X: np.clip(model.predict(records.layout.scaled(X)), *records.y_range)


def _prepare_diffprivlib() -> None:
    """Its forest, which nobody here uses, does not load with today's scikit-learn."""
    name = "diffprivlib.models.forest"
    if name not in sys.modules:
        forest: Any = ModuleType(name)
        forest.RandomForestClassifier = forest.DecisionTreeClassifier = None
        sys.modules[name] = forest


MODELS: dict[str, Callable[[Records, float, float, int], Predict]] = {
    "dp-ebm": boosted_machine,
    "random trees": random_trees,
    "diffprivlib": noisy_linear_model,
    "adassp": adaptive_ridge,
}


def missing_models() -> list[str]:
    """The models whose package is not installed."""
    return [name for name, module in PACKAGES.items() if find_spec(module) is None]
