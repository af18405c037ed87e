"""The audit: a distinguishing game, played against the real code, that tries to break the privacy claim.

Two data sets differ by one record. The game runs a mechanism many times on each, looks at what an attacker may see
(``knowledge="white-box"``: all noisy sums and counts; ``"black-box"``: only what is released) and turns the attacker's
success into a lower bound on epsilon. A bound above the claimed epsilon disproves the claim; a bound below proves
nothing, so each result also says how much of the claim the attacker reached.
"""

from dpscp.audit.bounds import Audit, audited_epsilons
from dpscp.audit.games import GAMES, Game, PipelineGame, SearchGame, TrainingGame, audit
from dpscp.audit.modules import ModuleGame
from dpscp.audit.person_games import PersonSearchGame, PersonTrainingGame

__all__ = [
    "GAMES",
    "Audit",
    "Game",
    "ModuleGame",
    "PersonSearchGame",
    "PersonTrainingGame",
    "PipelineGame",
    "SearchGame",
    "TrainingGame",
    "audit",
    "audited_epsilons",
]
