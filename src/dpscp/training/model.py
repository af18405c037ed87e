"""Define the base class of released models and their file format.

Also wraps models that were trained elsewhere.

`Model` has a default for everything except the outputs. A model around another one forwards the other methods to it.
Nothing here imports torch; ``PrivateModel.from_opacus`` imports it when it is called.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _num_samples

from dpscp._base.arrays import Array
from dpscp._base.callers import FLOAT32_ROUNDING, call_on_rows
from dpscp._base.checks import check_choice, check_count, is_of_caller
from dpscp.privacy import Ledger, Relation
from dpscp.training.engine.rows import aligned_empty, check_rows

if TYPE_CHECKING:
    from dpscp.training.base import Trained
    from dpscp.training.engine.networks import DenseModel
    from dpscp.training.mechanisms.dpsgd import DPSGD


class NoInfluenceFormError(TypeError, ValueError):
    """Raised if no valid form of the correction is known for model or training.

    It is both a TypeError and a ValueError, for a model of the wrong kind and for a missing trajectory.
    """


@dataclass(frozen=True)
class InfluenceForm:
    """The linear head inside a model, for the self-influence correction.

    Its outputs can be corrected for each record's own influence.

    Parameters
    ----------
    head : DenseModel
        A network without hidden layers.
    row_steps : tuple of functions
        They transform rows (n, n_features) of the model to rows of the head, in this order.
    target_ranges : tuple of (low, high)
        Targets of the model were scaled to [-1, 1] from these ranges before the head was trained, the first one first.

    Theory: Result D
    """

    head: "DenseModel"
    row_steps: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = ()
    target_ranges: tuple[tuple[float, float], ...] = ()


class Model(ABC):
    """The base class of a released predictor.

    A model has parameters and public constants, nothing whose size grows with the records. Define ``outputs`` and the
    attributes ``task`` ("classification" or "regression"), ``n_features`` and ``classes``. A model that is written to
    files also has ``arrays``, ``config`` and ``from_parts``, and the decorator `saved_as`.

    Assumes: the outputs of a row are computed from that row alone.

    Attributes
    ----------
    task : "classification" or "regression"
    n_features : int
        The width of a row.
    classes : tuple or None
        The public labels in the order of the columns of the outputs; None for regression.
    """

    # annotations only, because a property here would become the default of a dataclass field
    if TYPE_CHECKING:

        @property
        def task(self) -> str:
            """Return "classification" or "regression"."""

        @property
        def n_features(self) -> int:
            """Return the width of a row."""

        @property
        def classes(self) -> tuple[Any, ...] | None:
            """Return the public labels; None for regression."""

        @property
        def input_shape(self) -> tuple[int, ...] | None:
            """Return the shape of one record that is not a row of a table; None for rows."""
    else:
        input_shape = None

    @abstractmethod
    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return logits (n, classes), or real outputs (n, k).

        k is 1 or the number of quantiles.
        """

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return class probabilities (n, classes), the softmax of the outputs.

        Raises ``TypeError`` for a regression.
        """
        if self.task != "classification":
            raise TypeError("predict_proba needs a classification model; this one was trained for regression")
        return softmax(np.asarray(self.outputs(X), dtype=np.float64))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the parameters, for saving."""
        raise self._not_saved()

    def config(self) -> dict[str, Any]:
        """Return the public constants as JSON values.

        The name of `saved_as` is stored as "model".
        """
        raise self._not_saved()

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:  # noqa: ARG003
        """Rebuild the model of `config` and `arrays`; nothing of a file is executed."""
        raise cls._not_saved()

    @classmethod
    def _not_saved(cls) -> TypeError:
        return TypeError(f"{cls.__name__} cannot be saved; define its methods arrays, config and from_parts")

    @property
    def is_row_wise(self) -> bool:
        """Return whether only code of this package reads the rows.

        They may then come in parts, and the model itself refuses NaN and infinity.
        """
        return False

    def influence_form(self) -> InfluenceForm:
        """Return the linear head and the steps around it.

        Raises ``NoInfluenceFormError`` if no valid form is known.

        Theory: Result D
        """
        raise NoInfluenceFormError(
            f"the self-influence correction works for linear heads only, not for {type(self).__name__}"
        )

    def with_output_scale(self, scale: float, shift: ArrayLike) -> Self:  # noqa: ARG002
        """Return the model with every output z as shift + scale * z.

        Both numbers go into its last layer.

        Raises: TypeError for a model without a last layer.
        """
        raise TypeError("the mechanism must release a DenseModel with an intercept and one output for each class")


def softmax(z: Array) -> Array:
    """Return the row-wise softmax without overflow, in the precision of the logits.

    Classes are summed one after the other for all rows at once, so the sum of a row does not depend on other rows.
    """
    columns = aligned_empty(z.T.shape, str(z.dtype))
    columns[:] = z.T
    columns -= np.maximum.reduce(columns, axis=0)
    np.exp(columns, out=columns)
    columns /= np.add.reduce(columns, axis=0)
    return columns.T


