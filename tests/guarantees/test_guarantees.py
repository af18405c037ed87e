"""Every statement as a number: the theory's own values, exact references, and the certificate's words."""

import json
import math
import pickle

import numpy as np
import pytest
from scipy import special

from dpscp import guarantees as g
from dpscp._base.assumptions import EXCHANGEABLE
from dpscp.guarantees import Certificate, Stability, Terms
from dpscp.privacy import (
    RECORDS,
    Ledger,
    Unit,
    dpsgd_event,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    gdp_mu,
    non_private_event,
)


def half(epsilon):
    """The mu of training with half of mu^2."""
    return gdp_mu(epsilon, 1e-5) / math.sqrt(2)


class TestFromPrivacyAlone:
    @pytest.mark.parametrize(("epsilon", "level"), [(0.5, 0.9165), (1.0, 0.9294), (2.0, 0.9491)])
    def test_inner_levels_of_the_theory(self, epsilon, level):
        assert 1 - g.universal_alpha(0.1, gaussian_tradeoff(half(epsilon))) == pytest.approx(level, abs=6e-5)

    @pytest.mark.parametrize(("epsilon", "floor"), [(0.5, 0.881), (1.0, 0.862), (2.0, 0.823)])
    def test_uncorrected_floors_of_the_theory(self, epsilon, floor):
        assert g.blackbox_floor(0.1, gaussian_tradeoff(half(epsilon))) == pytest.approx(floor, abs=6e-4)

    @pytest.mark.parametrize("alpha", [0.01, 0.1, 0.4])
    def test_inner_level_is_the_last_that_keeps_the_promise(self, alpha):
        for f in (gaussian_tradeoff(0.3), epsilon_delta_tradeoff(0.5, 1e-5), epsilon_delta_tradeoff(0, 0)):
            inner = g.universal_alpha(alpha, f)
            assert g.universal_floor(inner, f) >= 1 - alpha
            assert inner <= alpha
            assert f(min(1.0, inner * (1 + 1e-9) + 1e-12)) < 1 - alpha + 1e-9
            assert g.universal_floor(inner * 1.01, f) < 1 - alpha

    def test_no_inner_level(self):
        assert g.universal_alpha(0.1, epsilon_delta_tradeoff(0.1, 0.2)) == 0.0
        assert g.universal_alpha(0.1, Ledger().add("x", non_private_event()).tradeoff_function()) == 0.0

    def test_failure_probability(self):
        f = epsilon_delta_tradeoff(0.5, 1e-5)
        assert g.blackbox_floor(0.1, f, 0.05) == pytest.approx(1 - 1e-5 - math.exp(0.5) * 0.145)
        assert g.blackbox_floor(0.1, f) > g.blackbox_floor(0.1, f, 0.05)
        for bad in (-0.1, 1.0):
            with pytest.raises(ValueError, match="failure_probability"):
                g.blackbox_floor(0.1, f, bad)
        with pytest.raises(ValueError, match="alpha"):
            g.blackbox_floor(0.0, f)

    def test_direction_of_the_sampled_gaussian(self):
        """Result B compares M(D) with M(D + record) as the null: exact curve of one sampled step, from below."""
        q, sigma = 0.4, 2.0
        ledger = Ledger().add("train", dpsgd_event(sigma, q, 1))
        f, both = ledger.tradeoff_function("add"), ledger.tradeoff_function()
        z = np.linspace(-12, 12, 20_001)  # reject theta_{n+1} (the mixture) for theta_n where the output is small
        under_null = (1 - q) * special.ndtr(z / sigma) + q * special.ndtr((z - 1) / sigma)
        accepted = 1 - special.ndtr(z / sigma)  # under M(D): not rejected
        for x in (0.02, 0.1, 0.3):
            exact = float(np.interp(x, under_null, accepted))
            assert exact - 2e-3 <= f(x) <= exact + 1e-6
            assert both(x) <= f(x) + 1e-9

    def test_mu_of_the_whole(self):
        assert g.search_mu(10.0, 20) == pytest.approx(math.sqrt(20) / 10)
        assert g.search_mu(10.0, 20, 0.5) == pytest.approx(math.sqrt(20) / 20)
        assert g.overall_mu(0.3, 0.4) == pytest.approx(0.5)


