"""Losses as arrays give what dp-accounting gives with dictionaries and loops."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from dpscp.privacy import gdp_delta
from dpscp.privacy import pld as losses
from dpscp.privacy.pld import DensePLDPmf, Loss, _compose_two, _connect_dots, _self_compose
from dpscp.privacy.tradeoff import gdp_deltas

BUCKET = 1e-3


def gaussian(sigma):
    return pld.from_gaussian_mechanism(sigma, value_discretization_interval=BUCKET)


def test_rounding_never_makes_a_delta_grow_or_a_mass_negative():
    deltas = gdp_deltas(np.arange(-100, 101) * 0.1, 0.7)
    deltas[-3:] = 0.0, 1e-17, -1e-18
    pmf = _connect_dots(0.1, -100, deltas)
    assert (pmf._probs >= 0).all()
    assert pmf._infinity_mass == 0.0
    assert pmf._probs.sum() == pytest.approx(1.0)


def test_what_is_cut_off_counts_as_delta(monkeypatch):
    one = gaussian(2.0)
    monkeypatch.setattr(losses, "_TAIL", 0.2)
    cut = _compose_two(one, one)._pmf_remove
    assert cut._infinity_mass >= 0.05
    assert cut._probs.sum() + cut._infinity_mass == pytest.approx(1.0, abs=1e-9)
    assert _self_compose(one, 5)._pmf_remove._infinity_mass >= 0.2
    # nothing is cut where all mass is less than the tail
    monkeypatch.setattr(losses, "_TAIL", 3.0)
    assert _compose_two(one, one)._pmf_remove._infinity_mass == pytest.approx(2 * one._pmf_remove._infinity_mass)


@pytest.mark.parametrize("mu", [0.0, 1e-300, 0.3, 8.0])
def test_many_epsilons_at_once_are_those_one_by_one(mu):
    epsilons = np.array([-3.0, -1e-9, 0.0, 0.2, 5.0, 700.0])
    one_by_one = [gdp_delta(e, mu) for e in epsilons]
    np.testing.assert_allclose(gdp_deltas(epsilons, mu), one_by_one, rtol=1e-14, atol=1e-300)


def test_what_counts_as_infinite_adds_up():
    """One release names the record with probability .1, the other with .2."""
    few = [Loss(DensePLDPmf(BUCKET, 0, np.full(2000, (1 - rare) / 2000), rare, True)) for rare in (0.1, 0.2)]
    assert _compose_two(*few)._pmf_remove._infinity_mass == pytest.approx(1 - 0.9 * 0.8, abs=1e-9)
    assert _self_compose(few[0], 3)._pmf_remove._infinity_mass == pytest.approx(1 - 0.9**3, abs=1e-9)
