"""What the two estimators share: the public side of a fit, from what a caller brings to a release."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dpscp._base.checks import check_count
from dpscp._base.object_state import can_be_copied
from dpscp._base.trust import GROUP_FUNCTION
from dpscp.data.persons import unit_of
from dpscp.data.schema import Frame, Schema
from dpscp.data.sources import DistributedSource, RecordSource
from dpscp.data.sources.base import is_source
from dpscp.data.sources.dispatch import find_source, source_from_schema
from dpscp.data.validation import check_levels, column_bounds, group_index, validate_rows
from dpscp.estimators.fitted import Fitted
from dpscp.estimators.ingest import BlockReader, FitInput, FitRecords, records_from_arrays, records_from_source
from dpscp.estimators.prefit import Prefit
from dpscp.estimators.refit_warning import remember, warn_if_refit
from dpscp.estimators.trust import trusted_records, trusted_training
from dpscp.exceptions import GuaranteeWarning, HintWarning
from dpscp.guarantees.registry import AUTO
from dpscp.guarantees.split import SPLIT
from dpscp.pipeline.plan import Request
from dpscp.pipeline.release import release
from dpscp.pipeline.tasks import Task
from dpscp.privacy import Budget
from dpscp.privacy.random_streams import seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.privacy.units import Unit
from dpscp.training.engine.networks import DenseModel
from dpscp.training.mechanism import trains_sources
from dpscp.training.preprocessing.preprocess import PreprocessedModel
from dpscp.training.preprocessing.scaling import ScaledTargetModel
from dpscp.training.private_model import PrivateModel
from dpscp.training.recipe import WIDEST_TABLE
from dpscp.training.torch.records import inputs_of, labeled_arrays

UNCOPIED = "{} cannot be copied, so it meets the records itself, and keeps nothing of them"


class PrivateConformal(Fitted):
    """What the two estimators share: the public side of a fit."""

    @abstractmethod
    def _check_score(self) -> None:
        """Refuse a score that nobody knows."""

    @staticmethod
    @abstractmethod
    def _checked_y(y: Any, n: int) -> NDArray[Any]:
        """The targets of ``n`` records in memory."""

    @abstractmethod
    def _fit(self, given: FitInput, store: BudgetStore | None) -> None:
        """Make the release of this task."""

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
        """Train privately and calibrate; see the class for what is promised.

        X and y: arrays or frames; for a torch module also records of any shape, (n, channels, height, width) say, as
        arrays or tensors, or a ``Dataset`` or ``DataLoader`` of (input, target) pairs in place of both. That is read
        once, item by item in the order of the data set; a loader that would drop or repeat records is refused, and so
        is one with a ``collate_fn`` of its own. Or X is a record source (``dpscp.sources``: files, a cluster, blocks of
        arrays) and y is left out: the records are read block by block and never together in memory; every block is
        looked at before anything is spent, and compared at each later reading. With a ``DistributedSource`` every
        process of the group calls ``fit``, and each of them is fitted.

        ``persons`` holds one id for each row, where a person may have several; both promises are then per person. Ids
        are text, integers, booleans or dates of one kind; floating-point numbers, missing ids and objects are refused.

        With ``schema``, X is a frame (pandas, polars, Arrow) and y the name of its target column:
        ``fit(frame, "income", schema=dp.Schema.read(path))``. The schema declares types, bounds, categories, classes
        and persons; it is kept in ``schema_`` and in saved files, and predictions then take frames too. (``X`` and
        ``y`` that ``schema.matrix`` and ``schema.targets`` made are taken as well.)

        With ``budget``, a store shared by all fits on these records, the share is reserved before a record is used and
        the true cost is committed at the end; ``BudgetError`` if it does not fit. A fit that fails after the
        reservation has spent it. A seeded fit is not private and is refused, and so is a store that was not opened
        with the name of its data set.
        """
        if isinstance(X, DistributedSource) and not X.led:
            return self._fit_by_all(X, y, persons=persons, schema=schema, budget=budget, **fit_params)
        self._check_score()
        self._start(budget, fit_params)
        brought = X
        X, y = labeled_arrays(X, y)
        table = X
        X, y, persons = self._described(X, y, persons, schema)
        if isinstance(X, DistributedSource) and X.by_person:
            persons = True  # its blocks hold them
        unit = self._unit(persons)
        rows = None
        if not is_source(X):
            rows = self._table(X, reset=True)
            y = self._checked_y(y, len(rows))
        elif self.prefit:
            raise ValueError("prefit=True needs X and y in memory: a prefit estimator is asked about all rows at once")
        else:
            self.input_shape_, self.n_features_in_ = None, X.width
        self._fit(FitInput(brought, table, X, y, persons, rows, unit), budget)
        return self

    def _fit_by_all(self, source: DistributedSource, *given: Any, **options: Any) -> Self:
        """Fit in process 0 and take over what it found in the others."""

        def fitted() -> dict[str, Any]:
            self.fit(source, *given, **options)
            return {name: value for name, value in vars(self).items() if _is_fitted(name)}

        vars(self).update(source.lead(fitted))
        return self

    def _release(self, request: Request, records: RecordSource, store: BudgetStore | None, brought: Any) -> Task:
        """Make the release and keep it, the fitted attributes at the very end; the task with what training found.

        ``brought`` is X as the caller has it, to notice that it is fitted again.
        """
        request.task.try_score()
        private = self.random_state is None
        if private and store is None:
            warn_if_refit(brought)
        assumed = (
            *((GROUP_FUNCTION,) if callable(self.groups) else ()),
            *trusted_training(self.estimator, prefit=self.prefit),
            *trusted_records(brought),
            *self._uncopied(),
            *request.task.trusted,
        )
        found = release(
            request,
            records,
            assumed=assumed,
            random_state=seed_of(self.random_state),
            store=store,
            note=f"{type(self).__name__}.fit",
        )
        self.model_ = found.model
        self.threshold_ = found.thresholds[0] if request.group_values is None else found.thresholds
        self.group_values_ = request.group_values
        self.ledger_ = found.ledger
        if self.prefit:  # the rows of this release were outputs
            self.ledger_ = self.ledger_.declare(n_features=vars(self).get("n_features_in_"))
        if self.schema_ is not None:
            self.ledger_ = self.ledger_.declare(schema=self.schema_.to_dict())
        self.certificates_ = found.certificates
        self.certificate_ = found.certificates[0]
        self.evaluation_ = found.evaluation
        if private:
            remember(brought)
        self._tell(found.task)
        return found.task

    def _start(self, store: BudgetStore | None, fit_params: Mapping[str, Any]) -> None:
        """Refuse what cannot work before a record is looked at, and drop an earlier fit: no mixture of two."""
        if "sample_weight" in fit_params:
            raise ValueError(
                "sample_weight is not supported: weights would change the sensitivity of every private step"
            )
        if fit_params:
            raise TypeError(f"fit got unexpected arguments: {', '.join(fit_params)}")
        if store is not None:
            if not isinstance(store, BudgetStore):
                raise TypeError(f"budget must be a BudgetStore, got {type(store).__name__}")
            store.require_spendable(seeded=self.random_state is not None)
        if self.prefit:
            self._check_prefit()
        for name in filter(_is_fitted, list(vars(self))):
            delattr(self, name)

    def _uncopied(self) -> tuple[str, ...]:
        """What is assumed of objects of the caller that meet the records themselves, because they have no copy."""
        met = self.prefit or isinstance(self.estimator, PrivateModel)  # a mechanism sees to its own module
        held = {"groups": self.groups, "conformity_score": vars(self)["conformity_score"]}
        held |= {"estimator": self.estimator} if met else {}
        return tuple(UNCOPIED.format(name) for name, value in held.items() if not can_be_copied(value))

    def _check_prefit(self) -> None:
        """Refuse what has no meaning for an estimator that is trained already."""
        Prefit.of(self.estimator, task=self._name)
        if self.feature_bound is not None or self.feature_bounds is not None:
            raise ValueError(
                "prefit=True gives X to the estimator as it is: leave out feature_bound and feature_bounds"
            )
        if self.guarantee not in (AUTO, SPLIT.name, SPLIT):
            raise ValueError(
                f"prefit=True says that training did not use these records, which is guarantee='split', got "
                f"{self.guarantee!r}"
            )

    def _described(self, X: Any, y: Any, persons: Any, schema: Schema | None) -> tuple[Any, Any, Any]:
        """Rows, targets and ids of what the caller brought: as it is, or as a schema reads them from a frame."""
        self.schema_ = None
        if schema is not None and self.prefit:
            raise ValueError("prefit=True gives X to the estimator as it is: leave schema out")
        if schema is None:
            if isinstance(y, str):
                raise TypeError(
                    "y names a column, and what columns hold is read by a schema: give schema=dp.Schema..., or "
                    "the targets themselves"
                )
            source = find_source(X, y)
            if persons is not None and (source is not None or is_source(X)):
                raise ValueError(
                    "persons needs X and y in memory, since a person's rows may lie in several blocks of a source: let "
                    "a schema name the column of ids, schema=dp.Schema..., with a path or a frame"
                )
            return (X, y, persons) if source is None else (source, None, None)
        if not isinstance(schema, Schema):
            raise TypeError(f"schema must be a dp.Schema (Schema.read, Schema.from_dict), got {type(schema).__name__}")
        by_name = isinstance(X, Frame | str | PathLike) or isinstance(y, str)
        if by_name and (not isinstance(y, str) or schema.target not in ("", y)):
            raise ValueError(f"with a schema and a frame, y must be the name of the target column, {schema.target!r}")
        if by_name and persons is not None:
            raise ValueError("with a schema, its key person names the column of ids: leave persons out")
        # again from plain values: a schema that was built in code is checked like one from a file
        schema = Schema.from_dict((schema.with_target(y) if by_name else schema).to_dict()).require_complete()
        if schema.task != self._name:
            raise ValueError(f"the schema declares a {schema.task}, and {type(self).__name__} is for {self._name}")
        twice = [n for n, value in schema.declared.items() if value is not None and vars(self).get(n) is not None]
        if twice:
            raise ValueError(f"{twice[0]} is declared by the schema and given to the estimator: give it once")
        self.schema_ = schema
        if not by_name:
            return X, y, schema.person if is_source(X) else persons
        source = source_from_schema(X, schema)
        if source is not None:
            return source, None, schema.person
        return schema.matrix(X), schema.targets(X), schema.persons(X)

    def _public(self, name: str) -> Any:
        """A public declaration: the parameter, or what the schema says."""
        given = getattr(self, name)
        return self.schema_.declared[name] if given is None and self.schema_ is not None else given

    def _unit(self, persons: Any) -> Unit:
        """Who is protected and covered; arguments that contradict each other are refused before a record is used."""
        return unit_of(
            persons,
            self._public("rows_per_person"),
            n_records=self._public("n_records"),
            n_persons=self._public("n_persons"),
        )

    def _taken(
        self,
        given: FitInput,
        targets: NDArray[Any],
        encoded: Callable[[Any, int], NDArray[Any]],
        labels: tuple[Any, ...] | None,
    ) -> FitRecords:
        """The records of the fit with their groups; ``labels`` are the classes, which may be groups.

        ``targets`` are those of records in memory, ``encoded(y, n)`` those of a block of a source.
        """
        if given.rows is None:
            return records_from_source(given, self._reading(encoded, by_label=labels), self.random_state, self.device)
        by_label = labels is not None and isinstance(self.groups, str) and self.groups == "label"
        return records_from_arrays(
            given, targets, (targets, labels) if by_label else self._groups_of(given), self.random_state
        )

    def _reading(self, targets: Callable[[Any, int], NDArray[Any]], *, by_label: tuple[Any, ...] | None) -> BlockReader:
        """How the blocks of a source are read; ``by_label``: the classes, which may be groups."""
        if self.groups is None:
            return BlockReader(targets)
        if callable(self.groups) and self.group_values is not None:
            return BlockReader(targets, self.groups, tuple(self.group_values))
        if self.groups == "label" and by_label is not None:
            return BlockReader(targets, "label", by_label)
        raise ValueError(
            f"groups must be None or a function of rows with public group_values{self._label_groups_hint} for records "
            f"from a source, got {self.groups!r}"
        )

    def _table(self, X: Any, *, reset: bool, finite: bool = True) -> NDArray[np.float64]:
        """Checked rows; of records with a shape of their own (images) the numbers one after the other, in float32.

        Of records for a prefit estimator, its outputs: nothing else of them is used.
        """
        if self.prefit:
            if reset:
                self.input_shape_ = None
            model = Prefit.of(self.estimator, task=self._name)
            return model.outputs_of_records(self, X) if reset else model.outputs(X)
        shape = X.shape[1:] if isinstance(X, np.ndarray) and X.ndim > 2 else None
        if reset:
            self.input_shape_ = shape
        if self.input_shape_ is None:
            # what is read part by part is cast there; a model or mechanism of the caller's own gets what it always got
            kept = (np.float64, np.float32) if self._reads_parts(fitted=not reset) else np.float64
            return validate_rows(self, X, reset=reset, finite=finite, dtype=kept)
        if shape != self.input_shape_:
            found = "rows of a table" if shape is None else f"records of shape {shape}"
            raise ValueError(f"X must hold records of shape {self.input_shape_}, as in fit, got {found}")
        flat = X.reshape(len(X), math.prod(self.input_shape_))
        return validate_rows(self, flat, reset=reset, finite=finite, dtype=np.float32)

    def _request(self, task: Task, taken: FitRecords) -> Request:
        """The public numbers of this fit, checked; a hint where bounds would help."""
        bounds = self._public("feature_bounds")
        unbounded = self.feature_bound is None and bounds is None
        if self.estimator is None and unbounded and taken.width <= WIDEST_TABLE[self._name]:
            warnings.warn(
                "no feature_bounds were given, so rows are scaled to norm one and a table loses much of what it says; "
                "give public bounds of the features, such as feature_bounds=(0, 100) or {column: (low, high)}, or "
                "feature_bounds='private'",
                HintWarning,
                stacklevel=4,
            )
        alphas, _ = check_levels(self.confidence_level)
        unit, names = taken.unit, vars(self).get("feature_names_in_")
        given = self._public(unit.count_name)
        n_records = taken.found if given is None else check_count(unit.count_name, given)
        return Request(
            task=task,
            estimator=self._trained_elsewhere(taken.width) or self.estimator,
            budget=Budget(self.epsilon, self.delta),
            alphas=alphas,
            guarantee=SPLIT if self.prefit else self.guarantee,
            train_share=self.train_share,
            calibration_fraction=self.calibration_fraction,
            feature_bound=self.feature_bound,
            feature_bounds=bounds if isinstance(bounds, str) else column_bounds(bounds, taken.width, names),
            n_records=n_records,
            n_found=given is None,
            n_features=taken.width,
            accountant=self.accountant,
            group_values=taken.group_values,
            release_confidence=self.release_confidence,
            unit=unit,
            input_shape=self.input_shape_,
            device=self.device,
            evaluation_fraction=self.evaluation_fraction,
            groups_are_labels=isinstance(self.groups, str)
            and self.groups == "label"
            and self._name == "classification",
            verbose=self.verbose,
        )

    def _trained_elsewhere(self, n_outputs: int) -> PrivateModel | None:
        """The model of a release that trains none; None for one that does."""
        if self.prefit:
            return Prefit.of(self.estimator, task=self._name).model(n_outputs)
        return self.estimator if isinstance(self.estimator, PrivateModel) else None

    def _tell(self, task: Task) -> None:
        """Warn about promises that only full sets keep; released numbers only."""
        # that found classes void every promise was told before anything was spent
        vacuous = [c for c in self.certificates_ if c.is_vacuous and not task.classes_found]
        # at or, with the buffer of Result C, beyond the largest score
        ended = self.threshold_ >= task.score_range[1]
        if vacuous:
            warnings.warn(str(vacuous[0]), GuaranteeWarning, stacklevel=5)
        elif ended.any():
            named = ""
            if self.group_values_ is not None:
                full = [str(v) for v, end in zip(self.group_values_, ended, strict=True) if end.any()]
                named = f" for group {', '.join(full)}"
            warnings.warn(
                f"the threshold{named} is at the end of the score range: its prediction sets are full. "
                f"{self.certificate_}",
                GuaranteeWarning,
                stacklevel=5,
            )

    _name: ClassVar[str]
    _label_groups_hint: ClassVar[str] = ""

    def _groups_of(self, given: FitInput) -> tuple[NDArray[np.int64] | None, tuple[Any, ...] | None]:
        """Each record's group and the public group values; None without groups."""
        if self.groups is None or given.rows is None:
            return None, None
        if self.schema_ is not None and isinstance(self.groups, str):
            if self.group_values is not None:
                raise ValueError("group_values are the categories that the schema declares: leave them out")
            return self.schema_.groups(given.table, self.groups)
        if callable(self.groups):
            if self.group_values is None:
                raise ValueError("group_values must list the public values that groups can return")
            index = group_index(self.groups, given.table, self.group_values, len(given.rows), thorough=True)
            return index, tuple(self.group_values)
        raise ValueError(
            f"groups must be None or a function of X{self._label_groups_hint}, or, with a schema, a column with "
            f"categories, got {self.groups!r}"
        )

    def _rows(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        if self.schema_ is not None and isinstance(X, Frame):
            X = self.schema_.matrix(X)
        # the library's own models look for NaN and infinity themselves, in parts, while these are in cache
        return self._table(inputs_of(X), reset=False, finite=not self._reads_parts(fitted=True))

    def _reads_parts(self, *, fitted: bool) -> bool:
        """Whether rows go to code of this package only, which casts them part by part."""
        if fitted:
            return isinstance(self.model_, DenseModel | PreprocessedModel | ScaledTargetModel)
        return self.estimator is None or trains_sources(self.estimator)


def _is_fitted(name: str) -> bool:
    """Whether an attribute is what a fit found."""
    return name.endswith("_") and not name.startswith("_")
