"""For the API pages: turns the library's NumPy docstrings into Markdown, with a table for each section."""

import re
from collections.abc import Iterator
from typing import Any

import griffe

_ENTRY = re.compile(r"^(\S[^:]*?) : (.*)$")
_LABEL = re.compile(r"^(Privacy|Assumes|Raises|Paper|Theory): ")
# Sections whose entries have a name. Elsewhere ("Returns", "Raises") a line without a colon is a type.
_NAMED = {"Parameters", "Attributes"}


def _paragraph(lines: list[str]) -> str:
    text = re.sub(r"``([^`]+)``", r"`\1`", " ".join(line.strip() for line in lines if line.strip()))
    return text.replace("|", "\\|")


def _code(names: str) -> str:
    return ", ".join(f"`{name.strip()}`" for name in names.split(",")) if names else ""


def _split_entry(header: str, body: list[str], named: bool) -> tuple[str, str, str]:
    """Name, type and description of an entry.

    A first line that goes on in the body, or holds the end of a sentence, is the beginning of the description.
    """
    match = _ENTRY.match(header)
    name, kind = (match[1], match[2]) if match else ((header, "") if named else ("", header))
    words = [line for line in body if line.strip()]
    goes_on = bool(words) and words[0].strip()[0].islower()
    if kind.endswith(".") or ". " in kind or kind.startswith("see ") or goes_on:
        return name, "", _paragraph([kind, *words])
    return name, _paragraph([kind]), _paragraph(words)


def _table(title: str, lines: list[str]) -> Iterator[str]:
    """Rows of a section whose entries start at the margin and whose descriptions are indented."""
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.strip() and not line.startswith(" "):
            entries.append((line.strip(), []))
        elif entries:
            entries[-1][1].append(line)
    rows = [_split_entry(header, body, title in _NAMED) for header, body in entries]
    yield from (f"**{title}**", "")
    if any(name for name, _, _ in rows):
        yield from ("| name | type | description |", "|---|---|---|")
        yield from (f"| {_code(name)} | {kind} | {text} |" for name, kind, text in rows)
    else:
        yield from ("| type | description |", "|---|---|")
        yield from (f"| {kind} | {text} |" for _, kind, text in rows)
    yield ""


def _section_end(lines: list[str], start: int) -> int:
    """Index after the last line of a section: the next section, example, or paragraph at the margin without a colon."""
    for place in range(start, len(lines)):
        line, before = lines[place], lines[place - 1].strip()
        if place > start and not before and line.strip() and not line.startswith(" ") and not _ENTRY.match(line):
            return place
    return len(lines)


def to_markdown(text: str) -> str:
    """Underlined sections become tables, doctests code blocks, and labels ("Privacy:") bold words."""
    lines, out, place = text.splitlines(), [], 0
    while place < len(lines):
        line = lines[place]
        following = lines[place + 1].strip() if place + 1 < len(lines) else ""
        if line.strip() and len(following) > 2 and set(following) == {"-"}:
            end = _section_end(lines, place + 2)
            if line.strip() == "Examples":
                out += ["**Examples**", ""]
                place += 2
                continue
            out += _table(line.strip(), lines[place + 2 : end])
            place = end
        elif line.lstrip().startswith(">>>"):
            out.append("```pycon")
            while place < len(lines) and lines[place].strip():
                out.append(lines[place].strip() if lines[place].lstrip().startswith(">>>") else lines[place].rstrip())
                place += 1
            out += ["```", ""]
        else:
            out.append(_LABEL.sub(lambda label: f"**{label[1]}:** ", line))
            place += 1
    return "\n".join(out)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each module, class and function."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
