"""Compute what events cost: epsilon, delta and trade-off functions.

Three accountants, one file each:

``pld``  privacy loss distributions, tight up to discretization and always rounded up (the default);
``rdp``  Rényi DP on the order grid of Opacus, the accounting of the paper;
``gdp``  exact Gaussian DP, for compositions of continuous Gaussian releases only.

``pld`` does not discretize a composition of continuous Gaussians: its cost is known exactly. ``register_accountant``
adds an accountant.
"""

from dpscp.privacy.accounting.base import (
    GDP,
    Accountant,
    Direction,
    History,
    Profile,
    as_accountant,
    delta_of,
    epsilon_of,
    is_private,
    register_accountant,
    release_accountant,
    tradeoff_of,
)
from dpscp.privacy.accounting.pld import PLD, discrete_gaussian_cdf, register_loss
from dpscp.privacy.accounting.rdp import OPACUS_ORDERS, RDP
from dpscp.privacy.accounting.secret_split import secret_split_loss
from dpscp.privacy.events import SecretSplitDpEvent

__all__ = [
    "GDP",
    "OPACUS_ORDERS",
    "PLD",
    "RDP",
    "Accountant",
    "Direction",
    "History",
    "Profile",
    "as_accountant",
    "delta_of",
    "discrete_gaussian_cdf",
    "epsilon_of",
    "is_private",
    "register_accountant",
    "register_loss",
    "release_accountant",
    "tradeoff_of",
]

for _accountant in (PLD, RDP, GDP):
    register_accountant(_accountant)
register_loss(SecretSplitDpEvent, secret_split_loss)