class TestResultC:
    def test_value_buffer(self):
        assert g.value_buffer(math.sqrt(2) / 4, 0.1) == pytest.approx(math.sqrt(2) / 20)
        # theory.md: sum(eta) = 1000, n = 13671, clip sqrt(2): 2 L u = .073 in score units
        assert g.value_buffer(math.sqrt(2) / 4, math.sqrt(2) * 1000 / 13671) == pytest.approx(0.073, abs=2e-4)
        with pytest.raises(ValueError, match="shift_bound"):
            g.value_buffer(1.0, -1.0)


class TestPapersBound:
    def test_coverage_lower_bound(self):
        value = g.coverage_lower_bound(999, 0.1, 0.01, 2.0, 1.5, 0.001, 0.005)
        assert value == pytest.approx(0.99 * (0.9 - 2 * 2 * 1.5 * 0.001 - 3 * 0.005 - 0.001))
        assert g.coverage_lower_bound(999, 0.1, 0.01, 2.0, 1.5, 0.5, 0.005) == 0.0
        assert g.coverage_lower_bound(999, 0.1, 0.01, 2.0, 1.5, 0.0, 0.9) == 0.0

    @pytest.mark.parametrize("beta", [-0.1, 1.0, 2.0])
    def test_failure_probability_of_the_bound(self, beta):
        """Above one, two negative factors would make a bound out of nothing."""
        with pytest.raises(ValueError, match="failure_probability"):
            g.coverage_lower_bound(999, 0.1, beta, 2.0, 1.5, 0.9, 0.5)

    def test_rank_buffer(self):
        assert g.rank_buffer(1000, 2.0, 1.5, 0.001, 0.05) == 60
        assert g.rank_buffer(1000, 2.0, 1.5, 0.0010001, 0.05) == 61
        assert g.rank_buffer(1000, 2.0, 1.5, 0.0, 0.0) == 0
        with pytest.raises(ValueError, match="delta_n"):
            g.rank_buffer(1000, 2.0, 1.5, 0.1, 0.0)

    def test_dpsgd_bound_is_vacuous_at_real_sizes(self):
        """E_n^(1/3) is about .1 at n = 10^4 with the paper's constants: three of those leave nothing of .9."""
        n = 10_000
        stability = g.stability_dpsgd_smooth(
            n_records=n,
            clip_norm=1.0,
            noise_std=1.0,
            n_parameters=50,
            learning_rate=1 / n,
            steps=n,
            sampling_rate=0.01,
            smoothness=1.0,
        )
        assert stability.delta_n == pytest.approx(0.1, abs=0.03)
        terms = g.dpsgd_coverage(n, 0.1, 1 / n, 1.0, 1.0, stability)
        assert terms["coverage"] == 0.0
        assert terms["stability_term"] == pytest.approx(3 * stability.delta_n)

    def test_dpsgd_bound_with_a_stable_mechanism(self):
        terms = g.dpsgd_coverage(10_000, 0.1, 1e-4, 1.0, 1.0, Stability(1e-7, 1e-3, ()))
        assert terms["rank_buffer"] == 1
        assert terms["coverage"] == pytest.approx((1 - 1e-4) * (0.9 - 2e-7 - 3e-3 - 1 / 10_001))
        assert terms["sample_term"] == pytest.approx(1 / 10_001)
        assert (terms["density_term"], terms["stability_term"]) == pytest.approx((2e-7, 3e-3))
        # a rank of 18 and a buffer of 1 are among 19 records, a rank of 18 and 1 are not among 18
        stable = Stability(1e-9, 1e-5, ())
        found = [g.dpsgd_coverage(n, 0.1, 1e-4, 1.0, 1.0, stable)["coverage"] for n in (18, 19)]
        assert found == [0.0, pytest.approx((1 - 1e-4) * (0.9 - 2e-9 - 3e-5 - 1 / 20))]
        # regime I: nothing moves unless the record is drawn
        never = g.stability_dpsgd_projection(sampling_rate=1e-6, steps=100)
        assert g.dpsgd_coverage(1000, 0.1, 0.0, 1.0, 1.0, never)["coverage"] == pytest.approx(
            0.9 - 3 * never.delta_n - 1 / 1001
        )

    @pytest.mark.parametrize("stability", [Stability(math.inf, 1.0, ()), Stability(0.1, 1.0, ())])
    def test_no_stability_no_coverage(self, stability):
        terms = g.dpsgd_coverage(1000, 0.1, 0.01, 1.0, 1.0, stability)
        assert terms["coverage"] == 0.0
        assert terms["rank_buffer"] == 1000


