"""Make a machine-readable privacy statement of a release.

It contains the promise, its mechanisms, and what is not protected. Its fields answer the questions of NIST SP 800-226
(parameters, unit of privacy, algorithms, trust model, side channels, security, data collection) and those that
registries of deployments ask. Everything in it is part of the release or declared; nothing is computed from records.
``statement.schema.json`` beside this file is its JSON Schema.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata as metadata_of
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent

from dpscp._base.assumptions import Assumption, first_words
from dpscp._base.checks import check_choice
from dpscp._base.format import at_most, format_epsilon, format_level
from dpscp.core.tasks import FOUND_RANGE
from dpscp.data.schema_text import METADATA_KEYS, check_metadata
from dpscp.guarantees import guarantee_of
from dpscp.guarantees.certificate import Certificate
from dpscp.privacy import Ledger, SecretSplitDpEvent
from dpscp.privacy.accounting import as_accountant
from dpscp.privacy.events import composed_parts, describe_event, event_to_dict, parallel_parts
from dpscp.privacy.tradeoff import gdp_mu
from dpscp.report.language import LANGUAGES, translate_markdown
from dpscp.report.release import Release
from dpscp.report.verdict import ATTACKS, TITLES, judge

FORMAT, VERSION = "dpscp-statement", 1
NOT_DECLARED = "not declared"
SCHEMA_FILE = Path(__file__).with_name("statement.schema.json")

DECLARED, COUNTED, FOUND = "declared, or set by the library", "counted", "found in the records"
RELEASED = "released with noise"

_COUNTS = ("n_records", "n_persons")
_NOISY = ("released_sizes", FOUND_RANGE)

_NAMES = {
    "gaussian": "Gaussian noise on a sum",
    "discrete_gaussian": "discrete Gaussian noise on an integer count",
    "approximate_dp": "mechanism known by its (epsilon, delta) alone",
    "non_private": "no privacy",
    "no_op": "nothing",
}

# Descriptions of the kinds of releases.
_TRAINED = "{} at level {{}}, trained and calibrated by one mechanism."
_KINDS = {
    "classification": _TRAINED.format("A classification model with prediction sets"),
    "regression": _TRAINED.format("A regression model with prediction intervals"),
    "multilabel": _TRAINED.format("A multilabel model with label sets"),
    "scores": "A threshold of scores at level {}; the model behind the scores is not in this release.",
    "losses": "A threshold of losses at level {}; the model behind the losses is not in this release.",
}

_TRUST = (
    "One curator holds the records, runs the library and is trusted with them. Everybody else sees the release and may "
    "know everything but one protected unit."
)
_SIDE_CHANNELS = (
    "time, memory and energy of a run",
    "memory of the process, swap files, crash dumps and logs of other software",
    "that a fit refused its records, by an error (no message carries a value of a record)",
    "floating-point Gaussian noise in training, up to the errors that docs/floating_point.md bounds",
    "secrecy of random numbers on the machine that draws them",
)
_OUTSIDE = (
    "storage of and access to the records before and after the release",
    "how the records were collected, and who saw them then",
    "other releases about the same records that no shared budget store knows",
    "settings that somebody chose by looking at the records",
    "what the release teaches about a population, and so about its members, whether they took part or not",
)


def privacy_statement(
    released: Any, *, study: Mapping[str, Any] | None = None, metadata: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the privacy statement of a release, as JSON values.

    Parameters
    ----------
    released : Release, or fitted or loaded estimator
    study : budget of all releases about these records, see ``dpscp.report.study_budget``; None if unknown.
    metadata : declarations by key, such as purpose and responsible. They replace declarations of the schema of a fit.

    Returns
    -------
    dict, as ``statement.schema.json`` describes it; epsilons are rounded up, and None stands for infinity.
    """
    release: Release = released.as_release()
    ledger, certificates, budget = release.ledger, release.certificates, release.budget
    accountant, delta = as_accountant(release.accountant), budget.delta
    spent = ledger.epsilon(delta, accountant)
    found = None if release.evaluation is None else release.evaluation.to_dict()
    declared = {**release.declared, **check_metadata(metadata or {})}
    composition, parts = _composition(ledger)
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_with": {name: metadata_of.version(name) for name in ("dpscp", "dp-accounting", "numpy", "scipy")},
        "declared": {name: declared.get(name, NOT_DECLARED) for name in METADATA_KEYS},
        "release": _release(release),
        "verdict": judge(release).to_dict(),
        "is_private": ledger.is_private,
        "not_private_because": list(ledger.not_private_because),
        "privacy": _privacy(release, spent),
        "accountant": {
            "name": accountant.name,
            "library": "dpscp over dp-accounting",
            "version": metadata_of.version("dp-accounting"),
            "composition": composition,
            "parts": parts,
        },
        "mechanisms": list(_mechanisms(ledger, delta)),
        "public": list(_public_facts(ledger, _column_names(released))),
        "trust_model": {"kind": "trusted curator (central model)", "words": _TRUST},
        "assumptions": [assumption.to_dict() for assumption in ledger.assumptions],
        "side_channels_not_protected": list(_SIDE_CHANNELS),
        "not_covered": list(_OUTSIDE),
        "study_budget": None if study is None else _finite(study),
        "thresholds": _finite(release.thresholds.tolist()),
        "coverage": [_coverage(certificate) for certificate in certificates],
        "evaluation": found and {name: value for name, value in found.items() if name != "ledger"},
        "checks": _checks(ledger, certificates, release.evaluation, is_within=spent <= budget.epsilon),
    }


