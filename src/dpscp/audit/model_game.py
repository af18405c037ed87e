"""Attack the claim of a fitted model with its settings, on synthetic records."""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dpscp._base.arrays import Array
from dpscp._base.checks import check_count
from dpscp.data.feature_bounds import stated_bounds
from dpscp.estimators import PrivateConformalClassifier, PrivateConformalRegressor
from dpscp.estimators.fitted import MissingEstimator


@dataclass(frozen=True)
class ModelGame:
    """Attack fits with the settings of a model.

    The neighbors differ by one extreme record.

    The attacker sees the output for this record and the thresholds. Budget, guarantee, levels, score, bounds, classes
    and groups are those of the model. The records are synthetic and lie inside the public bounds; the records of the
    model are not needed.

    Parameters
    ----------
    model : fitted or loaded PrivateConformalClassifier or PrivateConformalRegressor
    n : number of records; a small number gives each record the most weight.
    knowledge : "black-box"

    Theory: Fact 8
    """

    model: PrivateConformalClassifier | PrivateConformalRegressor
    n: int = 100
    knowledge: str = "black-box"

    def __post_init__(self) -> None:
        check_is_fitted(self.model)
        check_count("n", self.n, minimum=10)
        if isinstance(self.model.estimator, MissingEstimator):
            raise ValueError(
                "the mechanism that trained this model is not in its file: set estimator on the loaded model, "
                "then audit again"
            )
        if callable(self.model.groups) or (self.model.group_values_ is not None and self.model.groups is None):
            raise ValueError(
                "groups is a function of records and may fail on synthetic ones: audit a model without groups"
            )

    @property
    def name(self) -> str:
        return f"settings of a {type(self.model).__name__}"

    @property
    def claim(self) -> DpEvent:
        """Cost in the ledger of a release of this size."""
        return self._fit(False).ledger_.event

    def play(self, with_record: bool, runs: int) -> NDArray[np.float64]:
        return np.array([self._collect_release(self._fit(with_record)) for _ in range(runs)])

    def _collect_release(self, fitted: Any) -> NDArray[np.float64]:
        rows, _ = self._records
        outputs = np.ravel(fitted.model_.outputs(rows[-1:]))
        return np.concatenate([outputs, np.ravel(fitted.threshold_)])

    @cached_property
    def _records(self) -> tuple[Array, Array]:
        """Synthetic rows and targets, the same in every run; the last one is the record."""
        width = self.model.n_features_in_
        low, high = stated_bounds(self.model.ledger_.public_facts, width)
        positions = np.outer(np.arange(self.n + 1), np.sqrt(np.arange(width) + 0.5)) % 1  # evenly spaced, not random
        rows = low + (high - low) * positions
        rows[-1] = high
        if isinstance(self.model, PrivateConformalClassifier):
            place = np.where(rows[:, 0] > (low[0] + high[0]) / 2, 0, len(self.model.classes_) - 1)
            place[-1] = len(self.model.classes_) - 1  # such rows have the first label otherwise
            return rows, self.model.classes_[place]
        bottom, top = np.array(self.model.y_bounds_).T
        targets = bottom + (top - bottom) * ((rows[:, 0] - low[0]) / (high[0] - low[0])).reshape(-1, *[1] * bottom.ndim)
        targets[-1] = bottom
        return rows, targets

    def _fit(self, with_record: bool) -> Any:
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
            warnings.simplefilter("ignore")  # few records give full sets, but privacy holds
            return type(self.model)(**settings).fit(rows[:last], targets[:last], persons=ids, schema=schema)
