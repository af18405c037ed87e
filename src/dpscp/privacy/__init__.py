"""The privacy room: events, the ledger, accounting, trade-off functions, noise and how much of it a budget asks for."""

from typing import TYPE_CHECKING

from dpscp._elsewhere import held_by
from dpscp.exceptions import UnsupportedEventError
from dpscp.privacy.accounting import (
    OPACUS_ORDERS,
    Accountant,
    as_accountant,
    delta_of,
    epsilon_of,
    is_private,
    register_accountant,
    register_loss,
    release_accountant,
    tradeoff_of,
)
from dpscp.privacy.events import (
    ApproximateDpEvent,
    BoundedRangeDpEvent,
    DiscreteGaussianDpEvent,
    EventKind,
    ParallelDpEvent,
    SecretSplitDpEvent,
    approximate_dp_event,
    bounded_range_event,
    compose,
    discrete_gaussian_event,
    dpsgd_event,
    gaussian_event,
    non_private_event,
    parallel,
    register_event,
    secret_split,
)
from dpscp.privacy.ledger import Budget, Entry, Ledger
from dpscp.privacy.noise import IntegerSource, LatticeNoise, lattice_noise, sample_discrete_gaussian
from dpscp.privacy.seeds import secure_generator
from dpscp.privacy.solving import (
    as_event,
    count_noise,
    counts_secrecy,
    noise_multiplier,
    secret_shares,
    shared_count_noise,
    shared_lattice_noise,
    sized_lattice_noise,
    smallest_noise,
)
from dpscp.privacy.tradeoff import (
    Tradeoff,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    invert,
    perfect_privacy,
    tradeoff_from_profile,
)
from dpscp.privacy.units import RECORDS, OneRecord, PersonWithIds, PersonWithoutIds, Unit

if TYPE_CHECKING:
    from dpscp.paper import CanonicalNoise, canonical_noise, gaussian_noise, tulap_noise

__all__ = [
    "OPACUS_ORDERS",
    "RECORDS",
    "Accountant",
    "ApproximateDpEvent",
    "BoundedRangeDpEvent",
    "Budget",
    "CanonicalNoise",
    "DiscreteGaussianDpEvent",
    "Entry",
    "EventKind",
    "IntegerSource",
    "LatticeNoise",
    "Ledger",
    "OneRecord",
    "ParallelDpEvent",
    "PersonWithIds",
    "PersonWithoutIds",
    "SecretSplitDpEvent",
    "Tradeoff",
    "Unit",
    "UnsupportedEventError",
    "approximate_dp_event",
    "as_accountant",
    "as_event",
    "bounded_range_event",
    "canonical_noise",
    "compose",
    "count_noise",
    "counts_secrecy",
    "delta_of",
    "discrete_gaussian_event",
    "dpsgd_event",
    "epsilon_delta_tradeoff",
    "epsilon_of",
    "gaussian_event",
    "gaussian_noise",
    "gaussian_tradeoff",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "invert",
    "is_private",
    "lattice_noise",
    "noise_multiplier",
    "non_private_event",
    "parallel",
    "perfect_privacy",
    "register_accountant",
    "register_event",
    "register_loss",
    "release_accountant",
    "sample_discrete_gaussian",
    "secret_shares",
    "secret_split",
    "secure_generator",
    "shared_count_noise",
    "shared_lattice_noise",
    "sized_lattice_noise",
    "smallest_noise",
    "tradeoff_from_profile",
    "tradeoff_of",
    "tulap_noise",
]

if not TYPE_CHECKING:  # what is listed and not imported above; the product needs none of it
    __getattr__ = held_by(dict.fromkeys(__all__, "dpscp.paper"), __name__)
