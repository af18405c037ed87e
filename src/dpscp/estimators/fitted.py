"""The state of a fitted estimator; save it and report it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from dpscp._base.checks import check_choice
from dpscp._base.sklearn_compat import BaseEstimator
from dpscp.core.evaluation import PrivateEvaluation
from dpscp.core.tasks import Prediction
from dpscp.data import model_files as persistence
from dpscp.data.groups import LABEL, Groups, RowGroups, largest_thresholds, read_groups
from dpscp.data.model_files import plain_parameters
from dpscp.data.populations import Population
from dpscp.data.schema import Frame, Schema
from dpscp.data.sources.files import is_path
from dpscp.data.sources.tables import Table, is_table
from dpscp.data.table_writer import open_writer
from dpscp.data.torch_records import read_shape
from dpscp.data.validation import count_numbers, dense_rows, plain
from dpscp.guarantees import Certificate, Guarantee
from dpscp.privacy import Accountant, Budget, Ledger
from dpscp.privacy.store import BudgetStore
from dpscp.report.release import Documented, Release
from dpscp.training.model import Model, digest_parameters, load_model, require_loadable
from dpscp.training.prefit import Prefit


@dataclass(frozen=True)
class MissingEstimator:
    """Placeholder for the ``estimator`` of a loaded fit, not stored in its file.

    Predictions do not need it. A new fit does, and None would be the library's recipe.
    """


Predict = TypeVar("Predict", bound=Callable[..., Any])


def reads_files(predict: Predict) -> Predict:
    """Let a method that predicts rows also take a table's path, read in blocks."""

    @wraps(predict)
    def of_rows_or_file(self: "FittedEstimator", X: Any) -> Any:
        if not (is_path(X) or (is_table(X) and vars(self).get("schema_") is not None)):
            return predict(self, self._dense(X))
        found = [predict(self, frame) for frame in self._read_file(X)]
        if isinstance(found[0], tuple):
            return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))
        return np.concatenate(found)

    return cast(Predict, of_rows_or_file)


def is_target_name(y: Any) -> bool:
    """Whether ``y`` is the name of a column, or a list of names."""
    return isinstance(y, str) or (isinstance(y, list | tuple) and bool(y) and all(isinstance(n, str) for n in y))


def is_fitted_name(name: str) -> bool:
    """Whether an attribute of this name is set by a fit."""
    return name.endswith("_") and not name.startswith("_")


