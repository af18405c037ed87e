"""Rényi divergences of sampled Gaussian noise at all orders at once: those of dp-accounting, term by term."""

import logging

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_poisson_subsampled_gaussian as one_by_one

from dpscp.privacy import rdp
from dpscp.privacy.rdp import OPACUS_ORDERS, sampled_gaussian_divergences


@pytest.mark.covering
@pytest.mark.parametrize("rate", [1e-9, 0.01, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("noise", [0.05, 0.7, 5.0, 1e4])
def test_divergences_are_those_of_dp_accounting(rate, noise, caplog):
    caplog.set_level(logging.CRITICAL, logger="absl")  # it warns of orders that do not converge
    with np.errstate(all="ignore"):
        expected = one_by_one(rate, noise, OPACUS_ORDERS)
    found = sampled_gaussian_divergences(rate, noise, OPACUS_ORDERS)
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    finite = np.isfinite(expected)
    # what is divided by the order minus one is a logarithm: its absolute error counts where it is small
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-12, atol=1e-14)


def test_a_series_that_needs_more_terms_gets_them_or_proves_nothing(monkeypatch):
    whole = sampled_gaussian_divergences(0.01, 1.0, OPACUS_ORDERS)
    assert np.isfinite(whole).all()
    monkeypatch.setattr(rdp, "_TERMS", (3, 200))
    np.testing.assert_allclose(sampled_gaussian_divergences(0.01, 1.0, OPACUS_ORDERS), whole, rtol=1e-13)
    monkeypatch.setattr(rdp, "_TERMS", (3,))
    cut = sampled_gaussian_divergences(0.01, 1.0, OPACUS_ORDERS)
    assert np.isinf(cut[np.array(OPACUS_ORDERS) % 1 > 0]).all()
    assert np.isfinite(cut[np.array(OPACUS_ORDERS) % 1 == 0]).all()


def test_what_overflows_proves_nothing():
    assert not np.isnan(sampled_gaussian_divergences(0.5, 1e-160, (1.5, 2.0, 30.0))).any()
    assert (sampled_gaussian_divergences(0.5, 1e-150, (1.5, 2.0)) > 1e100).all()
