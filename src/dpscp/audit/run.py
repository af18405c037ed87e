"""Run an audit; games are imported only when needed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dpscp._base.arrays import FloatArray
    from dpscp.audit.bounds import Audit

__all__ = ["DELTAS", "Game", "audit"]

# A range of deltas: small ones need too many runs, large ones reveal errors in sampling.
DELTAS = (1e-3, 1e-2, 0.05, 0.2, 0.4)


class Game(Protocol):
    """Define a mechanism, two neighboring data sets, and an attacker."""

    @property
    def name(self) -> str:
        """Name of the attacked mechanism."""

    @property
    def knowledge(self) -> str:
        """Either "white-box" or "black-box"."""

    @property
    def claim(self) -> "DpEvent":
        """Claimed privacy cost of one run."""

    def play(self, with_record: bool, runs: int) -> "FloatArray":
        """Return the attacker's statistics of at least ``runs`` independent runs, with or without the record."""


def audit(
    fitted: Any,
    *,
    runs: int = 200,
    deltas: Sequence[float] = DELTAS,
    confidence: float = 0.99,
    null: bool = False,
) -> "Audit":
    """Attack the privacy claim of a fit, and bound its true epsilon from below.

    The settings of the estimator are fitted many times to synthetic records, with and without one extreme record. See
    ``ModelGame``. Correct code fails with probability at most 1 - ``confidence``.

    Parameters
    ----------
    fitted : PrivateConformalClassifier or PrivateConformalRegressor
        A fitted or loaded estimator. Or a game of your own, an object with the attributes of ``dpscp.audit.Game``.
    runs : int
        The number of runs with the record, and of runs without it.
    deltas : sequence of float
        The values of delta at which epsilon is bounded.
    confidence : float
        The probability with which all bounds hold.
    null : bool
        True: no run contains the record, so every bound must be 0.

    Returns
    -------
    Audit
        Its ``passed`` is False if the claim is disproved.

    >>> import numpy as np
    >>> import dpscp as dp
    >>> X = np.random.default_rng(0).normal(size=(400, 2))
    >>> clf = dp.PrivateConformalClassifier(epsilon=4.0, classes=[0, 1], feature_bounds=(-4, 4), confidence_level=0.5)
    >>> dp.audit(clf.fit(X, (X[:, 0] > 0).astype(int)), runs=8).passed
    True

    Theory: Facts 1 to 8
    """
    from dpscp._base.checks import check_count
    from dpscp.audit.bounds import Audit, audited_epsilons
    from dpscp.audit.model_game import ModelGame
    from dpscp.estimators import PrivateConformalClassifier, PrivateConformalRegressor
    from dpscp.privacy import epsilon_of

    game: Game = fitted
    if isinstance(fitted, PrivateConformalClassifier | PrivateConformalRegressor):
        game = ModelGame(fitted)
    if not callable(getattr(game, "play", None)):
        raise TypeError(
            "audit needs a fitted PrivateConformalClassifier or PrivateConformalRegressor, or a game of your own; got "
            f"{type(fitted).__name__}"
        )
    runs = check_count("runs", runs, minimum=4)
    claim = game.claim
    without = game.play(False, runs)[:runs]
    other = game.play(not null, runs)[:runs]
    return Audit(
        game=game.name,
        knowledge=game.knowledge,
        runs=runs,
        confidence=confidence,
        deltas=tuple(deltas),
        claimed=tuple(epsilon_of(claim, d) for d in deltas),
        audited=tuple(audited_epsilons(without, other, deltas, confidence).tolist()),
        null=null,
    )
