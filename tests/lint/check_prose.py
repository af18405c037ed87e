"""Check the prose of the Markdown documents: `python tests/lint/check_prose.py [FILE ...]`, part of `make lint`.

A line has at most 120 characters. Tables, code and the addresses of links do not count. No retired word of
docs/notation.md appears outside code.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTATION = ROOT / "docs" / "notation.md"
HEADING = "## Retired words\n"
PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "VISION")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
LONGEST_LINE = 120


def read_retired_words(text: str) -> dict[str, str]:
    """Map each retired word to its replacement, from the table at the end of the notation page."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text.split(HEADING)[1], flags=re.MULTILINE)[1:]
    return {word: use for words, use in rows for word in words.split(", ")}


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line that is not code; inline code and link addresses are emptied."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield (
                number,
                re.sub(r"`[^`]*`|<!--.*?-->", lambda code: "`" * len(code[0]), re.sub(r"\]\([^)]*\)", "]", line)),
            )


def find_problems(text: str, retired: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the line number and the description of each problem."""
    for number, line in prose_lines(text):
        if len(line) > LONGEST_LINE and not line.startswith("|"):
            yield number, f"{len(line)} characters; wrap the line at {LONGEST_LINE}"
        for word, use in retired.items():
            pattern = rf"\b{re.escape(word).replace(re.escape('*'), '[a-z]*')}\b"
            if match := re.search(pattern, line, re.IGNORECASE):
                yield number, f"'{match[0]}' is a retired word; use: {use}"


def main(files: list[Path]) -> int:
    """Print every problem of the files; return 1 if there is one."""
    retired = read_retired_words(NOTATION.read_text())
    count = 0
    for path in files:
        text = path.read_text()
        if path == NOTATION:
            text = text.split(HEADING)[0]
        for number, problem in find_problems(text, retired):
            print(f"{path}:{number}: {problem}")
            count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main([Path(name).resolve() for name in sys.argv[1:]] or PAGES))
