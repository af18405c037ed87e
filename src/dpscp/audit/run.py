"""Run an audit by name; the games are imported only when needed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpscp.audit.bounds import Audit
    from dpscp.audit.games import Game

__all__ = ["DELTAS", "GAMES", "audit"]

# A range of deltas: small ones need too many runs, large ones reveal errors in sampling.
DELTAS = (1e-3, 1e-2, 0.05, 0.2, 0.4)
GAMES = (
    "search",
    "training",
    "sampled training",
    "pipeline",
    "split",
    "person search",
    "person training",
    "torch tokens",
    "torch buffers",
    "torch dropout",
    "torch release",
)


def audit(
    game: "str | Game" = "search",
    *,
    knowledge: str = "white-box",
    runs: int | None = None,
    deltas: Sequence[float] = DELTAS,
    confidence: float = 0.99,
    null: bool = False,
) -> "Audit":
    """Attack a privacy claim of this library and bound the true epsilon from below.

    Correct code fails with probability at most 1 - ``confidence``.

    Parameters
    ----------
    game : name of a game, or an object with the methods of ``dpscp.audit.Game``. ``"search"``, ``"training"``,
        ``"sampled training"``, ``"pipeline"``; ``"split"``: a whole fit with a secret held-out part, white-box;
        ``"person search"``, ``"person training"``: the neighbors differ by a person with several rows;
        ``"torch tokens"``, ``"torch buffers"``: modules that must be refused; ``"torch dropout"``: masks of a known
        seed; ``"torch release"``: a whole fit of a module. The torch games are black-box and need ``dpscp[torch]``.
    knowledge : "white-box" or "black-box": what the attacker sees.
    runs : number of runs with the record, and of runs without it; None: about a minute of work.
    deltas : values of delta at which epsilon is bounded.
    confidence : probability with which all bounds hold.
    null : True: no run contains the record, so every bound must be 0.

    Returns
    -------
    Audit; its ``passed`` is False if the claim is disproved.

    >>> result = audit("training", runs=2000)
    >>> result.passed, 0 < result.share(0.01) < 1
    (True, True)

    Theory: section 1
    """
    from dpscp._base.checks import check_choice, check_count
    from dpscp.audit.bounds import Audit, audited_epsilons
    from dpscp.audit.games import PipelineGame, SearchGame, TrainingGame, audited_mechanism
    from dpscp.audit.modules import ModuleGame
    from dpscp.audit.person_games import PersonSearchGame, PersonTrainingGame
    from dpscp.audit.released import ReleasedModuleGame
    from dpscp.audit.split_game import SplitGame
    from dpscp.privacy import epsilon_of

    default = 60_000
    if isinstance(game, str):
        check_choice("game", game, GAMES)
        unit = "release" if knowledge == "white-box" else "run"
        if game == "search":
            chosen: Game = SearchGame(knowledge, unit)
        elif game == "torch release":
            chosen, default = ReleasedModuleGame(), 200
        elif game.startswith("torch "):
            chosen, default = ModuleGame(game.removeprefix("torch ")), 400
        elif game == "pipeline":
            chosen, default = PipelineGame(knowledge), 1000
        elif game == "split":
            chosen, default = SplitGame(knowledge), 1000
        elif game == "person search":
            chosen, default = PersonSearchGame(knowledge, groups=4), 3000
        elif game == "person training":
            constants = (1.0, 400) if unit == "release" else (2.0, 4)
            chosen = PersonTrainingGame(audited_mechanism(*constants), knowledge, unit)
        else:
            rate, noise = (1.0, 1.0) if game == "training" else (0.5, 0.7)
            # several steps with twice the noise reveal about as much as one step
            mechanism = audited_mechanism(*((noise, 400) if unit == "release" else (2 * noise, 4)), rate)
            chosen = TrainingGame(mechanism, knowledge, unit)
        if unit == "run":
            default = min(default, 4000)
    else:
        chosen = game
    runs = default if runs is None else check_count("runs", runs, minimum=4)
    claim = chosen.claim
    without = chosen.play(False, runs)[:runs]
    other = chosen.play(not null, runs)[:runs]
    return Audit(
        game=chosen.name,
        knowledge=chosen.knowledge,
        runs=runs,
        confidence=confidence,
        deltas=tuple(deltas),
        claimed=tuple(epsilon_of(claim, d) for d in deltas),
        audited=tuple(audited_epsilons(without, other, deltas, confidence).tolist()),
        null=null,
    )
