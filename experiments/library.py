"""The library's own methods: ``default`` is what a user gets who decides nothing, the others name a guarantee."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

import dpscp as dp
from dpscp.training.recipe import recipe
from experiments.faithful import Fold, PaperSettings, non_private_rows, paper_rows
from experiments.runner import ALPHA, DELTA, Task, seed_of

__all__ = ["METHODS", "classification_rows", "classification_task", "regression_rows", "standardized_recipe"]

Array = NDArray[Any]
Row = dict[str, Any]
METHODS = ("default", "split", "universal", "stability", "corrected")
_PAPER = {"dp-scp-f": "finite", "dp-scp-a": "asymptotic"}


def classification_rows(
    X: Array,
    y: Array,
    X_test: Array,
    y_test: Array,
    *,
    epsilon: float,
    methods: Sequence[str],
    n_classes: int,
    seed: int,
    **parameters: Any,
) -> Iterator[Row]:
    """Fit each method on the pool and measure its sets on the test part."""

    def fit(guarantee: dict[str, Any]) -> Any:
        model = dp.PrivateConformalClassifier(
            **{**_common(epsilon, seed), "classes": list(range(n_classes)), **parameters, **guarantee}
        )
        return _quiet(model.fit, X, y)

    for method, model in _fits(methods, fit):
        _, sets = model.predict_set(X_test)
        found = {
            "coverage": dp.metrics.coverage(y_test, sets[:, :, 0]),
            "size": dp.metrics.efficiency(sets[:, :, 0]),
            "informativeness": dp.metrics.informativeness(sets[:, :, 0]),
        }
        yield {**_spent(model, method, epsilon, len(X)), **found}


def classification_task(
    task: Task, fold: Fold, seed: int, settings: PaperSettings, shares: tuple[float, ...], **parameters: Any
) -> list[Row]:
    """A task of a classification study: the paper's methods, the non-private ones, or the library's at one epsilon."""
    if task.kind == "paper":
        return list(paper_rows(settings, fold, task.config["spending"], shares, seed))
    if task.kind == "non-private":
        return list(non_private_rows(settings, fold, seed))
    assert settings.n_classes is not None
    epsilon = task.config["epsilon"]
    options = {"n_classes": settings.n_classes, "seed": seed_of(seed, "library", epsilon), **parameters}
    records = (fold.X, fold.y, fold.X_test, fold.y_test)
    return list(classification_rows(*records, epsilon=epsilon, methods=METHODS, **options))


def regression_rows(
    X: Array,
    y: Array,
    X_test: Array,
    y_test: Array,
    *,
    epsilon: float,
    methods: Sequence[str],
    y_bounds: tuple[float, float],
    scale: float,
    seed: int,
    estimator_for: Callable[[str], Any] = lambda guarantee: None,  # noqa: ARG005
    **parameters: Any,
) -> Iterator[Row]:
    """Fit each method on the pool and measure its intervals; widths are multiplied by ``scale``."""

    def fit(guarantee: dict[str, Any]) -> Any:
        estimator = estimator_for(guarantee.get("guarantee", "split"))
        model = dp.PrivateConformalRegressor(
            estimator, **{**_common(epsilon, seed), "y_bounds": y_bounds, **parameters, **guarantee}
        )
        return _quiet(model.fit, X, y)

    for method, model in _fits(methods, fit):
        _, intervals = model.predict_interval(X_test)
        found = {
            "coverage": dp.metrics.coverage(y_test, intervals[:, :, 0]),
            "size": dp.metrics.efficiency(intervals[:, :, 0]) * scale,
            "informativeness": None,
        }
        yield {**_spent(model, method, epsilon, len(X)), **found}


def standardized_recipe(task: str, X: Array, epsilon: float) -> Callable[[str], Any]:
    """The recipe's mechanism for rows (and targets) that were standardised before, for each guarantee."""

    def of(guarantee: str) -> Any:
        plan = recipe(
            task,
            n_records=len(X),
            n_features=X.shape[1],
            epsilon=epsilon,
            delta=DELTA,
            guarantee=guarantee,
            feature_bounds="standardized",
        )
        return plan.mechanism

    return of


def _common(epsilon: float, seed: int) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": DELTA, "confidence_level": 1 - ALPHA, "random_state": seed}


def _fits(methods: Sequence[str], fit: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[str, Any]]:
    """Each method with its fitted estimator. The same seed and guarantee give the same fit, so ``split`` is not fitted
    again where ``default`` chose it (each part has the whole budget there: no share to choose)."""
    chosen = None
    for method in methods:
        if method == "default":
            chosen = fit({})
            yield method, chosen
        elif method == "split" and chosen is not None and chosen.certificate_.guarantee == "split":
            yield method, chosen
        else:
            yield method, fit({"guarantee": _PAPER.get(method, method), "train_share": "auto"})


def _quiet(fit: Callable[[Array, Array], Any], X: Array, y: Array) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        return fit(X, y)


def training_event(ledger: dp.Ledger) -> Any:
    """What training cost, with everything that was found for it: all entries but those of the threshold."""
    return dp.privacy.compose(*(entry.event for entry in ledger.entries if entry.stage != "calibration"))


def _spent(model: Any, method: str, epsilon: float, n: int) -> Row:
    """What the CSV says beside the sets: share, train epsilon and count noise, from ledger and certificate."""
    certificate, facts = model.certificate_, model.ledger_.public_facts
    held_out = certificate.guarantee == "split"
    training = epsilon if held_out else dp.privacy.epsilon_of(training_event(model.ledger_), DELTA)
    return {
        "method": method,
        "epsilon": epsilon,
        "train_share": None if held_out else facts.get("train_share"),
        "n": n,
        "train_epsilon": training,
        "count_noise": certificate.terms.get("count_noise"),
        "variant": "",
        "guarantee": certificate.guarantee,
        "proven": certificate.coverage,
    }
