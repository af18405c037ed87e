"""The private multilabel classifier, whose sets miss few of the true labels."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dpscp._base.assumptions import ALL_LABELS_IF_INFINITE, NO_LABEL_IF_INFINITE, Assumption
from dpscp._base.checks import check_choice, check_count, check_probability
from dpscp._base.sklearn_compat import BaseEstimator, ClassifierMixin
from dpscp.core.losses import LossColumns, sum_losses
from dpscp.core.problem import Problem
from dpscp.core.search_plan import Plan
from dpscp.core.tasks import OwnLosses
from dpscp.core.thresholds import Counted, Release, release_counts
from dpscp.data import model_files as persistence
from dpscp.data.feature_bounds import RowNorm, column_bounds
from dpscp.data.model_files import plain, plain_parameters
from dpscp.data.persons import Persons, choose_unit, keep_rows
from dpscp.data.used_records import Sketch, remember_use, sketch_rows, warn_if_refit
from dpscp.data.validation import suppress_float_warnings, validate_rows
from dpscp.estimators.fitted import MissingEstimator, loaded_estimator, start_fit
from dpscp.estimators.outer_steps import find_outer_use
from dpscp.estimators.trust import list_training_assumptions
from dpscp.exceptions import GuaranteeWarning, SeededWarning
from dpscp.guarantees import Certificate
from dpscp.guarantees.registry import SPLIT
from dpscp.privacy import Accountant, Budget, Ledger, Unit, counts_secrecy, secret_shares, secure_generator
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.scores.losses import Losses, false_discoveries, missed_labels
from dpscp.training import NormClip, Preprocessed, PublicBounds
from dpscp.training.base import Mechanism, paid_event, require_persons
from dpscp.training.mechanisms.one_vs_rest import LabelHeads, OneVsRest
from dpscp.training.model import load_model
from dpscp.training.private_model import model_for_records
from dpscp.training.recipe import calibration_fraction, recipe

MISSED, DISCOVERIES = "missed_labels", "false_discoveries"
# The thresholds are an even public grid of [0, 1] with at most 2^_MOST_STEPS - 1 points.
_MOST_STEPS, _RESOLUTION = 10, 64
_ON_FULL_SETS = {
    MISSED: ALL_LABELS_IF_INFINITE,
    DISCOVERIES: NO_LABEL_IF_INFINITE,
}


@dataclass(frozen=True)
class _Records:
    """The private side of a fit, checked: rows, indicators, whose they are, and the public names of the labels."""

    rows: NDArray[np.float64] = field(repr=False)
    truth: NDArray[np.int64] = field(repr=False)
    owners: Persons = field(repr=False)
    unit: Unit
    names: tuple[Any, ...]
    sketch: Sketch

    def part(self, drawn: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.int64], Persons]:
        """Return the rows, indicators and owners of the drawn persons."""
        mask, owners = self.owners.part(drawn)
        return self.rows[mask], self.truth[mask], owners


@dataclass(frozen=True)
class _Plan:
    """The public side of a fit: heads with their noise, the held-out share and the searches."""

    heads: OneVsRest
    fraction: float
    n_training: int
    searches: Plan


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateMultilabelClassifier(ClassifierMixin, BaseEstimator):
    """Differentially private multilabel classifier with sets of proven mean loss.

    ``fit`` assigns each record secretly to training or calibration. One binary model for each label is trained on the
    first part, and a private search on the second finds the threshold at which the mean loss of a new record is at most
    ``risk``. The whole release is (epsilon, delta)-differentially private for adding or removing one record with all
    its labels, or one person (``fit(X, y, persons=ids)``).

    Parameters
    ----------
    estimator : None or mechanism, optional
        Trains the binary model of one label, with the classes 0 and 1. None is the library's recipe.
    epsilon : float, default 1.0
        The privacy budget of training and calibration together.
    delta : float, default 1e-5
    risk : float or list of floats, default 0.1
        The wanted bound on the mean loss. Several bounds share the budget.
    loss : str, default "missed_labels"
        ``"missed_labels"``: the share of a record's true labels that the set misses (false negatives).
        ``"false_discoveries"``: the share of the set that is not true. It may rise as sets become smaller, so the
        promise is about its running maximum.
    label_costs : array of shape (n_labels,), optional
        The public cost of missing each label. The loss is then the missed share of the cost of all true labels.
    labels : list, optional
        The public names of the columns of y. None: 0, 1, 2, ...
    calibration_fraction : float or "auto", default "auto"
        The share of the records that finds the threshold.
    feature_bounds : optional
        Public bounds or ``dp.RowNorm``, see ``PrivateConformalClassifier``; without them rows are scaled to norm one.
    n_records : int, optional
        The public nominal number of records. None declares len(X) public.
    rows_per_person, n_persons : int, optional
        See ``PrivateConformalClassifier``; both need ids. The loss of a person is the mean over the kept rows.
    accountant : str or Accountant, default "pld"
    random_state : int, optional
        None uses system entropy. An integer makes the run repeatable and NOT private.

    Attributes
    ----------
    labels_ : tuple
        The public labels.
    model_ : LabelHeads
        The released models, one for each label.
    threshold_ : array of shape (n_levels,)
        The released thresholds; infinite where no finite one exists.
    ledger_ : Ledger
    certificate_ : Certificate
        Its ``risk`` is the proven bound on the mean loss, at the first level.
    certificates_ : tuple of Certificate
    n_features_in_ : int

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> X, Y = make_multilabel_classification(3000, 10, n_classes=3, random_state=0)
    >>> clf = PrivateMultilabelClassifier(epsilon=4.0, random_state=0).fit(X[:2000], Y[:2000])
    >>> labels, sets = clf.predict_set(X[2000:])
    >>> sets.shape, clf.certificate_.risk, clf.ledger_.epsilon(1e-5) <= 4.0
    ((1000, 3, 1), 0.1, True)

    Theory: Results E and J
    """

    estimator: Mechanism | MissingEstimator | None = None
    epsilon: float = 1.0
    delta: float = 1e-5
    risk: float | Sequence[float] = 0.1
    loss: str = MISSED
    label_costs: Any = None
    labels: Sequence[Any] | None = None
    calibration_fraction: float | str = "auto"
    feature_bounds: Any = None
    n_records: int | None = None
    rows_per_person: int | None = None
    n_persons: int | None = None
    accountant: str | Accountant = "pld"
    random_state: int | None = None

    schema_: ClassVar[None] = None  # tables are arrays or frames of numbers
    labels_: tuple[Any, ...] = field(init=False)
    model_: LabelHeads = field(init=False)
    threshold_: NDArray[np.float64] = field(init=False)
    ledger_: Ledger = field(init=False)
    certificates_: tuple[Certificate, ...] = field(init=False)
    n_features_in_: int = field(init=False)

    @property
    def certificate_(self) -> Certificate:
        """The certificate of the first level."""
        check_is_fitted(self)
        return self.certificates_[0]

    def __sklearn_is_fitted__(self) -> bool:
        return "certificates_" in vars(self)

    def fit(self, X: Any, y: Any, *, persons: Any = None, budget: BudgetStore | None = None) -> Self:
        """Train privately and find the threshold.

        Parameters
        ----------
        X : array or frame with n rows of numbers
        y : indicator array of shape (n, n_labels)
            1 where a label is true, else 0.
        persons : array of shape (n,), optional
            One id for each row, where a person may have several.
        budget : BudgetStore, optional
            Pays for the fit; the cost is reserved before a record is used.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For wrong arguments and records, before anything is spent and without a value of the records.
        BudgetError
            If the budget, or what is left in the store, is too small.
        """
        start_fit(self, budget)
        seed = seed_of(self.random_state)
        outer = find_outer_use()
        outer.warn(budget)
        row_seed, *seeds = child_seeds(seed, 5)
        records = self._read(X, y, persons, row_seed)
        plan = self._plan(records)
        if seed is None and budget is None:
            warn_if_refit(records.sketch, stacklevel=2)
        with suppress_float_warnings(), warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)
            assumed = (*outer.assumptions, *list_training_assumptions(self.estimator))
            model, found = self._release(plan, records, seeds, budget, assumed)
        self.labels_, self.model_ = records.names, model
        self.threshold_ = found.threshold
        self.ledger_, self.certificates_ = outer.mark_promises(found.ledger, found.certificates)
        remember_use(records.sketch, is_private=seed is None)
        if any(c.is_vacuous for c in self.certificates_) or not np.isfinite(self.threshold_).all():
            warnings.warn(str(self.certificate_), GuaranteeWarning, stacklevel=2)
        return self

    def _read(self, X: Any, y: Any, persons: Any, seed: int | None) -> _Records:
        """Check the records and keep the rows of each person that are used."""
        rows, truth = validate_rows(self, X, reset=True), check_indicators(y)
        if len(truth) != len(rows):
            raise ValueError("X and y must have the same number of records")
        names = tuple(range(truth.shape[1])) if self.labels is None else tuple(self.labels)
        if len(names) != truth.shape[1] or len(set(names)) != len(names):
            raise ValueError(f"labels must be {truth.shape[1]} distinct names, one for each column of y")
        unit = choose_unit(persons, self.rows_per_person, n_records=self.n_records, n_persons=self.n_persons)
        if unit.group > 1:
            raise ValueError("rows_per_person needs fit(X, y, persons=ids) here; pass the ids, or remove it")
        if not unit.by_person:
            return _Records(rows, truth, Persons.single(len(rows)), unit, names, sketch_rows(rows))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)  # the release warns, once
            kept, owners = keep_rows(persons, n_rows=len(rows), rows_per_person=unit.cap, random_state=seed)
        return _Records(rows[kept], truth[kept], owners, unit, names, sketch_rows(rows))

    def _release(
        self,
        plan: _Plan,
        records: _Records,
        seeds: Sequence[int | None],
        store: BudgetStore | None,
        assumed: tuple[Assumption, ...],
    ) -> tuple[LabelHeads, Release]:
        """Train on one secret part, and find the thresholds on the other."""
        coin_seed, train_seed, dither_seed, search_seed = seeds
        models: list[LabelHeads] = []

        def count() -> Counted:
            is_held_out = secure_generator(coin_seed).random(records.owners.count) < plan.fraction
            rows, truth, own = records.part(~is_held_out)
            own_persons = own if records.unit.by_person else None
            model = plan.heads.train(
                rows, truth, random_state=train_seed, n_records=plan.n_training, persons=own_persons
            )
            models.append(model)
            rows, truth, own = records.part(is_held_out)
            heads = LabelHeads(tuple(map(model_for_records, model.heads)))
            losses = self._losses(heads.probabilities(rows), truth)
            columns = LossColumns.of_function(losses, (0.0, 1.0), max(1, plan.searches.steps))
            sums = sum_losses(
                columns,
                rows=None,
                owners=own,
                groups=None,
                generator=secure_generator(dither_seed),
                resolution=_RESOLUTION,
                running_maximum=self.loss == DISCOVERIES,
            )
            return Counted(
                sums,
                plan.searches.spent.assume(*assumed),
                sums[0].place_range,
                assumptions=(_ON_FULL_SETS[self.loss],),
                threshold_at=lambda places: columns.thresholds_at(places)[0],
            )

        found = release_counts(plan.searches, count, random_state=search_seed, store=store, note=type(self).__name__)
        return models[0], found

    def _plan(self, records: _Records) -> _Plan:
        """Plan the fit from public numbers; what does not fit the budget is refused here."""
        unit, names, width = records.unit, records.names, records.rows.shape[1]
        check_choice("loss", self.loss, (MISSED, DISCOVERIES))
        if self.label_costs is not None and self.loss == DISCOVERIES:
            raise ValueError("label_costs is for loss='missed_labels'; remove it")
        missed_labels(np.zeros((1, len(names))), np.zeros((1, len(names))), self.label_costs)  # checks the costs
        budget, levels = Budget(self.epsilon, self.delta), np.atleast_1d(np.asarray(self.risk, dtype=object))
        alphas = tuple(check_probability("risk", level) for level in levels)
        declared = self.n_persons if unit.by_person else self.n_records
        n = check_count(unit.count_name, records.owners.count if declared is None else declared)
        fraction = self.calibration_fraction
        fraction = (
            calibration_fraction(n, self.epsilon, self.delta)
            if fraction == "auto"
            else check_probability("calibration_fraction", fraction)
        )
        shared = secret_shares(self.epsilon, self.delta, fraction, n, self.accountant)
        head, facts = self._head(n, width, fraction, shared.train_epsilon)
        heads = OneVsRest(head, len(names))
        if heads.event is None:
            heads = heads.calibrated(shared.train_epsilon, self.delta, accountant=self.accountant)
        if unit.by_person:
            require_persons(heads.mechanism)
        facts |= {unit.count_name: n, "n_features": width, "labels": [str(name) for name in names]}
        facts |= {"calibration_fraction": fraction, "loss": self.loss, "guarantee": SPLIT.name}
        facts |= {} if self.label_costs is None else {"label_costs": [float(cost) for cost in self.label_costs]}
        note = f"{heads.n_labels} binary models, one for each label"
        taken = () if declared is not None else (unit.count_name,)
        spent = Ledger((), facts, taken_from_data=taken).add("training", paid_event(heads), note, unit=unit.counted)
        problem = Problem(
            task=OwnLosses(_RESOLUTION, self.loss == DISCOVERIES, _MOST_STEPS),
            budget=budget,
            alphas=alphas,
            n_records=n,
            guarantee=SPLIT,
            n_found=declared is None,
            unit=unit,
            accountant=self.accountant,
        )
        secret = fraction if counts_secrecy(self.epsilon, self.accountant) else None
        searches = Plan.outline(problem, spent, part=fraction, mu=shared.held_out_mu, secret_part=secret).with_noise()
        return _Plan(heads, fraction, max(1, round((1 - fraction) * n)), searches)

    def _head(self, n: int, width: int, fraction: float, train_epsilon: float) -> tuple[Mechanism, dict[str, Any]]:
        """Return the mechanism of one label, still without noise where this fit sets it, and the recipe's facts."""
        norm = self.feature_bounds.bound if isinstance(self.feature_bounds, RowNorm) else None
        declared = None if norm is not None else self.feature_bounds
        bounds = column_bounds(declared, width, vars(self).get("feature_names_in_"))
        if bounds is not None and (bounds.private or bounds.scales is not None):
            raise ValueError(
                "feature_bounds='private' and scales are not for several labels; pass public bounds of the features"
            )
        if self.estimator is not None:
            if isinstance(self.estimator, type) or not isinstance(self.estimator, Mechanism):
                raise TypeError(
                    "estimator must be None or a training mechanism (dpscp.training.DPSGD, ...), got "
                    f"{type(self.estimator).__name__}"
                )
            if bounds is not None:
                return Preprocessed((PublicBounds(*bounds.pair),), self.estimator), {}
            if norm is not None:
                return Preprocessed((NormClip(norm),), self.estimator), {}
            return self.estimator, {}
        chosen = recipe(
            "classification",
            n_records=n,
            n_features=width,
            classes=(0, 1),
            epsilon=self.epsilon,
            delta=self.delta,
            features="clipped" if norm is not None else "unit" if bounds is None else "bounded",
            feature_bound=norm,
            feature_bounds=None if bounds is None else bounds.pair,
            train_epsilon=train_epsilon,
            held_out_fraction=fraction,
        )
        return chosen.mechanism, {"signal": chosen.public_facts()["signal"]}

    def _losses(self, probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> Losses:
        """Return the loss of each record as a function of the threshold."""
        # a model that overflows gets the worst probability of each label
        shown = np.nan_to_num(probabilities, nan=0.0 if self.loss == MISSED else 1.0)
        if self.loss == DISCOVERIES:
            return false_discoveries(shown, truth)
        return missed_labels(1 - shown, truth, self.label_costs)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probability of each label.

        Parameters
        ----------
        X : array or frame with n rows

        Returns
        -------
        array of shape (n, n_labels)
        """
        check_is_fitted(self)
        return self.model_.probabilities(validate_rows(self, X, reset=False))

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Predict the labels with a probability of at least one half, as indicators (n, n_labels)."""
        return (self.predict_proba(X) >= 0.5).astype(np.int64)

    def predict_set(self, X: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Predict labels and sets.

        Parameters
        ----------
        X : array or frame with n rows

        Returns
        -------
        labels : array of shape (n, n_labels)
            Indicators of the labels with a probability of at least one half.
        sets : bool array of shape (n, n_labels, n_levels)
        """
        probabilities = self.predict_proba(X)[:, :, None]
        labels = (probabilities[:, :, 0] >= 0.5).astype(np.int64)
        if self.loss == DISCOVERIES:
            return labels, np.asarray(probabilities > self.threshold_)
        return labels, np.asarray(1 - probabilities <= self.threshold_)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to exactly ``path``; no pickle, no row and no loss.

        Parameters
        ----------
        path : str or path
        """
        check_is_fitted(self)
        config, names = self.model_.config(), vars(self).get("feature_names_in_")
        header = {
            "class": type(self).__name__,
            "parameters": plain_parameters(self.get_params(deep=False)),
            "is_recipe": self.estimator is None,
            "model": config,
            "ledger": self.ledger_.to_dict(),
            "certificates": [c.to_dict() for c in self.certificates_],
            "labels": [plain(name) for name in self.labels_],
            "n_features_in": int(self.n_features_in_),
            "feature_names_in": None if names is None else list(names),
        }
        arrays = {f"model/{name}": value for name, value in self.model_.arrays().items()}
        persistence.write_file(path, header, {**arrays, "threshold": self.threshold_})

    def _restore(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], module: Any = None) -> None:
        """Set the fitted attributes from a file."""
        prefix = "model/"
        parameters = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        model = load_model(header["model"], parameters, module)
        check_choice("loss", self.loss, (MISSED, DISCOVERIES))
        self.threshold_, self.labels_ = arrays["threshold"], tuple(header["labels"])
        self.n_features_in_ = int(header["n_features_in"])
        self.ledger_ = Ledger.from_dict(header["ledger"])
        certificates = tuple(Certificate.from_dict(c) for c in header["certificates"])
        fits = isinstance(model, LabelHeads) and len(model.heads) == len(self.labels_)
        fits = fits and self.threshold_.dtype == np.float64 and self.threshold_.shape == (len(certificates),)
        if not fits or np.isnan(self.threshold_).any() or model.n_features != self.n_features_in_:
            raise ValueError("its thresholds, levels, labels and model do not match")
        assert isinstance(model, LabelHeads)
        self.model_, self.certificates_ = model, certificates
        self.estimator = loaded_estimator(header)
        if header["feature_names_in"] is not None:
            self.feature_names_in_ = np.asarray(header["feature_names_in"], dtype=object)


def check_indicators(y: Any) -> NDArray[np.int64]:
    """Return indicators of true labels, (n, n_labels); ValueError without a value for anything else."""
    try:
        found = np.asarray(y)
    except (ValueError, TypeError):
        found = np.empty(0)
    if found.ndim != 2 or not found.shape[1] or found.dtype.kind not in "biuf":
        raise ValueError("y must be an indicator array of shape (n, n_labels): 1 where a label is true, else 0")
    if not np.isin(found, (0, 1)).all():
        raise ValueError("y must hold 0 and 1 only")
    return found.astype(np.int64)
