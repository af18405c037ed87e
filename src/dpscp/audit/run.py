"""Playing a game: the names of the games and the one function; the games themselves are imported to be played."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpscp.audit.bounds import Audit
    from dpscp.audit.games import Game

__all__ = ["DELTAS", "GAMES", "audit"]

# The whole curve: at a small delta no affordable number of runs sees anything, at a large one shuffling shows.
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
    """Try to break a privacy claim of this library, with its own code, on this machine.

    ``game``: ``"search"``, ``"training"``, ``"sampled training"``, ``"pipeline"``, ``"split"`` (a whole fit with a
    secret held-out part, white-box), ``"person search"`` and ``"person training"`` (the worlds differ by a person with
    several rows), ``"torch tokens"`` and ``"torch buffers"`` (modules that must be refused), ``"torch dropout"`` (masks
    of a known seed) and ``"torch release"`` (a whole fit, all of the released estimator); the last four are black-box
    and need the extra ``dpscp[torch]``. Or a game of your own.
    ``runs`` in each of the two worlds (default: about a minute of work at most). ``null=True`` plays both worlds
    without the record: every bound must then be 0. The result holds the claimed curve and the audited lower bound;
    ``passed`` is False if the claim was disproved, which happens to honest code with probability at most 1 -
    ``confidence``.

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
            # several steps with twice the noise tell about as much as one
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
