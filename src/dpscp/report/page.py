"""The HTML page: numbers of the fitted estimator in, one self-contained text out."""

import base64
import json
import math
import platform
from collections.abc import Callable, Mapping
from datetime import date
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from dpscp._base.format import asked, at_least, at_most, format_epsilon, observed
from dpscp.data.model_files import open_atomically
from dpscp.deployment.statement import privacy_statement
from dpscp.estimators import PrivateConformalClassifier
from dpscp.guarantees import guarantee_of
from dpscp.guarantees.certificate import term_text
from dpscp.pipeline.planning import plan
from dpscp.privacy import SecretSplitDpEvent
from dpscp.report.figures import budget_figure, calibration_figure, inline_svg, size_figure, tradeoff_figure
from dpscp.report.numbers import ATTACKS, GROUP_SIZES, TERMS, WHY_BELOW, About, Evaluation, budget_tracks, verdict

_LIBRARIES = ("dpscp", "numpy", "scipy", "scikit-learn", "dp-accounting", "randomgen")
# Shown as the schema itself, or of no use to a reader.
_HIDDEN_FACTS = ("schema",)
# Budgets, as multiples of this one, and levels for which the page says what to expect.
_OTHER_BUDGETS, _OTHER_LEVELS = (0.5, 1.0, 2.0, 4.0), (0.8, 0.9, 0.95, 0.99)
_NOTHING_DECLARED = About()


def html_report(
    estimator: Any, *, evaluation: Evaluation | None = None, title: str | None = None, about: About | None = None
) -> str:
    """A page about a fitted estimator: promises, ledger, certificate, public facts, and what is not protected.

    Everything on it is part of the release already, except ``evaluation``: numbers on labelled records outside the
    promise, which the page marks as such, and ``about``: what its writer declares. The page loads nothing from
    elsewhere and runs no script. Needs the extra ``dpscp[report]``.
    """
    check_is_fitted(estimator)
    try:
        import jinja2
    except ImportError:  # pragma: no cover (the test environment has it)
        raise ImportError("a report needs jinja2 and matplotlib: pip install 'dpscp[report]'") from None
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
    )
    environment.filters["plain"] = plain
    environment.filters["spent"] = format_epsilon
    environment.filters["base64"] = lambda text: base64.b64encode(text.encode()).decode()
    environment.filters["words"] = lambda name: str(name).replace("_", " ")
    environment.globals |= {"number": _number, "term": _term, "asked": asked, "observed": observed}
    environment.globals |= {"at_least": at_least, "at_most": at_most, "spent_epsilon": format_epsilon}
    environment.globals["left_epsilon"] = lambda left: f"{math.floor(left * 1000) / 1000:g}"
    about = about or _NOTHING_DECLARED
    content = _content(estimator, evaluation, about) | {"about": about, "today": date.today().isoformat()}
    return environment.get_template("template.html").render(**content, title=title or "Private prediction sets")


def write_report(
    path: str | PathLike[str],
    estimator: Any,
    *,
    evaluation: Evaluation | None = None,
    title: str | None = None,
    about: About | None = None,
) -> None:
    """Write ``html_report`` to exactly ``path``; a failure leaves no half-written file."""
    write_atomically(path, html_report(estimator, evaluation=evaluation, title=title, about=about).encode())


def write_atomically(path: str | PathLike[str], data: bytes) -> None:
    """Write a file in one piece or not at all."""
    with open_atomically(path) as file:
        file.write(data)


