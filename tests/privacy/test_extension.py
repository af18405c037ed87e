"""An accountant and an event made outside the package take part everywhere, without a line of it changed."""

import math

import attr
import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld

import dpscp as dp
from dpscp.exceptions import UnsupportedEventError
from dpscp.privacy import (
    Accountant,
    Ledger,
    as_accountant,
    compose,
    count_noise,
    discrete_gaussian_event,
    epsilon_of,
    gaussian_event,
    noise_multiplier,
    parallel,
    register_accountant,
    register_event,
    register_loss,
)
from dpscp.privacy import accounting as base
from dpscp.privacy.events import DiscreteGaussianDpEvent, event_from_dict, event_to_dict

DELTA = 1e-5


class Concentrated:
    """zCDP, as a textbook has it: rho adds up, epsilon = rho + 2 sqrt(rho log(1/delta))."""

    mu = None

    def __init__(self, history):
        self.rho = sum(count * 0.5 / noise_of(event) ** 2 for event, count in history.items())

    def epsilon(self, delta):
        return self.rho + 2 * math.sqrt(self.rho * math.log(1 / delta))

    def delta(self, epsilons, _direction):
        gap = np.maximum(epsilons - self.rho, 0)
        return np.exp(-(gap**2) / (4 * self.rho)) if self.rho else np.zeros_like(epsilons)


def noise_of(event):
    return event.noise_multiplier if isinstance(event, GaussianDpEvent) else event.sigma / event.sensitivity


KNOWN = (GaussianDpEvent, DiscreteGaussianDpEvent)


TOY = Accountant("toy-zcdp", KNOWN, Concentrated)


def test_an_accountant_from_outside():
    event = compose(gaussian_event(5.0, 4), discrete_gaussian_event(10, 1, 3))
    rho = 0.5 * (4 / 25 + 3 / 100)
    expected = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
    assert epsilon_of(event, DELTA, TOY) == pytest.approx(expected)
    ledger = Ledger().add("both", parallel(event, gaussian_event(9.0)))
    assert ledger.epsilon(DELTA, TOY) == pytest.approx(expected)
    assert ledger.epsilon(DELTA, TOY) > ledger.epsilon(DELTA)
    # more than one record: a valid bound, so above the tight accountant's
    assert ledger.epsilon(DELTA, TOY, rows=3) >= ledger.epsilon(DELTA, rows=3)
    noise = noise_multiplier(1.0, DELTA, 1.0, 5, TOY)
    assert epsilon_of(gaussian_event(noise, 5), DELTA, TOY) == pytest.approx(1.0, rel=1e-3)
    assert count_noise(1.0, DELTA, 5, accountant=TOY) == pytest.approx(noise, rel=1e-3)
    assert TOY.supports(event)
    with pytest.raises(UnsupportedEventError, match=r"accountant='toy-zcdp' cannot account for PoissonSampled.*'pld'"):
        epsilon_of(dp.privacy.dpsgd_event(1.0, 0.1, 2), DELTA, TOY)


def test_a_fit_with_an_accountant_from_outside(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = (X[:, 0] > 0).astype(int)
    monkeypatch.setattr(base, "_ACCOUNTANTS", dict(base._ACCOUNTANTS))
    register_accountant(TOY)
    assert as_accountant("toy-zcdp") is TOY is register_accountant(TOY)
    for accountant in (TOY, "toy-zcdp"):
        clf = dp.PrivateConformalClassifier(
            epsilon=8.0, guarantee="corrected", classes=[0, 1], accountant=accountant, random_state=0
        ).fit(X, y)
        spent = clf.ledger_.epsilon(1e-5, accountant)
        assert 0.99 * 8 < spent <= 8
        assert clf.ledger_.epsilon(1e-5) < spent
    with pytest.raises(ValueError, match="an accountant named 'toy-zcdp' is registered already"):
        register_accountant(Accountant("toy-zcdp", KNOWN, lambda history: Concentrated(history)))


@attr.frozen
class ResponseDpEvent(DpEvent):
    """Randomized response: the true bit with probability ``keep``, else the other."""

    keep: float


def response_loss(event, bucket):
    p = {0: event.keep, 1: 1 - event.keep}
    law = {k: math.log(v) for k, v in p.items()}
    other = {0: law[1], 1: law[0]}
    return pld.from_two_probability_mass_functions(law, other, value_discretization_interval=bucket)


def test_an_event_from_outside(monkeypatch):
    for module, name in ((dp.privacy.events, "_NAMES"), (dp.privacy.events, "_READERS")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    monkeypatch.delitem(dp.privacy.pld._LOSSES, ResponseDpEvent, raising=False)  # restored after the test
    event = ResponseDpEvent(0.75)
    with pytest.raises(ValueError, match="ResponseDpEvent has no JSON form"):
        event_to_dict(event)
    with pytest.raises(UnsupportedEventError, match="ResponseDpEvent; no accountant can"):
        epsilon_of(event, DELTA)
    register_event("randomized_response", ResponseDpEvent)
    register_loss(ResponseDpEvent, response_loss)
    ledger = Ledger().add("survey", compose(event, gaussian_event(10.0)))
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert event_from_dict({"type": "randomized_response", "keep": 0.75}) == event
    assert math.log(3) <= epsilon_of(event, 1e-9) <= math.log(3) + 2e-4
    assert ledger.epsilon(DELTA) > math.log(3)
    with pytest.raises(ValueError, match="registered already"):
        register_event("randomized_response", ResponseDpEvent)
    with pytest.raises(ValueError, match="already"):
        register_loss(ResponseDpEvent, print)
