"""Replacements for parameter and method names of other libraries."""

from collections.abc import Iterable, Mapping

from dpscp._base.suggestions import suggest

_WEIGHTS = (
    "weights change the sensitivity of every private step. groups='label' gives each class a promise of its own, and "
    "population=dp.Population.from_class_priors(target, source) makes the promise for other shares of the classes"
)
_PREFIT = "pass a fitted model as estimator=dp.Prefit(model); it must never have seen these records"
PARAMETERS: Mapping[str, str] = {
    "alpha": "write confidence_level=1 - alpha (a multilabel classifier: risk=alpha)",
    "base_estimator": "write estimator=",
    "class_weight": _WEIGHTS,
    "conformity_function": "write conformity_score=",
    "cv": _PREFIT,
    "device": "pass it to dp.training.TorchDPSGD; a bare module trains where its parameters are",
    "method": "write conformity_score=, and guarantee= for the way to calibrate",
    "prefit": _PREFIT,
    "sample_weight": _WEIGHTS,
    "test_size": "write guarantee='split' and calibration_fraction=",
}
_FIT = (
    "fit(X, y) trains and calibrates in one call. For a model that is fitted already, write "
    "estimator=dp.Prefit(model), then fit(X, y) with records that it never saw"
)
METHODS: Mapping[str, str] = {
    "calibrate": _FIT,
    "conformalize": _FIT,
    "fit_conformalize": _FIT,
    "partial_fit": "each fit spends budget; pass all records to one fit, or a record source (dp.sources)",
    "predict_interval": "a classifier has predict_set",
    "predict_set": "a regressor has predict_interval",
}


def refuse_parameters(owner: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``TypeError`` for a parameter that ``owner`` does not have; say what to write."""
    known = list(known)
    for name in names:
        if name not in known:
            remedy = f". Instead: {PARAMETERS[name]}" if name in PARAMETERS else suggest(name, known)
            raise TypeError(f"{owner} has no parameter {name!r}{remedy}")
