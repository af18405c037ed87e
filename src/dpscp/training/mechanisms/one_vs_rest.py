"""One private binary model for each of several labels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp.exceptions import BudgetError
from dpscp.privacy import compose, epsilon_of, gdp_epsilon, gdp_mu
from dpscp.privacy.random_streams import child_seeds
from dpscp.training.base import Mechanism, Needs, paid_event
from dpscp.training.model import Model, load_model, require_loadable, saved_as

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dpscp.data.persons import Persons
    from dpscp.privacy import Accountant

# Trials to bring the heads' composition below the budget, each with a smaller budget for one head.
_MOST_TRIALS = 12


@saved_as("label heads")
@dataclass(frozen=True)
class LabelHeads:
    """Binary models of the same rows, one for each label; each has the classes 0 and 1."""

    heads: tuple[Model, ...]

    @property
    def n_features(self) -> int:
        """Return the width of a row."""
        return self.heads[0].n_features

    def probabilities(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each label, (n, n_labels)."""
        return np.column_stack([np.asarray(head.predict_proba(X))[:, 1] for head in self.heads])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the parameters of all heads, for saving."""
        return {
            f"{place}/{name}": value for place, head in enumerate(self.heads) for name, value in head.arrays().items()
        }

    def config(self) -> dict[str, Any]:
        """Return the public constants of all heads as JSON values."""
        configs = [head.config() for head in self.heads]
        for config in configs:
            require_loadable(config)
        return {"model": "label heads", "heads": configs}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> "LabelHeads":
        """Rebuild the heads that `config` and `arrays` came from."""
        heads = []
        for place, one in enumerate(config["heads"]):
            start = f"{place}/"
            own = {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
            heads.append(load_model(one, own))
        if not heads or len({head.n_features for head in heads}) != 1:
            raise ValueError("its heads do not fit together")
        return cls(tuple(heads))


@dataclass(frozen=True)
class OneVsRest:
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

    def calibrated(self, epsilon: float, delta: float, *, accountant: "str | Accountant" = "pld") -> "OneVsRest":
        """Return the heads with noise that keeps all of them together within the budget."""
        head = self.mechanism.configured(Needs((0, 1)))
        tried = gdp_epsilon(delta, gdp_mu(epsilon, delta) / self.n_labels**0.5)
        for _ in range(_MOST_TRIALS):
            found = replace(self, mechanism=head.calibrated(tried, delta, accountant=accountant))
            spent = epsilon_of(paid_event(found), delta, accountant)
            if spent <= epsilon:
                return found
            tried *= 0.99 * epsilon / spent
        raise BudgetError(
            f"no noise keeps {self.n_labels} labels within epsilon = {epsilon:g} and delta = {delta:g}; increase "
            "epsilon or delta"
        )

    def train(
        self,
        X: NDArray[Any],
        y: NDArray[Any],
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        persons: "Persons | None" = None,
    ) -> LabelHeads:
        """Train all heads.

        Parameters
        ----------
        X : array of shape (n, n_features)
        y : int array of shape (n, n_labels) of 0 and 1
        random_state : int or None
        n_records : int or None
            The public nominal number of records, or of persons.
        persons : Persons, optional
        """
        seeds = child_seeds(random_state, self.n_labels)
        return LabelHeads(
            tuple(
                self.mechanism.train(X, y[:, place], persons=persons, random_state=seed, n_records=n_records).model
                for place, seed in enumerate(seeds)
            )
        )