def plain(value: Any) -> str:
    """A value for a person: short numbers, lists without brackets; long lists are cut."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {plain(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        shown = [plain(v) for v in value[:12]] + (["..."] if len(value) > 12 else [])
        return ", ".join(shown) if shown else "none"
    return str(value)


def _number(name: str, value: Any, text: str | Callable[[Any], str] = plain) -> Any:
    """A number as an element that carries its full value, so that a program can check the page.

    ``text`` is a format, or a function that turns the value into words.
    """
    from markupsafe import Markup

    write = text if callable(text) else (lambda v: format(v, text)) if math.isfinite(value) else plain
    return Markup('<data data-name="{}" value="{}">{}</data>').format(name, repr(value), write(value))


def _term(place: int, name: str, value: Any) -> Any:
    """A term of a certificate: words as they are, levels and bounds are promises and rounded as such."""
    if isinstance(value, str):
        return value
    promised = name.endswith(("_level", "_bound", "_confidence"))
    return _number(f"certificate.{place}.terms.{name}", value, (lambda v: term_text(name, v)) if promised else plain)


def _content(estimator: Any, evaluation: Evaluation | None, about: About) -> dict[str, Any]:
    ledger, epsilon, delta = estimator.ledger_, float(estimator.epsilon), float(estimator.delta)
    tracks = budget_tracks(ledger, epsilon, delta)
    certificates = []
    for place, certificate in enumerate(estimator.certificates_):
        picture = None
        if certificate.terms.rank_target is not None:
            label = f"Where the search aims for {asked(certificate.target)}: inner level, buffer and noise of one count"
            picture = inline_svg(calibration_figure(certificate), f"calibration{place}", label)
        certificates.append(
            {"certificate": certificate, "proof": _words_first(certificate.guarantee), "picture": picture}
        )
    sizes = []
    if evaluation is not None:
        sizes = [
            inline_svg(
                size_figure(level, evaluation.kind), f"sizes{place}", f"Distribution of the {evaluation.kind} size"
            )
            for place, level in enumerate(evaluation.levels)
        ]
    facts = {name: value for name, value in ledger.public_facts.items() if name not in _HIDDEN_FACTS}
    return {
        "is_classifier": isinstance(estimator, PrivateConformalClassifier),
        "ledger": ledger,
        "spent": ledger.epsilon(delta, estimator.accountant),
        "groups": [(rows, ledger.epsilon(delta, estimator.accountant, rows=rows)) for rows in GROUP_SIZES],
        "budget_epsilon": epsilon,
        "delta": delta,
        "tracks": tracks,
        "secret_parts": any(isinstance(entry.event, SecretSplitDpEvent) for entry in ledger.entries),
        "budget_picture": inline_svg(budget_figure(ledger, epsilon, delta), "budget", "How the budget was used"),
        "tradeoff_picture": inline_svg(tradeoff_figure(ledger), "tradeoff", "Trade-off curve of the whole release"),
        "attacks": [(x, float(ledger.tradeoff(x))) for x in ATTACKS],
        "certificates": certificates,
        "unit": ledger.unit,
        "verdict": verdict(estimator.certificates_, evaluation, estimator.evaluation_),
        "measured": estimator.evaluation_,
        "nominal": _nominal(estimator),
        "what_if": _what_if(estimator),
        "terms": TERMS,
        "why_below": WHY_BELOW,
        "thresholds": _thresholds(estimator),
        "evaluation": evaluation,
        "size_pictures": sizes,
        "facts": facts,
        "statement": json.dumps(privacy_statement(estimator, study=about.study), indent=1),
        "schema": ledger.public_facts.get("schema"),
        "versions": {name: metadata.version(name) for name in _LIBRARIES} | {"python": platform.python_version()},
    }


def _words_first(guarantee: str) -> str:
    """Why a guarantee holds, the name of the result behind the words."""
    proof = guarantee_of(guarantee).proof
    result, _, words = proof.partition(": ")
    return f"{words[0].upper()}{words[1:]} ({result})" if words else proof


def _nominal(estimator: Any) -> tuple[int, str] | None:
    """The public number of records, or of persons where these are counted; None where it was not declared."""
    terms = estimator.certificates_[0].terms
    return None if terms.n_units is None else (terms.n_units, f"{terms.unit.noun}s")


def _what_if(estimator: Any) -> list[tuple[float, list[tuple[float, Any]]]]:
    """For other budgets: each level and what the plan says about it; from public numbers alone.

    Plans know nothing of groups, nor of persons without ids: such fits have no such table.
    """
    nominal, certificate, unit = _nominal(estimator), estimator.certificates_[0], estimator.ledger_.unit
    if nominal is None or estimator.group_values_ is not None or unit.group > 1:
        return []
    epsilon = float(estimator.epsilon)
    classes = estimator.classes_.tolist() if isinstance(estimator, PrivateConformalClassifier) else None
    planned = plan(
        nominal[0],
        epsilon,
        delta=float(estimator.delta),
        classes=classes,
        n_features=int(estimator.n_features_in_),
        rows_per_person=unit.limit,
    )
    epsilons = [epsilon * times for times in _OTHER_BUDGETS]
    rows = planned.what_if(certificate.guarantee, epsilons, _OTHER_LEVELS)
    return [(e, list(zip(_OTHER_LEVELS, row, strict=True))) for e, row in zip(epsilons, rows, strict=True)]


def _thresholds(estimator: Any) -> list[tuple[str, float, float]]:
    """Group name, level and threshold of every released threshold."""
    levels = [certificate.target for certificate in estimator.certificates_]
    if estimator.group_values_ is None:
        return [("", level, float(t)) for level, t in zip(levels, estimator.threshold_, strict=True)]
    return [
        (str(group), level, float(t))
        for group, row in zip(estimator.group_values_, estimator.threshold_, strict=True)
        for level, t in zip(levels, row, strict=True)
    ]
