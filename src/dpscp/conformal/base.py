"""What the two estimators share: the order of the steps, group handling, saving."""

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from dpscp import persistence
from dpscp._checks import check_count
from dpscp.budget import BudgetStore
from dpscp.calibration import calibration_rule, find_thresholds
from dpscp.exceptions import GuaranteeWarning, SeededWarning
from dpscp.guarantees import Certificate
from dpscp.privacy import Budget, Ledger, secure_generator
from dpscp.privacy.seeds import child_seeds, seed_of
from dpscp.records import check_levels, checked_rows, group_index, untold_overflow
from dpscp.strategy import Request, Strategy, choose_strategy, load_model, require_loadable
from dpscp.training.mechanism import Trained, paid_event
from dpscp.training.networks import DenseModel
from dpscp.training.preprocess import PreprocessedModel
from dpscp.training.scaling import ScaledTargetModel

__all__ = ["PrivateConformal", "plain"]

GROUP_FUNCTION = (
    "groups gives a record its group from that record alone (privacy needs it too: groups share no budget because each "
    "record lies in one of them, whatever the others are)"
)


class PrivateConformal(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share: the order of the steps, group handling, saving."""

    _task: ClassVar[str]
    # what the coverage of this task needs whatever the guarantee
    _task_assumptions: ClassVar[tuple[str, ...]] = ()

    def _trusted_functions(self) -> tuple[str, ...]:
        """What is assumed of functions of the caller, for privacy and for coverage."""
        return (GROUP_FUNCTION,) if callable(self.groups) else ()

    def _fit(
        self, X: Any, rows: NDArray[np.float64], targets: NDArray[Any], request: Request, store: BudgetStore | None
    ) -> Self:
        """Train, score, find thresholds; the fitted attributes are set at the very end."""
        seed = seed_of(self.random_state)
        strategy = choose_strategy(request)
        groups, group_values = self._groups(X, targets, request)
        reservation = None
        if store is not None:
            n_groups = None if group_values is None else len(group_values)
            planned = self._planned_ledger(request, strategy, n_groups)
            reservation = store.reserve(planned, note=f"{type(self).__name__}.fit")
        with untold_overflow(), warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)  # told once, above
            training_seed, split_seed, search_seed = child_seeds(seed, 3)
            in_training: Any = slice(None)
            in_calibration: Any = slice(None)
            if strategy.calibration_fraction is not None:
                drawn = secure_generator(split_seed).random(len(rows)) < strategy.calibration_fraction
                in_training, in_calibration = ~drawn, drawn
            trained = strategy.train(rows[in_training], self._training_targets(targets[in_training]), training_seed)
            self._check_outputs(trained.model, request)
            spent = Ledger((), _declared_facts(trained, request, strategy), seeded=seed is not None)
            spent = strategy.enter(spent, trained)
            trusted = self._trusted_functions()
            spent = spent.assume(*trusted)
            scored = [g[in_calibration] for g in (rows, targets, groups)]
            scores, extra = self._scores(trained, scored[0], scored[1], strategy)
            if strategy.guarantee == "stability" and trained.stability is not None:
                extra = (*extra, *trained.stability.assumptions)
            extra = (*self._task_assumptions, *trusted, *extra)
            rule = calibration_rule(
                strategy.guarantee,
                request.alphas,
                spent,
                request.n_records,
                part=strategy.calibration_fraction or 1.0,
                stability=trained.stability if self._natural_score() else None,
                n_groups=None if group_values is None else len(group_values),
                counted=request.n_found,
                release_confidence=request.release_confidence,
            )
            found = find_thresholds(
                [scores] if group_values is None else [scores[scored[2] == g] for g in range(len(group_values))],
                rule,
                spent=spent,
                budget=request.budget,
                score_range=self._score_range(trained.model),
                held_out=strategy.held_out,
                accountant=request.accountant,
                random_state=search_seed,
                extra_assumptions=extra,
            )
        if reservation is not None:
            reservation.commit(found.ledger)
        self.model_ = trained.model
        self.threshold_ = found.values if group_values is not None else found.values[0]
        self.group_values_ = group_values
        self.ledger_ = found.ledger
        self.certificates_ = found.certificates
        if request.classes_found:
            self.certificates_ = tuple(c.with_found_classes() for c in found.certificates)
        self.certificate_ = self.certificates_[0]
        self._tell(request)
        return self

    def _check_store(self, store: BudgetStore | None) -> None:
        """Refuse, before a record is looked at, a fit that the store cannot pay for whatever it costs."""
        if store is None:
            return
        if not isinstance(store, BudgetStore):
            raise TypeError(f"budget must be a BudgetStore, got {type(store).__name__}")
        store.require_spendable(seeded=self.random_state is not None)

    def _planned_ledger(self, request: Request, strategy: Strategy, n_groups: int | None) -> Ledger:
        """What this fit is going to spend: the same steps from the same public numbers, on one made-up score."""
        if strategy.mechanism is not None:
            spent = Ledger().add("training", paid_event(strategy.mechanism))
        else:
            spent = Ledger().then(request.estimator.ledger)
        # Result C searches like 'corrected', which needs no trained model to be planned
        guarantee = "corrected" if strategy.guarantee == "stability" else strategy.guarantee
        rule = calibration_rule(
            guarantee,
            request.alphas,
            spent,
            request.n_records,
            part=strategy.calibration_fraction or 1.0,
            n_groups=n_groups,
            counted=request.n_found,
        )
        rehearsed = find_thresholds(
            [np.zeros(1)],
            rule,
            spent=spent,
            budget=request.budget,
            score_range=(0.0, 1.0),
            held_out=strategy.held_out,
            accountant=request.accountant,
        )
        return rehearsed.ledger

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "certificate_")

    def _forget(self) -> None:
        """Drop an earlier fit, so that one that fails leaves no mixture of two."""
        for name in [n for n in vars(self) if n.endswith("_") and not n.startswith("_")]:
            delattr(self, name)

    def _training_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """The targets as training sees them."""
        return targets

    def _tell(self, request: Request) -> None:
        """Warn about promises that only full sets keep; released numbers only."""
        # that found classes void every promise was told before anything was spent
        vacuous = [c for c in self.certificates_ if c.is_vacuous and not request.classes_found]
        # at or, with the buffer of Result C, beyond the largest score
        ended = self.threshold_ >= self._score_range(self.model_)[1]
        if vacuous:
            warnings.warn(str(vacuous[0]), GuaranteeWarning, stacklevel=4)
        elif ended.any():
            named = ""
            if self.group_values_ is not None:
                full = [str(v) for v, end in zip(self.group_values_, ended, strict=True) if end.any()]
                named = f" for group {', '.join(full)}"
            warnings.warn(
                f"the threshold{named} is at the end of the score range: its prediction sets are full. "
                f"{self.certificate_}",
                GuaranteeWarning,
                stacklevel=4,
            )

    def _groups(
        self,
        X: Any,
        targets: NDArray[Any],
        request: Request,  # noqa: ARG002 (the classifier needs it)
    ) -> tuple[NDArray[np.int64], tuple[Any, ...] | None]:
        """Each record's group and the public group values; None without groups."""
        if self.groups is None:
            return np.zeros(len(targets), dtype=np.int64), None
        if callable(self.groups):
            if self.group_values is None:
                raise ValueError("group_values must list the public values that groups can return")
            index = group_index(self.groups, X, self.group_values, len(targets), thorough=True)
            return index, tuple(self.group_values)
        raise ValueError(f"groups must be None or a function of X{self._label_groups_hint}, got {self.groups!r}")

    _label_groups_hint: ClassVar[str] = ""

    def _row_thresholds(self, X: Any, n: int) -> NDArray[np.float64]:
        """Thresholds that fit every row: (n_levels,), or (n, n_levels) with groups; an unknown group gets full sets."""
        if self.group_values_ is None:
            return np.asarray(self.threshold_)
        if not callable(self.groups):
            raise ValueError(
                "groups must be the function of X that the thresholds were found with; set it after loading"
            )
        index = group_index(self.groups, X, self.group_values_, n, thorough=False)
        everything = np.vstack([self.threshold_, np.full((1, self.threshold_.shape[1]), np.inf)])
        return np.asarray(everything[index])

    def _rows(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        # the library's own models look for NaN and infinity themselves, in parts, while these are in cache
        own = isinstance(self.model_, DenseModel | PreprocessedModel | ScaledTargetModel)
        return checked_rows(self, X, reset=False, finite=not own)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to exactly ``path``: parameters, thresholds, ledger, certificates, public facts.

        No pickle, no row, no score. A function (``groups``, a callable score) cannot be written: set it again on the
        loaded object. A torch module and a model given as a function cannot be saved (``TypeError``): they are code.
        """
        check_is_fitted(self)
        config = self.model_.config()
        require_loadable(config)
        parameters = {k: plain(v) for k, v in self.get_params(deep=False).items() if k != "estimator"}
        header = {
            "class": type(self).__name__,
            "parameters": {k: v for k, v in parameters.items() if v is not NOT_PLAIN},
            "model": config,
            "ledger": self.ledger_.to_json(),
            "certificates": [c.to_dict() for c in self.certificates_],
            "group_values": None if self.group_values_ is None else [plain(v) for v in self.group_values_],
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None,
        }
        arrays = {f"model/{name}": value for name, value in self.model_.arrays().items()}
        arrays["threshold"] = np.asarray(self.threshold_)
        arrays |= self._extra_arrays()
        persistence.write_file(path, header, arrays)

    def _restore(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        prefix = "model/"
        parameters = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        self.model_ = load_model(header["model"], parameters)
        self.threshold_ = arrays["threshold"]
        self.ledger_ = Ledger.from_json(header["ledger"])
        self.certificates_ = tuple(Certificate.from_dict(c) for c in header["certificates"])
        self.certificate_ = self.certificates_[0]
        self.group_values_ = None if header["group_values"] is None else tuple(header["group_values"])
        self.n_features_in_ = int(header["n_features_in"])
        shape: tuple[int, ...] = (len(self.certificates_),)
        if self.group_values_ is not None:
            shape = (len(self.group_values_), *shape)
        fits = self.threshold_.dtype == np.float64 and self.threshold_.shape == shape
        if not fits or np.isnan(self.threshold_).any() or self.model_.n_features != self.n_features_in_:
            raise ValueError("its thresholds, levels, groups and model do not fit together")
        if header["feature_names_in"] is not None:
            self.feature_names_in_ = np.asarray(header["feature_names_in"], dtype=object)

    def _extra_arrays(self) -> dict[str, NDArray[Any]]:
        return {}

    def _request(self, rows: NDArray[Any], fit_params: Mapping[str, Any], **own: Any) -> Request:
        """The public numbers of this fit, checked."""
        if "sample_weight" in fit_params:
            raise ValueError(
                "sample_weight is not supported: weights would change the sensitivity of every private step"
            )
        if fit_params:
            raise TypeError(f"fit got unexpected arguments: {', '.join(fit_params)}")
        alphas, _ = check_levels(self.confidence_level)
        n_records = len(rows) if self.n_records is None else check_count("n_records", self.n_records)
        return Request(
            task=self._task,
            estimator=self.estimator,
            budget=Budget(self.epsilon, self.delta),
            alphas=alphas,
            guarantee=self.guarantee,
            train_share=self.train_share,
            calibration_fraction=self.calibration_fraction,
            feature_bound=self.feature_bound,
            feature_bounds=self.feature_bounds,
            n_records=n_records,
            n_found=self.n_records is None,
            n_features=rows.shape[1],
            accountant=self.accountant,
            grouped=self.groups is not None,
            release_confidence=self.release_confidence,
            **own,
        )


def _declared_facts(trained: Trained, request: Request, strategy: Strategy) -> dict[str, Any]:
    """Everything that was declared public, by training, by the caller and by the plan; JSON values."""
    facts = {name: plain(value) for name, value in trained.public_facts.items() if name != "seeded"}
    facts = {name: str(trained.public_facts[name]) if v is NOT_PLAIN else v for name, v in facts.items()}
    own = request.public_facts()
    taken = [*facts.pop("taken_from_data", []), *own.pop("taken_from_data", [])]
    return facts | own | dict(strategy.facts) | ({"taken_from_data": list(dict.fromkeys(taken))} if taken else {})


NOT_PLAIN = object()


def plain(value: Any) -> Any:
    """A JSON value equal to ``value``, or a mark that there is none (functions)."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        items = [plain(v) for v in value]
        return NOT_PLAIN if any(i is NOT_PLAIN for i in items) else items
    return value if value is None or isinstance(value, str | int | float | bool) else NOT_PLAIN
