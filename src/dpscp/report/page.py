"""Write the report of a fitted estimator as one HTML page."""

import base64
import html
import json
import math
import platform
from collections.abc import Callable, Mapping
from datetime import date
from functools import lru_cache
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpscp._base.assumptions import first_words
from dpscp._base.checks import check_choice
from dpscp._base.format import (
    at_least,
    at_most,
    format_epsilon,
    format_level,
    format_rate,
    html_paragraph,
    html_table,
)
from dpscp.core.evaluation import PrivateEvaluation
from dpscp.data.model_files import open_atomically
from dpscp.guarantees import guarantee_of
from dpscp.guarantees.certificate import Promise, term_text
from dpscp.privacy import SecretSplitDpEvent
from dpscp.privacy.events import parallel_parts
from dpscp.report.figures import PALETTE, inline_svg, monitor_figure
from dpscp.report.language import LANGUAGES, translate_page
from dpscp.report.numbers import GROUP_SIZES, TERMS, Evaluation, nominal_size
from dpscp.report.release import Release
from dpscp.report.statement import part_fractions, privacy_statement
from dpscp.report.verdict import ATTACKS, judge, loss_name

if TYPE_CHECKING:
    from dpscp.deployment.monitoring import CoverageMonitor

_LIBRARIES = ("dpscp", "numpy", "scipy", "scikit-learn", "dp-accounting", "randomgen")
# The schema has its own table.
_HIDDEN_FACTS = ("schema",)
# The answer of each kind of release, singular and plural.
_ANSWERS = {
    "classification": ("set", "sets"),
    "regression": ("interval", "intervals"),
    "multilabel": ("label set", "label sets"),
    "scores": ("threshold", "thresholds"),
    "losses": ("threshold", "thresholds"),
}
# Colors of the short pages in the dark scheme.
_DARK = {"ink": "#e6eaf0", "muted": "#a3adbb", "line": "#3a4350", "soft": "#24405f", "one": "#6aa9ea", "two": "#f0965a"}


def html_report(
    released: Any,
    *,
    evaluation: PrivateEvaluation | None = None,
    title: str | None = None,
    metadata: Mapping[str, str] | None = None,
    study: Mapping[str, Any] | None = None,
    language: str = "en",
) -> str:
    """Write an HTML page about a release.

    The page shows verdict, promises, ledger, certificates, public facts, and what is not protected. It loads no other
    file and runs no script. Needs the extra ``dpscp[report]``.

    Parameters
    ----------
    released : Release, or fitted or loaded estimator
    evaluation : results on labeled records. A private one may be published with the page. One without privacy makes
        the internal edition, with a banner on top.
    title : title of the page (default: the target of the schema).
    metadata : declarations of the author by key: purpose, data, responsible, contact, legal_basis, collection_period,
        recipients. A schema may declare them as well; ``metadata`` comes first.
    study : budget of all releases about these records and what is spent, see ``study_budget``.
    language : "en" or "de". The statement for programs inside the page stays English.

    Returns
    -------
    str
    """
    check_choice("language", language, LANGUAGES)
    content = _collect_content(released, evaluation, study, metadata)
    page = _page_template().render(**content, title=title or _title(released), has_title=title is not None)
    return translate_page(page, language)


def _title(released: Any) -> str:
    """Return the default title of a page: the target of the schema."""
    schema = getattr(released, "schema_", None)
    if schema is None:
        return "Private release"
    return f"Private prediction of {', '.join(schema.target_names)}"


@lru_cache(maxsize=1)
def _page_template() -> Any:
    """Return the template, compiled once in a process because that is slow."""
    try:
        import jinja2
    except ImportError:  # pragma: no cover (the test environment has it)
        raise ImportError(
            "a report needs jinja2 and matplotlib; install them with pip install 'dpscp[report]'"
        ) from None
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
    )
    environment.filters["plain"] = format_value
    environment.filters["spent"] = format_epsilon
    environment.filters["json"] = lambda value: json.dumps(value, indent=1)
    environment.filters["base64"] = lambda text: base64.b64encode(text.encode()).decode()
    environment.filters["words"] = lambda name: str(name).replace("_", " ")
    environment.globals |= {"number": _number, "term": _term, "format_level": format_level, "format_rate": format_rate}
    environment.globals |= {"at_least": at_least, "at_most": at_most, "format_epsilon": format_epsilon}
    environment.globals["left_epsilon"] = lambda left: f"{math.floor(left * 1000) / 1000:g}"
    environment.globals["infinite"] = math.inf
    return environment.get_template("template.html")


def write_report(path: str | PathLike[str], released: Any, **options: Any) -> None:
    """Write ``html_report`` to exactly ``path``; a failure leaves no partial file.

    Parameters
    ----------
    path : str or path
    released, options
        See ``html_report``.
    """
    write_atomically(path, html_report(released, **options).encode())


def write_atomically(path: str | PathLike[str], data: bytes) -> None:
    """Write a whole file, or no file if the write fails."""
    with open_atomically(path) as file:
        file.write(data)


