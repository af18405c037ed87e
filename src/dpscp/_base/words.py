"""Sentences with places to fill, in English, and their translations from one table."""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpscp._base.checks import check_choice

LANGUAGES = ("en", "de")


@dataclass(frozen=True)
class Sentence:
    """Hold a sentence with places in braces, and the words that fill them."""

    pattern: str
    values: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, pattern: str, **values: Any) -> "Sentence":
        """Return a sentence whose places have these words."""
        return cls(pattern, tuple((name, str(value)) for name, value in values.items()))

    def say(self, language: str = "en") -> str:
        """Return the sentence in a language."""
        return translate(self.pattern, language).format(**{n: translate(v, language) for n, v in self.values})


def translate(text: str, language: str = "en") -> str:
    """Return a text in a language; a text that the table lacks stays English.

    >>> translate("privacy strength", "de"), translate("person A", "de")
    ('Stärke des Schutzes', 'person A')
    """
    check_choice("language", language, LANGUAGES)
    return text if language == "en" else _table(language).get(text, text)


@lru_cache(maxsize=1)
def _table(language: str) -> dict[str, str]:
    """Return the sentences of a language by the English ones."""
    with Path(__file__).with_name(f"{language}.toml").open("rb") as file:
        return tomllib.load(file)
