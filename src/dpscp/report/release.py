"""A release, with its statement, its report and its verdict."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpscp._base.format import html_cards
from dpscp.core.evaluation import PrivateEvaluation
from dpscp.core.release import ThresholdRelease
from dpscp.data.model_files import digest_of
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import Certificate
from dpscp.threshold import PrivateQuantile

__all__ = ["Documented", "Release"]


class Documented(ABC):
    """Base class of releases and fitted estimators: statement, report and cards."""

    @abstractmethod
    def as_release(self) -> "Release":
        """Return the release behind this object."""

    def statement(
        self, *, study: Mapping[str, Any] | None = None, metadata: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the privacy statement as JSON values.

        It contains the promise, its mechanisms, and what is not protected.

        Parameters
        ----------
        study : dict, optional
            The budget of all releases about these records, and the amount spent (``dpscp.report.study_budget(store)``).
        metadata : mapping of str to str, optional
            Declarations by key, such as purpose and responsible; see ``dpscp.report.html_report``.

        Returns
        -------
        dict
            As ``dpscp.deployment.statement_schema`` describes it. Nothing in it is computed from records.
            ``dpscp.deployment.statement_markdown`` writes it as text.
        """
        from dpscp.report.statement import privacy_statement

        return privacy_statement(self, study=study, metadata=metadata)

    def _cards(self) -> str:
        """Return the verdict and a card for each promise."""
        from dpscp.report.verdict import judge

        release = self.as_release()
        promises = [release.ledger.html_card(release.budget.delta), *(c._repr_html_() for c in release.certificates)]
        return html_cards([judge(self).html_card(), *promises])


@dataclass(frozen=True, repr=False)
class Release(ThresholdRelease, Documented):
    """Hold a released threshold with its ledger and certificates.

    Attributes
    ----------
    threshold : float, or array
        One number for each group and level, where there are several. Infinite where no finite one keeps the promise.
    ledger : Ledger
        The privacy cost, training included.
    certificates : tuple of Certificate
        One for each level; ``certificate`` is the first one.
    budget : Budget
        The budget that the release was allowed to spend.
    accountant : str or Accountant
    kind : str
        The name of the task: ``"classification"``, ``"regression"``, ``"multilabel"``, ``"scores"`` or ``"losses"``.
    quantiles : tuple of PrivateQuantile
        The searches, group by group.
    group_values : tuple, optional
        The public groups, each with its own threshold; None without groups.
    groups_are_classes : bool
        Whether each class is a group.
    evaluation : PrivateEvaluation, optional
        The private evaluation on a part of the records that nothing else used.
    declared : mapping
        Declarations by key, such as purpose and responsible.
    sha256 : str
        The digest of a release with a model; empty for a threshold alone.
    model_sha256 : str, optional
        The digest of the model alone; None without a model, and for a model that is code.
    """

    groups_are_classes: bool = False
    evaluation: PrivateEvaluation | None = None
    declared: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""
    model_sha256: str | None = None

    @property
    def certificate(self) -> Certificate:
        """The certificate of the first level."""
        return self.certificates[0]

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """All thresholds, (n_groups, n_levels); one row without groups."""
        return np.asarray(self.threshold, dtype=np.float64).reshape(-1, len(self.certificates))

    @property
    def quantile(self) -> PrivateQuantile | None:
        """The search of a single threshold, or None.

        None if the level is impossible, and with groups or several levels.
        """
        return self.quantiles[0] if len(self.quantiles) == 1 == np.size(self.threshold) else None

    def __repr__(self) -> str:
        from dpscp.report.verdict import judge

        return f"Release of {self.kind}, threshold {self.threshold}\n{judge(self)}"

    def as_release(self) -> "Release":
        """Return this release; an estimator returns the release of its fit."""
        return self

    def digest(self) -> str:
        """Return the SHA-256 digest of this release, which its statement contains.

        Returns
        -------
        str
        """
        if self.sha256:
            return self.sha256
        texts = {"ledger": self.ledger.to_dict(), "certificates": [c.to_dict() for c in self.certificates]}
        budget = {"epsilon": self.budget.epsilon, "delta": self.budget.delta}
        return digest_of({"kind": self.kind, "budget": budget, **texts}, {"threshold": self.thresholds})

    def report(
        self,
        path: str | PathLike[str],
        *,
        title: str | None = None,
        metadata: Mapping[str, str] | None = None,
        language: str = "en",
    ) -> None:
        """Write an HTML page about this release; needs the extra ``dpscp[report]``.

        Parameters
        ----------
        path : str or path
            The file to write.
        title : str, optional
        metadata : mapping of str to str, optional
            Declarations by key, such as purpose and responsible.
        language : str
            ``"en"`` or ``"de"``.
        """
        from dpscp.report.page import write_report

        write_report(path, self, title=title, metadata=metadata, language=language)

    def _repr_html_(self) -> str:
        return self._cards()

    def warn_if_full(self) -> Self:
        """Return the release; warn if a promise has no finite threshold."""
        if any(c.is_vacuous for c in self.certificates) or not np.isfinite(self.threshold).all():
            warnings.warn(self.certificate.summary, GuaranteeWarning, stacklevel=3)
        return self

    def __str__(self) -> str:
        return f"threshold {self.threshold}. {self.certificate}"
