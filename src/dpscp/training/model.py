"""Define the protocols of released models: what every model has, and the abilities that some have.

`Model` is all that your own model must have. The other protocols are abilities: `Shaped` (records with a shape of their
own), `RowWise` (reads rows in parts), `HasInfluenceForm` (the influence of a record on its own outputs is known),
`HasOutputScale` (its outputs can be moved and scaled). A model around another one has the abilities of the inner one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from dpscp.training.engine.loop import UpdateRule
    from dpscp.training.engine.networks import DenseModel


@runtime_checkable
class Model(Protocol):
    """A released predictor.

    Parameters and public constants, nothing whose size grows with the records.
    """

    @property
    def task(self) -> str:
        """Return "classification" or "regression"."""

    @property
    def n_features(self) -> int:
        """Return the width of a row."""

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """Return the public labels in the order of the columns of `outputs`.

        None for regression.
        """

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return logits (n, classes), or real outputs (n, k).

        K = 1, or one column a quantile.
        """

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return class probabilities (n, classes); TypeError for regression."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the parameters, for saving."""

    def config(self) -> dict[str, Any]:
        """Return the public constants as JSON values.

        With `arrays` enough to rebuild the model.
        """

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild the model that `config` and `arrays` came from."""


@runtime_checkable
class Shaped(Protocol):
    """A model whose records have a shape of their own.

    It takes them as rows of so many numbers too.
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one record."""


@dataclass(frozen=True)
class Trajectory:
    """Hold the points where DP-SGD took its gradients, and their weights.

    Parameters
    ----------
    iterates : array of shape (steps, n_parameters)
        Where each step took its clipped gradients.
    weights : array of shape (steps,), or None
        Minus the derivative of the released parameters with respect to a step's normalized clipped gradient when later
        gradients are held fixed: the learning rate for plain SGD, smaller under iterate averaging, larger under
        momentum, None under Adam.
    clip_norm, normaliser, sampling_rate : float
        The public constants of training.
    rule : UpdateRule or None
        It gives the weights when later gradients respond.
    row_length : float or None
        The length of every row, where preprocessing gives them one.

    Privacy: all of it is a function of the noisy iterates, for which the accounting of DP-SGD already pays, and of
    public constants.

    Theory: Result D
    """

    iterates: NDArray[Any]
    weights: NDArray[Any] | None
    clip_norm: float
    normaliser: float
    sampling_rate: float
    rule: "UpdateRule | None" = None
    row_length: float | None = None


@runtime_checkable
class RowWise(Protocol):
    """A model of this package: only its code reads the rows, each by itself."""

    @property
    def is_row_wise(self) -> bool:
        """Return whether rows may come in parts; False with a caller's own model inside."""

    @property
    def checks_rows(self) -> bool:
        """Return whether the model refuses NaN and infinity itself and casts rows of float32 or float64 in parts."""


@dataclass(frozen=True)
class InfluenceForm:
    """Describe the linear head inside a model, whose outputs can be corrected for each record's own influence.

    Parameters
    ----------
    head : DenseModel
        A network without hidden layers.
    row_steps : tuple of functions
        They turn rows (n, n_features) of the model into rows of the head, the first one first.
    target_ranges : tuple of (low, high)
        Targets of the model were scaled to [-1, 1] from these ranges before the head was trained, the first one first.

    Theory: Result D
    """

    head: "DenseModel"
    row_steps: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = ()
    target_ranges: tuple[tuple[float, float], ...] = ()


class NoInfluenceFormError(TypeError, ValueError):
    """No sound form of the correction is known for this model or this training.

    Both kinds, because a model of the wrong kind and a missing trajectory have always raised the one and the other.
    """


@runtime_checkable
class HasInfluenceForm(Protocol):
    """A model that may contain a linear head."""

    def influence_form(self) -> InfluenceForm:
        """Return the head and what is around it; NoInfluenceFormError where no sound form is known."""


@runtime_checkable
class HasOutputScale(Protocol):
    """A model whose outputs can be moved and scaled within its parameters."""

    def with_output_scale(self, scale: float, shift: ArrayLike) -> Model:
        """Return the model with every output z as shift + scale * z; TypeError where its parameters cannot do that."""


def is_row_wise(model: Model) -> bool:
    """Return whether rows may be passed to the model in parts; False for a caller's own model."""
    return isinstance(model, RowWise) and model.is_row_wise


def checks_rows(model: Model) -> bool:
    """Return whether the model checks and casts its rows itself; False for a caller's own model."""
    return isinstance(model, RowWise) and model.checks_rows


def find_influence_form(model: Model) -> InfluenceForm:
    """Return the model's influence form; NoInfluenceFormError where none is known."""
    if isinstance(model, HasInfluenceForm):
        return model.influence_form()
    raise NoInfluenceFormError(
        f"the self-influence correction works for linear heads only, not for {type(model).__name__}"
    )


def scale_outputs(model: Model, scale: float, shift: ArrayLike) -> Model:
    """Return the model with every output z as shift + scale * z; both go into its last layer.

    TypeError for a model without a last layer of its own.
    """
    if isinstance(model, HasOutputScale):
        return model.with_output_scale(scale, shift)
    raise TypeError("the mechanism must release a DenseModel with an intercept and one output for each class")