class TestCertificate:
    def make(self, **changes):
        fields = {
            "guarantee": "universal",
            "target": 0.9,
            "coverage": 0.9,
            "assumptions": [EXCHANGEABLE],
            "terms": {"inner_level": 0.93, "n_records": 1000, "finite_threshold_expected": True},
            "advice": "",
        }
        return Certificate(**fields | changes)

    def test_certified(self):
        certificate = self.make()
        assert certificate.is_certified
        assert not certificate.is_vacuous
        text = str(certificate)
        for words in (
            "at least 90.0%",
            "proven for finite samples",
            "Result B",
            EXCHANGEABLE.sentence,
            "inner level 93.00%",
            "1000",
        ):
            assert words in text
        assert "VACUOUS" not in text
        assert "True" not in text

    def test_only_expected(self):
        certificate = self.make(guarantee="asymptotic", coverage=0.83, advice="Hold out a part.")
        assert not certificate.is_certified
        text = str(certificate)
        assert "The target 90% is not proven for finite samples" in text
        assert "83.0%" in text
        assert text.endswith("Hold out a part.")

    @pytest.mark.parametrize(
        "changes", [{"coverage": 0.4}, {"terms": {"finite_threshold_expected": False}}], ids=["level", "full sets"]
    )
    def test_vacuous_is_said_in_plain_words(self, changes):
        certificate = self.make(**changes)
        assert certificate.is_vacuous
        assert "VACUOUS" in str(certificate)

    def test_is_frozen(self):
        certificate = self.make()
        assert certificate.assumptions == (EXCHANGEABLE,)
        with pytest.raises(TypeError):
            certificate.terms["n_records"] = 5
        with pytest.raises(AttributeError):
            certificate.coverage = 0.99

    @pytest.mark.parametrize("name", ["finite_treshold_expected", "n_units", "unit", "release_lvl"])
    def test_a_term_that_does_not_exist_is_refused(self, name):
        with pytest.raises(TypeError, match=f"no term '{name}'"):
            self.make(terms={name: False})
        with pytest.raises(TypeError, match="no term"):
            Certificate.from_dict(self.make().to_dict() | {"terms": {name: 1}})
        with pytest.raises(TypeError, match="unexpected keyword"):
            Terms(**{"finite_treshold_expected": False})

    @pytest.mark.parametrize(
        ("name", "value"),
        [("finite_threshold_expected", "no"), ("classes_declared", 0), ("inner_level", "0.9"), ("release_level", True)],
    )
    def test_a_term_of_another_type_is_refused(self, name, value):
        with pytest.raises(TypeError, match=f"{name} must be"):
            self.make(terms={name: value})

    @pytest.mark.parametrize("unit", [RECORDS, Unit(3, by_person=True), Unit(3)], ids=lambda unit: unit.kind)
    def test_a_certificate_is_read_back_with_its_unit(self, unit):
        terms = Terms(unit, n_units=500, calibration_units=100, inner_level=0.93, release_level=0.8, steps=9)
        certificate = self.make(terms=terms)
        again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
        assert again == certificate == pickle.loads(pickle.dumps(certificate))
        assert again.unit == unit
        noun = "person" if unit.by_person else "record"
        cap = {} if unit is RECORDS else {"rows_per_person": 3}
        rest = {"inner_level": 0.93, "steps": 9, "finite_threshold_expected": True, "release_level": 0.8}
        assert again.terms == {f"n_{noun}s": 500, **cap, f"calibration_{noun}s": 100, **rest}

    def test_what_a_single_release_covers_is_said_with_its_confidence(self):
        terms = Terms(n_units=500, release_level=0.8123, release_confidence=0.95)
        assert self.make(terms=terms).one_release == "19 of 20 such releases cover at least 81.2%"
        found = self.make(terms=terms).with_found_classes()
        assert (found.terms.release_level, found.classes_declared, found.coverage) == (None, False, 0.0)
        assert "single release may cover somewhat less" in found.one_release
