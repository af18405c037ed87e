"""What a private training mechanism is, and what it hands back.

A mechanism is a frozen set of public constants. Its privacy cost (`event`) is a function of these constants
alone and is known before any record is touched; the records and the randomness are arguments of `train`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dpscp.training.stability import Stability

__all__ = ["Mechanism", "Model", "Trained", "Trajectory"]


@runtime_checkable
class Model(Protocol):
    """A released predictor: parameters and public constants, nothing whose size grows with the records."""

    @property
    def task(self) -> str:
        """Either "classification" or "regression"."""

    @property
    def n_features(self) -> int:
        """Width of a row."""

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The public labels in the order of the columns of `outputs`; None for regression."""

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Logits (n, classes), or real outputs (n, k): k = 1, or one column a quantile."""

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Class probabilities (n, classes); TypeError for regression."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The parameters, for saving."""

    def config(self) -> dict[str, Any]:
        """The public constants as JSON values: with `arrays` enough to rebuild the model."""

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild the model that `config` and `arrays` came from."""


@dataclass(frozen=True)
class Trajectory:
    """The points where DP-SGD evaluated its gradients, and what each gradient weighed in the released model.

    `iterates[t]` (a flat parameter vector) is where step t + 1 took its clipped gradients; `weights[t]` is
    minus the derivative of the released parameters with respect to that step's normalised clipped gradient
    when later gradients are held fixed: the learning rate for plain SGD, smaller under iterate averaging,
    larger under momentum, None under Adam. All of it is a function of the noisy iterates, which DP-SGD's
    accounting already pays for.

    Theory: Result D
    """

    iterates: NDArray[Any]
    weights: NDArray[Any] | None
    clip_norm: float
    normaliser: float
    sampling_rate: float


@dataclass(frozen=True)
class Trained:
    """The outcome of private training: everything here may be published.

    `event` is what training cost, `stability` the proven shift bound (None where no bound is known),
    `public_facts` what was declared public on the way. `trajectory` is kept only on request.

    Theory: section 1 (public facts), Result C (stability)
    """

    model: Model
    event: "DpEvent"
    stability: "Stability | None"
    public_facts: Mapping[str, object] = field(default_factory=dict)
    trajectory: Trajectory | None = None


@runtime_checkable
class Mechanism(Protocol):
    """A private training algorithm with its public constants."""

    @property
    def event(self) -> "DpEvent":
        """What one run costs, from public constants only; ValueError while the noise is not set."""

    def calibrated(self, epsilon: float, delta: float, *, accountant: str = "pld") -> Self:
        """A new mechanism whose noise is solved from the budget and never ends above it.

        Raises BudgetError when no finite noise meets the budget.
        """

    def train(
        self, X: ArrayLike, y: ArrayLike, *, random_state: int | None = None, n_records: int | None = None
    ) -> Trained:
        """Train on the records; `n_records=None` declares len(X) public, `random_state=None` is system entropy."""
