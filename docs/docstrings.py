"""For the API reference: turns the library's docstrings into Markdown (lists of parameters, fenced examples)."""

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^(\S[^:]*?) : (.*)$")


def to_markdown(text: str) -> str:
    """Underlined sections become bold titles, their ``name : text`` entries a list, doctests code blocks."""
    lines, out, section = text.splitlines(), [], False
    place = 0
    while place < len(lines):
        line = lines[place]
        following = lines[place + 1].strip() if place + 1 < len(lines) else ""
        if line.strip() and following and set(following) == {"-"}:
            out += [f"**{line.strip()}**", ""]
            section, place = True, place + 2
            continue
        if line.lstrip().startswith(">>>"):
            out.append("```pycon")
            while place < len(lines) and lines[place].strip():
                out.append(lines[place].strip() if lines[place].lstrip().startswith(">>>") else lines[place].rstrip())
                place += 1
            out += ["```", ""]
            continue
        entry = _ENTRY.match(line) if section else None
        out.append(f"- `{entry[1]}`: {entry[2]}" if entry else line)
        place += 1
    return "\n".join(out)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each module, class and function."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
