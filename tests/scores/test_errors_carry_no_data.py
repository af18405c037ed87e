"""A message about scores must not carry a value, a row or a count from them."""

import warnings

import numpy as np
import pytest

from dpscp import calibrate, private_quantile
from dpscp.paper import noisy_midpoint_quantile
from dpscp.privacy import dpsgd_event

CANARY = 0.123456789
# a length that no message has a reason to hold
LENGTH = 48_611


def scores_with(bad):
    scores = np.full(LENGTH, CANARY)
    scores[-7:] = bad
    return scores


BROKEN = {
    "two-dimensional": lambda: scores_with(CANARY)[:, None],
    "scalar": lambda: np.array(CANARY),
    "texts": lambda: np.full(LENGTH, f"{CANARY}"),
    "one text in a list": lambda: [CANARY] * 40 + [f"{CANARY}x"],
    "objects": lambda: np.full(LENGTH, CANARY, dtype=object),
    "complex": lambda: scores_with(CANARY) + 1j,
    "booleans": lambda: scores_with(CANARY) > 0,
    "ragged": lambda: [[CANARY], [CANARY, CANARY]],
    "empty": lambda: np.array([]),
    "chunk of texts": lambda: iter([scores_with(CANARY), np.full(5, f"{CANARY}")]),
    "chunks of two dimensions": lambda: lambda: [scores_with(CANARY)[:, None]],
}
CALLS = {
    "private_quantile": lambda s: private_quantile(s, alpha=0.1, score_range=(0, 1), mu=1.0, random_state=0),
    "nominal n": lambda s: private_quantile(
        s, alpha=0.1, score_range=(0, 1), count_noise=5.0, n_records=50_000, steps=8, random_state=0
    ),
    "noisy_midpoint_quantile": lambda s: noisy_midpoint_quantile(
        s, alpha=0.1, score_range=(0, 1), count_noise=5.0, steps=8, random_state=0
    ),
    "calibrate": lambda s: calibrate(
        s,
        training=dpsgd_event(4.0, 0.01, 100),
        epsilon=1.0,
        delta=1e-5,
        alpha=0.1,
        score_range=(0, 1),
        n_records=50_000,
        random_state=0,
    ),
}


def assert_clean(text):
    for secret in ("0.1234", "1234567", str(LENGTH), "48,611", str(LENGTH - 7)):
        assert secret not in text


def everything_said(error):
    """The message and those of the errors behind it: a traceback prints them all."""
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(said)


# with a declared number the true one stays private: that there is no score at all must not show
REFUSED = [
    (kind, call) for kind in BROKEN for call in CALLS if kind != "empty" or call not in ("calibrate", "nominal n")
]


@pytest.mark.parametrize(("kind", "call"), REFUSED)
def test_refusals_say_nothing_about_the_scores(kind, call):
    with pytest.raises((ValueError, TypeError)) as caught:
        CALLS[call](BROKEN[kind]())
    assert_clean(everything_said(caught.value))


@pytest.mark.parametrize("call", ["nominal n", "calibrate"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.covering
def test_a_score_that_is_not_finite_is_the_end_of_the_range_and_nothing_tells_of_it(call, bad, dtype):
    """One record whose score overflows must not decide whether the call raises or warns."""
    found = []
    for odd in (bad, -5.0 if bad == -np.inf else 5.0):
        scores = np.linspace(0, 1, LENGTH).astype(dtype)
        scores[-7:] = odd
        forms = [scores] if call == "calibrate" else [scores, iter([scores[:9], scores[9:]]), lambda s=scores: [s]]
        for form in forms:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                result = CALLS[call](form)
            found.append((result.threshold, [(w.category, str(w.message)) for w in heard]))
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("call", ["nominal n", "calibrate"])
def test_results_and_warnings_say_nothing_beyond_the_release(call):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        # all scores lie outside the public range: they are clipped without a word
        result = CALLS[call](scores_with(CANARY) + 5)
    assert_clean(repr(result))
    for warning in heard:
        assert_clean(str(warning.message))


def test_a_failing_chunk_reader_keeps_its_own_error():
    def chunks():
        yield np.full(10, CANARY)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        private_quantile(chunks(), alpha=0.1, score_range=(0, 1), mu=1.0, random_state=0)
