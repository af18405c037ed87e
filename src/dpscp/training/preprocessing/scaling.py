"""Scale regression targets to [-1, 1] by public bounds, and predictions back."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_range
from dpscp.data.sources import Block
from dpscp.guarantees.stability import Stability
from dpscp.training.base import Around, Mechanism, Trained, TrainingRun, require_mechanism
from dpscp.training.model import InfluenceForm, Model, load_model, saved_as
from dpscp.training.targets import target_units, unit_targets


@saved_as("scaled_target")
@dataclass(frozen=True)
class ScaledTargetModel(Model):
    """A regression model whose outputs in [-1, 1] stand for targets in ``y_bounds``.

    Theory: Fact 1
    """

    inner: Model
    y_bounds: tuple[float, float]
    classes: None = None
    task: str = "regression"

    @property
    def n_features(self) -> int:
        """Return the width of a row."""
        return self.inner.n_features

    def outputs(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return outputs (n, k) in the target's own units."""
        return target_units(self.inner.outputs(X), self.y_bounds)

    @property
    def is_row_wise(self) -> bool:
        return self.inner.is_row_wise

    @property
    def checks_rows(self) -> bool:
        return self.inner.checks_rows

    def influence_form(self) -> InfluenceForm:
        form = self.inner.influence_form()
        return replace(form, target_ranges=(self.y_bounds, *form.target_ranges))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.inner.arrays()

    def config(self) -> dict[str, Any]:
        return {"model": "scaled_target", "y_bounds": list(self.y_bounds), "inner": self.inner.config()}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        return cls(load_model(config["inner"], arrays), check_range("y_bounds", config["y_bounds"]))


@dataclass(frozen=True)
class ScaledTarget(Around):
    """Train on targets clipped to public bounds and scaled to [-1, 1].

    Privacy: no cost of its own; ``event`` is that of the inner mechanism.

    A stability bound is about the inner parameters; the Lipschitz constant of the score grows with the target's range.

    Parameters
    ----------
    mechanism : Mechanism
        It trains on the scaled targets. The outputs of its model are scaled back.
    y_bounds : (low, high)
        The public range of the target.

    Theory: Fact 1
    """

    mechanism: Mechanism
    y_bounds: tuple[float, float]

    def __post_init__(self) -> None:
        require_mechanism(self.mechanism)
        check_range("y_bounds", self.y_bounds)

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> Stability | None:
        """Return the inner bound.

        The score's Lipschitz constant is in the target's own units.
        """
        return self._in_target_units(self.mechanism.stability(n_features, n_records, classes))

    def _in_target_units(self, bound: Stability | None) -> Stability | None:
        if bound is None or bound.score_lipschitz is None:
            return bound
        half_width = (self.y_bounds[1] - self.y_bounds[0]) / 2
        return replace(bound, score_lipschitz=bound.score_lipschitz * half_width)

    def _in_unit(self, block: Block) -> Block:
        return block.with_targets(unit_targets(block.targets, self.y_bounds))

    def train_on(self, run: TrainingRun) -> Trained:
        trained = run.train_inner(self.mechanism, run.source.map(self._in_unit))
        model, bound = ScaledTargetModel(trained.model, self.y_bounds), self._in_target_units(trained.stability)
        return replace(trained, model=model, stability=bound)
