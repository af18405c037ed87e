"""Train one private model for each of several labels or targets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp.data.sources import Block
from dpscp.privacy import compose, gaussian_event, secure_generator
from dpscp.privacy.random_streams import RESIDUALS, child_seeds, stream_seed
from dpscp.training.base import (
    Around,
    Checked,
    Mechanism,
    Stages,
    Trained,
    TrainingRun,
    paid_event,
    require_noise,
)
from dpscp.training.engine.noise import gaussian_release, sum_in_parts, sum_slack, total_of_blocks
from dpscp.training.engine.rows import unit_targets
from dpscp.training.model import Model, load_model, model_for_records, require_loadable, saved_as
from dpscp.training.preprocessing.rescaled import in_target_units

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


# The public fact with the released spreads.
SPREAD = "target_spread"
# The smallest divisor of a residual, as a part of half the range.
_LEAST_SPREAD = 1e-3


@saved_as("heads")
@dataclass(frozen=True)
class Heads(Model):
    """Models of the same rows, one for each label or for each real target.

    A label's model is binary, with the classes 0 and 1.
    """

    heads: tuple[Model, ...]

    classes = None

    @property
    def task(self) -> str:
        return "multilabel" if self.heads[0].task == "classification" else self.heads[0].task

    @property
    def n_features(self) -> int:
        """Return the width of a row."""
        return self.heads[0].n_features

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Return the shape of one record that is not a row of a table; None for rows."""
        return self.heads[0].input_shape

    @property
    def is_row_wise(self) -> bool:
        """Whether only code of this package reads the rows, so that parts will do.

        Rows may then come in parts.
        """
        return all(head.is_row_wise for head in self.heads)

    def outputs(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return each label's probability, (n, n_labels), or each target's outputs.

        The outputs are side by side.
        """
        # a head with code of the caller gets copies of the rows
        heads = map(model_for_records, self.heads)
        if self.task == "regression":
            return np.column_stack([np.asarray(head.outputs(X)) for head in heads])
        return np.column_stack([np.asarray(head.predict_proba(X))[:, 1] for head in heads])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each label, (n, n_labels)."""
        return self.outputs(X)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {f"{i}/{name}": value for i, head in enumerate(self.heads) for name, value in head.arrays().items()}

    def config(self) -> dict[str, Any]:
        configs = [head.config() for head in self.heads]
        for config in configs:
            require_loadable(config)
        return {"model": "heads", "heads": configs}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "Heads":
        heads = tuple(
            load_model(one, {k.removeprefix(f"{i}/"): v for k, v in arrays.items() if k.startswith(f"{i}/")})
            for i, one in enumerate(config["heads"])
        )
        if len({head.n_features for head in heads}) != 1:
            raise ValueError("its heads have different numbers of features or different tasks")
        return cls(heads)


@dataclass(frozen=True)
class OneVsRest(Around):
    """Train one model for each column of the targets, on the same records.

    Privacy: a record takes part in the training of every head, so the event is the composition of all of them.

    Parameters
    ----------
    mechanism : Mechanism
        Trains one head, for the classes 0 and 1 or for real targets.
    n_labels : int
        The number of columns.
    """

    mechanism: Mechanism
    n_labels: int

    @property
    def event(self) -> "DpEvent | None":
        """Return the cost of all heads together; None while the noise is not set."""
        return None if self.mechanism.event is None else compose(*[self.mechanism.event] * self.n_labels)

    @property
    def stages(self) -> Stages:
        """Return one entry of a ledger for all heads."""
        return (("training", paid_event(self)),)

    @property
    def task(self) -> str | None:
        return "multilabel" if self.mechanism.task == "classification" else self.mechanism.task

    def check(self, input_shape: tuple[Any, ...]) -> Checked | None:
        one = super().check(input_shape)
        return None if one is None else replace(one, n_outputs=one.n_outputs * self.n_labels)

    def with_shares(self, mu: float) -> Self:
        return self._with_inner(self.mechanism.with_shares(mu / math.sqrt(self.n_labels)))

    def guess_noise(self, mu: float) -> float:
        return self.mechanism.guess_noise(mu / math.sqrt(self.n_labels))

    def train_on(self, run: TrainingRun) -> Trained:
        """Train a head on each column of the targets, with independent randomness."""
        trained = [
            self.mechanism.train_source(
                run.source.map(partial(_one_column, place=place)), random_state=seed, n_records=run.n_records
            )
            for place, seed in enumerate(child_seeds(run.random_state, self.n_labels))
        ]
        names = dict.fromkeys(name for one in trained for name in one.found_privately)
        found = {name: tuple(one.found_privately.get(name) for one in trained) for name in names}
        facts = {"mechanism": f"{self.n_labels} models, one for each label or target", **found}
        return replace(run.result(Heads(tuple(one.model for one in trained)), facts), found_privately=found)


def _one_column(block: Block, place: int) -> Block:
    """Replace the targets of a block by one column of them."""
    return block.with_targets(block.targets[:, place])


@dataclass(frozen=True)
class SeveralTargets(Around):
    """Train one model for each real target, then release mean residuals.

    A mean residual is the mean distance between targets and predictions. These spreads make the residuals of several
    targets comparable, so that one threshold serves all of them. The public ``ranges`` of the targets, if any, are
    scaled to [-1, 1] for training; without them the inner mechanism finds a range of each.

    Privacy: besides training, one Gaussian release of the sums of the residuals over the records, each in units of half
    the range of its target and cut at 1: one record or person adds a vector of norm at most sqrt(n_targets). The cost
    counts as training.

    Parameters
    ----------
    mechanism : OneVsRest
    ranges : tuple of (low, high)
    share : float
        The part of the squared Gaussian-DP budget that ``calibrated`` spends on the spreads.
    noise_multiplier : float or None
        Noise scale over sensitivity; None: call ``calibrated`` first.

    Theory: Facts 1 and 5; Result B
    """

    mechanism: OneVsRest
    ranges: tuple[tuple[float, float], ...] = ()
    share: float = 0.03
    noise_multiplier: float | None = None

    releases_last: ClassVar[bool] = True

    @property
    def own_parts(self) -> "tuple[tuple[str, DpEvent | None], ...]":
        """Return the event of the spreads."""
        noise = self.noise_multiplier
        return (("spread of the residuals", None if noise is None else gaussian_event(noise)),)

    def with_own_noise(self, mu: float) -> Self:
        return replace(self, noise_multiplier=1 / mu)

    def train_on(self, run: TrainingRun) -> Trained:
        """Train the models; their outputs are in the units of the targets."""
        n, k = run.n_records, self.mechanism.n_labels
        trained = run.train_inner(self.mechanism, run.source.map(partial(_scale_columns, ranges=self.ranges)))
        model: Any = trained.model
        ranges: Any = self.ranges or trained.found_privately["y_bounds"]
        if self.ranges:
            model = Heads(tuple(map(in_target_units, model.heads, self.ranges)))
        noise = require_noise(self.noise_multiplier) * math.sqrt(k) * (1 + sum_slack(n))
        total = total_of_blocks(partial(residual_sums, model=model, ranges=ranges), run.source, n)
        rng = secure_generator(stream_seed(run.random_state, RESIDUALS))
        # a smaller spread could be noise alone
        shares = np.clip(gaussian_release(total, noise, rng, n) / n, max(_LEAST_SPREAD, min(1.0, 2 * noise / n)), 1.0)
        spread = tuple(float(share * (high - low) / 2) for share, (low, high) in zip(shares, ranges, strict=True))
        found = {**trained.found_privately, SPREAD: spread}
        return replace(trained, model=model, public_facts={**trained.public_facts, **found}, found_privately=found)


def _scale_columns(block: Block, ranges: tuple[tuple[float, float], ...]) -> Block:
    """Scale each column of the targets from its range to [-1, 1]."""
    if not ranges:
        return block
    scaled = [unit_targets(y, own) for y, own in zip(block.targets.T, ranges, strict=True)]
    return block.with_targets(np.column_stack(scaled))


def residual_sums(block: Block, model: Model, ranges: tuple[tuple[float, float], ...]) -> NDArray[np.float64]:
    """Return the exact weighted sums of the residuals in half ranges.

    They are never released without noise.
    """
    low, high = np.array(ranges).T
    residuals = np.empty((len(block), len(ranges)))
    own, model = not model.is_row_wise, model_for_records(model)
    for part, rows in block.parts(max(1, len(block)) if own else None):
        outputs = np.asarray(model.outputs(rows), dtype=np.float64)
        center = outputs.reshape(len(rows), len(ranges), -1).mean(axis=2)
        residuals[part] = np.clip(np.abs(block.targets[part] - center) / ((high - low) / 2), 0.0, 1.0)
    residuals[np.isnan(residuals)] = 1.0  # a model that overflows
    return sum_in_parts(lambda r, w: w @ r, residuals, block.owners.weights)