def statement_schema() -> dict[str, Any]:
    """Return the JSON Schema of a privacy statement.

    Returns
    -------
    dict
        A schema of draft 2020-12, as JSON values.
    """
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return found


def statement_markdown(statement: Mapping[str, Any], language: str = "en") -> str:
    """Return a privacy statement as Markdown, for a model card.

    Parameters
    ----------
    statement : mapping
        The result of ``privacy_statement``.
    language : str
        ``"en"`` or ``"de"``.

    Returns
    -------
    str
    """
    privacy, accountant, study = statement["privacy"], statement["accountant"], statement["study_budget"]
    assumed = tuple(map(Assumption.from_dict, statement["assumptions"]))
    first = [*first_words(assumed), statement["release"]["words"]]
    if not statement["is_private"]:
        first.append(f"**NOT private**: {'; '.join(statement['not_private_because'])}.")
    released, attacks = statement["release"], privacy["attacks"]
    answers = {
        **{name.replace("_", " "): text for name, text in statement["declared"].items()},
        "date of the release": f"{released['date']}, dpscp {released['fitted_with']}",
        "SHA-256 of the release": released["sha256"],
        "SHA-256 of the model": released["model_sha256"] or "not part of this release",
        "guarantee": f"{privacy['definition']}: epsilon {_word(privacy['epsilon'])} at delta {privacy['delta']:g}",
        "as Gaussian differential privacy": f"mu {_word(privacy['mu'])} at this delta",
        "best attacker": "; ".join(
            f"finds at most {at_most(one['found_at_most'])} with {format_level(one['false_alarms'])} false alarms"
            for one in attacks
        ),
        "protected unit": privacy["unit"]["protects"],
        "neighbors": privacy["neighbor_relation"]["words"],
        "replacing one unit": f"epsilon {_word(privacy['replace_one']['epsilon'])}, same delta",
        "accountant": f"{accountant['name']}, dp-accounting {accountant['version']}",
        "composition": f"{accountant['composition']}. {accountant['parts']}",
        "trust model": statement["trust_model"]["words"],
    }
    spent = study and (
        f"epsilon {_word(study['spent'])} of {study['epsilon']:g} at delta {study['delta']:g}, in {study['fits']} fits"
    )
    noise = ("stage", "mechanism", "releases", "sampling_rate", "noise_to_sensitivity", "alone")
    facts = [{**fact, "value": _short(fact["value"])} for fact in statement["public"]]
    sections = {
        "Privacy statement": [
            *(line for text in first for line in (text, "")),
            *_table(["question", "answer"], answers.items()),
        ],
        "Verdict": [
            f"- **{title}**: {statement['verdict'][name]['grade']}. {statement['verdict'][name]['words']}"
            for name, title in TITLES.items()
        ],
        "Mechanisms": _table(noise, [[found[name] for name in noise] for found in statement["mechanisms"]]),
        "Public facts": _table(["fact", "value", "source"], map(dict.values, facts)),
        "Assumptions about code of the caller": _bullets(found["sentence"] for found in statement["assumptions"]),
        "Side channels that are not protected": _bullets(statement["side_channels_not_protected"]),
        "Not covered by this statement": _bullets(statement["not_covered"]),
        "Study budget": [] if spent is None else [f"- {spent}"],
        "Checks": _bullets(f"{found['check']}: {found['result']}" for found in statement["checks"]),
    }
    lines = [line for title, texts in sections.items() if texts for line in (f"## {title}", "", *texts, "")]
    return translate_markdown("\n".join(lines)[1:], check_choice("language", language, LANGUAGES))


