"""The estimators: one call from rows to private prediction sets. The only place where the rooms are wired together.

    rows -> public bounds -> private training -> scores -> private thresholds -> prediction sets

A fitted estimator holds parameters, thresholds, the ledger, the certificate and public facts, and nothing whose size
grows with the records.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpscp import persistence
from dpscp._checks import check_choice, check_count, check_range
from dpscp.budget import BudgetStore
from dpscp.calibration import calibration_rule, find_thresholds
from dpscp.exceptions import GuaranteeWarning, SeededWarning
from dpscp.guarantees import Certificate
from dpscp.privacy import Budget, Ledger, secure_generator
from dpscp.privacy.noise import seed_of
from dpscp.records import check_levels, checked_labels, checked_rows, checked_targets, class_list, group_index
from dpscp.scores import (
    absolute_residual,
    aps_of_labels,
    cqr,
    lac_of_labels,
    normalized_residual,
    raps_of_labels,
    raps_range,
)
from dpscp.sets import label_set, normalized_interval, quantile_interval, residual_interval
from dpscp.strategy import Request, Strategy, choose_strategy, corrected_model_outputs, load_model, require_loadable
from dpscp.training.mechanism import Model, Trained
from dpscp.training.networks import DenseModel
from dpscp.training.preprocess import PreprocessedModel
from dpscp.training.private_model import PrivateModel
from dpscp.training.scaling import ScaledTargetModel

__all__ = ["PrivateConformalClassifier", "PrivateConformalRegressor", "load"]

LABEL_SCORES: Mapping[str, Callable[..., NDArray[Any]]] = {
    "lac": lac_of_labels,
    "aps": aps_of_labels,
    "raps": raps_of_labels,
}
INTERVAL_SCORES = ("absolute", "normalized", "cqr")
# A predicted scale below this share of the target's range counts as this share: a public floor keeps scores bounded.
_SMALLEST_SCALE = 0.01


class _PrivateConformal(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share: the order of the steps, group handling, saving."""

    _task: ClassVar[str]

    def _fit(
        self, X: Any, rows: NDArray[np.float64], targets: NDArray[Any], request: Request, store: BudgetStore | None
    ) -> Self:
        """Train, score, find thresholds; the fitted attributes are set at the very end."""
        seed = seed_of(self.random_state)
        strategy = choose_strategy(request)
        groups, group_values = self._groups(X, targets, request)
        reservation = None
        if store is not None:
            if not isinstance(store, BudgetStore):
                raise TypeError(f"budget must be a BudgetStore, got {type(store).__name__}")
            reservation = store.reserve(self._planned_ledger(request, strategy), note=f"{type(self).__name__}.fit")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)  # told once, above
            training_seed, split_seed, search_seed = _child_seeds(seed)
            in_training: Any = slice(None)
            in_calibration: Any = slice(None)
            if strategy.calibration_fraction is not None:
                drawn = secure_generator(split_seed).random(len(rows)) < strategy.calibration_fraction
                in_training, in_calibration = ~drawn, drawn
            trained = strategy.train(rows[in_training], self._training_targets(targets[in_training]), training_seed)
            self._check_outputs(trained.model, request)
            spent = Ledger((), {**request.public_facts(), **strategy.facts}, seeded=seed is not None)
            spent = strategy.enter(spent, trained)
            scored = [g[in_calibration] for g in (rows, targets, groups)]
            scores, extra = self._scores(trained, scored[0], scored[1], strategy)
            if strategy.guarantee == "stability" and trained.stability is not None:
                extra = (*extra, *trained.stability.assumptions)
            rule = calibration_rule(
                strategy.guarantee,
                request.alphas,
                spent,
                request.n_records,
                part=strategy.calibration_fraction or 1.0,
                stability=trained.stability if self._natural_score() else None,
                grouped=group_values is not None,
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
        self.certificate_ = found.certificates[0]
        self._tell()
        return self

    def _planned_ledger(self, request: Request, strategy: Strategy) -> Ledger:
        """What this fit is going to spend: the same steps from the same public numbers, on one made-up score."""
        if strategy.mechanism is not None:
            spent = Ledger().add("training", strategy.mechanism.event)
        else:
            spent = Ledger().then(request.estimator.ledger)
        # Result C searches like 'corrected', which needs no trained model to be planned
        guarantee = "corrected" if strategy.guarantee == "stability" else strategy.guarantee
        part = strategy.calibration_fraction or 1.0
        rule = calibration_rule(guarantee, request.alphas, spent, request.n_records, part=part, grouped=request.grouped)
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

    def _tell(self) -> None:
        """Warn about promises that only full sets keep; released numbers only."""
        vacuous = [c for c in self.certificates_ if c.is_vacuous]
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
            return group_index(self.groups, X, self.group_values, len(targets)), tuple(self.group_values)
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
        index = group_index(self.groups, X, self.group_values_, n)
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
        parameters = {k: _plain(v) for k, v in self.get_params(deep=False).items() if k != "estimator"}
        header = {
            "class": type(self).__name__,
            "parameters": {k: v for k, v in parameters.items() if v is not _NOT_PLAIN},
            "model": config,
            "ledger": self.ledger_.to_json(),
            "certificates": [c.to_dict() for c in self.certificates_],
            "group_values": None if self.group_values_ is None else [_plain(v) for v in self.group_values_],
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
            **own,
        )


class PrivateConformalClassifier(ClassifierMixin, _PrivateConformal):  # type: ignore[misc]
    """A differentially private classifier whose prediction sets hold the true label at a promised rate.

    One call to ``fit`` trains a model under differential privacy on the rows, scores the same rows (or, with
    ``guarantee="split"``, rows held out for it), and finds the threshold by a private search. The whole release is
    (epsilon, delta)-differentially private for adding or removing one record, and ``certificate_`` says what is proven
    about coverage and under which assumptions.

    Parameters
    ----------
    estimator : None for the library's recipe; or a training mechanism such as ``dpscp.training.DPSGD``; or a
        ``torch.nn.Module``; or a ``PrivateModel`` trained elsewhere.
    epsilon, delta : the privacy budget of everything together.
    confidence_level : the wanted coverage, or a list of levels that share the budget.
    guarantee : ``"auto"`` (the certified one that public numbers predict to give the smallest sets), ``"universal"``,
        ``"stability"``, ``"split"`` (certified), ``"corrected"``, ``"asymptotic"`` (not proven in finite samples) or
        ``"finite"`` (the paper's buffered variant).
    conformity_score : ``"lac"`` (1 - p_y), ``"aps"``, ``"raps"``, or a function of the probabilities (n, n_classes)
        that returns a score between 0 and 1 for every label.
    train_share : training gets (train_share * epsilon, delta) and calibration what the composition leaves; ``"auto"``
        chooses from public numbers. Not used by ``"split"``, where each part gets the whole budget.
    calibration_fraction : share of the records held out by ``guarantee="split"``.
    feature_bound : public bound on the norm of a row; longer rows are scaled onto it. None, with no ``feature_bounds``:
        every row is scaled to norm one.
    feature_bounds : public (low, high) of the features, numbers or one for each; values are clipped and rescaled.
    classes : the public list of labels. None declares the labels found in y public, with a warning.
    groups : ``"label"`` for a threshold and a promise for each class; or a function of X that returns one of the public
        ``group_values`` for each row; an unknown group gets full sets.
    n_records : the public nominal number of records; None declares len(X) public.
    accountant : ``"pld"`` (tight) or ``"rdp"``.
    random_state : None for system entropy; an integer repeats the run and is NOT private.

    Attributes
    ----------
    classes_, model_, threshold_ ((n_levels,) or (n_groups, n_levels)), ledger_, certificate_ (of the first level),
    certificates_ (one for each level), n_features_in_, feature_names_in_

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(6000, 10, n_informative=5, class_sep=2.0, random_state=0)
    >>> clf = PrivateConformalClassifier(epsilon=2.0, delta=1e-5, classes=[0, 1], random_state=0)
    >>> labels, sets = clf.fit(X[:5000], y[:5000]).predict_set(X[5000:])
    >>> sets.shape, clf.ledger_.epsilon(1e-5) <= 2.0, clf.certificate_.coverage
    ((1000, 2, 1), True, 0.9)

    Paper: Algorithm 1 [alg: dp-scp]; Theory: section 6
    """

    _task = "classification"
    _label_groups_hint = " or 'label'"

    def __init__(
        self,
        estimator: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        confidence_level: float | Sequence[float] = 0.9,
        guarantee: str = "auto",
        conformity_score: str | Callable[[NDArray[Any]], NDArray[Any]] = "lac",
        train_share: float | str = 0.5,
        calibration_fraction: float | str = "auto",
        feature_bound: float | None = None,
        feature_bounds: Any = None,
        classes: Sequence[Any] | None = None,
        groups: str | Callable[[Any], Any] | None = None,
        group_values: Sequence[Any] | None = None,
        n_records: int | None = None,
        accountant: str = "pld",
        random_state: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.delta = delta
        self.confidence_level = confidence_level
        self.guarantee = guarantee
        self.conformity_score = conformity_score
        self.train_share = train_share
        self.calibration_fraction = calibration_fraction
        self.feature_bound = feature_bound
        self.feature_bounds = feature_bounds
        self.classes = classes
        self.groups = groups
        self.group_values = group_values
        self.n_records = n_records
        self.accountant = accountant
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, budget: BudgetStore | None = None, **fit_params: Any) -> Self:
        """Train privately and calibrate; see the class for what is promised.

        With ``budget``, a store shared by all fits on these records, the share is reserved before a record is used and
        the true cost is committed at the end; ``BudgetError`` if it does not fit. A fit that fails after the
        reservation has spent it.
        """
        if not callable(self.conformity_score):
            check_choice("conformity_score", self.conformity_score, LABEL_SCORES)
        self._forget()
        rows = checked_rows(self, X, reset=True)
        public, index, found = class_list(checked_labels(y, len(rows)), self._declared_classes())
        request = self._request(rows, fit_params, classes=tuple(_plain(c) for c in public), classes_found=found)
        if found:
            warnings.warn(
                "classes was not given: the labels found in y are declared public; pass classes=[...] to keep a rare "
                "label from telling that its record is there",
                GuaranteeWarning,
                stacklevel=2,
            )
        self._fit(X, rows, index, request, budget)
        self.classes_ = public
        return self

    def _declared_classes(self) -> Sequence[Any] | None:
        """The public labels: as given, or those of a model that was trained elsewhere."""
        if self.classes is None and isinstance(self.estimator, PrivateModel):
            return self.estimator.classes
        return self.classes

    def _groups(
        self, X: Any, targets: NDArray[Any], request: Request
    ) -> tuple[NDArray[np.int64], tuple[Any, ...] | None]:
        if isinstance(self.groups, str) and self.groups == "label":
            return targets, request.classes
        return super()._groups(X, targets, request)

    def _natural_score(self) -> bool:
        return self.conformity_score == "lac"

    def _check_outputs(self, model: Model, request: Request) -> None:
        if model.task != "classification":
            raise ValueError("estimator must train a classification model")
        labels = request.classes or ()
        if not isinstance(self.estimator, PrivateModel):
            labels = tuple(range(len(labels)))  # training sees indices, see strategy
        # another order or another number of columns would score one label with another one's probability
        if tuple(model.classes or ()) != labels:
            raise ValueError(
                "the model must have one output for each of the declared classes, in their order; a model that was "
                "trained elsewhere keeps its own list, a mechanism must take it from its field 'classes'"
            )

    def _score_range(self, model: Model) -> tuple[float, float]:
        return raps_range(len(model.classes or ())) if self.conformity_score == "raps" else (0.0, 1.0)

    def _label_scores(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        if callable(self.conformity_score):
            scores = np.asarray(self.conformity_score(probabilities))
            if scores.shape != probabilities.shape:
                raise ValueError("conformity_score must return one score for every row and label")
            return scores
        return LABEL_SCORES[self.conformity_score](probabilities)

    def _scores(
        self, trained: Trained, rows: NDArray[Any], labels: NDArray[Any], strategy: Strategy
    ) -> tuple[NDArray[Any], tuple[str, ...]]:
        probabilities = np.asarray(trained.model.predict_proba(rows))
        own = np.arange(len(rows)), labels
        scores = self._label_scores(probabilities)[own]
        if strategy.guarantee != "corrected":
            return scores, ()
        outputs, note = corrected_model_outputs(trained, rows, labels)
        if outputs is None:
            return scores, (note,)
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        corrected = self._label_scores(shifted / shifted.sum(axis=1, keepdims=True))[own]
        return np.maximum(scores, corrected), (note,)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Class probabilities of the private model, (n, n_classes)."""
        rows = self._rows(X)
        return np.asarray(self.model_.predict_proba(rows))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely label of each row."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def predict_set(self, X: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Labels (n,) and prediction sets, bool (n, n_classes, n_levels)."""
        probabilities = self.predict_proba(X)
        labels = self.classes_[probabilities.argmax(axis=1)]
        scores = self._label_scores(probabilities)
        if self.group_values_ is not None and self.groups == "label":
            return labels, np.asarray(scores[:, :, None] <= self.threshold_)
        thresholds = self._row_thresholds(X, len(scores))
        if thresholds.ndim == 1:
            return labels, label_set(scores, thresholds)
        return labels, np.asarray(scores[:, :, None] <= thresholds[:, None, :])

    def _extra_arrays(self) -> dict[str, NDArray[Any]]:
        # an object array of texts is written as text: objects would need pickle
        objects = self.classes_.dtype.kind == "O"
        return {
            "classes": self.classes_.astype(str) if objects else self.classes_,
            "classes_objects": np.array(objects),
        }

    def _restore(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        super()._restore(header, arrays)
        self.classes_ = arrays["classes"].astype(object) if arrays["classes_objects"] else arrays["classes"]
        if self.classes_.shape != (len(self.model_.classes or ()),):
            raise ValueError("its classes and its model do not fit together")


class PrivateConformalRegressor(RegressorMixin, _PrivateConformal):  # type: ignore[misc]
    """A differentially private regressor whose prediction intervals hold the true value at a promised rate.

    As ``PrivateConformalClassifier``, for real targets. ``y_bounds`` is the public range of the target and is required:
    targets are clipped to it for training and predictions lie in it; scores use the targets as they are, so the promise
    holds for targets outside as well.

    ``conformity_score``: ``"absolute"`` |y - prediction|; ``"cqr"`` distance outside a privately trained pair of
    quantiles; ``"normalized"`` |y - centre| / half-width of that pair.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(6000, 4)); y = X.sum(axis=1) + rng.normal(scale=0.3, size=6000)
    >>> reg = PrivateConformalRegressor(epsilon=2.0, y_bounds=(-6, 6), feature_bounds=(-1, 1), random_state=0)
    >>> prediction, intervals = reg.fit(X[:5000], y[:5000]).predict_interval(X[5000:])
    >>> prediction.shape, intervals.shape
    ((1000,), (1000, 2, 1))

    Paper: Algorithm 1 [alg: dp-scp]; Theory: section 6
    """

    _task = "regression"

    def __init__(
        self,
        estimator: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        confidence_level: float | Sequence[float] = 0.9,
        guarantee: str = "auto",
        conformity_score: str = "absolute",
        train_share: float | str = 0.5,
        calibration_fraction: float | str = "auto",
        y_bounds: tuple[float, float] | None = None,
        feature_bound: float | None = None,
        feature_bounds: Any = None,
        groups: Callable[[Any], Any] | None = None,
        group_values: Sequence[Any] | None = None,
        n_records: int | None = None,
        accountant: str = "pld",
        random_state: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.delta = delta
        self.confidence_level = confidence_level
        self.guarantee = guarantee
        self.conformity_score = conformity_score
        self.train_share = train_share
        self.calibration_fraction = calibration_fraction
        self.y_bounds = y_bounds
        self.feature_bound = feature_bound
        self.feature_bounds = feature_bounds
        self.groups = groups
        self.group_values = group_values
        self.n_records = n_records
        self.accountant = accountant
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, budget: BudgetStore | None = None, **fit_params: Any) -> Self:
        """Train privately and calibrate; see the class for what is promised.

        With ``budget``, a store shared by all fits on these records, the share is reserved before a record is used and
        the true cost is committed at the end; ``BudgetError`` if it does not fit. A fit that fails after the
        reservation has spent it.
        """
        check_choice("conformity_score", self.conformity_score, INTERVAL_SCORES)
        self._forget()
        rows = checked_rows(self, X, reset=True)
        targets = checked_targets(y, len(rows))
        if self.y_bounds is None:
            raise ValueError(
                "y_bounds=(low, high) is required: the public range of the target, never taken from the data"
            )
        low, high = check_range("y_bounds", self.y_bounds)
        request = self._request(rows, fit_params, y_bounds=(low, high), quantile_pair=self._needs_pair())
        return self._fit(X, rows, targets, request, budget)

    def _needs_pair(self) -> bool:
        return self.conformity_score in ("cqr", "normalized")

    def _natural_score(self) -> bool:
        return self.conformity_score == "absolute"

    def _training_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        low, high = check_range("y_bounds", self.y_bounds)
        return np.asarray(np.clip(targets, low, high))

    def _check_outputs(self, model: Model, request: Request) -> None:  # noqa: ARG002 (the classifier needs it)
        if model.task != "regression":
            raise ValueError("estimator must train a regression model")

    def _score_range(self, model: Model) -> tuple[float, float]:  # noqa: ARG002
        low, high = check_range("y_bounds", self.y_bounds)
        width = high - low
        return {"absolute": (0.0, width), "normalized": (0.0, 1 / _SMALLEST_SCALE), "cqr": (-width, width)}[
            self.conformity_score
        ]

    def _parts(self, outputs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Prediction, lower and upper quantile (equal to it without a pair), within the public range."""
        low, high = check_range("y_bounds", self.y_bounds)
        if outputs.shape[1] != (2 if self._needs_pair() else 1):
            raise ValueError(
                f"conformity_score={self.conformity_score!r} needs a model with "
                f"{'a pair of quantiles' if self._needs_pair() else 'one output'}, this one has {outputs.shape[1]}"
            )
        inside = np.array(outputs, dtype=np.float64)
        np.clip(inside, low, high, out=inside)
        if inside.shape[1] == 1:
            return (inside[:, 0],) * 3
        lower, upper = inside.min(axis=1), inside.max(axis=1)
        return (lower + upper) / 2, lower, upper

    def _scale(self, lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[Any]:
        low, high = check_range("y_bounds", self.y_bounds)
        return np.asarray(np.maximum((upper - lower) / 2, _SMALLEST_SCALE * (high - low)))

    def _score(self, targets: NDArray[Any], outputs: NDArray[Any]) -> NDArray[Any]:
        centre, lower, upper = self._parts(outputs)
        if self.conformity_score == "absolute":
            return absolute_residual(targets, centre)
        if self.conformity_score == "cqr":
            return cqr(targets, lower, upper)
        return normalized_residual(targets, centre, self._scale(lower, upper))

    def _scores(
        self, trained: Trained, rows: NDArray[Any], targets: NDArray[Any], strategy: Strategy
    ) -> tuple[NDArray[Any], tuple[str, ...]]:
        scores = self._score(targets, np.asarray(trained.model.outputs(rows)))
        if strategy.guarantee != "corrected":
            return scores, ()
        low, high = check_range("y_bounds", self.y_bounds)
        outputs, note = corrected_model_outputs(trained, rows, np.clip(targets, low, high))
        if outputs is None:
            return scores, (note,)
        return np.maximum(scores, self._score(targets, outputs)), (note,)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The prediction for each row, within ``y_bounds``."""
        rows = self._rows(X)
        return np.asarray(self._parts(np.asarray(self.model_.outputs(rows)))[0])

    def predict_interval(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predictions (n,) and intervals (n, 2, n_levels); an infinite interval where no finite threshold was found."""
        rows = self._rows(X)
        centre, lower, upper = self._parts(np.asarray(self.model_.outputs(rows)))
        thresholds = self._row_thresholds(X, len(rows))
        if self.conformity_score == "absolute":
            return centre, residual_interval(centre, thresholds)
        if self.conformity_score == "cqr":
            return centre, quantile_interval(lower, upper, thresholds)
        return centre, normalized_interval(centre, self._scale(lower, upper), thresholds)


def load(path: str | PathLike[str]) -> PrivateConformalClassifier | PrivateConformalRegressor:
    """The estimator that ``save`` wrote; nothing in the file is executed.

    Raises ``ValueError`` for a file that is foreign, truncated, altered, or written by a newer version.
    """
    header, arrays = persistence.read_file(path)
    kinds = {c.__name__: c for c in (PrivateConformalClassifier, PrivateConformalRegressor)}
    try:
        kind = kinds[header["class"]]
        estimator = kind(**header["parameters"])
        estimator._restore(header, arrays)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"the file cannot be loaded: {error}") from None
    return estimator


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    """A JSON value equal to ``value``, or a mark that there is none (functions)."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        items = [_plain(v) for v in value]
        return _NOT_PLAIN if any(i is _NOT_PLAIN for i in items) else items
    return value if value is None or isinstance(value, str | int | float | bool) else _NOT_PLAIN


def _child_seeds(seed: int | None) -> tuple[int | None, int | None, int | None]:
    """Seeds for training, assignment and search, independent of each other."""
    if seed is None:
        return None, None, None
    training, split, search = np.random.SeedSequence(seed).generate_state(3).tolist()
    return training, split, search
