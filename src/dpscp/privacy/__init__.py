"""Events, ledger, accounting, trade-off functions and noise."""

from dpscp._base.assumptions import Assumption
from dpscp.privacy.accounting import (
    Accountant,
    as_accountant,
    delta_of,
    epsilon_of,
    is_private,
    register_accountant,
    tradeoff_of,
)
from dpscp.privacy.events import (
    SecretSplitDpEvent,
    approximate_dp_event,
    compose,
    discrete_gaussian_event,
    dpsgd_event,
    gaussian_event,
    non_private_event,
    parallel,
    register_event,
    secret_split,
)
from dpscp.privacy.ledger import Entry, Ledger
from dpscp.privacy.noise_search import (
    as_event,
    count_noise,
    counts_secrecy,
    noise_multiplier,
    secret_shares,
    sized_lattice_noise,
    smallest_noise,
)
from dpscp.privacy.pld import register_loss
from dpscp.privacy.random_streams import IntegerSource, LatticeNoise, lattice_noise, secure_generator
from dpscp.privacy.tradeoff import (
    Tradeoff,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
)
from dpscp.privacy.units import RECORDS, Budget, Relation, Unit

__all__ = [
    "RECORDS",
    "Accountant",
    "Assumption",
    "Budget",
    "Entry",
    "IntegerSource",
    "LatticeNoise",
    "Ledger",
    "Relation",
    "SecretSplitDpEvent",
    "Tradeoff",
    "Unit",
    "approximate_dp_event",
    "as_accountant",
    "as_event",
    "compose",
    "count_noise",
    "counts_secrecy",
    "delta_of",
    "discrete_gaussian_event",
    "dpsgd_event",
    "epsilon_delta_tradeoff",
    "epsilon_of",
    "gaussian_event",
    "gaussian_tradeoff",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "is_private",
    "lattice_noise",
    "noise_multiplier",
    "non_private_event",
    "parallel",
    "register_accountant",
    "register_event",
    "register_loss",
    "secret_shares",
    "secret_split",
    "secure_generator",
    "sized_lattice_noise",
    "smallest_noise",
    "tradeoff_of",
]
