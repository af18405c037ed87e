"""The private classifier with prediction sets."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.sklearn_compat import ClassifierMixin
from dpscp.core.problem import FitProblem
from dpscp.core.tasks import Classification
from dpscp.data.torch_records import inputs_of
from dpscp.data.validation import class_list, label_index, plain, validate_labels
from dpscp.estimators.base import PrivateCoverage
from dpscp.estimators.fitted import reads_files
from dpscp.estimators.ingest import FitInput, FitRecords
from dpscp.exceptions import GuaranteeWarning, HintWarning
from dpscp.scores import LabelScore, label_score
from dpscp.scores.labels import score_labels
from dpscp.scores.sets import label_set


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateConformalClassifier(ClassifierMixin, PrivateCoverage):
    """Differentially private classifier with prediction sets of proven coverage.

    ``fit`` trains a model under differential privacy, scores records and finds the threshold by a private search. The
    scored records are the training records or, with ``guarantee="split"``, held-out ones. The whole release is
    (epsilon, delta)-differentially private for adding or removing one record (or one person, see ``rows_per_person``).
    ``certificate_`` states what is proven about coverage and under which assumptions.

    After ``estimator``, the parameters are in groups. Budget: ``epsilon`` to ``accountant``. Promise:
    ``confidence_level`` to ``population``. Data: ``feature_bounds`` to ``n_records``. People: ``rows_per_person`` and
    ``n_persons``. Computing: ``random_state`` and ``verbose``.

    Parameters
    ----------
    estimator : None, mechanism, torch.nn.Module, PrivateModel or Prefit
        None is the library's recipe. A mechanism is, for example, ``dpscp.training.DPSGD``. A ``PrivateModel`` was
        trained elsewhere. A ``Prefit`` wraps an estimator that was trained without privacy on other records. A list
        contains private steps and then a mechanism or module (``dpscp.training``), such as
        ``[PrivateStandardize(0, 9), PrivateWhitening(), DPSGD()]``. Without a mechanism, DP-SGD trains a linear model.
    epsilon : float, default 1.0
        The privacy budget of training and calibration together.
    delta : float, default 1e-5
        The second parameter of that budget.
    train_share : float or "auto", default 0.5
        Training gets (train_share * epsilon, delta), calibration gets the rest. ``"auto"`` chooses from public numbers.
        Not used by ``"split"``, where each part gets the whole budget.
    accountant : str or Accountant, default "pld"
        ``"pld"`` (tight), ``"rdp"``, or your own ``dpscp.privacy.Accountant`` or its registered name.
    confidence_level : float or list of floats, default 0.9
        The wanted coverage. Several levels share the budget.
    guarantee : str or Guarantee, default "auto"
        ``"universal"``, ``"stability"`` and ``"split"`` are certified. ``"corrected"`` and ``"asymptotic"`` are not
        proven for finite samples. ``"finite"`` is the paper's buffered variant. ``"auto"`` chooses, from public
        numbers, the certified one with the smallest expected sets.
    conformity_score : str, LabelScore or function, default "lac"
        ``"lac"`` (1 - p_y), ``"aps"``, ``"raps"``, or your own: a ``dpscp.scores.LabelScore``, or a function of the
        probabilities (n, n_classes) that returns scores between 0 and 1 of the same shape. Each row's scores must
        depend on that row alone: this is an assumption, and the scores of different blocks of rows are compared.
    calibration_fraction : float or "auto", default "auto"
        The share of the records that ``guarantee="split"`` holds out.
    evaluation_fraction : float, optional
        The share of the records that neither train nor calibrate, but evaluate this release privately
        (``evaluation_``). It needs held-out records: ``"auto"`` becomes ``"split"``, and other guarantees are refused.
    release_confidence : float, optional
        The probability, over records and noise, that the coverage of this single release reaches the level, in addition
        to the promise on average (Result I; independent records). It needs held-out records: ``"auto"`` becomes
        ``"split"``, and other guarantees are refused.
    groups : "label", function, column, list or Groups, optional
        ``"label"`` gives each class its own threshold and promise. A column is a categorical one of the schema. A
        function of X returns a boolean for each row, from that row alone; ``dp.Groups(function, values=[...])`` has
        other public groups. A row of another group gets full sets. A list of functions or columns gives overlapping
        groups: each promise holds, because a row gets the largest threshold of its groups, and one record is charged
        for one group of each. ``dp.Groups(function, values=[...], per_record=k)`` takes a boolean matrix.
    population : Population, optional
        ``dp.Population(likelihood_ratio, bound=W)`` makes the promise for another population than that of the records
        (guarantee ``"split"``, or ``"universal"`` where the ratio has mean 1). Secret coins follow the ratio.
        ``dp.Population.from_class_priors(target, source)`` declares the probabilities of the classes.
    feature_bounds : (low, high), mapping, "private" or RowNorm, optional
        The public bounds of the features. Values are clipped and rescaled. Pass (low, high) for all features, two
        arrays of shape (n_features,), or {column: (low, high)} (by index where X has no names). ``"private"`` finds
        bounds by noisy counts on a public grid of powers of two, for 5 % of the squared training budget. Known bounds
        cost nothing and are better. A mapping may contain ``"private"``, and ``"indicator"`` for a column of 0 and 1,
        which then costs no budget. In a mapping a scale may follow for features that span orders of magnitude:
        ``(low, high, "log")``, or ``"log1p"`` for numbers from 0 on, or ``("private", "log")``.
        ``dp.RowNorm(b)`` bounds the norm of a row instead: longer rows are scaled down to it. None: the bounds of a
        table are found as with ``"private"`` where records and budget suffice (``pays_as_quantiles``), else every row
        is scaled to norm one.
    classes : list, optional
        The public list of all labels that can occur. None declares the labels in y public, with a warning. No coverage
        is then certified, because a label without a record is in no set.
    n_records : int, optional
        The public nominal number of records. None declares len(X) public.
    rows_per_person : int, optional
        The public cap k on the rows of one person, where a person may have several. With ids (``fit(X, y,
        persons=ids)``) at most k random rows of each person are used. Privacy is for adding or removing a person with
        all records, and coverage is for a random record of a new person (Result H). Without ids, each person is assumed
        to have at most k rows. Privacy is per person by group privacy, with k times the noise, and coverage is per
        record.
    n_persons : int, optional
        The public nominal number of persons. None declares the true number public. Needs ids.
    random_state : int, optional
        None uses system entropy. An integer makes the run repeatable and NOT private.
    verbose : int, default 0
        1 writes stages, steps and readings to standard error. The logger ``dpscp`` receives the stages.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The public labels.
    model_ : Model
        The released model.
    threshold_ : array of shape (n_levels,) or (n_groups, n_levels)
        The released thresholds; infinite where no finite one exists.
    group_values_ : tuple or None
        The public groups, in the order of ``threshold_``.
    ledger_ : Ledger
        What was spent, and what was declared public.
    certificate_ : Certificate
        What is proven about the first level.
    certificates_ : tuple of Certificate
        One for each level.
    evaluation_ : PrivateEvaluation or None
        The private evaluation of this release; None without ``evaluation_fraction``.
    schema_ : Schema or None
        The schema of the fit.
    n_features_in_ : int
    feature_names_in_ : array of shape (n_features_in_,)
        Only if X has column names.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(6000, 10, n_informative=5, class_sep=2.0, random_state=0)
    >>> clf = PrivateConformalClassifier(epsilon=2.0, delta=1e-5, classes=[0, 1], random_state=0)
    >>> labels, sets = clf.fit(X[:5000], y[:5000]).predict_set(X[5000:])
    >>> sets.shape, clf.ledger_.epsilon(1e-5) <= 2.0, clf.certificate_.coverage
    ((1000, 2, 1), True, 0.9)

    Paper: Algorithm 1 [alg: dp-scp]; Theory: Which one to use
    """

    conformity_score: str | LabelScore | Callable[[NDArray[Any]], NDArray[Any]] = "lac"
    classes: Sequence[Any] | None = None

    classes_: NDArray[Any] = field(init=False)
    _name = "classification"

    def _check_score(self) -> None:
        label_score(self.conformity_score)

    _validate_y = staticmethod(validate_labels)

    def _make_problem(self, fit_input: FitInput) -> tuple[FitProblem, FitRecords]:
        declared, of_source = self._declared("classes"), fit_input.rows is None
        trained, is_taken = self._find_pretrained_model(), False
        if declared is None and trained is not None:
            declared, is_taken = trained.model.classes, "classes" in trained.ledger.taken_from_data
        if of_source and declared is None:
            raise ValueError("classes is required for a record source; pass classes=[...] with every possible label")
        public, index, found = class_list(np.empty(0, dtype=np.int64) if of_source else fit_input.y, declared)
        labels = tuple(plain(c) for c in public)
        records = self._read_records(fit_input, index, partial(_indices, classes=labels), labels)
        found, elsewhere = found or is_taken, None if trained is None else labels
        task = Classification(labels, label_score(self.conformity_score), model_labels=elsewhere, classes_found=found)
        problem = self._problem(task, records)
        if found:
            warnings.warn(
                "classes is None, so the labels in y are declared public and no coverage is certified: a label without "
                "a record is in no prediction set. Pass classes=[...] with every label that can occur; otherwise a "
                "rare label reveals that its record is present",
                GuaranteeWarning,
                stacklevel=3,
            )
        self.classes_ = np.asarray(public)
        self._hint_at_rare_classes()
        return problem, records

    def _hint_at_rare_classes(self) -> None:
        """Recommend ``groups="label"`` if a class is declared to be rare."""
        shares = {} if self.population is None or self._groups_are_labels else self.population.class_shares
        if rare := [str(name) for name, share in shares.items() if 0 < share < 0.1]:
            warnings.warn(
                f"declared under 10% of new records: {', '.join(rare)}. The promise is an average over all classes, "
                'so a rare class may have far less coverage. groups="label" gives each class its own promise',
                HintWarning,
                stacklevel=4,
            )

    @reads_files
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Predict class probabilities.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table
            A file (CSV, Parquet) needs a fit with a schema. It is read block by block.

        Returns
        -------
        array of shape (n, n_classes)
            NaN for a row of a frame that does not fit the schema.
        """
        probabilities, unreadable = self._probabilities(X)
        return probabilities if unreadable is None else np.where(unreadable[:, None], np.nan, probabilities)

    def _name_answers(self, predictions: NDArray[Any], answers: NDArray[Any], mark: str) -> dict[str, NDArray[Any]]:
        return {
            "prediction": predictions,
            f"set{mark}": list_labels(self.classes_, answers),
            f"set_size{mark}": answers.sum(axis=1),
        }

    def _probabilities(self, X: Any) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return the probabilities of all rows, and which rows do not fit the schema."""
        rows, unreadable = self._read_new_rows(X)
        return np.asarray(self.model_.predict_proba(rows)), unreadable

    def _most_likely(self, probabilities: NDArray[Any], unreadable: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return the most likely labels; None for rows that do not fit the schema."""
        labels = np.asarray(self.classes_[probabilities.argmax(axis=1)])
        if unreadable is not None:
            labels = labels.astype(object)
            labels[unreadable] = None
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the exact accuracy of ``predict`` on labeled records, NOT private.

        Parameters
        ----------
        X : array or frame with n rows
        y : array of shape (n,), or the name of the target column of a frame
        sample_weight : array of shape (n,), optional

        Returns
        -------
        float
        """
        return float(super().score(X, self._read_labeled(X, y), sample_weight))

    @reads_files
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most likely label of each row.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table
            A file (CSV, Parquet) needs a fit with a schema. It is read block by block.

        Returns
        -------
        array of shape (n,)
            None for a row of a frame that does not fit the schema.
        """
        return self._most_likely(*self._probabilities(X))

    def predict_set(self, X: Any) -> Any:
        """Predict labels and prediction sets.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table
            A file (CSV, Parquet) needs a fit with a schema. It is read block by block.

        Returns
        -------
        labels : array of shape (n,)
            The most likely labels.
        sets : bool array of shape (n, n_classes, n_levels)
            Whether each label is in the set, for each level. A row of a frame that does not fit the schema, such as
            one with an undeclared category, has the full set and the label None; ``schema_.rows(frame)`` says why.

        After ``set_output(transform="pandas")``, a frame with the columns of ``predict_columns`` instead.
        """
        return self._frame_answers(X)

    @reads_files
    def predict_answers(self, X: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return labels and sets as arrays."""
        X = inputs_of(X)
        probabilities, unreadable = self._probabilities(X)
        labels = self._most_likely(probabilities, unreadable)
        sets = self._sets_of_scores(score_labels(self._task().score, probabilities), X)
        return labels, sets if unreadable is None else sets | unreadable[:, None, None]

    def _sets_of_scores(self, scores: NDArray[Any], X: Any) -> NDArray[np.bool_]:
        """Return which labels are in the sets, (n, n_classes, n_levels)."""
        if self.group_values_ is not None and self._groups_are_labels:
            return np.asarray(scores[:, :, None] <= self.threshold_)
        thresholds = self._select_thresholds(X, len(scores))
        if thresholds.ndim == 1:
            return label_set(scores, thresholds)
        return np.asarray(scores[:, :, None] <= thresholds[:, None, :])

    def _restore_task(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.classes_ = arrays["classes"].astype(object) if arrays["classes_objects"] else arrays["classes"]
        if self.classes_.shape != (len(self.model_.classes or ()),):
            raise ValueError("its classes do not match its model")
        self.task_ = Classification.from_dict(header["task"], classes=tuple(plain(c) for c in self.classes_))


def _indices(y: Any, n: int, *, classes: tuple[Any, ...]) -> NDArray[np.int64]:
    """Validate the labels of a block and return their class indices."""
    return label_index(validate_labels(y, n), classes)


def list_labels(classes: NDArray[Any], sets: NDArray[np.bool_]) -> NDArray[np.object_]:
    """Return the labels of each row of ``sets`` as a tuple.

    Each distinct set is built once.
    """
    packed = np.ascontiguousarray(np.packbits(sets, axis=1))
    _, rows, place = np.unique(packed.view(f"V{packed.shape[1]}")[:, 0], return_index=True, return_inverse=True)
    distinct = np.empty(len(rows), dtype=object)
    distinct[:] = [tuple(classes[sets[row]].tolist()) for row in rows]
    return np.asarray(distinct[place])
