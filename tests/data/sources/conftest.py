"""What the tests of sources share."""

from dataclasses import replace

import pytest


def _released(model):
    arrays = {name: value.tobytes() for name, value in model.model_.arrays().items()}
    # but for the sentence that says where the records came from
    ledger, believed = replace(model.ledger_, assumptions=()), set(model.ledger_.assumptions)
    certificates = [c.to_dict() | {"assumptions": set(c.assumptions) - believed} for c in model.certificates_]
    return arrays, model.threshold_.tobytes(), ledger.to_dict(), certificates


@pytest.fixture(scope="session")
def released():
    """Return the function that gives everything that a fit publishes, to the last bit."""
    return _released