def format_value(value: Any) -> str:
    """Write a value as text: short numbers, and the first items of a list."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {format_value(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        texts = [format_value(v) for v in value[:12]] + (["..."] if len(value) > 12 else [])
        return ", ".join(texts) if texts else "none"
    return str(value)


def _number(name: str, value: Any, text: str | Callable[[Any], str] = format_value) -> Any:
    """Write a number as an element with its exact value, for checks of the page.

    ``text`` is a format, or a function that writes the value as text.
    """
    from markupsafe import Markup

    write = text if callable(text) else (lambda v: format(v, text)) if math.isfinite(value) else format_value
    return Markup('<data data-name="{}" value="{}">{}</data>').format(name, repr(value), write(value))


def _term(place: int, name: str, value: Any) -> Any:
    """Write a term of a certificate; levels and bounds are rounded to the safe side."""
    if isinstance(value, str):
        return value
    promised = name.endswith(("_level", "_bound", "_confidence"))
    return _number(
        f"certificate.{place}.terms.{name}", value, (lambda v: term_text(name, v)) if promised else format_value
    )


def _collect_content(
    released: Any,
    evaluation: PrivateEvaluation | None,
    study: Mapping[str, Any] | None,
    metadata: Mapping[str, str] | None,
) -> dict[str, Any]:
    release: Release = released.as_release()
    ledger, delta, kind = release.ledger, release.budget.delta, release.kind
    spent = ledger.epsilon(delta, release.accountant)
    exact = evaluation if isinstance(evaluation, Evaluation) else None
    measured = release.evaluation if exact or evaluation is None else evaluation
    schema = getattr(released, "schema_", None)
    return {
        "kind": kind,
        "is_risk": release.certificate.promise is Promise.RISK,
        "loss": loss_name(release),
        "answers": _ANSWERS[kind],
        "release": release,
        "ledger": ledger,
        "first_words": first_words(ledger.assumptions),
        "spent": spent,
        "groups": [(rows, ledger.epsilon(delta, release.accountant, rows=rows)) for rows in GROUP_SIZES],
        "budget_epsilon": release.budget.epsilon,
        "delta": delta,
        "is_divided": any(len(parallel_parts(entry.event)) > 1 for entry in ledger.entries),
        "secret_parts": any(isinstance(entry.event, SecretSplitDpEvent) for entry in ledger.entries),
        "stages": [
            (stage, part)
            for entry in ledger.entries
            for (stage, _), part in zip(entry.stages, part_fractions(entry.event), strict=True)
        ],
        "attacks": [(x, float(ledger.tradeoff(x))) for x in ATTACKS],
        "certificates": release.certificates,
        "explain_proof": _explain_proof,
        "unit": ledger.unit,
        "verdict": judge(released, evaluation),
        "measured": measured,
        "nominal": nominal_size(release),
        "terms": TERMS,
        "thresholds": _list_thresholds(release),
        "evaluation": exact,
        "facts": {name: value for name, value in ledger.public_facts.items() if name not in _HIDDEN_FACTS},
        "statement": privacy_statement(released, study=study, metadata=metadata),
        "study": study,
        "schema": None if schema is None else schema.to_dict(),
        "today": date.today().isoformat(),
        "versions": {name: version(name) for name in _LIBRARIES} | {"python": platform.python_version()},
    }


def _explain_proof(guarantee: str) -> str:
    """Return the reason why a guarantee holds, followed by the name of the result."""
    proof = guarantee_of(guarantee).proof
    result, _, words = proof.partition(": ")
    return f"{words[0].upper()}{words[1:]} ({result})" if words else proof


def _list_thresholds(release: Release) -> list[tuple[str, float, float]]:
    """List group name, level and value of every released threshold."""
    groups = [""] if release.group_values is None else list(map(str, release.group_values))
    return [
        (group, certificate.target, float(value))
        for group, row in zip(groups, release.thresholds, strict=True)
        for certificate, value in zip(release.certificates, row, strict=True)
    ]


def monitor_page(monitor: "CoverageMonitor") -> str:
    """Return an HTML page with the state of a monitor, without private values."""
    budget, limit = monitor.budget, monitor.alarm_limit
    rows = [
        [name, f"{value:.2f}", "yes" if value >= limit else "no"]
        for name, value in zip(monitor.batches, monitor.evidence, strict=True)
    ]
    texts = [
        f"The alarm is raised when the evidence reaches {limit:.2f}. If every record is missed with probability at "
        f"most {monitor.tolerated:.3g}, it is ever raised with probability at most {monitor.level:g}, however often "
        "you look.",
        f"Each batch released noisy counts: epsilon {format_epsilon(budget.epsilon)} at delta {budget.delta:g} for "
        "each of its records, or persons. Persons of different batches pay for one batch each."
        + (" NOT private: the noise came from a seed." if monitor.is_seeded else ""),
        "After an alarm, find out what changed. Then calibrate again on new records: dpscp recalibrate.",
    ]
    verdict = "Alarm: coverage fell below the tolerated level." if monitor.alarm else "No alarm."
    label = "Evidence of a change after each batch"
    if monitor.follow is not None:
        runs = monitor.long_run()
        texts += [str(run) for run in (runs if isinstance(runs, tuple) else (runs,))]
        label += ", coverage of each batch and the thresholds in force"
    body = [
        html_paragraph(verdict),
        f"<figure>{inline_svg(monitor_figure(monitor), 'monitor', label)}</figure>",
        html_table(["batch", "log evidence", "at or above the alarm"], rows),
        *map(html_paragraph, texts),
    ]
    return _short_page("Monitor of a release", "".join(body))


def _short_page(title: str, body: str) -> str:
    """Return a page in the light or the dark scheme, without the template."""
    colors, dark = (";".join(f"--{name}:{color}" for name, color in each.items()) for each in (PALETTE, _DARK))
    style = (
        f":root{{color-scheme:light dark;{colors};--page:#fff}}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark};--page:#12161c}}}}"
        "body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:60rem;"
        "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}th,td{text-align:left;"
        "padding:.3rem 1rem .3rem 0;border-bottom:1px solid var(--line)}figure{margin:0;overflow-x:auto}"
        "svg{width:100%;height:auto;min-width:36rem}"
        "pre{white-space:pre-wrap;overflow-wrap:anywhere}"
    )
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{html.escape(title)}</title><style>{style}</style>"
    body = f"<h1>{html.escape(title)}</h1>{body}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'
