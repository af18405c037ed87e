"""Audit the privacy claims of this library with distinguishing games.

Two data sets differ by one record. A game runs a mechanism many times on each. An attacker sees all noisy sums and
counts (``knowledge="white-box"``) or only the release (``"black-box"``) and tries to tell the data sets apart. The
success rate gives a lower bound on epsilon. A bound above the claimed epsilon disproves the claim. A bound below it
proves nothing, so each result also states which share of the claim the attacker reached.
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
else:  # ``import dpscp`` imports this package: the games are imported when they are used
    _MODULES = {
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
    __getattr__ = lazy_exports(_MODULES, __name__)

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
