"""The public numbers of a plan, checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpscp._base.checks import check_count, check_positive, check_probability
from dpscp.core.request import Request
from dpscp.core.tasks import Classification, Regression, Task
from dpscp.data.groups import check_per_record
from dpscp.data.populations import check_ratio_bound
from dpscp.guarantees.registry import AUTO
from dpscp.privacy import Budget

# How each number is checked, where it is given.
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "n": check_count,
    "epsilon": check_positive,
    "delta": check_probability,
    "alpha": check_probability,
    "n_features": check_count,
    "release_confidence": check_probability,
    "rows_per_person": check_count,
    "ratio_bound": lambda _, bound: check_ratio_bound(bound),
    "n_groups": check_count,
    "evaluation_fraction": check_probability,
}


@dataclass(frozen=True)
class PublicNumbers:
    """Hold the public numbers of a plan; n or epsilon is None if it is solved for."""

    n: int | None
    epsilon: float | None
    delta: float
    alpha: float
    task: Task
    n_features: int
    train_share: float | str = 0.5
    calibration_fraction: float | str = "auto"
    release_confidence: float | None = None
    rows_per_person: int | None = None
    counted: bool = False
    ratio_bound: float | None = None
    n_groups: int | None = None
    groups_per_record: int = 1
    evaluation_fraction: float | None = None

    @classmethod
    def checked(
        cls, *, classes: int | Sequence[Any] | None, y_bounds: tuple[float, float], **numbers: Any
    ) -> "PublicNumbers":
        """Return checked numbers; ``classes=None`` plans a regression."""
        labels = _list_labels(classes)
        task: Task = Regression(y_bounds) if labels is None else Classification(labels)
        for name, check in _CHECKS.items():
            if numbers[name] is not None:
                numbers[name] = check(name, numbers[name])
        numbers["groups_per_record"] = check_per_record(numbers["groups_per_record"], numbers["n_groups"] or 1)
        return cls(task=task, **numbers)

    def with_value(self, name: str, value: float) -> "PublicNumbers":
        """Return the same with another number."""
        changed: dict[str, Any] = {name: round(value) if name == "n" else float(value)}
        return replace(self, **changed)

    def request(self, guarantee: str) -> Request:
        """Return the request of a fit with these numbers."""
        assert self.n is not None
        assert self.epsilon is not None
        return Request(
            task=self.task,
            estimator=None,
            budget=Budget(self.epsilon, self.delta),
            alphas=(self.alpha,),
            guarantee=guarantee,
            n_records=self.n,
            n_features=self.n_features,
            train_share=self.train_share,
            calibration_fraction=self.calibration_fraction,
            # only the choice of 'auto' uses it; other guarantees are shown for comparison
            release_confidence=self.release_confidence if guarantee == AUTO else None,
            ratio_bound=self.ratio_bound if guarantee == AUTO else None,
            evaluation_fraction=self.evaluation_fraction if guarantee == AUTO else None,
        )


def _list_labels(classes: int | Sequence[Any] | None) -> tuple[Any, ...] | None:
    """Return the labels of a plan; None for regression."""
    if isinstance(classes, int):
        return tuple(range(check_count("classes", classes, minimum=2)))
    return None if classes is None else tuple(classes)