@dataclass(frozen=True)
class Trajectory:
    """Hold the iterates of DP-SGD, the points at which it took its gradients.

    Parameters
    ----------
    iterates : array of shape (steps, n_parameters)
        Where each step took its clipped gradients.
    mechanism : DPSGD
        Its public constants.
    n_records : int
        The public nominal number of records, or persons.
    row_length : float or None
        The length of every row, if preprocessing makes it constant.

    Privacy: all of it is a function of the noisy iterates, for which the accounting of DP-SGD already pays, and of
    public constants.

    Theory: Result D
    """

    iterates: NDArray[Any]
    mechanism: "DPSGD"
    n_records: int
    row_length: float | None = None


_SAVED: dict[str, type[Any]] = {}
AnyModel = TypeVar("AnyModel", bound=type[Any])


def digest_parameters(model: Model) -> str | None:
    """Return a checksum of a released model; None for a model that is code.

    It covers public constants and parameters.
    """
    try:
        config, arrays = model.config(), model.arrays()
    except Exception:  # code of the caller, or a model that is a function
        return None
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, values in sorted(arrays.items()):
        array = np.ascontiguousarray(values)
        found.update(f"{name}{array.dtype.str}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def saved_as(kind: str) -> Callable[[AnyModel], AnyModel]:
    """Return a class decorator that saves models under this name.

    Parameters
    ----------
    kind : str
        Files with this name are loaded into the decorated class.

    Returns
    -------
    callable
    """

    def remember(model: AnyModel) -> AnyModel:
        if _SAVED.setdefault(kind, model) is not model:
            raise ValueError(f"another class already saves its models as {kind!r}; choose another name")
        return model

    return remember


def load_model(config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], module: Any = None) -> Any:
    """Rebuild a saved model of a class decorated with ``saved_as``.

    ``module`` is the architecture of a torch model; ValueError for a model that needs no module.
    """
    if config["model"] == "torch":
        import_module("dpscp.torch.model")  # imported here, because only users of torch need it
    kind = _SAVED[check_choice("model", config["model"], _SAVED)]
    return kind.from_parts(config if module is None else _with_module(config, module), arrays)


def _with_module(config: Mapping[str, Any], module: Any) -> dict[str, Any]:
    """Return the config with the module in its innermost part.

    Files contain no module: code does not come from them.
    """
    if "inner" in config:
        return {**config, "inner": _with_module(config["inner"], module)}
    if config["model"] != "torch":
        raise ValueError("module was passed, but this file contains the whole model; remove module")
    return {**config, "module": module}


def require_loadable(config: Mapping[str, Any]) -> None:
    """Refuse to save a model that ``load_model`` could not rebuild."""
    if config.get("model") not in _SAVED:
        raise TypeError(
            f"a model of kind {config.get('model')!r} cannot be saved; decorate its class with "
            "dpscp.training.saved_as(name)"
        )
    if "inner" in config:
        require_loadable(config["inner"])


@dataclass(frozen=True)
class FunctionModel(Model):
    """A model given by the function that computes its outputs; it cannot be saved.

    Parameters
    ----------
    function : callable
        From rows (n, n_features) to logits (n, n_classes) or real outputs (n, k).
    task : "classification" or "regression"
    n_features : int
    classes : tuple or None

    Theory: Fact 7
    """

    function: Callable[[NDArray[Any]], ArrayLike]
    task: str
    n_features: int
    classes: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        check_choice("task", self.task, ("classification", "regression"))
        check_count("n_features", self.n_features)
        if (self.classes is None) == (self.task == "classification"):
            raise ValueError("classes is required for classification, and must be None for regression")

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return the function's checked result: logits or real outputs.

        Logits are (n, classes), real outputs are (n, k).
        """
        return call_model(self.function, check_rows(X, self.n_features), self.classes)

    @classmethod
    def _not_saved(cls) -> TypeError:
        return TypeError("a model given as a function cannot be saved; save the model that the function calls")


@dataclass(frozen=True)
class CallersModel(Model):
    """A wrapper of a model of the caller's class, which gets copies of the rows."""

    inner: Model

    @property
    def task(self) -> str:
        return self.inner.task

    @property
    def n_features(self) -> int:
        """Return the width of a row."""
        return self.inner.n_features

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """Return the labels of the caller's model; None for regression."""
        return self.inner.classes

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        return call_model(self.inner.outputs, np.asarray(X), self.classes)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        return call_model(self.inner.predict_proba, np.asarray(X), self.classes)

    def influence_form(self) -> InfluenceForm:
        return self.inner.influence_form()


def model_for_records(model: Model) -> Model:
    """Wrap a model with code of the caller, which gets copies of the records.

    It is called twice, on two different divisions into blocks, and the results are compared.
    """
    inner: Any = model
    while inner is not None:
        if is_of_caller(inner):
            return CallersModel(model)
        inner = getattr(inner, "inner", None)
    return model


