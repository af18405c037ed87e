"""A list of labels that was found in the records certifies nothing: a label that no record has is in no set."""

import math

import numpy as np
import pytest

from dpscp import GuaranteeWarning, PrivateConformalClassifier, PrivateModel
from dpscp._base.assumptions import ALL_LABELS
from dpscp.training import DPSGD

GUARANTEES = ("universal", "stability", "split", "corrected", "finite", "asymptotic")
COMMON = {"epsilon": 8.0, "confidence_level": 0.8, "accountant": "rdp", "random_state": 0, "n_records": 1000}
STABLE = DPSGD(steps=10, learning_rate=0.1, clip_norm=2.0, feature_bound=1.0)


def records(n=1000):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 3))
    X[:, 0] += 3 * (y - 1)
    return X, y


def fit(classes, **changes):
    model = PrivateConformalClassifier(STABLE, classes=classes, **COMMON | {"guarantee": "split"} | changes)
    return model.fit(*records())


def found(**changes):
    with pytest.warns(GuaranteeWarning, match="no coverage is certified") as caught:
        model = fit(None, **changes)
    told = [str(w.message) for w in caught if w.category is GuaranteeWarning]
    assert len(told) == 1
    assert "Pass classes=[...] with every label that can occur" in told[0]
    return model


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_found_classes_are_never_certified(guarantee):
    model = found(guarantee=guarantee, confidence_level=[0.7, 0.8])
    for certificate in model.certificates_:
        assert not certificate.is_certified
        assert certificate.coverage == 0.0
        assert certificate.terms["classes_declared"] is False
        text = str(certificate)
        assert text.startswith("Not certified: the list of labels was taken from the records")
        assert "Declare classes=[...] with every label that can occur" in text
        assert "VACUOUS" not in text


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")  # 'finite' and 'asymptotic' prove little
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_declared_classes_are_an_assumption(guarantee):
    certificate = fit([0, 1, 2], guarantee=guarantee).certificate_
    assert certificate.classes_declared
    assert certificate.is_certified == (guarantee in ("universal", "stability", "split"))
    assert ALL_LABELS in certificate.assumptions
    assert ALL_LABELS.sentence in str(certificate)


def test_a_model_from_elsewhere_keeps_what_it_found():
    X, y = records()
    trained = [
        DPSGD(steps=10, classes=classes, noise_multiplier=5.0).train(X, y, random_state=0)
        for classes in (None, (0, 1, 2))
    ]
    found_there, declared_there = (PrivateModel.from_trained(t) for t in trained)
    settings = COMMON | {"guarantee": "split"}
    with pytest.warns(GuaranteeWarning, match="no coverage is certified"):
        model = PrivateConformalClassifier(found_there, **settings).fit(X, y)
    assert not model.certificate_.is_certified
    assert "classes" in model.ledger_.taken_from_data
    assert PrivateConformalClassifier(declared_there, **settings).fit(X, y).certificate_.is_certified
    assert PrivateConformalClassifier(found_there, classes=[0, 1, 2], **settings).fit(X, y).certificate_.is_certified


# ---- what it costs


def zipf(rng, n, n_labels=200):
    weights = 1 / np.arange(1, n_labels + 1)
    y = rng.choice(n_labels, n, p=weights / weights.sum())
    return np.stack([np.cos(y / 7), np.sin(y / 7)], axis=1) + 0.5 * rng.normal(size=(n, 2)), y


def mean_coverage(classes, repetitions):
    covered = []
    for seed in range(repetitions):
        X, y = zipf(np.random.default_rng(seed), 1500)
        mechanism = DPSGD(steps=30, learning_rate=4.0, feature_bound=2.0)
        model = PrivateConformalClassifier(
            mechanism, epsilon=20.0, accountant="rdp", classes=classes, guarantee="split", random_state=seed
        ).fit(X[:500], y[:500])
        sets = model.predict_set(X[500:])[1][:, :, 0]
        own = sets & (model.classes_ == y[500:, None])  # a label outside the list is in no set
        covered.append(own.any(axis=1).mean())
    return np.mean(covered)


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
def test_coverage_with_many_rare_labels():
    """200 labels by Zipf's law, 500 records: about one new label in nine was never seen."""
    repetitions, level = 20, 0.9
    # the coverage of one release varies like that of a binomial share of its calibration records, of which there are
    # more than 100 (and 1000 new records): four standard deviations of the mean
    slack = 4 * math.sqrt(level * (1 - level) / (repetitions * 100))
    assert mean_coverage(None, repetitions) < level - slack
    assert mean_coverage(list(range(200)), repetitions) >= level - slack
