"""From somebody's scores to a threshold with two promises: the budget holds, the certificate says what was assumed."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpscp import BudgetError, GuaranteeWarning, Ledger, calibrate
from dpscp._base.assumptions import CONVEX_AND_SMOOTH
from dpscp.core.plan import Plan
from dpscp.core.problem import Problem
from dpscp.core.tasks import OwnScores
from dpscp.guarantees import Stability, universal_alpha
from dpscp.privacy import (
    Budget,
    IntegerSource,
    dpsgd_event,
    gaussian_event,
    gdp_mu,
)
from dpscp.threshold import search

SCORES = np.random.default_rng(0).uniform(size=5000)
SPENT = gaussian_event(2 / gdp_mu(1.0, 1e-5))  # a quarter of mu^2 at epsilon 1
GOOD = {"training": SPENT, "epsilon": 1.0, "delta": 1e-5, "alpha": 0.1, "score_range": (0, 1), "accountant": "rdp"}
STABLE = Stability(0.01, 0.02, (CONVEX_AND_SMOOTH,), score_lipschitz=0.5)


def quiet(scores=SCORES, **changes):
    return calibrate(scores, **GOOD | {"random_state": 0} | changes)


def outlined(guarantee, alphas, spent, n, *, epsilon=1.0, part=1.0, mu=None, **more):
    """The plan of a search of scores, without its noise."""
    given = {"task": OwnScores(), "budget": Budget(epsilon, 1e-5), "alphas": alphas, "n_records": n}
    return Plan.outline(Problem(guarantee=guarantee, **given | more), spent, part=part, mu=mu)


class TestBudget:
    @settings(deadline=None, max_examples=25)
    @given(
        epsilon=st.floats(0.5, 8.0),
        delta=st.sampled_from([1e-6, 1e-5, 1e-3]),
        share=st.floats(0.05, 0.7),
        guarantee=st.sampled_from(["universal", "split", "finite", "asymptotic", "stability"]),
        alpha=st.sampled_from([0.05, 0.123457, 0.5, 0.7]),
    )
    def test_ledger_never_exceeds_it(self, epsilon, delta, share, guarantee, alpha):
        held_out = guarantee == "split"
        spent = gaussian_event(1 / (share * gdp_mu(epsilon, delta)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)  # some of these promises are vacuous
            c = quiet(
                epsilon=epsilon,
                delta=delta,
                training=spent,
                guarantee=guarantee,
                held_out=held_out,
                alpha=alpha,
                stability=STABLE if guarantee == "stability" else None,
                random_state=None,
            )
        assert c.ledger.epsilon(delta, "rdp") <= epsilon
        if c.quantile is not None:
            # and the noise is not wasted: all but a thousandth of the budget is used
            used = Ledger().add("calibration", c.quantile.event) if held_out else c.ledger
            assert used.epsilon(delta, "rdp") >= epsilon * 0.999

    @pytest.mark.parametrize("guarantee", ["universal", "split"])
    def test_with_the_default_accountant(self, guarantee):
        sampled = dpsgd_event(4.0, 0.01, 300)
        c = quiet(training=sampled, accountant="pld", guarantee=guarantee, held_out=guarantee == "split")
        assert 0.999 <= c.ledger.epsilon(1e-5) <= 1.0
        assert not c.ledger.is_private  # a seed was used
        assert c.ledger.seeded

    def test_parts_do_not_add_up_when_held_out(self):
        """Each part may spend the whole budget; used twice on the same records it may not."""
        spent = gaussian_event(1.02 / gdp_mu(1.0, 1e-5))
        together = quiet(training=spent, guarantee="asymptotic", accountant="pld")
        apart = quiet(training=spent, held_out=True, accountant="pld")
        assert apart.ledger.epsilon(1e-5) <= 1.0
        assert apart.quantile.count_noise < together.quantile.count_noise / 3
        assert len(apart.ledger.entries) == 1
        assert apart.certificate.guarantee == "split"

    def test_training_ledger_is_kept(self):
        before = Ledger().add("train", SPENT, "mine").declare(classes=[0, 1]).mark_seeded()
        c = quiet(training=before, random_state=None)
        assert [e.stage for e in c.ledger.entries] == ["train", "calibration"]
        assert list(c.ledger.public_facts["classes"]) == [0, 1]
        assert c.ledger.seeded
        assert c.ledger.public_facts["n_records"] == SCORES.size


class TestGuarantees:
    def test_universal_calibrates_at_the_inner_level(self):
        c = quiet()
        inner = universal_alpha(0.1, Ledger().add("t", SPENT).tradeoff_function("add"))
        assert c.quantile.alpha == pytest.approx(inner, abs=1e-6)
        assert c.quantile.alpha <= inner
        assert c.quantile.aim.rank == "centered"
        assert c.certificate.coverage == c.certificate.target == pytest.approx(0.9)
        assert c.certificate.is_certified
        assert c.threshold == c.quantile.threshold > 0.9

    def test_stability_buffer(self):
        c = quiet(guarantee="stability", stability=STABLE)
        assert c.quantile.alpha == pytest.approx(0.08)
        assert c.threshold == c.quantile.threshold + 2 * 0.5 * 0.01
        assert c.certificate.terms["value_buffer"] == pytest.approx(0.01)
        # what the bound rests on is part of the promise
        assert set(STABLE.assumptions) <= set(c.certificate.assumptions)
        own = quiet(guarantee="stability", stability=replace(STABLE, score_lipschitz=2.0))
        assert own.threshold == own.quantile.threshold + 0.04

    @pytest.mark.parametrize("bound", [Stability(0.1, 0.1, (), 1.0), Stability(math.inf, 0.0, (), 1.0)])
    def test_stability_too_weak_for_alpha(self, bound):
        with pytest.warns(GuaranteeWarning, match="VACUOUS"):
            c = quiet(guarantee="stability", stability=bound)
        assert math.isinf(c.threshold)
        assert c.quantile is None
        assert len(c.ledger.entries) == 1  # nothing was asked, nothing more was spent

    def test_finite_and_asymptotic_print_the_floor_that_holds_anyway(self):
        finite, plain = quiet(guarantee="finite"), quiet(guarantee="asymptotic")
        for c in (finite, plain):
            assert not c.certificate.is_certified
            assert c.quantile.aim.rank == "ceil"
            assert c.quantile.alpha == 0.1
            f = Ledger().add("t", SPENT).tradeoff_function("add")
            assert c.certificate.coverage == pytest.approx(f(c.certificate.terms["ideal_miss_bound"]))
            assert c.certificate.coverage < 0.9
        assert plain.quantile.offset == 0
        assert finite.quantile.offset > 10
        assert finite.certificate.coverage > plain.certificate.coverage

    def test_too_few_records_is_no_error(self):
        with pytest.warns(GuaranteeWarning, match="VACUOUS"):
            c = quiet(SCORES[:20])
        assert c.certificate.is_vacuous
        assert math.isinf(c.threshold)

    def test_threshold_at_the_end_of_the_range_is_infinite(self):
        with pytest.warns(GuaranteeWarning, match="the prediction set contains the true answer"):
            c = quiet(np.ones(5000))
        assert math.isinf(c.threshold)

    def test_a_random_part_is_charged(self):
        plan = outlined("split", (0.1,), Ledger(), 10_000, part=0.2)
        assert plan.has_released_size
        assert plan.n_nominal == 2000
        assert plan.rank == "centered"
        c = quiet(training=None, held_out=True, n_records=4000)
        assert c.quantile.alpha == pytest.approx(0.1 - 1e-4)  # the charge for a size that comes out too large

    def test_chunks_and_streams(self):
        expected = quiet().threshold
        assert quiet(SCORES.tolist()).threshold == expected
        # a declared number is a plan: the true one is released with noise, whatever the scores come from
        expected = quiet(n_records=5000).threshold
        assert quiet(lambda: np.array_split(SCORES, 4), n_records=5000).threshold == expected
        assert quiet(iter(np.array_split(SCORES, 4)), n_records=5000).threshold == expected


class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_noise(self, monkeypatch):
        def forbidden(self, *arguments):
            raise AssertionError("noise was drawn before the input was refused")

        monkeypatch.setattr(IntegerSource, "below", forbidden)

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"score_range": (1, 0)}, "score_range"),
            ({"alpha": 0.0}, "alpha"),
            ({"epsilon": 0.0}, "epsilon"),
            ({"delta": 0.0}, "delta"),
            ({"n_records": 0}, "n_records"),
            ({"guarantee": "hope"}, "guarantee"),
            ({"guarantee": "corrected"}, "guarantee"),
            ({"guarantee": "split"}, "held_out"),
            ({"guarantee": "finite", "held_out": True}, "held_out"),
            ({"guarantee": "stability"}, "stability"),
            ({"guarantee": "stability", "stability": Stability(0.1, 0.0, ())}, "Lipschitz"),
            ({"training": "dpsgd"}, "event"),
            ({"accountant": "gdp"}, "accountant"),
            ({"scores": iter([SCORES])}, "n_records"),
        ],
    )
    def test_parameters(self, changes, name):
        with pytest.raises((ValueError, TypeError), match=name):
            quiet(**{"random_state": None} | changes)

    @pytest.mark.parametrize("guarantee", ["universal", "stability", "finite", "asymptotic"])
    def test_training_records_without_a_training_event(self, guarantee):
        """Without it the ledger would leave out what the model cost, and the floor would be a fiction."""
        with pytest.raises(ValueError, match="needs training="):
            quiet(training=None, guarantee=guarantee, stability=STABLE)

    @pytest.mark.parametrize("accountant", ["pld", "rdp"])
    @pytest.mark.parametrize(
        ("guarantee", "held_out"), [("universal", False), ("asymptotic", False), ("universal", True)]
    )
    def test_training_over_budget_names_both_numbers(self, guarantee, held_out, accountant):
        heavy = gaussian_event(1 / gdp_mu(3.0, 1e-5))
        with pytest.raises(BudgetError, match=r"3(\.\d+)?\b.*budget of epsilon = 1\b"):
            quiet(training=heavy, guarantee=guarantee, held_out=held_out, accountant=accountant)

    def test_training_exactly_at_budget_leaves_nothing(self):
        with pytest.raises(BudgetError, match=r"nothing is left|no amount of noise"):
            quiet(training=gaussian_event(1 / gdp_mu(1.0, 1e-5)), guarantee="asymptotic", accountant="pld")

    def test_unknown_dask_size(self):
        da = pytest.importorskip("dask.array")
        array = da.from_array(SCORES, chunks=1000)
        with pytest.raises(ValueError, match="n_records is required"):
            quiet(array[array > 0.5])


def test_the_size_is_seen_through_its_noise_only(monkeypatch):
    """Seven scores less and seven more in the drawn noise: the same certificate and the same ledger."""
    one = quiet(n_records=5000)
    honest = search.release_size
    monkeypatch.setattr(search, "release_size", lambda size, *rest: honest(size + 7, *rest))
    two = quiet(SCORES[:-7] ** 2, n_records=5000)
    assert str(one.certificate) == str(two.certificate)
    assert one.ledger.to_json() == two.ledger.to_json()
