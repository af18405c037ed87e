"""One private binary model for each of several labels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp.data.sources import Block
from dpscp.privacy import compose
from dpscp.privacy.random_streams import child_seeds
from dpscp.training.base import Around, Mechanism, Stages, Trained, TrainingRun, paid_event
from dpscp.training.model import Model, load_model, model_for_records, require_loadable, saved_as

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@saved_as("label heads")
@dataclass(frozen=True)
class LabelHeads(Model):
    """Binary models of the same rows, one for each label; each has the classes 0 and 1."""

    heads: tuple[Model, ...]

    task = "multilabel"
    classes = None

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
        """Return whether only code of this package reads the rows, so that they may come in parts."""
        return all(head.is_row_wise for head in self.heads)

    def outputs(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each label, (n, n_labels)."""
        # a head of the caller's own gets copies of the rows
        heads = map(model_for_records, self.heads)
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
        return {"model": "label heads", "heads": configs}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "LabelHeads":
        heads = tuple(
            load_model(one, {k.removeprefix(f"{i}/"): v for k, v in arrays.items() if k.startswith(f"{i}/")})
            for i, one in enumerate(config["heads"])
        )
        if len({head.n_features for head in heads}) != 1:
            raise ValueError("its heads do not fit together")
        return cls(heads)


@dataclass(frozen=True)
class OneVsRest(Around):
    """Train one binary model for each label, on the same records.

    Privacy: a record takes part in the training of every head, so the event is the composition of all of them.

    Parameters
    ----------
    mechanism : Mechanism
        Trains one head, with the classes 0 and 1.
    n_labels : int
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
    def task(self) -> str:
        return "multilabel"

    def with_shares(self, mu: float) -> Self:
        return self._with_inner(self.mechanism.with_shares(mu / math.sqrt(self.n_labels)))

    def guess_noise(self, mu: float) -> float:
        return self.mechanism.guess_noise(mu / math.sqrt(self.n_labels))

    def train_on(self, run: TrainingRun) -> Trained:
        """Train a head on each column of the targets, with randomness of its own."""
        heads = tuple(
            self.mechanism.train_source(
                run.source.map(partial(_one_label, place=place)), random_state=seed, n_records=run.n_records
            ).model
            for place, seed in enumerate(child_seeds(run.random_state, self.n_labels))
        )
        return run.result(LabelHeads(heads), {"mechanism": f"{self.n_labels} binary models, one for each label"})


def _one_label(block: Block, place: int) -> Block:
    """Replace the indicators of a block by those of one label."""
    return block.with_targets(block.targets[:, place])
