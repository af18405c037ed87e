"""The public side of one fit, checked: the estimator's parameters, the nominal number of records and the classes."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpscp._base.checks import check_choice, check_count, check_probability
from dpscp.core.tasks import Task
from dpscp.data.feature_bounds import FeatureBounds
from dpscp.data.groups import group_facts
from dpscp.guarantees.base import Guarantee
from dpscp.guarantees.certificate import check_release_confidence
from dpscp.guarantees.registry import AUTO, GUARANTEES, guarantee_of
from dpscp.privacy import RECORDS, Accountant, Budget, Unit, release_accountant
from dpscp.training.base import Trained
from dpscp.training.private_model import PrivateModel


@dataclass(frozen=True)
class Request:
    """Hold the public side of one fit."""

    task: Task
    estimator: Any
    budget: Budget
    alphas: tuple[float, ...]
    guarantee: str | Guarantee
    n_records: int
    n_features: int
    n_found: bool = False
    """Whether ``n_records`` was counted in the records, and is declared public."""
    train_share: float | str = 0.5
    calibration_fraction: float | str = "auto"
    feature_bound: float | None = None
    feature_bounds: FeatureBounds | None = None
    accountant: str | Accountant = "pld"
    group_values: tuple[Any, ...] | None = None
    groups_per_record: int = 1
    """How many groups one record may be in."""
    release_confidence: float | None = None
    unit: Unit = RECORDS
    """Who is protected and covered; ``n_records`` counts these."""
    input_shape: tuple[int, ...] | None = None
    """The shape of one record that is not a row of a table; its numbers come as a row."""
    """Where training runs, None: on the processor."""
    evaluation_fraction: float | None = None
    """The share of the records that measures the release; None: nothing is measured."""
    groups_are_labels: bool = False
    verbose: int = 0
    """1 shows the progress of training on standard error; public numbers only."""
    model: PrivateModel | None = None
    """A model that was trained elsewhere, in place of ``estimator``."""
    ratio_bound: float | None = None
    """The public bound of the likelihood ratio of another population that the promise is for (Result K)."""

    def __post_init__(self) -> None:
        if not isinstance(self.guarantee, Guarantee):
            check_choice("guarantee", self.guarantee, (AUTO, *GUARANTEES))
        if self.release_confidence is not None:
            check_release_confidence(self.release_confidence, self.guarantee)
        release_accountant(self.accountant)
        check_count("verbose", self.verbose, minimum=0)
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
                "evaluation_fraction needs a fit that trains its model; evaluate a model that was trained elsewhere on "
                "other records, with dp.evaluate"
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

    @property
    def scaled_feature_bounds(self) -> FeatureBounds | None:
        """The bounds of the features on their scales, as training sees them."""
        return None if self.feature_bounds is None else self.feature_bounds.on_scales

    def with_found_ranges(self, trained: Trained) -> "Request":
        """Return the request with the bounds and the range that training found."""
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
        return 0 if self.ratio_bound is None else 1

    @property
    def taken_from_data(self) -> tuple[str, ...]:
        """The names of the public facts that this fit reads from the records."""
        read = ((self.unit.count_name, self.n_found), ("classes", self.task.classes_found))
        return tuple(name for name, found in read if found)

    def public_facts(self) -> dict[str, Any]:
        """Return what this fit declares public, as plain JSON values."""
        facts: dict[str, Any] = {self.unit.count_name: self.n_records, "n_features": self.n_features}
        if self.unit.by_person:
            facts |= self.unit.facts(self.n_records)
        declared = {"classes": self.task.classes, "feature_bound": self.feature_bound, "y_bounds": self.task.y_bounds}
        declared["ratio_bound"] = self.ratio_bound
        facts |= {name: value for name, value in declared.items() if value is not None}
        if self.group_values is not None and not self.groups_are_labels:
            facts |= group_facts(self.group_values, self.groups_per_record)
        facts |= self.task.score_facts
        if self.feature_bounds is not None and not self.private_features:
            facts["feature_bounds"] = self.feature_bounds.list_ends()
            if 0 < len(self.feature_bounds.found) < self.n_features:
                facts["features_with_found_bounds"] = list(self.feature_bounds.found)
        return facts if self.feature_scales is None else {**facts, "feature_scale": list(self.feature_scales)}