def _above(epsilon: float) -> float | None:
    """An epsilon rounded up; None for infinity, which JSON cannot write."""
    return float(format_epsilon(epsilon)) if math.isfinite(epsilon) else None


def _finite(value: Any) -> Any:
    """Return a JSON value: lists for tuples, None for infinity and NaN."""
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _release(release: Release) -> dict[str, Any]:
    """Return the description of the release and its task."""
    levels = [certificate.target for certificate in release.certificates]
    model = [] if release.kind in ("scores", "losses") else ["model parameters"]
    artifacts = [*model, "thresholds", "ledger of what was spent", "certificates"]
    words = _KINDS[release.kind].format(", ".join(f"{level:g}" for level in levels))
    return {
        "task": release.kind,
        "levels": levels,
        "artifacts": artifacts,
        "words": words,
        "sha256": release.digest(),
        "model_sha256": release.model_sha256,
        "date": release.ledger.public_facts.get("date"),
        "fitted_with": release.ledger.public_facts.get("dpscp"),
    }


def _privacy(release: Release, spent: float) -> dict[str, Any]:
    """Return the promise of privacy."""
    ledger, delta, accountant = release.ledger, release.budget.delta, as_accountant(release.accountant)
    return {
        "definition": "(epsilon, delta)-differential privacy",
        "epsilon": _above(spent),
        "delta": delta,
        "mu": _mu(spent, delta),
        "attacks": _attacks(ledger),
        "budget": {"epsilon": release.budget.epsilon, "delta": delta},
        "unit": {"kind": ledger.unit.kind, "protects": ledger.unit.protected, **ledger.unit.limit_facts},
        "neighbor_relation": {"relation": f"{ledger.relation} unit", "words": ledger.neighbors},
        "replace_one": {
            "epsilon": _above(accountant.replacement_epsilon(ledger.event, delta, ledger.rows)),
            "delta": delta,
            "words": "replacing one unit by another is removing one and adding one: two chained steps",
        },
    }


def _mu(epsilon: float, delta: float) -> float | None:
    """Return the Gaussian-DP mu of this epsilon and delta, rounded up, or None.

    None means that there is no privacy.
    """
    return math.ceil(1000 * gdp_mu(epsilon, delta)) / 1000 if 0 < epsilon < math.inf else None if epsilon else 0.0


def _attacks(ledger: Ledger) -> list[dict[str, float]]:
    """Return the share of members that the best attacker finds, rounded up.

    There is one share for each false-alarm rate.
    """
    found = [(rate, 1 - float(ledger.tradeoff(rate))) for rate in ATTACKS]
    return [{"false_alarms": rate, "found_at_most": min(1.0, math.ceil(1e4 * share) / 1e4)} for rate, share in found]


def _composition(ledger: Ledger) -> tuple[str, str]:
    """Explain how the costs of steps add up to the total epsilon.

    Also explains why the epsilon of a part may exceed the total.
    """
    if any(isinstance(entry.event, SecretSplitDpEvent) for entry in ledger.entries):
        return (
            "disjoint parts drawn by secret coins, the mixture counts",
            "The epsilon of a part would apply if an attacker knew that a record is in it. A secret coin decides, and "
            "nobody knows it, so the total is below the epsilon of its parts.",
        )
    if any(len(parallel_parts(entry.event)) > 1 for entry in ledger.entries):
        words = "Each record is in one part only. The total is the larger cost, not the sum."
        return "disjoint parts, the worst one counts", words
    words = "The epsilons of the steps do not add up. The total is smaller than their sum."
    return "adaptive composition of all steps", words


def _mechanisms(ledger: Ledger, delta: float) -> Iterator[dict[str, Any]]:
    """Every mechanism of every stage, with its parameters."""
    for entry in ledger.entries:
        for place, fraction in enumerate(part_fractions(entry.event)):
            for stage, event in entry.components_of(place):
                for piece in composed_parts(event):
                    yield {
                        "stage": stage,
                        "part_of_records": fraction,
                        **_described(piece),
                        "alone": _above(ledger.cost_of(piece, delta)),
                    }


