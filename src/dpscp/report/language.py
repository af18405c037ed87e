"""Write reports and statements in another language, from one table.

The table of sentences is ``LANGUAGE.toml`` beside this file. A key of the table is an English text of a page, with
gaps. The text in ``{}`` is translated too, ``{#}`` is a number, and ``{=}`` a name that does not change. The longest
text in the table is replaced first; other text stays English.
"""

import re
import tomllib
from functools import cache, lru_cache
from pathlib import Path

LANGUAGES = ("en", "de")

_FOLDER = Path(__file__).parent
_GAPS = re.compile(r"(\{[#=]?\})")
# A gap contains a part of one sentence only.
_WORDS = r"((?:(?![.;]\s).)+?)"
_KINDS = {"{}": _WORDS, "{=}": _WORDS, "{#}": r"((?:<[^>]*>)*[-+\d.,%e]+(?:<[^>]*>)*)"}
# Where to divide a text that is not in the table as a whole: at sentences first, at single tags last.
_DIVISIONS = tuple(
    map(re.compile, (r"((?<=[.!?])\s+|(?<=[.!?])</\w+>\s+)", r"(;\s+)", r"(:\s+)", r"(,\s+)", r"(<[^>]*>)"))
)
_OUTER_TAGS = re.compile(r"((?:<[^>]*>)*)(.*?)((?:</?[^>]*>)*)", re.DOTALL)
# The separators of the texts of a page: code and styles, and tags of blocks.
_TAGS = re.compile(
    r"(<style>.*?</style>|<pre>.*?</pre>|<code>.*?</code>|</?(?!(?:a|b|data|i|small)\b)[a-z][^>]*>)", re.DOTALL
)
# A number in English notation; not a version, date or source.
_NUMBER = re.compile(r"(?<![\w.,:])\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w|[.,]\d)")
_SWAPPED = str.maketrans(",.", ".,")
_LABELS = re.compile(r'(?<= aria-label=")[^"]*|(?<= data-of=")[^"]*')


@cache
def _table(language: str) -> tuple[dict[str, str], tuple[tuple[re.Pattern[str], tuple[str, ...], str], ...]]:
    """Return the texts of a table, and its patterns with gaps, the longest first.

    Each pattern comes with its gaps and its translation.
    """
    texts: dict[str, str] = tomllib.loads((_FOLDER / f"{language}.toml").read_text(encoding="utf-8"))
    patterns = []
    for key in sorted(texts, key=lambda key: -len(key)):
        parts = _GAPS.split(key)
        if len(parts) > 1:
            pattern = "".join(_KINDS.get(part) or re.escape(part) for part in parts)
            patterns.append((re.compile(pattern, re.DOTALL), tuple(parts[1::2]), texts[key]))
    return texts, tuple(patterns)


@lru_cache(maxsize=4096)
def translate(text: str, language: str) -> str:
    """Return a text in a language.

    Parameters
    ----------
    text : an English text, with or without tags of HTML.
    language : one of ``LANGUAGES``.

    Returns
    -------
    str
    """
    words = text.strip()
    if language == "en" or not words:
        return text
    before, after = text[: text.index(words)], text[text.index(words) + len(words) :]
    return f"{before}{_translate(words, language)}{after}"


def _translate(text: str, language: str) -> str:
    texts, patterns = _table(language)
    if text in texts:
        return texts[text]
    for pattern, gaps, target in patterns:
        found = pattern.fullmatch(text)
        if found is not None:
            pairs = zip(gaps, found.groups(), strict=True)
            return target.format(*(value if gap == "{=}" else translate(value, language) for gap, value in pairs))
    tags = _OUTER_TAGS.fullmatch(text)
    assert tags is not None  # each part may be empty
    if tags[2] != text:
        return tags[1] + translate(tags[2], language) + tags[3]
    for division in _DIVISIONS:
        parts = division.split(text, maxsplit=1)
        if len(parts) > 1:
            return "".join(part if place % 2 else translate(part, language) for place, part in enumerate(parts))
    return text


def _write_numbers(text: str) -> str:
    """Return a text with a decimal comma and points between thousands.

    Tags and JSON values do not change.
    """
    parts = re.split(r"(<[^>]*>)", text)
    parts[::2] = [
        part if re.search(r'["\[{]', part) else _NUMBER.sub(lambda found: found[0].translate(_SWAPPED), part)
        for part in parts[::2]
    ]
    return "".join(parts)


def translate_page(page: str, language: str) -> str:
    """Return an HTML page in a language.

    The text after a tag with ``translate="no"`` does not change.
    """
    if language == "en":
        return page
    pieces = _TAGS.split(page.replace('<html lang="en">', f'<html lang="{language}">'))
    for place, text in enumerate(pieces):
        if place % 2:
            pieces[place] = _LABELS.sub(lambda found: translate(found[0], language), text)
        elif 'translate="no"' not in pieces[place - 1]:
            pieces[place] = _write_numbers(translate(text.replace("&#39;", "'").replace("&#34;", '"'), language))
    return "".join(pieces)


def translate_markdown(text: str, language: str) -> str:
    """Return a statement in Markdown in a language, line by line and cell by cell."""
    if language == "en":
        return text
    divided = (re.split(r"(^#+ |^- |^\| | \| | \|$)", line) for line in text.split("\n"))
    return "\n".join("".join(_write_numbers(translate(part, language)) for part in parts) for parts in divided)
