"""The audit: a distinguishing game, played against the real code, that tries to break the privacy claim.

Two data sets differ by one record. The game runs a mechanism many times on each, looks at what an attacker may see
(``knowledge="white-box"``: all noisy sums and counts; ``"black-box"``: only what is released) and turns the attacker's
success into a lower bound on epsilon. A bound above the claimed epsilon disproves the claim; a bound below proves
nothing, so each result also says how much of the claim the attacker reached.
"""

from typing import TYPE_CHECKING

from dpscp._base.lazy import lazy_exports
from dpscp.audit.run import GAMES, audit

if TYPE_CHECKING:
    from dpscp.audit.bounds import Audit, audited_epsilons
    from dpscp.audit.games import Game, PipelineGame, SearchGame, TrainingGame
    from dpscp.audit.model_game import ModelGame
    from dpscp.audit.modules import ModuleGame
    from dpscp.audit.person_games import PersonSearchGame, PersonTrainingGame
    from dpscp.audit.released import ReleasedModuleGame, find_traces
    from dpscp.audit.split_game import SplitGame
else:  # the package's front page imports this room: it stays light until a game is played
    _HOLDERS = {
        "Audit": "dpscp.audit.bounds",
        "audited_epsilons": "dpscp.audit.bounds",
        "Game": "dpscp.audit.games",
        "PipelineGame": "dpscp.audit.games",
        "SearchGame": "dpscp.audit.games",
        "TrainingGame": "dpscp.audit.games",
        "ModelGame": "dpscp.audit.model_game",
        "ModuleGame": "dpscp.audit.modules",
        "PersonSearchGame": "dpscp.audit.person_games",
        "PersonTrainingGame": "dpscp.audit.person_games",
        "ReleasedModuleGame": "dpscp.audit.released",
        "find_traces": "dpscp.audit.released",
        "SplitGame": "dpscp.audit.split_game",
    }
    __getattr__ = lazy_exports(_HOLDERS, __name__)

__all__ = [
    "GAMES",
    "Audit",
    "Game",
    "ModelGame",
    "ModuleGame",
    "PersonSearchGame",
    "PersonTrainingGame",
    "PipelineGame",
    "ReleasedModuleGame",
    "SearchGame",
    "SplitGame",
    "TrainingGame",
    "audit",
    "audited_epsilons",
    "find_traces",
]
