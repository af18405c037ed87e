"""A game with the settings of one's own model, on made-up records: the claim of that model's ledger is attacked."""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dpscp._base.checks import check_count
from dpscp.estimators import PrivateConformalClassifier, PrivateConformalRegressor

Array = NDArray[Any]


@dataclass(frozen=True)
class ModelGame:
    """The worlds differ by one extreme record; the attacker sees the released model's answer for it and the thresholds.

    ``model`` is fitted or loaded. Everything that it was told is used again (budget, guarantee, levels, score, bounds,
    classes, groups of a schema's column), on ``n`` records drawn inside the public bounds: few, so that one of them
    weighs as much as it can. Nothing of the model's own records is needed, and none is in its file.

    Theory: section 1.8 (the claims it tests)
    """

    model: PrivateConformalClassifier | PrivateConformalRegressor
    n: int = 100
    knowledge: str = "black-box"

    def __post_init__(self) -> None:
        check_is_fitted(self.model)
        check_count("n", self.n, minimum=10)
        if self.model.estimator is None and "signal" not in self.model.ledger_.public_facts:
            raise ValueError(
                "this model was trained by a mechanism of its own, which is not in the file: audit the mechanism with "
                "dpscp.audit.TrainingGame, or set estimator on the loaded model"
            )
        if callable(self.model.groups) or (self.model.group_values_ is not None and self.model.groups is None):
            raise ValueError("groups is a function of records, and made-up ones may mean nothing to it: audit without")

    @property
    def name(self) -> str:
        return f"the settings of a {type(self.model).__name__}"

    @property
    def claim(self) -> DpEvent:
        """The ledger of a release of this size."""
        return self._fitted(False).ledger_.event

    def play(self, with_record: bool, runs: int) -> NDArray[np.float64]:
        return np.array([self._seen(self._fitted(with_record)) for _ in range(runs)])

    def _seen(self, fitted: Any) -> NDArray[np.float64]:
        rows, _ = self._records
        said = np.ravel(fitted.model_.outputs(rows[-1:]))
        return np.concatenate([said, np.ravel(fitted.threshold_)])

    @cached_property
    def _records(self) -> tuple[Array, Array]:
        """Made-up rows and targets, the same in every game; the last is the record that is there or not."""
        facts, width = self.model.ledger_.public_facts, self.model.n_features_in_
        low, high = (np.broadcast_to(end, width) for end in facts.get("feature_bounds", (-1.0, 1.0)))
        spread = np.outer(np.arange(self.n + 1), np.sqrt(np.arange(width) + 0.5)) % 1  # evenly, without a draw
        rows = low + (high - low) * spread
        rows[-1] = high
        if isinstance(self.model, PrivateConformalClassifier):
            place = np.where(rows[:, 0] > (low[0] + high[0]) / 2, 0, len(self.model.classes_) - 1)
            place[-1] = len(self.model.classes_) - 1  # where all others say the first
            return rows, self.model.classes_[place]
        bottom, top = self.model.y_bounds_
        targets = bottom + (top - bottom) * (rows[:, 0] - low[0]) / (high[0] - low[0])
        targets[-1] = bottom
        return rows, targets

    def _fitted(self, with_record: bool) -> Any:
        rows, targets = self._records
        last = self.n + 1 if with_record else self.n
        settings = {**self.model.get_params(deep=False), "random_state": None}
        by_person, schema = self.model.ledger_.unit.by_person, self.model.schema_
        n_records, n_persons = (None, self.n) if by_person else (self.n, None)
        if schema is None:
            settings |= {"n_records": n_records, "n_persons": n_persons}
        else:
            schema = replace(schema, n_records=n_records, n_persons=n_persons)
        ids = np.arange(last) if by_person else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few records keep no promise but privacy, and that is the game
            return type(self.model)(**settings).fit(rows[:last], targets[:last], persons=ids, schema=schema)
