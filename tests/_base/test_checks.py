"""Range checks: what passes, what is refused, and that a message about records carries nothing from them."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from dpscp import BudgetError, GuaranteeWarning, NotFittedError, SeededWarning
from dpscp._base.checks import (
    check_count,
    check_fraction,
    check_nonnegative,
    check_positive,
    check_probability,
    check_range,
    real_number,
)

NUMBER_CHECKS = [real_number, check_positive, check_nonnegative, check_probability, check_fraction]


@pytest.mark.parametrize("check", NUMBER_CHECKS)
@pytest.mark.parametrize("value", [0.5, np.float64(0.5), np.float32(0.5), Fraction(1, 2)])
def test_numbers_pass_and_become_floats(check, value):
    assert check("x", value) == 0.5
    assert type(check("x", value)) is float


@pytest.mark.parametrize("check", NUMBER_CHECKS)
@pytest.mark.parametrize(
    "bad", ["0.5", None, True, np.bool_(True), 1j, [0.5], np.array([0.5]), Decimal("0.5")], ids=repr
)
def test_other_types_are_refused_by_name(check, bad):
    with pytest.raises(TypeError, match=f"^epsilon must be a number, got {type(bad).__name__}"):
        check("epsilon", bad)


@pytest.mark.parametrize("check", NUMBER_CHECKS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_must_be_finite(check, bad):
    with pytest.raises(ValueError, match="delta must be finite"):
        check("delta", bad)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (check_positive, [1e-300, 1, 1e300], [0, -0.0, -1]),
        (check_nonnegative, [0, 1e-300, 7], [-1e-300, -1]),
        (check_probability, [1e-12, 0.5, 1 - 1e-12], [0, 1, -0.1, 1.1, 90]),
        (check_fraction, [1e-12, 1], [0, -0.1, 1.0001]),
    ],
)
def test_bounds(check, good, bad):
    for value in good:
        assert check("x", value) == value
    for value in bad:
        with pytest.raises(ValueError, match=f"^x must.*got {value:g}"):
            check("x", value)


def test_counts():
    assert check_count("steps", 3) == check_count("steps", np.int32(3)) == 3
    assert type(check_count("steps", np.int32(3))) is int
    assert check_count("steps", 0, minimum=0) == 0
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"steps must be at least 1, got {bad}"):
            check_count("steps", bad)
    for bad in (1.0, True, "1", None, np.float64(2), Fraction(2)):
        with pytest.raises(TypeError, match="steps must be an integer"):
            check_count("steps", bad)


def test_ranges():
    assert check_range("r", (0, 1)) == (0.0, 1.0)
    assert check_range("r", np.array([-2.0, 3.0])) == (-2.0, 3.0)
    for bad in ((1, 0), (1, 1), (0, math.nan), (-math.inf, 0), (0, 1, 2), (0,), (-1e308, 1e308), (1e308, 1.5e308)):
        with pytest.raises(ValueError, match=r"^r\b|^r\["):
            check_range("r", bad)
    for bad in (None, 3, "01", ("0", "1"), (None, 1)):
        with pytest.raises(TypeError, match=r"^r\b|^r\["):
            check_range("r", bad)


def test_errors_are_caught_by_their_parents():
    assert issubclass(BudgetError, ValueError)
    assert issubclass(SeededWarning, GuaranteeWarning)
    assert issubclass(GuaranteeWarning, UserWarning)
    assert issubclass(NotFittedError, ValueError)
