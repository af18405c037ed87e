"""The person games: a person with several extreme rows is found no better than one record, and mistakes are caught."""

import math

import numpy as np
import pytest
from audit_games import audited_mechanism
from audit_person_games import PersonSearchGame, PersonTrainingGame

import dpscp as dp
from dpscp.data.persons import Persons
from dpscp.privacy import gdp_epsilon, gdp_mu

KINDS = pytest.mark.parametrize("alike", [True, False], ids=["alike", "different"])
ALL_ROWS_WEIGH_ONE = property(lambda self: np.ones(self.n_rows))


def everything(self, drawn):
    """Every row of a person is counted, as a composition over rows would have it."""
    return np.arange(self.n_rows)


@KINDS
@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.covering
def test_a_person_with_five_rows_is_found_in_training_no_better_than_a_record(alike, rate):
    game = PersonTrainingGame(audited_mechanism(1.0, 400, rate), alike=alike)
    result = dp.audit(game, runs=2000)
    assert result.passed
    if alike and rate == 1:
        assert result.share(0.01) > 0.25  # the attacker is no straw man


def test_an_implementation_that_forgets_a_weight_is_caught(monkeypatch):
    monkeypatch.setattr(Persons, "weights", ALL_ROWS_WEIGH_ONE)
    assert not dp.audit(PersonTrainingGame(audited_mechanism(1.0, 400)), runs=2000).passed


@pytest.mark.parametrize("alike", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["alike", "different"])
def test_a_person_with_five_scores_is_found_in_the_search_no_better_than_a_record(alike):
    result = dp.audit(PersonSearchGame(steps=1, alike=alike), runs=500)
    assert result.passed
    if alike:
        assert max(result.audited) > 0  # at one delta alone, about one audit in a thousand finds nothing


def test_counting_every_row_of_a_person_is_caught(monkeypatch):
    monkeypatch.setattr(Persons, "one_row_of_each", everything)
    assert not dp.audit(PersonSearchGame(steps=1), runs=200).passed


@pytest.mark.no_cover
def test_a_person_with_rows_in_8_groups_keeps_the_claim_of_one_group():
    assert dp.audit(PersonSearchGame(steps=1, rows=8, groups=8), runs=40).passed


@pytest.mark.slow
def test_a_person_with_rows_in_8_groups_keeps_the_claim_of_one_group_in_many_runs():
    assert dp.audit(PersonSearchGame(steps=1, rows=8, groups=8), runs=8000).passed


@pytest.mark.no_cover
def test_the_row_level_composition_over_8_groups_is_caught(monkeypatch):
    """Each row counted in its group: a budget of 1 would really be 3.19."""
    monkeypatch.setattr(Persons, "one_row_of_each", everything)
    assert not dp.audit(PersonSearchGame(steps=1, rows=8, groups=8), runs=200).passed
    assert gdp_epsilon(1e-5, math.sqrt(8) * gdp_mu(1.0, 1e-5)) == pytest.approx(3.19, abs=0.01)
