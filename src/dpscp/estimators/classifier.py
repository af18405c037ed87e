"""The private classifier with prediction sets."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.sklearn_compat import ClassifierMixin
from dpscp.data.model_files import plain
from dpscp.data.validation import class_list, label_index, validate_labels
from dpscp.estimators.base import PrivateConformal
from dpscp.estimators.ingest import FitInput
from dpscp.exceptions import GuaranteeWarning
from dpscp.pipeline.tasks import Classification
from dpscp.privacy.store import BudgetStore
from dpscp.scores import LabelScore, label_score
from dpscp.scores.sets import label_set
from dpscp.training.private_model import PrivateModel
from dpscp.training.torch.records import inputs_of


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateConformalClassifier(ClassifierMixin, PrivateConformal):
    """A differentially private classifier whose prediction sets hold the true label at a promised rate.

    One call to ``fit`` trains a model under differential privacy on the rows, scores the same rows (or, with
    ``guarantee="split"``, rows held out for it), and finds the threshold by a private search. The whole release is
    (epsilon, delta)-differentially private for adding or removing one record (or one person, see ``rows_per_person``),
    and ``certificate_`` says what is proven about coverage and under which assumptions.

    Parameters
    ----------
    estimator : None for the library's recipe; or a training mechanism such as ``dpscp.training.DPSGD``; or a
        ``torch.nn.Module``; or a ``PrivateModel`` trained elsewhere; or, with ``prefit=True``, a fitted classifier.
    epsilon, delta : the privacy budget of everything together.
    confidence_level : the wanted coverage, or a list of levels that share the budget.
    guarantee : ``"auto"`` (the certified one that public numbers predict to give the smallest sets), ``"universal"``,
        ``"stability"``, ``"split"`` (certified), ``"corrected"``, ``"asymptotic"`` (not proven in finite samples) or
        ``"finite"`` (the paper's buffered variant).
    conformity_score : ``"lac"`` (1 - p_y), ``"aps"``, ``"raps"``, a ``dpscp.scores.LabelScore`` of your own, or a
        function of the probabilities (n, n_classes) that returns a score between 0 and 1 for every label; each row's
        from that row alone (tried on made-up rows before anything is spent, and on parts of the records).
    train_share : training gets (train_share * epsilon, delta) and calibration what the composition leaves; ``"auto"``
        chooses from public numbers. Not used by ``"split"``, where each part gets the whole budget.
    calibration_fraction : share of the records held out by ``guarantee="split"``.
    evaluation_fraction : None, or the share of the records that neither train nor calibrate and measure this very fit,
        privately: ``evaluation_``. Only ``guarantee="split"``; ``"auto"`` becomes it.
    release_confidence : None, or the probability over records and noise with which this one release covers the level
        itself, beside the average (Result I; independent records). Only for records that were held out: ``"auto"``
        becomes ``"split"``, and other guarantees are refused.
    feature_bound : public bound on the norm of a row; longer rows are scaled onto it. None, with no ``feature_bounds``:
        every row is scaled to norm one.
    feature_bounds : public bounds of the features; values are clipped and rescaled. (low, high) for all features, two
        arrays, a (low, high) pair for each feature, or {column: (low, high)} by name (by place without names). A
        square one of two features that can be read both ways is refused. ``"private"``: found by noisy counts on a
        public grid of powers of two, for 5 % of the squared training budget; known ones cost nothing and are better.
    classes : the public list of all labels that can occur. None declares the labels found in y public, with a warning,
        and nothing is certified: a label that no record has is in no set.
    groups : ``"label"`` for a threshold and a promise for each class; or a function of X that returns one of the public
        ``group_values`` for each row, from that row alone (tried on parts of the rows); or, with a schema, the name of
        a column with declared categories. An unknown group gets full sets.
    n_records : the public nominal number of records; None declares len(X) public.
    rows_per_person : the public cap k on the rows of one person, where a person may have several. With ids
        (``fit(X, y, persons=ids)``) at most k rows of each, a uniform private choice, are used with weights that add up
        to one; privacy is for adding or removing a person with all their records and coverage for a record chosen at
        random among those of a new person (Result H). Without ids, a person is taken to have at most k rows: privacy is
        per person by group privacy, with k times the noise, and coverage per record.
    n_persons : the public nominal number of persons; None declares the number found public. Needs ids.
    accountant : ``"pld"`` (tight), ``"rdp"``, or an own ``dpscp.privacy.Accountant`` or its registered name.
    random_state : None for system entropy; an integer repeats the run and is NOT private.
    prefit : declares that ``estimator`` is a classifier with ``predict_proba`` and ``classes_`` that was trained
        without these records. All of them find the threshold (guarantee ``"split"``), the ledger holds that search
        alone, X goes to the estimator as it is, and ``classes_`` are the public labels. The records it was trained on
        are not protected here. Cannot be saved.
    device : None trains on the processor; "cuda", or another device of torch's, trains the recipe's model or your
        ``torch.nn.Module`` there, with the same accounting. A table must fit into the device's memory; of files and
        clusters each batch visits the device.
    verbose : 1 shows progress on standard error (a bar where tqdm is installed); the logger ``dpscp`` has the stages.

    Attributes
    ----------
    classes_, model_, threshold_ ((n_levels,) or (n_groups, n_levels)), ledger_, certificate_ (of the first level),
    certificates_ (one for each level), evaluation_ (a ``PrivateEvaluation``, or None), schema_ (None without
    one), n_features_in_, feature_names_in_

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

    conformity_score: str | LabelScore | Callable[[NDArray[Any]], NDArray[Any]] = "lac"
    classes: Sequence[Any] | None = None

    classes_: NDArray[Any] = field(init=False)
    _name = "classification"
    _label_groups_hint = " or 'label'"

    def _check_score(self) -> None:
        label_score(self.conformity_score)

    _checked_y = staticmethod(validate_labels)

    def _fit(self, given: FitInput, store: BudgetStore | None) -> None:
        declared, of_source = self._declared_classes(), given.rows is None
        if of_source and declared is None:
            raise ValueError("classes=[...] is needed with a source of records: every label that can occur")
        public, index, found = class_list(np.empty(0, dtype=np.int64) if of_source else given.y, declared)
        labels = tuple(plain(c) for c in public)
        taken = self._taken(given, index, partial(_indices, classes=labels), labels)
        found = found or self._model_found_classes()
        elsewhere = None if self._trained_elsewhere(len(labels)) is None else labels
        task = Classification(labels, label_score(self.conformity_score), model_labels=elsewhere, classes_found=found)
        request = self._request(task, taken)
        if found:
            warnings.warn(
                "classes was not given: the labels found in y are declared public, and no coverage is certified, "
                "because a label that no record has is in no prediction set; pass classes=[...] with every label that "
                "can occur, which also keeps a rare label from telling that its record is there",
                GuaranteeWarning,
                stacklevel=3,
            )
        self._release(request, taken.records, store, given.brought)
        self.classes_ = public

    def _task(self) -> Classification:
        return Classification(tuple(plain(c) for c in self.classes_), label_score(self.conformity_score))

    def _declared_classes(self) -> Sequence[Any] | None:
        """The public labels: as given, or those of a model that was trained elsewhere."""
        declared: Sequence[Any] | None = self._public("classes")
        if declared is None and self.prefit:
            return tuple(self.estimator.classes_)
        if declared is None and isinstance(self.estimator, PrivateModel):
            return self.estimator.classes
        return declared

    def _model_found_classes(self) -> bool:
        """Whether the list is that of a model whose training took it from its records."""
        if self._public("classes") is not None or not isinstance(self.estimator, PrivateModel):
            return False
        return "classes" in self.estimator.ledger.taken_from_data

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
        X = inputs_of(X)
        probabilities = self.predict_proba(X)
        labels = self.classes_[probabilities.argmax(axis=1)]
        self._require_score_of_the_fit()
        scores = self._task().score.of_labels(probabilities)
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

    def _restore(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], module: Any = None) -> None:
        super()._restore(header, arrays, module)
        self.classes_ = arrays["classes"].astype(object) if arrays["classes_objects"] else arrays["classes"]
        if self.classes_.shape != (len(self.model_.classes or ()),):
            raise ValueError("its classes and its model do not fit together")
        if "classes" in self.ledger_.taken_from_data:
            # files of earlier versions certified found classes too
            self.certificates_ = tuple(c.with_found_classes() for c in self.certificates_)
            self.certificate_ = self.certificates_[0]


def _indices(y: Any, n: int, *, classes: tuple[Any, ...]) -> NDArray[np.int64]:
    """The labels of a block, checked, as their places in the public classes."""
    return label_index(validate_labels(y, n), classes)
