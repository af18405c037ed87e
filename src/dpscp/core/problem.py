"""Define the public side of a release: what is counted, n, and the budget.

It is checked on creation.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpscp._base.checks import check_choice, check_probability
from dpscp.core.tasks import Prediction, Task
from dpscp.data.feature_bounds import FeatureBounds
from dpscp.data.groups import RecordGroups, group_facts
from dpscp.data.populations import Population
from dpscp.guarantees.certificate import Promise, check_release_confidence
from dpscp.guarantees.registry import AUTO, GUARANTEES, Guarantee, guarantee_of
from dpscp.privacy import RECORDS, Accountant, Budget, Unit, as_accountant
from dpscp.privacy.store import BudgetStore
from dpscp.training.base import Trained
from dpscp.training.model import PrivateModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Hold the public side of a release: of scores, of losses, or of a fit."""

    task: Task
    budget: Budget
    alphas: tuple[float, ...]
    """The target miscoverage, or the bound on the mean loss, of each level."""
    n_records: int
    """The nominal number of units, records or persons."""
    guarantee: str | Guarantee = AUTO
    n_found: bool = False
    """Whether ``n_records`` was counted in the records, and is declared public."""
    unit: Unit = RECORDS
    """Who is protected and covered; ``n_records`` counts these."""
    accountant: str | Accountant = "pld"
    release_confidence: float | None = None
    group_values: tuple[Any, ...] | None = None
    """The public groups, each with its own threshold; None without groups."""
    groups_per_record: int = 1
    """How many groups one record may be in."""
    groups_are_labels: bool = False
    """Whether the labels are the groups."""
    population: Population | None = None
    """Another population that the promise is for (Result K)."""

    def __post_init__(self) -> None:
        if not isinstance(self.guarantee, Guarantee):
            check_choice("guarantee", self.guarantee, (AUTO, *GUARANTEES))
        if self.release_confidence is not None:
            check_release_confidence(self.release_confidence, self.guarantee)
            if self.task.resolution != 1:
                raise ValueError(
                    f"release_confidence needs resolution=1, got {self.task.resolution}: "
                    "no bound is known for other values"
                )
        as_accountant(self.accountant)

    @property
    def n_groups(self) -> int | None:
        """The number of groups with a threshold of their own; None without groups."""
        return None if self.group_values is None else len(self.group_values)

    @property
    def is_weighted(self) -> bool:
        """Whether a likelihood ratio weights misses (normalized), not drops records.

        A ratio that is not normalized drops records.

        Theory: Result K
        """
        return self.population is not None and self.population.normalized and self.group_values is None

    @property
    def weight_bound(self) -> float:
        """The bound W of such a ratio; 1 without one."""
        return self.population.bound if self.population is not None and self.is_weighted else 1.0

    @property
    def searched_alphas(self) -> tuple[float, ...]:
        """The miscoverage of each level among the weighted records: a miss counts w / W."""
        return tuple(alpha / self.weight_bound for alpha in self.alphas)

    def covered_level(self, level: float) -> float:
        """Return the least coverage of new records, given that of weighted records.

        Weighted records are covered at ``level``.
        """
        return max(0.0, 1 - self.weight_bound * (1 - level)) if self.is_weighted else level

    @property
    def group_facts(self) -> dict[str, Any]:
        """The public facts about groups; labels that are groups appear as classes."""
        if self.group_values is None or self.groups_are_labels:
            return {}
        return group_facts(self.group_values, self.groups_per_record)

    def require_payable(self, store: BudgetStore | None, *, seeded: bool) -> None:
        """Refuse a store that cannot pay for this release."""
        if store is None:
            return
        if self.unit.group > 1:
            raise ValueError(
                "budget=store needs persons=ids if rows_per_person is set: the store adds up costs of single records, "
                "and without ids the promise is about persons. Pass persons=ids, or remove budget"
            )
        store.require_spendable(seeded=seeded)


def group_fields(groups: RecordGroups | None) -> dict[str, Any]:
    """Return the fields of a problem for the groups of records in memory."""
    return {} if groups is None else {"group_values": groups.names, "groups_per_record": groups.per_record}