def part_fractions(event: DpEvent) -> list[float | None]:
    """The share of the records in each secretly drawn part.

    None means all records, or a part of unknown size.
    """
    if not isinstance(event, SecretSplitDpEvent):
        return [None] * len(parallel_parts(event))
    inner = part_fractions(event.held_out) if len(parallel_parts(event)) > 2 else [1.0]
    return [1 - event.fraction, *(event.fraction * (part or 0.0) for part in inner)]


def _described(event: DpEvent) -> dict[str, Any]:
    """One mechanism: name, runs, share of the records, and noise."""
    written = event_to_dict(event)
    inner, releases, rate = written, 1, 1.0
    while inner["type"] in ("repeated", "poisson_sampled"):
        releases *= inner.get("count", 1)
        rate *= inner.get("sampling_rate", 1.0)
        inner = inner["event"]
    sensitivity = inner.get("sensitivity", 1)
    noise = inner["sigma"] / sensitivity if "sigma" in inner else inner.get("noise_multiplier")
    return {
        "mechanism": _NAMES.get(inner["type"], inner["type"]),
        "words": describe_event(event),
        "releases": releases,
        "sampling_rate": rate,
        "sensitivity": sensitivity,
        "noise_to_sensitivity": noise,
        "event": _finite(written),
    }


def _column_names(released: Any) -> Sequence[str] | None:
    """Return the names of the model's columns; None where a release has none."""
    schema = getattr(released, "schema_", None)
    names = getattr(released, "feature_names_in_", None) if schema is None else schema.feature_names
    return None if names is None else [str(name) for name in names]


def _name_columns(used: Any, names: Sequence[str]) -> Any:
    """Return the names of columns in place of their numbers.

    Several targets have columns of their own.
    """
    if isinstance(used, int):
        return names[used]
    return None if used is None else [_name_columns(each, names) for each in used]


def _public_facts(ledger: Ledger, names: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Return each public fact and its origin."""
    for name, value in ledger.public_facts.items():
        source = DECLARED
        if name in ledger.taken_from_data:
            source = COUNTED if name in _COUNTS else FOUND
        elif name in (*_NOISY, *ledger.found_privately):
            source = RELEASED
        shown = value if names is None or name != "features_used" else _name_columns(value, names)
        yield {"name": name, "value": _finite(shown), "source": source}


def _coverage(certificate: Any) -> dict[str, Any]:
    """Return the numbers of a certificate; the verdict has them in words."""
    level, confidence = certificate.terms.release_level, certificate.terms.release_confidence
    return {
        "promise": str(certificate.promise),
        "target": certificate.target,
        "proven": certificate.coverage,
        "is_certified": certificate.is_certified,
        "is_vacuous": certificate.is_vacuous,
        "guarantee": certificate.guarantee,
        "proof": guarantee_of(certificate.guarantee).proof,
        "about": certificate.about,
        "one_release": None if not level else {"level": level, "confidence": confidence},
        "assumptions": [assumption.to_dict() for assumption in certificate.assumptions],
    }


def _checks(
    ledger: Ledger, certificates: Sequence[Certificate], measured: Any, *, is_within: bool
) -> list[dict[str, str]]:
    """Return the checks and their results."""
    coverage = "not part of this release"
    if measured is not None:
        low, high = measured.coverage.interval
        coverage = f"between {low:.3f} and {high:.3f}, with confidence {measured.confidence:g}"
    checks = {
        "the ledger, accounted for again, lies within the budget": is_within,
        "every step has privacy": not ledger.non_private_stages,
        "noise came from the operating system": "no, from a seed" if ledger.seeded else True,
        "labels were declared": "classes" not in ledger.taken_from_data,
        "coverage was measured privately on records of its own": coverage,
        **{check.question: check.passed for check in certificates[0].checks},
    }
    words = {"True": "yes", "False": "no"}
    return [{"check": name, "result": words.get(str(result), str(result))} for name, result in checks.items()]


def _bullets(texts: Iterable[str]) -> list[str]:
    return [f"- {text}" for text in texts] or ["- none"]


def _table(titles: Sequence[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Return a table in Markdown; a bar in a cell is escaped."""
    lines = [[title.replace("_", " ") for title in titles], ["---"] * len(titles), *rows]
    return [
        "| " + " | ".join(_word(cell).replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    ]


def _word(value: Any) -> str:
    if value is None:
        return "infinite"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: Any) -> str:
    """A fact as a short text; the JSON form has the whole value."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
