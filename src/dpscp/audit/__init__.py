"""Audit the privacy claim of a fit with a distinguishing game.

Two data sets differ by one record. A game runs a mechanism many times on each. An attacker tries to tell the data sets
apart. The success rate gives a lower bound on epsilon. A bound above the claimed epsilon disproves the claim. A bound
below it proves nothing, so each result also states which share of the claim the attacker reached. The games against
the parts of this library are among its tests.
"""

from typing import TYPE_CHECKING

from dpscp._base.lazy import lazy_exports
from dpscp.audit.run import Game, audit

if TYPE_CHECKING:
    from dpscp.audit.bounds import Audit, audited_epsilons
    from dpscp.audit.model_game import ModelGame
    from dpscp.audit.released import find_traces
else:  # ``import dpscp`` imports this package: the games are imported when they are used
    _MODULES = {
        "Audit": "dpscp.audit.bounds",
        "audited_epsilons": "dpscp.audit.bounds",
        "ModelGame": "dpscp.audit.model_game",
        "find_traces": "dpscp.audit.released",
    }
    __getattr__ = lazy_exports(_MODULES, __name__)

__all__ = [
    "Audit",
    "Game",
    "ModelGame",
    "audit",
    "audited_epsilons",
    "find_traces",
]
