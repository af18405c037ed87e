"""Write a privacy statement for a registry of deployments and for a model hub.

The registry is that of OpenDP (registry.opendp.org, ``schemas/deployments-schema.yaml`` of its data). Fields that a
release cannot fill are marked as open.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpscp._base.format import at_most
from dpscp.report.language import translate_markdown
from dpscp.report.statement import NOT_DECLARED, statement_markdown

OPEN = "OPEN: {}"
_PIPELINES = {"classification": "tabular-classification", "regression": "tabular-regression"}
_POST_PROCESSING = "Predictions, sets and all pages are computed from the release alone."


def registry_entry(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Return the draft of an entry of the OpenDP deployments registry.

    Parameters
    ----------
    statement : mapping
        The result of ``privacy_statement``.

    Returns
    -------
    dict
        All fields that a statement answers. Other fields begin with ``OPEN`` and describe what to write.

    Raises
    ------
    ValueError
        For a release that is not private.
    """
    if not statement["is_private"]:
        reasons = "; ".join(statement["not_private_because"])
        raise ValueError(f"the release is not private: {reasons}. Do not register it")
    mechanisms = dict.fromkeys(f"{one['stage']}: {one['words']}" for one in statement["mechanisms"])
    made = ", ".join(f"{name} {version}" for name, version in statement["made_with"].items())
    return {
        "url_slug": OPEN.format("a short name for the address"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": _basic(statement["declared"], statement["release"]),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": OPEN.format("which records could have been in the table"),
                "unprotected_quantities": _unprotected(statement["public"]),
            },
            "privacy_loss": _privacy_loss(statement["privacy"]),
            "deployment_model": {
                "model_name": "Central",
                "actors": statement["trust_model"]["words"],
                "release_type": "One release",
                "release_type_details": OPEN.format("further releases that are planned on these records"),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": _POST_PROCESSING,
                "composition": f"{statement['accountant']['composition']}. {statement['accountant']['parts']}",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": OPEN.format("what was learned from the records before"),
                "mechanisms": f"{'; '.join(mechanisms)}. {made}",
                "justification": OPEN.format("why these parameters were chosen"),
            },
            "administrative": {
                "sources": f"SHA-256 of the release: {statement['release']['sha256']}",
                "registry_authors": [OPEN.format("who writes this entry")],
            },
        },
    }


def _basic(declared: Mapping[str, str], release: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about the release: name, author and purpose."""
    has_model = release["task"] not in ("scores", "losses")
    return {
        "name": _declared(declared, "data", "the name of the data product"),
        "data_curators": [_declared(declared, "responsible", "who publishes the release")],
        "intended_use": _declared(declared, "purpose", "the intended use"),
        "data_product_type": "Machine learning model" if has_model else "Summary statistics",
        "data_product_region": OPEN.format("the region that the records describe"),
        "description": release["words"],
        "publication_date": release["date"] or OPEN.format("the date, YYYY-MM-DD"),
    }


def _unprotected(public: Sequence[Mapping[str, Any]]) -> str:
    """List the facts that were computed from the records without noise."""
    exact = [fact["name"] for fact in public if fact["source"] in ("counted", "found in the records")]
    return f"Computed without noise: {', '.join(exact) or 'nothing'}."


def _privacy_loss(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unit and the parameters of privacy."""
    found = [f"{at_most(one['found_at_most'])} at {one['false_alarms']:.0%} false alarms" for one in privacy["attacks"]]
    return {
        "privacy_unit": privacy["unit"]["kind"],
        "privacy_unit_details": privacy["neighbor_relation"]["words"],
        "privacy_parameters": {"epsilon": privacy["epsilon"], "delta": privacy["delta"]},
        "privacy_parameters_details": (
            f"mu of Gaussian DP: {privacy['mu']}. The best attacker finds at most {', '.join(found)}."
        ),
    }


def _declared(declared: Mapping[str, str], name: str, meaning: str) -> str:
    return OPEN.format(meaning) if declared[name] == NOT_DECLARED else declared[name]


def registry_yaml(statement: Mapping[str, Any]) -> str:
    """Return ``registry_entry`` as YAML.

    Parameters
    ----------
    statement : mapping

    Returns
    -------
    str
    """
    return "\n".join([*_yaml_lines(registry_entry(statement)), ""])


def model_card(statement: Mapping[str, Any], language: str = "en") -> str:
    """Return a model card for Hugging Face: its header, and the statement as Markdown.

    Parameters
    ----------
    statement : mapping
    language : str
        ``"en"`` or ``"de"``.

    Returns
    -------
    str
    """
    release = statement["release"]
    header: dict[str, Any] = {"library_name": "dpscp", "tags": ["differential-privacy", "conformal-prediction"]}
    if release["task"] in _PIPELINES:
        header["pipeline_tag"] = _PIPELINES[release["task"]]
    words = translate_markdown(release["words"], language)
    title = f"# {words.rpartition(', t')[0] or words.partition(';')[0]}"
    return "\n".join(["---", *_yaml_lines(header), "---", "", title, "", f"#{statement_markdown(statement, language)}"])


def _yaml_lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping in YAML.

    Texts are written as in JSON, which YAML contains.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {_yaml_value(item)}" for item in value)
        else:
            yield f"{indent}{name}: {_yaml_value(value)}"


def _yaml_value(value: Any) -> str:
    """Return a value in YAML, where an exponent needs a decimal point before it."""
    text = json.dumps(value, ensure_ascii=False)
    is_short = isinstance(value, float) and "e" in text and "." not in text
    return text.replace("e", ".0e") if is_short else text
