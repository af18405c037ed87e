"""Run an audit.

``import dpscp`` imports this module, so the numerical libraries are imported in ``audit``."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dpscp._base.arrays import FloatArray

__all__ = ["DELTAS", "Audit", "Game", "audit"]

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
        """Return what the attacker computes from at least ``runs`` runs."""


@dataclass(frozen=True)
class Audit:
    """Hold the claimed epsilons and the lower bounds that an attacker proved.

    Attributes
    ----------
    game, knowledge : the attacked mechanism, and what the attacker sees.
    runs : number of runs with the record, and of runs without it.
    confidence : probability with which all lower bounds hold together.
    deltas, claimed, audited : for each delta, the claimed epsilon and the lower bound on the true one.
    null : whether no run contained the record.
    """

    game: str
    knowledge: str
    runs: int
    confidence: float
    deltas: tuple[float, ...]
    claimed: tuple[float, ...]
    audited: tuple[float, ...]
    null: bool = False

    @property
    def passed(self) -> bool:
        """Whether no bound exceeds its claim; in a null control, whether every bound is 0."""
        limits = (0.0,) * len(self.deltas) if self.null else self.claimed
        return all(bound <= limit for bound, limit in zip(self.audited, limits, strict=True))

    def share(self, delta: float) -> float:
        """Return the proven share of the claimed epsilon at ``delta``."""
        place = self.deltas.index(delta)
        return self.audited[place] / self.claimed[place] if self.claimed[place] else 0.0

    def __str__(self) -> str:
        kind = "null control, " if self.null else ""
        head = f"{self.game}, {self.knowledge}, {kind}{self.runs} runs on each side, confidence {self.confidence:g}"
        rows = [
            f"  delta {d:<6g} claimed epsilon {c:8.4f}   audited at least {a:8.4f}   {'ok' if a <= c else 'BROKEN'}"
            for d, c, a in zip(self.deltas, self.claimed, self.audited, strict=True)
        ]
        verdict = "  no violation found" if self.passed else "  THE CLAIM IS DISPROVED"
        return "\n".join([head, *rows, verdict])

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**asdict(self), "passed": self.passed}

    def plot(self, path: str | PathLike[str]) -> None:
        """Plot claimed and audited epsilons into a file; needs matplotlib."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.deltas, self.claimed, "o-", label="claimed (upper bound)")
        axes.plot(self.deltas, self.audited, "s--", label="audited (lower bound)")
        axes.set(xscale="log", xlabel="delta", ylabel="epsilon", title=f"{self.game}, {self.knowledge}")
        axes.set_ylim(bottom=0)
        axes.legend()
        figure.savefig(path)


def audit(
    fitted: Any,
    *,
    runs: int = 200,
    deltas: Sequence[float] = DELTAS,
    confidence: float = 0.99,
    null: bool = False,
) -> Audit:
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
    from dpscp.audit.bounds import audited_epsilons
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
