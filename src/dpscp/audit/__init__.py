"""Audit the privacy claim of a fit with a distinguishing game.

Two data sets differ by one record. A game runs a mechanism many times on each. An attacker tries to tell the data sets
apart. The success rate gives a lower bound on epsilon. A bound above the claimed epsilon disproves the claim. A bound
below it proves nothing, so each result also states which share of the claim the attacker reached. The games against
the parts of this library are among its tests.
"""

from dpscp.audit.run import Audit, Game, audit

__all__ = ["Audit", "Game", "audit"]