def _without_answers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model without its outputs on synthetic rows.

    The last bits of these outputs depend on the machine.
    """
    kept = {name: value for name, value in config.items() if name != "answers"}
    return kept | ({"inner": _without_answers(config["inner"])} if "inner" in config else {})


@dataclass(eq=False, repr=False)
class _Parameters(BaseEstimator):
    estimator: Any = None
    _: KW_ONLY
    epsilon: float = 1.0
    delta: float = 1e-5
    train_share: float | str = 0.5
    accountant: str | Accountant = "pld"
    guarantee: str | Guarantee = "auto"
    calibration_fraction: float | str = "auto"
    groups: Groups | str | Callable[[Any], Any] | Sequence[str | Callable[[Any], Any]] | None = None
    population: Population | None = None
    feature_bounds: Any = None
    n_records: int | None = None
    rows_per_person: int | None = None
    n_persons: int | None = None
    random_state: int | None = None
    verbose: int = 0


class FittedEstimator(Documented, _Parameters, ABC):
    """Hold the parameters of an estimator and the results of a fit or a file."""

    model_: Model
    task_: Prediction
    threshold_: NDArray[np.float64]
    group_values_: tuple[Any, ...] | None
    ledger_: Ledger
    certificates_: tuple[Certificate, ...]
    certificate_: Certificate
    evaluation_: PrivateEvaluation | None
    schema_: Schema | None
    n_features_in_: int
    input_shape_: tuple[Any, ...] | None
    feature_names_in_: NDArray[Any]
    _name: ClassVar[str]

    @property
    def module_(self) -> Any:
        """Return a fresh copy of the trained torch module, in evaluation mode.

        It maps inputs to logits or outputs. Where the estimator has ``feature_bounds``, its inputs are rows after
        that step. In a regression by a bare module or ``ScaledTarget``, its outputs -1 and 1 stand for
        ``y_bounds``. AttributeError for a model that is no torch module.
        """
        check_is_fitted(self, "model_")
        model: Any = self.model_
        # the steps before a model hold it as ``inner``
        while not hasattr(model, "fresh_module"):
            model = getattr(model, "inner", None)
            if model is None:
                raise AttributeError("module_ needs a torch module as estimator; see model_ for other models")
        return model.fresh_module()

    def _dense(self, X: Any) -> Any:
        """Return the dense rows of a sparse matrix; a prefit estimator gets X unchanged."""
        return X if isinstance(self.estimator, Prefit) else dense_rows(X)

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()  # type: ignore[misc]  # scikit-learn has no types
        tags.input_tags.sparse = True
        return tags

    def _drop_fit(self, store: Any) -> None:
        """Refuse missing parameters and a wrong store, then drop an earlier fit.

        So a failed fit leaves no results of the earlier one.
        """
        if isinstance(self.estimator, MissingEstimator):
            raise ValueError(
                "this estimator was loaded from a file, which holds the trained model and not the mechanism or module "
                "that trained it. To fit again, set it first: set_params(estimator=...), or estimator=None for the "
                "recipe"
            )
        unwritten = vars(self).get("unwritten_", ())
        lost = [name for name in unwritten if getattr(self, name) is getattr(type(self), name)]
        if lost:
            raise ValueError(
                f"this estimator was loaded from a file, which does not hold {', '.join(lost)}. To fit again, set "
                f"{'it' if len(lost) == 1 else 'them'} first: set_params({lost[0]}=...)"
            )
        if store is not None:
            if not isinstance(store, BudgetStore):
                raise TypeError(f"budget must be a BudgetStore, got {type(store).__name__}")
            store.require_spendable(seeded=self.random_state is not None)
        attributes = vars(self)
        for name in filter(is_fitted_name, list(attributes)):
            del attributes[name]

    def _task(self) -> Any:
        """Return the task of the fit, with the caller's own score if it was set again.

        A score must be set again after loading.
        """
        return self.task_.with_own_score(vars(self).get("conformity_score", ""))

    @abstractmethod
    def _restore_task(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set the fitted attributes of classification or regression alone from a file."""

    def __sklearn_is_fitted__(self) -> bool:
        return "certificate_" in vars(self)

    def _select_thresholds(self, X: Any, n: int) -> NDArray[np.float64]:
        """Return each row's thresholds, the largest of its groups.

        A row in no known group gets infinite ones.

        The shape is (n_levels,), or (n, n_levels) with groups.
        """
        if self.group_values_ is None:
            return np.asarray(self.threshold_)
        return largest_thresholds(self.group_of(X, n), self.threshold_)

    def group_of(self, X: Any, n: int) -> NDArray[np.int64]:
        """Return the indices of each row's groups in ``group_values_``.

        The shape is (n,), or (n, k) for several; -1 means none.
        """
        groups, fitted = self.declared_groups(), [plain(value) for value in self.group_values_ or ()]
        if groups is None or [plain(name) for name in groups.names] != fitted:
            raise ValueError("groups must be those of the fit; after loading, call set_params(groups=...)")
        return groups.places(X, n)

    def declared_groups(self) -> RowGroups | None:
        """Return the groups of rows that the parameters declare.

        None without groups, and if labels are the groups.
        """
        groups = None if self.groups is None or self._groups_are_labels else read_groups(self.groups)
        return None if groups is None else groups.of_rows(self.schema_)

    @property
    def _groups_are_labels(self) -> bool:
        """Whether each label is a group."""
        return self._name == "classification" and isinstance(self.groups, str) and self.groups == LABEL

    @abstractmethod
    def predict_answers(self, X: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return predictions, and the sets or intervals of all levels, as arrays."""

    @abstractmethod
    def _name_answers(self, predictions: NDArray[Any], answers: NDArray[Any], mark: str) -> dict[str, NDArray[Any]]:
        """Return predictions and the answers of one level as columns.

        ``mark`` ends the name of an answer.
        """

    def predict_columns(self, X: Any) -> dict[str, NDArray[Any]]:
        """Predict rows as columns of a table.

        Parameters
        ----------
        X : array or frame with n rows

        Returns
        -------
        dict of arrays with n items
            ``prediction``, then ``set`` and ``set_size``, or ``lower`` and ``upper``; of several levels each, such as
            ``set_80`` and ``set_95``. A set is a tuple of labels.
        """
        predictions, answers = self.predict_answers(X)
        levels = [certificate.target for certificate in self.certificates_]
        columns: dict[str, NDArray[Any]] = {}
        for place, level in enumerate(levels):
            mark = "" if len(levels) == 1 else f"_{100 * level:g}"
            columns |= self._name_answers(predictions, answers[..., place], mark)
        return columns

    def predict_arrow(self, X: Any) -> dict[str, Any]:
        """Return ``predict_columns`` as Arrow arrays."""
        import pyarrow as pa

        label = pa.array(np.asarray(vars(self).get("classes_", ())).tolist()).type
        columns = self.predict_columns(X)
        kinds = {name: pa.list_(label) if name.startswith("set") else label for name in columns}
        return {
            name: pa.array(values.tolist(), kinds[name]) if values.dtype == object else pa.array(values)
            for name, values in columns.items()
        }

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what ``predict_set`` and ``predict_interval`` return.

        Parameters
        ----------
        transform : "default", "pandas" or "polars"
            ``"default"`` are arrays. A frame has the columns of ``predict_columns``, and the index of a pandas frame.
            None changes nothing.

        Returns
        -------
        self
        """
        if transform is not None:
            library = check_choice("transform", transform, ("default", "pandas", "polars"))
            self._sklearn_output_config = {"transform": library}  # the name that scikit-learn's clone copies
        return self

    def _frame_answers(self, X: Any) -> Any:
        """Return predictions and answers as ``set_output`` chose."""
        library = vars(self).get("_sklearn_output_config", {}).get("transform", "default")
        if library == "default":
            return self.predict_answers(X)
        columns = self.predict_columns(X)
        if library == "pandas":
            import pandas as pd

            return pd.DataFrame(columns, index=X.index if isinstance(X, pd.DataFrame) else None)
        import polars as pl

        return pl.DataFrame({name: values.tolist() for name, values in columns.items()})

    def predict_file(self, path: Any, out: str | PathLike[str], *, raw: bool = False) -> None:
        """Predict the rows of a table in a file and write another file, block by block.

        Parameters
        ----------
        path : path, URL, list of these, or data set
            A table that ``fit`` takes, with the columns of the schema of the fit.
        out : str or path
            A ``.parquet``, ``.csv`` or ``.csv.gz`` file, with the predictions in the order of the rows; CSV has the
            marks of the schema. A classification has the columns ``prediction``, ``set`` and ``set_size``; a set is a
            list of labels in Parquet, and ``a|b`` in CSV, where a ``|`` inside a label gets a backslash. A regression
            has ``prediction``, ``lower`` and ``upper``. Of several levels, each has its columns (``set_80``).
        raw : bool, default False
            Write labels to CSV as they are. Without it, a text that a spreadsheet would run as a formula (it begins
            with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return, and is no number) gets a leading apostrophe.
        """
        import pyarrow as pa

        frames = self._read_file(path)
        assert self.schema_ is not None  # files are read by the schema
        with open_writer(Path(out), self.schema_.csv, raw=raw) as write:
            for frame in frames:
                write(pa.record_batch(self.predict_arrow(frame)))

    def _read_file(self, table: Any) -> Iterator[Any]:
        """Return the rows of a table as frames of a few megabytes."""
        check_is_fitted(self)
        if self.schema_ is None:
            raise TypeError(
                "X is the path of a table, but the fit had no schema; fit with schema=dp.Schema..., or pass rows"
            )
        return Table(table, self.schema_.csv).frames("predict", self.schema_)

    def _read_targets(self, X: Any, y: Any) -> Any:
        """Return targets in the form of predictions.

        They are a column of a frame by name, or its values by the schema.
        """
        if self.schema_ is not None and is_target_name(y):
            return self.schema_.with_target(y).targets(X)
        if self.schema_ is not None and y is not None and isinstance(X, Frame):
            return self.schema_.encode_targets(y)
        return y

    def _read_labeled(self, X: Any, y: Any) -> Any:
        """Return the targets of labeled records, of which every row must be readable."""
        check_is_fitted(self)
        self.require_readable_rows(X)
        return self._read_targets(X, y)

    def require_readable_rows(self, X: Any) -> None:
        """Refuse a frame with a row that does not fit the schema."""
        if self.schema_ is not None and isinstance(X, Frame):
            self.schema_.matrix(X)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to exactly ``path``.

        The file has parameters, thresholds, ledger, certificates and public facts. It has no pickle, no row and no
        score. Functions (``groups``, a callable score) are not written: set them again on the loaded object. For a
        torch module the state dict is written; ``dp.load(path, module=net)`` needs the code.

        Parameters
        ----------
        path : str or path

        Raises
        ------
        TypeError
            For a model that is a function, which cannot be saved.
        """
        check_is_fitted(self)
        config = self.model_.config()
        require_loadable(config)
        persistence.write_file(path, *self._contents(config, self.model_.arrays()))

    def to_onnx(self, path: str | PathLike[str]) -> None:
        """Write predictions and sets as an ONNX graph to exactly ``path``.

        Needs the extra ``dpscp[onnx]``.

        The input ``X`` has float64 rows: those that ``fit`` takes, or ``schema_.matrix(frame)`` after a fit with a
        schema. A classifier has the outputs ``label``, ``probabilities`` and ``sets``, a regressor ``prediction`` and
        ``intervals``, in the shapes of ``predict_set`` and ``predict_interval``. The metadata contains digest, promise
        and names of the features.

        Parameters
        ----------
        path : str or path

        Raises
        ------
        TypeError
            For a model, transform, score or groups without an ONNX form.
        """
        from dpscp.core.onnx import write_onnx

        check_is_fitted(self)
        write_onnx(self, path)

    def digest(self) -> str:
        """Return the SHA-256 digest of this release, as report and statement print it.

        It is the same before ``save`` and after ``dp.load``, with the same version of dpscp. Releases with one digest
        have one model, thresholds, budget, ledger, certificates and evaluation. The digest does not cover a model that
        is a function, nor the other parameters.

        Returns
        -------
        str
        """
        check_is_fitted(self)
        try:
            config, arrays = _without_answers(self.model_.config()), self.model_.arrays()
        except TypeError:  # a function
            config, arrays = {}, {}
        header, arrays = self._contents(config, arrays)
        budget = {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        return persistence.digest_of({**header, "parameters": budget}, arrays)

    def _contents(
        self, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return header and arrays of a file with this model."""
        names, classes = vars(self).get("feature_names_in_"), vars(self).get("classes_")
        header = {
            "class": type(self).__name__,
            "parameters": plain_parameters(self.get_params(deep=False)),
            "is_recipe": self.estimator is None,
            "task": self.task_.to_dict(),
            "schema": None if self.schema_ is None else self.schema_.to_dict(),
            "model": config,
            "ledger": self.ledger_.to_dict(),
            "certificates": [c.to_dict() for c in self.certificates_],
            "group_values": None if self.group_values_ is None else [plain(v) for v in self.group_values_],
            "n_features_in": int(self.n_features_in_),
            "input_shape": self.input_shape_,
            "evaluation": None if self.evaluation_ is None else self.evaluation_.to_dict() | {"ledger": None},
            "feature_names_in": None if names is None else list(names),
        }
        own = {f"model/{name}": value for name, value in arrays.items()}
        own["threshold"] = np.asarray(self.threshold_)
        if classes is not None:
            # an object array of strings is written as text, because objects would need pickle
            objects = classes.dtype.kind == "O"
            own |= {"classes": classes.astype(str) if objects else classes, "classes_objects": np.array(objects)}
        return header, own

    def as_release(self) -> Release:
        """Return what the fit released, without the model."""
        check_is_fitted(self)
        return Release(
            self.threshold_,
            self.ledger_,
            self.certificates_,
            Budget(float(self.epsilon), float(self.delta)),
            self.accountant,
            self.task_.name,
            group_values=self.group_values_,
            groups_are_classes=self._groups_are_labels,
            evaluation=self.evaluation_,
            declared={} if self.schema_ is None else self.schema_.metadata or {},
            sha256=self.digest(),
            model_sha256=digest_parameters(self.model_),
        )

    def report(
        self,
        path: str | PathLike[str],
        X: Any = None,
        y: Any = None,
        *,
        title: str | None = None,
        metadata: Mapping[str, str] | None = None,
        language: str = "en",
    ) -> None:
        """Write an HTML page about this fit; needs the extra ``dpscp[report]``.

        Without records it is the public edition: no number in it was computed without noise. With labeled records it is
        the internal edition, which shows how the sets perform on them. These numbers are exact and NOT private; a
        banner says so.

        Parameters
        ----------
        path : str or path
            The file to write.
        X : array or frame with n rows, optional
            Labeled records that the fit did not use. After a fit with ``persons``, pass one random record of each
            person.
        y : array of shape (n,), or the name of the target column of a frame, optional
        title : str, optional
        metadata : mapping of str to str, optional
            Descriptions by key: purpose, data, responsible, contact, legal_basis, collection_period, recipients.
        language : str
            ``"en"`` or ``"de"``.
        """
        from dpscp.report.numbers import evaluate
        from dpscp.report.page import write_report

        check_is_fitted(self)
        if (X is None) != (y is None):
            raise ValueError("X and y must be passed together; pass both for an evaluation, or neither")
        evaluation = None if X is None else evaluate(self, X, self._read_targets(X, y))
        write_report(path, self, evaluation=evaluation, title=title, metadata=metadata, language=language)

    def _repr_html_(self) -> str:
        """Return scikit-learn's diagram and, once fitted, a card for each promise."""
        diagram = str(estimator_html_repr(self))
        return diagram + self._cards() if self.__sklearn_is_fitted__() else diagram

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what a notebook shows, with ledger and certificates."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _restore(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], module: Any = None) -> None:
        """Set the fitted attributes from a file."""
        prefix = "model/"
        parameters = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        self.model_ = load_model(header["model"], parameters, module)
        self.threshold_ = arrays["threshold"]
        self.ledger_ = Ledger.from_dict(header["ledger"])
        self.schema_ = None if header["schema"] is None else Schema.from_dict(header["schema"])
        self.certificates_ = tuple(Certificate.from_dict(c) for c in header["certificates"])
        self.certificate_ = self.certificates_[0]
        self.group_values_ = None if header["group_values"] is None else tuple(header["group_values"])
        self.n_features_in_ = int(header["n_features_in"])
        shape = header["input_shape"]
        self.input_shape_ = None if shape is None else read_shape(shape)
        n_groups = () if self.group_values_ is None else (len(self.group_values_),)
        fits = self.threshold_.dtype == np.float64 and self.threshold_.shape == (*n_groups, len(self.certificates_))
        fits = fits and count_numbers(self.input_shape_ or (self.n_features_in_,)) == self.n_features_in_
        if not fits or np.isnan(self.threshold_).any() or self.model_.n_features != self.n_features_in_:
            raise ValueError("its thresholds, levels, groups and model do not match")
        self.evaluation_ = None
        if header["evaluation"] is not None:
            classes, groups = arrays["classes"].tolist() if "classes" in arrays else (), self.group_values_ or ()
            self.evaluation_ = PrivateEvaluation.from_dict(
                header["evaluation"], ledger=self.ledger_, delta=self.delta, classes=classes, group_values=groups
            )
        if header["feature_names_in"] is not None:
            self.feature_names_in_ = np.asarray(header["feature_names_in"], dtype=object)
        self._restore_task(header, arrays)
        if not isinstance(header["is_recipe"], bool):
            raise ValueError("is_recipe must be true or false")
        self.estimator = None if header["is_recipe"] else MissingEstimator()
        # functions, and values with functions
        written = {*header["parameters"], "estimator"}
        self.unwritten_ = tuple(name for name in self.get_params(deep=False) if name not in written)