def call_model(function: Callable[[Any], Any], rows: Any, classes: tuple[Any, ...] | None) -> NDArray[np.float64]:
    """Return a caller's function of each row, with one column for each class."""

    def read(found: Any, size: int) -> NDArray[np.float64]:
        values = np.asarray(found, dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or len(values) != size or (classes is not None and values.shape[1] != len(classes)):
            raise ValueError("estimator must return one row of outputs for each record, one column for each class")
        return values

    n, empty = _num_samples(rows), np.empty((0, len(classes or (0,))))
    return call_on_rows("estimator", function, (rows,), n, read=read, empty=empty, tolerance=FLOAT32_ROUNDING)


@dataclass(frozen=True)
class PrivateModel:
    """Combine a trained model with the ledger of its training, for calibration.

    Assumes: the ledger is complete. Nobody can check afterwards how a model was trained. The ledger must contain
    everything that used the same records (tuning, early stopping, feature scaling).

    Parameters
    ----------
    model : Model
        The released model.
    ledger : Ledger
        The privacy cost of its training.

    >>> from dpscp.privacy import gaussian_event
    >>> model = PrivateModel.from_outputs(
    ...     lambda X: X[:, :1] * 2.0, spent=gaussian_event(4.0), task="regression", n_features=3)
    >>> model.model.outputs(np.ones((1, 3))).tolist(), model.ledger.is_private
    ([[2.0]], True)

    Paper: Theorem 1 [thm:overall_privacy]
    """

    model: Model
    ledger: Ledger

    def __post_init__(self) -> None:
        if not isinstance(self.model, Model):
            raise TypeError(
                f"model must be an instance of a subclass of dp.training.Model, got {type(self.model).__name__}"
            )
        if not isinstance(self.ledger, Ledger):
            raise TypeError(f"ledger must be a Ledger, got {type(self.ledger).__name__}")

    @classmethod
    def from_trained(cls, trained: "Trained", note: str = "") -> Self:
        """Build it from the result of a mechanism of this package."""
        ledger = Ledger().add("train", trained.event, note, unit=trained.unit)
        ledger = ledger.mark_taken(*trained.taken_from_data)
        return cls(trained.model, ledger.mark_seeded() if trained.is_seeded else ledger)

    @classmethod
    def from_outputs(
        cls,
        outputs: Callable[[NDArray[Any]], ArrayLike],
        *,
        spent: DpEvent | Ledger,
        task: str,
        n_features: int,
        classes: tuple[Any, ...] | None = None,
        relation: Relation = Relation.ADD_OR_REMOVE,
    ) -> Self:
        """Wrap a model of any kind, given by its output function and its cost.

        Parameters
        ----------
        outputs : callable
            From rows (n, n_features) to logits (n, n_classes) or real outputs (n, k).
        spent : DpEvent or Ledger
            The cost of training. An event is about one record; a ledger states its unit of privacy itself.
        task : "classification" or "regression"
        n_features : int
        classes : tuple or None
            The public labels in the order of the outputs; None for regression.
        relation : Relation
            Of an event: ``dpscp.privacy.Relation.REPLACE_ONE`` if it holds only at a fixed number of records, for
            example because an engine divides by the true number. A ledger states the relation of each entry itself.

        Returns
        -------
        PrivateModel
        """
        if not isinstance(spent, Ledger):
            spent = Ledger().add("train", spent, "declared by the caller", relation=relation)
        elif relation is not Relation.ADD_OR_REMOVE:
            raise ValueError("relation needs an event; a ledger states the relation of each entry, so remove relation")
        return cls(FunctionModel(outputs, task, n_features, None if classes is None else tuple(classes)), spent)

    @classmethod
    def from_opacus(
        cls,
        module: Any,
        privacy_engine: Any,
        *,
        classes: tuple[Any, ...] | None = None,
        input_shape: tuple[Any, ...] | None = None,
        start_buffers: Mapping[str, Any] | None = None,
    ) -> Self:
        """Wrap a module that Opacus' PrivacyEngine trained.

        The ledger is the engine's own history of noise, rate and steps. It is about records, because the engine samples
        rows, and about replacing one record, because Opacus divides by ``int(n * rate)``: at n and n + 1 its noise may
        differ in scale. A release with this model states the same relation, and charges two records for each step.

        Parameters
        ----------
        module : torch.nn.Module
            The trained module, with or without the wrapper of Opacus.
        privacy_engine : opacus.PrivacyEngine
            The engine that trained it.
        classes : tuple or None
            The names of the columns of the outputs; None: a regression module.
        input_shape : tuple or None
            The shape of one record, as in `TorchDPSGD`; needed if the first layer is not Linear.
        start_buffers : mapping or None
            Copies of the buffers, made before training. The engine does not account for buffers such as running
            statistics, so a module with buffers is refused unless these copies are equal to them.

        Returns
        -------
        PrivateModel

        Raises: ValueError for a module that cannot be traced in evaluation mode.

        Assumes: the engine used Poisson sampling (its default).

        Paper: Supplement S6.1 [supp:privacy_accounting]
        """
        opacus = import_module("dpscp.torch.opacus")  # imported here, because torch is an optional extra
        model = opacus.torch_model(module, classes=classes, input_shape=input_shape, start_buffers=start_buffers)
        return cls(model, opacus.ledger_of_engine(privacy_engine))
