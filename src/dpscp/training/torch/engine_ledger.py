"""Read what a PrivacyEngine of Opacus has spent."""

from typing import Any

from dpscp.privacy import Ledger, dpsgd_event, non_private_event


def ledger_of_engine(privacy_engine: Any) -> Ledger:
    """Return the ledger of an Opacus PrivacyEngine.

    One entry for each stretch of its accountant's history.

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
        ledger = ledger.add("train", event, "Opacus, assuming Poisson sampling; noise from torch's generator")
    return ledger.declare(opacus_normalizer="Opacus divides by a number of records taken from the data")
