"""What a notebook shows: each promise as a card with folded details that suits light and dark schemes."""

import re

import pytest

import dpscp as dp
from dpscp._base.assumptions import DASK
from dpscp.guarantees import Certificate
from dpscp.guarantees.certificate import Promise
from dpscp.privacy import gaussian_event

LEDGER = dp.Ledger().add("training", gaussian_event(4.0)).add("<b>", gaussian_event(9.0))
TERMS = {"n_records": 1000, "inner_level": 0.9}


def outside_details(card: str) -> str:
    return re.sub("<details>.*?</details>", "", card)


@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_the_card_of_a_ledger_states_cost_and_attacker_and_folds_its_table(delta):
    card = LEDGER.html_card(delta)
    head = outside_details(card)
    assert f"epsilon {LEDGER.epsilon(delta):.2f}"[:11] in head
    assert f"at delta {delta:g}" in head
    found = 100 * (1 - LEDGER.tradeoff(0.05))
    (shown,) = re.findall(r"finds at most ([\d.]+)% of the records", head)
    assert 0 <= float(shown) - found <= 0.1
    assert "<table>" not in head
    assert "<table>" in card
    assert "&lt;b&gt;" in card
    assert "<b>" not in card
    if delta == 1e-5:
        assert LEDGER._repr_html_() == card


def test_a_seeded_ledger_warns_outside_the_details():
    seeded = dp.Ledger(LEDGER.entries, seeded=True)
    assert "NOT private: the noise came from a seed" in outside_details(seeded._repr_html_())


@pytest.mark.parametrize(
    ("certificate", "headline"),
    [
        (Certificate("split", 0.9, 0.9, (DASK,), TERMS), "at least 90.0%"),
        (Certificate("asymptotic", 0.9, 0.6, (DASK,), TERMS), "near 90%, not proven"),
        (Certificate("split", 0.9, 0.9, (DASK,), TERMS).with_found_classes(), "not certified"),
        (Certificate("split", 0.9, 0.9, (DASK,), TERMS, promise=Promise.RISK), "mean loss at most 10.0%"),
    ],
)
def test_the_card_of_a_certificate_has_its_number_as_headline(certificate, headline):
    card = certificate._repr_html_()
    assert f">{headline}</div>" in outside_details(card)
    assert "Assumes: the Dask" not in outside_details(card)
    assert "Assumes: the Dask" in card
    assert card.count("dpscp-card") == 1