@dataclass(frozen=True, kw_only=True, eq=False)
class FitProblem(Problem):
    """Hold the public side of a fit: of training and of the release."""

    task: Prediction
    estimator: Any = None
    model: PrivateModel | None = None
    """A model that was trained elsewhere, in place of ``estimator``."""
    n_features: int = 1
    train_share: float | str = 0.5
    calibration_fraction: float | str = "auto"
    feature_bound: float | None = None
    feature_bounds: FeatureBounds | None = None
    input_shape: tuple[Any, ...] | None = None
    """The shape of one record that is not a row of a table; its numbers come as a row."""
    evaluation_fraction: float | None = None
    """The share of the records that measures the release; None: nothing is measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task.promise is Promise.RISK and self.guarantee != AUTO:
            chosen = guarantee_of(self.guarantee)
            if not chosen.certified or chosen.needs_stability:
                raise ValueError(f"guarantee must be 'auto', 'split' or 'universal' for a loss, got {chosen.name!r}")
        if self.evaluation_fraction is not None:
            self._check_evaluation_fraction(self.evaluation_fraction)
        for name in ("train_share", "calibration_fraction"):
            value = getattr(self, name)
            if value != "auto":
                check_probability(name, value)
        if (
            self.input_shape is not None
            and self.feature_bounds is not None
            and (self.private_features or any(np.ndim(end) for end in self.feature_bounds.pair))
        ):
            raise ValueError(f"feature_bounds must be two numbers (low, high), for records of {self.input_shape}")

    def _check_evaluation_fraction(self, fraction: float) -> None:
        """Refuse ``evaluation_fraction`` where no records are held out of training."""
        check_probability("evaluation_fraction", fraction)
        if self.model is not None:
            raise ValueError(
                "evaluation_fraction needs a fit that trains its model, but this model was trained elsewhere. Remove "
                "it, and evaluate on other records with dp.evaluate"
            )
        if self.guarantee != AUTO and not guarantee_of(self.guarantee).held_out:
            raise ValueError(
                f"evaluation_fraction needs guarantee='split' (or 'auto'), got {self.guarantee!r}: with other "
                "guarantees every record trains; evaluate on other records, with dp.evaluate"
            )

    @property
    def feature_scales(self) -> tuple[str, ...] | None:
        """The public scale of each feature; None: all are linear."""
        return None if self.feature_bounds is None else self.feature_bounds.scales

    @property
    def private_features(self) -> tuple[int, ...]:
        """The features whose bounds training finds."""
        return () if self.feature_bounds is None else self.feature_bounds.private

    def with_found_ranges(self, trained: Trained) -> "FitProblem":
        """Return the problem with the bounds and the range that training found."""
        bounds = self.feature_bounds
        if bounds is not None and bounds.private:
            ends: Any = trained.found_privately["feature_bounds"]
            bounds = bounds.with_found(ends)
        return replace(self, task=self.task.with_found_range(trained), feature_bounds=bounds)

    @property
    def n_group_places(self) -> int:
        """How many groups of records are searched; 0 where all are and none is left out."""
        if self.group_values is not None:
            return len(self.group_values)
        return 0 if self.population is None or self.is_weighted else 1

    def public_facts(self) -> dict[str, Any]:
        """Return what this fit declares public, as plain JSON values."""
        facts: dict[str, Any] = {self.unit.count_name: self.n_records, "n_features": self.n_features}
        declared = {"classes": self.task.classes, "feature_bound": self.feature_bound, "y_bounds": self.task.y_bounds}
        declared["ratio_bound"] = None if self.population is None else self.population.bound
        facts |= {name: value for name, value in declared.items() if value is not None}
        facts |= self.task.score_facts
        if self.feature_bounds is not None and not self.private_features:
            facts["feature_bounds"] = [np.asarray(end, dtype=float).tolist() for end in self.feature_bounds.pair]
            if 0 < len(self.feature_bounds.found) < self.n_features:
                facts["features_with_found_bounds"] = list(self.feature_bounds.found)
        return facts if self.feature_scales is None else {**facts, "feature_scale": list(self.feature_scales)}
