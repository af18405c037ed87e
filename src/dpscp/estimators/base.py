"""Define the base class of estimators: check arguments, release, set attributes."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from dpscp._base.assumptions import (
    GROUP_FUNCTION,
    LIKELIHOOD_RATIO,
)
from dpscp._base.checks import check_count
from dpscp._base.progress import verbosity
from dpscp.core.fit import Fit, release
from dpscp.core.problem import FitProblem
from dpscp.core.tasks import Prediction
from dpscp.data.columns import CODE
from dpscp.data.feature_bounds import PRIVATE, RowNorm, column_bounds
from dpscp.data.groups import LABEL, RowGroups
from dpscp.data.persons import choose_unit, keep_rows
from dpscp.data.populations import Thinning, read_population
from dpscp.data.schema import Frame, Schema
from dpscp.data.sources import ArraySource, Block, DistributedSource, RecordSource, find_source
from dpscp.data.sources.places import UnitSource
from dpscp.data.sources.tables import is_table, replace_patterns
from dpscp.data.torch_records import NamedInputs, inputs_of, labeled_arrays, takes_float64
from dpscp.data.used_records import remember_use, sketch_rows, warn_if_refit
from dpscp.data.validation import check_levels, count_numbers, require_counted, validate_rows
from dpscp.estimators.fitted import FittedEstimator, is_fitted_name, is_target_name
from dpscp.estimators.ingest import (
    BlockReader,
    FitInput,
    FitRecords,
    read_without_schema,
    records_from_source,
)
from dpscp.estimators.outer_steps import (
    OuterUse,
    find_outer_use,
    list_record_assumptions,
    list_training_assumptions,
)
from dpscp.exceptions import GuaranteeWarning, HintWarning, SeededWarning
from dpscp.guarantees.registry import AUTO, GUARANTEES, SPLIT
from dpscp.privacy import Budget, gdp_mu
from dpscp.privacy.random_streams import seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.training.base import Mechanism
from dpscp.training.model import PrivateModel, digest_parameters
from dpscp.training.prefit import Prefit
from dpscp.training.recipe import WIDEST_UNBOUNDED, encoded_columns, pays_as_quantiles


class PrivateConformal(FittedEstimator):
    """Base class of the estimators."""

    @property
    def _prefit(self) -> Prefit | None:
        """The estimator trained elsewhere without privacy; None for a fit that trains."""
        return self.estimator if isinstance(self.estimator, Prefit) else None

    @abstractmethod
    def _check_score(self) -> None:
        """Refuse an unknown score."""

    @staticmethod
    @abstractmethod
    def _validate_y(y: Any, n: int) -> NDArray[Any]:
        """Return the targets of ``n`` records in memory."""

    @abstractmethod
    def _promise(self) -> dict[str, Any]:
        """Return the fields of the problem that define the promise."""

    @abstractmethod
    def _make_problem(self, fit_input: FitInput) -> tuple[FitProblem, FitRecords]:
        """Return the public side of the fit and its records."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        persons: Any = None,
        schema: Schema | None = None,
        budget: BudgetStore | None = None,
        **fit_params: Any,
    ) -> Self:
        """Train privately and calibrate; the class describes the promise.

        Parameters
        ----------
        X : array, frame, Dask collection, tensor, Dataset, path or record source
            The records: n rows of numbers, or for a torch module records of any shape, such as (n, channels, height,
            width), or a list of tensors. A ``Dataset`` of (input, target) pairs is read once, item by item. A
            ``DataLoader`` is refused: pass its data set. A record source (``dpscp.sources``: files, a cluster, blocks
            of arrays) is read block by block, never together in memory. Every block is checked before anything is
            spent, and compared at each later reading. With a ``DistributedSource`` every process of the group calls
            ``fit``, and each of them is fitted.
            Rows that were computed from several records (the output of ``fit_transform`` of a scaler, an imputer or a
            PCA) void both promises, and ``fit`` cannot detect them. It detects a ``Pipeline`` with such steps, and
            marks the fit as not private. ``docs/pitfalls.md`` lists what to use instead.
        y : array of shape (n,), or str, optional
            The targets, or with ``schema`` the name of the target column. Omit it if X contains the targets.
        persons : array of shape (n,), optional
            One id for each row, if a person may have several. Both promises are then per person. Ids are text or
            integers. Floating-point numbers, missing ids and other objects are refused.
        schema : Schema, optional
            Declares types, bounds, categories, classes and persons of a frame (pandas, polars, Arrow) or file:
            ``fit(frame, "income", schema=dp.Schema.read(path))``. It is kept in ``schema_`` and in saved files, and
            predictions then take frames too. X and y may also be ``schema.matrix(frame)`` and
            ``schema.targets(frame)``.
        budget : BudgetStore, optional
            A store that all fits on these records share. The cost is reserved before a record is used and the true cost
            is committed at the end. A fit that fails after the reservation has spent it. A seeded fit is refused
            because it is not private. A store that was opened without the name of its data set is refused too.

        Returns
        -------
        self

        Raises
        ------
        BudgetError
            If the budget, or what is left in the store, is too small.
        """
        # check the parameters and the store first, before any record is read
        self._start(budget, fit_params)
        if isinstance(X, DistributedSource) and not X.is_leading:
            return self._fit_by_all(X, y, persons=persons, schema=schema, budget=budget, **fit_params)
        outer = find_outer_use()
        outer.warn(budget)
        with verbosity(check_count("verbose", self.verbose, minimum=0)):
            fit_input = self._read(X, y, persons, schema)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SeededWarning)  # the release warns once
                problem, records = self._make_problem(fit_input)
            released = self._release(problem, records, X, budget, outer)
        self._keep(outer.mark(released), records)
        return self

    def _read(self, X: Any, y: Any, persons: Any, schema: Schema | None) -> FitInput:
        """Validate the arguments of ``fit``; set the attributes that describe the input."""
        self.schema_ = None
        is_plain = type(X) is type(y) is np.ndarray and schema is None
        if not is_plain and (schema is None or not is_table(X)):  # a schema reads a data set by its column names
            X, y = labeled_arrays(X, y)
        table = X = self._dense(X)
        if not is_plain:
            X, y, persons = self._apply_schema(X, y, persons, schema)
        limits = {name: self._declared(name) for name in ("n_records", "n_persons")}
        unit = choose_unit(persons, self._declared("rows_per_person"), **limits)
        rows = None
        if not isinstance(X, RecordSource):
            rows = self._validate_table(X, reset=True)
            require_counted(len(rows), limits[unit.count_name], unit.count_name)
            y = self._validate_y(y, len(rows))
        elif self._prefit is not None:
            raise ValueError("dp.Prefit needs X and y in memory, because the estimator predicts all rows at once")
        else:
            self.input_shape_ = X.input_shape
            self.n_features_in_ = X.width
        # the rows of a prefit estimator are its outputs
        return FitInput(table, X, y, persons, rows, unit, rows if self._prefit is None else table)

    def _fit_by_all(self, source: DistributedSource, *arguments: Any, **options: Any) -> Self:
        """Fit in process 0 and copy the fitted attributes to the others."""

        def fitted() -> dict[str, Any]:
            self.fit(source, *arguments, **options)
            return {name: value for name, value in vars(self).items() if is_fitted_name(name)}

        vars(self).update(source.lead(fitted))
        return self

    def _release(
        self, problem: FitProblem, records: FitRecords, original: Any, store: BudgetStore | None, outer: OuterUse
    ) -> Fit:
        """Make the release; ``original`` is X as the caller passed it."""
        problem.task.try_score()
        private, groups = self.random_state is None, self.declared_groups()
        if private and store is None:
            warn_if_refit(records.sketch, stacklevel=3)
        assumed = (
            *((GROUP_FUNCTION,) if groups is not None and groups.declared.calls_functions else ()),
            *(() if self.population is None else (LIKELIHOOD_RATIO,)),
            *list_training_assumptions(self.estimator),
            *list_record_assumptions(original),
            *problem.task.score_assumptions,
            *outer.assumptions,
        )
        released = release(
            problem,
            records.records,
            assumed=assumed,
            random_state=seed_of(self.random_state),
            store=store,
            note=f"{type(self).__name__}.fit",
        )
        parameters = digest_parameters(released.model)
        remember_use(records.sketch, is_private=private, model=released.model, parameters=parameters)
        return released

    def _keep(self, released: Fit, records: FitRecords) -> None:
        """Set the fitted attributes and warn about full sets."""
        self.model_ = released.model
        self.threshold_ = released.threshold[0] if records.group_values is None else released.threshold
        self.group_values_ = records.group_values
        self.ledger_ = released.ledger
        if self._prefit is not None:  # the rows of this release were outputs of the prefit estimator
            self.ledger_ = self.ledger_.declare(n_features=vars(self).get("n_features_in_"))
        if self.schema_ is not None:
            self.ledger_ = self.ledger_.declare(schema=self.schema_.to_dict())
        self.certificates_ = released.certificates
        self.certificate_ = released.certificates[0]
        self.evaluation_ = released.evaluation
        self.task_ = released.task
        self._warn_if_sets_are_full(released.task)

    def _start(self, store: BudgetStore | None, fit_params: Mapping[str, Any]) -> None:
        """Refuse wrong arguments before any record is read, and drop an earlier fit."""
        self._check_score()
        if "sample_weight" in fit_params:
            raise ValueError(
                "sample_weight is not supported, because weights change the sensitivity of every private step; "
                "remove it"
            )
        if fit_params:
            raise TypeError(f"fit got unexpected arguments: {', '.join(fit_params)}; remove them")
        if self._prefit is not None:
            self._check_prefit(self._prefit)
        self._drop_fit(store)

    def _check_prefit(self, prefit: Prefit) -> None:
        """Refuse parameters that do not apply to a trained estimator."""
        prefit.predictor(self._name)
        if self.feature_bounds is not None:
            raise ValueError("dp.Prefit passes X to the estimator unchanged; remove feature_bounds")
        if self.guarantee not in (AUTO, SPLIT.name, SPLIT):
            raise ValueError(
                f"dp.Prefit declares that training did not use these records, which needs guarantee='split', got "
                f"{self.guarantee!r}"
            )

    def _apply_schema(self, X: Any, y: Any, persons: Any, schema: Schema | None) -> tuple[Any, Any, Any]:
        """Return rows, targets and ids, unchanged or as a schema reads them."""
        if schema is not None and self._prefit is not None:
            raise ValueError("dp.Prefit passes X to the estimator unchanged; remove schema")
        if schema is None:
            return read_without_schema(X, y, persons)
        if not isinstance(schema, Schema):
            raise TypeError(f"schema must be a dp.Schema (Schema.read, Schema.from_dict), got {type(schema).__name__}")
        y = tuple(y) if isinstance(y, list) and is_target_name(y) else y
        by_name = isinstance(X, Frame) or is_table(X) or is_target_name(y)
        targets = None
        if isinstance(X, Frame) and not is_table(X) and schema.target and y is not None and not is_target_name(y):
            y, targets = schema.target, y  # as cross_val_score passes them
        if by_name and (not is_target_name(y) or schema.target not in ("", y)):
            raise ValueError(
                f"with a schema and a frame, y must be the name of the target column, {schema.target!r}, or its values"
            )
        if by_name and persons is not None:
            raise ValueError("with a schema, its key person declares the column of ids; remove persons")
        schema = replace(schema.with_target(y) if by_name else schema, task=schema.task or self._name)
        schema = replace_patterns(schema, X if by_name else None).require_complete()
        if schema.task != self._name:
            raise ValueError(f"the schema declares a {schema.task}, but {type(self).__name__} is for {self._name}")
        twice = [n for n, value in schema.declared.items() if value is not None and vars(self).get(n) is not None]
        if twice:
            raise ValueError(
                f"{twice[0]} is declared by the schema and passed to the estimator; remove it from the "
                "estimator, and correct the schema if it is wrong"
            )
        self.schema_ = schema
        if not by_name:
            return X, y, schema.person if isinstance(X, RecordSource) else persons
        self.schema_ = schema = self._choose_encodings(schema, X)
        source = find_source(X, schema=schema) if targets is None else None
        if source is not None:
            return source, None, schema.person
        if targets is None:
            return schema.encode(X)
        return schema.matrix(X), schema.encode_targets(targets), schema.persons(X)

    def _choose_encodings(self, schema: Schema, X: Any) -> Schema:
        """Return the schema with codes for the categories that the recipe encodes.

        Codes take the place of indicators.

        Public numbers decide before any record is read: the declared number of records, or the number of rows of a
        frame without persons. Without such a number, columns keep their indicators.
        """
        chosen = GUARANTEES.get(self.guarantee) if isinstance(self.guarantee, str) else self.guarantee
        is_refused = chosen is not None and (chosen.needs_stability or chosen.needs_trajectory)
        if self.estimator is not None or is_refused or schema.task == "multilabel":
            return schema
        limits = {name: self._declared(name) for name in ("n_records", "n_persons")}
        unit = choose_unit(schema.person, self._declared("rows_per_person"), **limits)
        n = limits[unit.count_name]
        if n is None and isinstance(X, Frame) and isinstance(X, Sized) and schema.person is None:
            n = len(X)
        if n is None:
            return schema
        signal = n * gdp_mu(self.epsilon, self.delta) / unit.group / math.sqrt(len(schema.target_names))
        columns = [column for column in schema.feature_columns if column.type == "categorical"]
        sizes = {column.name: column.n_categories for column in columns if column.encoding is None}
        encoded = encoded_columns(schema.task, sizes, len(schema.feature_names), signal)
        coded = (replace(column, encoding=CODE) if column.name in encoded else column for column in schema.columns)
        return replace(schema, columns=tuple(coded))

    def _declared(self, name: str) -> Any:
        """Return a public declaration: the parameter, or the value in the schema."""
        value = getattr(self, name)
        return self.schema_.declared[name] if value is None and self.schema_ is not None else value

    def _read_records(
        self,
        fit_input: FitInput,
        targets: NDArray[Any],
        encoded: Callable[[Any, int], NDArray[Any]],
        labels: tuple[Any, ...] | None,
    ) -> FitRecords:
        """Return the records of the fit with their groups.

        ``targets`` are those of records in memory, ``encoded(y, n)`` those of a block of a source. ``labels`` are the
        classes, which may be the groups.
        """
        thinning = None
        if self.population is not None and (population := read_population(self.population)) is not None:
            population.check_classes(labels)
            thinning = Thinning.of(population, self.random_state)
        groups = LABEL if self._groups_are_labels else self.declared_groups()
        values = groups.names if isinstance(groups, RowGroups) else labels if groups == LABEL else None
        reader = BlockReader(encoded, groups, values, thinning)
        if fit_input.rows is None:
            return records_from_source(fit_input, reader, self.random_state)
        return _records_from_arrays(fit_input, targets, reader, self.random_state)

    def _validate_table(self, X: Any, *, reset: bool, finite: bool = True) -> NDArray[np.float64]:
        """Return checked rows; records with a shape are flattened.

        They have the precision of the module.

        For a prefit estimator these are its outputs; nothing else of the records is used.
        """
        if self._prefit is not None:
            if reset:
                self.input_shape_ = None
            model = self._prefit.predictor(self._name)
            if reset:
                validate_data(self, X, reset=True, skip_check_array=True)
            elif not len(X):
                return np.empty((0, self.model_.n_features))
            return model.outputs(X)
        shape: tuple[Any, ...] | None = X.shape[1:] if isinstance(X, np.ndarray) and X.ndim > 2 else None
        if isinstance(X, NamedInputs):
            X, shape = X.rows, X.input_shape
        if reset:
            self.input_shape_ = shape
        if self.input_shape_ is None:
            # code of this package casts part by part; a caller's own model or mechanism gets float64
            kept = (np.float64, np.float32) if self._reads_parts(fitted=not reset) else np.float64
            return validate_rows(self, X, reset=reset, finite=finite, dtype=kept)
        if shape != self.input_shape_:
            found = "rows of a table" if shape is None else f"records of shape {shape}"
            raise ValueError(f"X must have records of shape {self.input_shape_}, as in fit, got {found}")
        flat = X.reshape(len(X), count_numbers(self.input_shape_))
        dtype = np.float64 if takes_float64(self.estimator if reset else self.model_) else np.float32
        return validate_rows(self, flat, reset=reset, finite=finite, dtype=dtype)

    def _feature_bounds(self, task: Prediction, width: int, names: Sequence[Any] | None, signal: float) -> Any:
        """Return the declared bounds, or let the recipe find bounds if that should help.

        ``signal`` is the number of records times mu of the budget.
        """
        declared = self._declared("feature_bounds")
        if declared is None and self.estimator is None and width <= WIDEST_UNBOUNDED[task.trains]:
            chosen = GUARANTEES.get(self.guarantee) if isinstance(self.guarantee, str) else self.guarantee
            needs_public = chosen is not None and chosen.needs_stability
            if not needs_public and pays_as_quantiles(signal, width):
                declared = PRIVATE
            else:
                warnings.warn(
                    "feature_bounds is None, so each row is scaled to norm one, and a table loses information. Pass "
                    "public bounds of the features, such as feature_bounds=(0, 100) or {column: (low, high)}"
                    + ("" if needs_public else ", or feature_bounds='private'"),
                    HintWarning,
                    stacklevel=5,
                )
        return declared if isinstance(declared, RowNorm) else column_bounds(declared, width, names)

    def _problem(self, task: Prediction, records: FitRecords) -> FitProblem:
        """Return the checked public numbers of this fit."""
        unit = records.unit
        names = vars(self).get("feature_names_in_") if self.schema_ is None else self.schema_.feature_names
        declared = self._declared(unit.count_name)
        require_counted(records.found, declared, unit.count_name)
        n_records = records.found if declared is None else check_count(unit.count_name, declared)
        groups = self.declared_groups()
        model = self._find_pretrained_model(records.width)
        budget = Budget(self.epsilon, self.delta)
        signal = n_records * gdp_mu(budget.epsilon, budget.delta)
        bounds = self._feature_bounds(task, records.width, names, signal)
        return FitProblem(
            task=task,
            estimator=None if model is not None else self.estimator,
            model=model,
            budget=budget,
            guarantee=SPLIT if self._prefit is not None else self.guarantee,
            feature_bound=bounds.bound if isinstance(bounds, RowNorm) else None,
            feature_bounds=None if isinstance(bounds, RowNorm) else bounds,
            n_records=n_records,
            n_found=declared is None,
            n_features=records.width,
            group_values=records.group_values,
            groups_per_record=1 if groups is None else groups.per_record,
            unit=unit,
            input_shape=self.input_shape_,
            groups_are_labels=self._groups_are_labels,
            population=self.population,
            train_share=self.train_share,
            calibration_fraction=self.calibration_fraction,
            accountant=self.accountant,
            **self._promise(),
        )

    def _find_pretrained_model(self, n_outputs: int = 1) -> PrivateModel | None:
        """Return the model that was trained elsewhere; None if this fit trains."""
        if self._prefit is not None:
            return self._prefit.predictor(self._name).model(n_outputs)
        return self.estimator if isinstance(self.estimator, PrivateModel) else None

    def _warn_if_sets_are_full(self, task: Prediction) -> None:
        """Warn if only full sets keep a promise, from released numbers."""
        # for classes from the data, a warning came before anything was spent
        if self.certificate_.void_because:
            return  # as above
        vacuous = [c for c in self.certificates_ if c.is_vacuous and not task.classes_found]
        # at or, with the buffer of Result C, beyond the largest score
        ended = self.threshold_ >= task.score_range[1]
        if vacuous:
            warnings.warn(vacuous[0].summary, GuaranteeWarning, stacklevel=4)
        elif ended.any():
            named = ""
            if self.group_values_ is not None:
                full = [str(v) for v, end in zip(self.group_values_, ended, strict=True) if end.any()]
                named = f" for group {', '.join(full)}"
            remedy = ""
            if "y_bounds" in self.ledger_.found_privately:
                remedy = "y_bounds was found privately and may miss the targets: pass a public y_bounds=(low, high). "
            warnings.warn(
                f"the threshold{named} is at the end of the score range, so its prediction sets are full. {remedy}"
                f"{self.certificate_.summary}",
                GuaranteeWarning,
                stacklevel=4,
            )

    def _read_new_rows(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        """Return validated rows, and which rows of a frame do not fit the schema.

        None means that all fit.
        """
        check_is_fitted(self)
        if isinstance(X, RecordSource):
            raise TypeError(
                f"X must be rows to predict, got the record source {type(X).__name__}; pass an array, a frame, a "
                "tensor, a Dataset (a DatasetSource was made from one), or the path of a table"
            )
        unreadable = None
        if self.schema_ is not None and isinstance(X, Frame):
            X, errors = self.schema_.rows(X)
            unreadable = np.array([error is not None for error in errors], dtype=bool)
            if unreadable.any():
                warnings.warn(
                    "some rows do not fit the schema; they get full sets and no prediction. schema_.rows(frame) lists "
                    "the reason for each row",
                    HintWarning,
                    stacklevel=3,
                )
        # models of this package check for NaN and infinity themselves, in parts that are in cache
        rows = self._validate_table(self._dense(inputs_of(X)), reset=False, finite=not self._reads_parts(fitted=True))
        return rows, unreadable if unreadable is not None and unreadable.any() else None

    def _reads_parts(self, *, fitted: bool) -> bool:
        """Whether only code of this package reads the rows; it casts them in parts."""
        if fitted:
            return bool(self.model_.is_row_wise)
        return self.estimator is None or (isinstance(self.estimator, Mechanism) and self.estimator.trains_sources)


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateCoverage(PrivateConformal):
    """Base class of the estimators that promise coverage."""

    confidence_level: float | Sequence[float] = 0.9
    evaluation_fraction: float | None = None
    release_confidence: float | None = None

    def _promise(self) -> dict[str, Any]:
        levels, _ = check_levels(self.confidence_level)
        return {
            "alphas": levels,
            "evaluation_fraction": self.evaluation_fraction,
            "release_confidence": self.release_confidence,
        }


def _records_from_arrays(
    given: FitInput,
    targets: NDArray[Any],
    reading: BlockReader,
    random_state: int | None,
) -> FitRecords:
    """Return checked arrays as one block: all rows, or the kept rows of each person."""
    rows, thinning = given.rows, reading.thinning
    assert rows is not None
    groups = None if reading.groups is None else targets
    if isinstance(reading.groups, RowGroups):
        groups = reading.groups.places(given.table, len(rows))
    found, block = len(rows), Block(0, rows, targets, groups=groups)
    if given.unit.by_person:
        kept, owners = keep_rows(
            given.persons,
            n_rows=len(rows),
            rows_per_person=given.unit.cap,
            random_state=random_state,
            columns=getattr(given.X, "columns", ()),
        )
        groups, found = None if groups is None else groups[kept], owners.count
        block = Block(0, rows, targets[kept], owners, groups, kept)
    if thinning is not None:
        ratios = thinning.population.ratios_of(given.table, given.y, len(rows))
        ratios = ratios if block.chosen is None else ratios[block.chosen]
        block = replace(block, groups=thinning.place_groups(ratios, block.groups, block.owners, range(found)))
    records = UnitSource(ArraySource.of_blocks([block]), given.unit.counted)
    return FitRecords(records, rows.shape[1], reading.group_values, given.unit, found, sketch_rows(given.recognized))
