"""The private multilabel classifier with sets of bounded mean loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_probability
from dpscp._base.sklearn_compat import ClassifierMixin
from dpscp.core.losses import MISSED, Multilabel
from dpscp.core.problem import FitProblem
from dpscp.data.torch_records import inputs_of
from dpscp.data.validation import plain, validate_indicators
from dpscp.estimators.base import PrivateConformal
from dpscp.estimators.fitted import reads_files
from dpscp.estimators.ingest import FitInput, FitRecords


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateMultilabelClassifier(ClassifierMixin, PrivateConformal):
    """Differentially private multilabel classifier with sets of proven mean loss.

    ``fit`` trains one binary model for each label and finds, by a private search, the threshold at which the mean loss
    of a new record is at most ``risk``. By default each record is secretly assigned to training or calibration. The
    whole release is (epsilon, delta)-differentially private for adding or removing one record with all its labels (or
    one person, see ``rows_per_person``).

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
        ``"false_discoveries"``: the share of the set that is not true. This loss may rise as sets become smaller, so
        the promise is about its running maximum.
    classes : list, optional
        The public names of the columns of y. None: 0, 1, 2, ...
    guarantee : str, default "auto"
        ``"split"`` holds records out. ``"universal"`` uses all records for both. ``"auto"`` is ``"split"``.
    groups : function, Groups, list, optional
        One threshold and one promise for each group of rows, see ``PrivateConformalClassifier``.
    rows_per_person, n_persons : int, optional
        See ``PrivateConformalClassifier``. The loss of a person is the mean over the kept rows; with groups it is that
        of one random row.
    train_share, calibration_fraction, feature_bounds, population, n_records, accountant, random_state, verbose
        See ``PrivateConformalClassifier``.

    Attributes
    ----------
    classes_ : array of shape (n_labels,)
        The public names of the labels.
    model_ : Heads
        The released models, one for each label.
    threshold_ : array of shape (n_levels,) or (n_groups, n_levels)
        The released thresholds; infinite where no finite one exists.
    certificate_ : Certificate
        Its ``risk`` is the proven bound on the mean loss, at the first level.
    group_values_, ledger_, certificates_, n_features_in_, feature_names_in_
        See ``PrivateConformalClassifier``.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> X, Y = make_multilabel_classification(3000, 10, n_classes=3, random_state=0)
    >>> clf = PrivateMultilabelClassifier(epsilon=4.0, random_state=0).fit(X[:2000], Y[:2000])
    >>> labels, sets = clf.predict_set(X[2000:])
    >>> sets.shape, clf.certificate_.risk, clf.ledger_.epsilon(1e-5) <= 4.0
    ((1000, 3, 1), 0.1, True)

    Theory: Results B, E and J
    """

    risk: float | Sequence[float] = 0.1
    loss: str = MISSED
    classes: Sequence[Any] | None = None

    task_: Multilabel = field(init=False)
    _name = "multilabel"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.classifier_tags.multi_class, tags.classifier_tags.multi_label = False, True
        return tags

    def _check_score(self) -> None:
        Multilabel((0,), self.loss)

    _validate_y = staticmethod(validate_indicators)

    def _promise(self) -> dict[str, Any]:
        levels = np.atleast_1d(np.asarray(self.risk, dtype=object))
        return {"alphas": tuple(check_probability("risk", level) for level in levels)}

    def _make_problem(self, fit_input: FitInput) -> tuple[FitProblem, FitRecords]:
        names = self._declared("classes")
        declared = None if names is None else tuple(plain(label) for label in names)
        if declared is None:
            if fit_input.rows is None:
                raise ValueError("classes is required for a record source; pass classes=[...] with all label names")
            declared = tuple(range(fit_input.y.shape[1]))
        if len(set(declared)) != len(declared) or (
            fit_input.rows is not None and fit_input.y.shape[1] != len(declared)
        ):
            raise ValueError("classes must be distinct names, one for each column of y")
        task = Multilabel(declared, self.loss)
        records = self._read_records(fit_input, fit_input.y, validate_indicators, None)
        return self._problem(task, records), records

    @property
    def classes_(self) -> NDArray[Any]:
        """The public names of the labels."""
        return np.array(self.task_.labels)

    def _restore_task(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        self.task_ = Multilabel.from_dict(header["task"])
        self.task_.check_model(self.model_)

    @reads_files
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict the probability of each label.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table

        Returns
        -------
        array of shape (n, n_labels)
            NaN for a row of a frame that does not fit the schema.
        """
        rows, unreadable = self._read_new_rows(X)
        probabilities = np.asarray(self.model_.predict_proba(rows))
        return probabilities if unreadable is None else np.where(unreadable[:, None], np.nan, probabilities)

    @reads_files
    def predict(self, X: Any) -> NDArray[np.int64]:
        """Predict the labels with a probability of at least one half.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table

        Returns
        -------
        array of shape (n, n_labels)
            Indicators; -1 for a row of a frame that does not fit the schema.
        """
        return _indicate(self.predict_proba(X))

    def predict_set(self, X: Any) -> Any:
        """Predict labels and sets.

        Parameters
        ----------
        X : array or frame with n rows, or the path of a table

        Returns
        -------
        labels : array of shape (n, n_labels)
            Indicators of the labels with a probability of at least one half; -1 for a row of a frame that does not fit
            the schema.
        sets : bool array of shape (n, n_labels, n_levels)
            Whether each label is in the set, for each level. A row that does not fit the schema has the set of an
            infinite threshold, whose loss is 0.

        After ``set_output(transform="pandas")``, a frame with the columns of ``predict_columns`` instead.
        """
        return self._frame_answers(X)

    @reads_files
    def predict_answers(self, X: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return labels and sets as arrays."""
        X = inputs_of(X)
        probabilities = self.predict_proba(X)
        thresholds = self._select_thresholds(X, len(probabilities))
        unreadable: NDArray[np.bool_] = np.asarray(np.isnan(probabilities).all(axis=1))
        if unreadable.any():
            thresholds = np.where(unreadable[:, None], np.inf, thresholds)
        return _indicate(probabilities), self.task_.sets(probabilities, thresholds)

    def _name_answers(self, predictions: NDArray[Any], answers: NDArray[Any], mark: str) -> dict[str, NDArray[Any]]:
        columns = {f"prediction {name}": predictions[:, place] for place, name in enumerate(self.classes_)}
        return columns | {f"set{mark} {name}": answers[:, place] for place, name in enumerate(self.classes_)}


def _indicate(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return indicators of probabilities of at least one half; -1 for NaN."""
    return np.where(np.isnan(probabilities), -1, probabilities >= 0.5).astype(np.int64)
