"""Read what a PrivacyEngine of Opacus has spent."""

from typing import Any

from dpscp._base.assumptions import FIXED_NUMBER
from dpscp.privacy import Ledger, Relation, dpsgd_event, non_private_event


def ledger_of_engine(privacy_engine: Any) -> Ledger:
    """Return the ledger of an Opacus PrivacyEngine.

    One entry for each stretch of its accountant's history. Opacus divides sums by ``int(n * rate)`` and samples at a
    rate of one over the number of batches, so tables of n and of n + 1 records differ in the scale of their
    noise. At a fixed n both numbers are constants, and the accountant's history holds for each of two chained steps:
    the entries are about replacing one record.

    Paper: Supplement S6.1 [supp:privacy_accounting]
    """
    accountant = getattr(privacy_engine, "accountant", None)
    history = getattr(accountant, "history", None)
    if history is None:
        raise TypeError("privacy_engine must be an Opacus PrivacyEngine; this object has no accountant with a history")
    if not history:
        raise ValueError("privacy_engine has recorded no step; pass the engine that trained the module")
    ledger = Ledger()
    for noise, rate, steps in history:
        event = dpsgd_event(float(noise), float(rate), int(steps)) if noise > 0 else non_private_event()
        note = "Opacus, assuming Poisson sampling; noise from torch's generator"
        ledger = ledger.add("train", event, note, relation=Relation.REPLACE_ONE)
    return ledger.assume(FIXED_NUMBER)
