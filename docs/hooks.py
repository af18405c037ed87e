"""Adds to the site what lies elsewhere: results, notebooks and the cards of the gallery; ranks the search results."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ("CHANGELOG", "CONTRIBUTING", "SECURITY", "VISION")
CARDS = "<!-- cards -->"
# A reader who searches wants to do something: how-tos come first, records of the project last.
BOOSTS = {"Start": 2.0, "How-to": 2.0, "Explanations": 1.0, "Reference": 0.8, "Results": 0.4, "Project": 0.3}
_SECTION = re.compile(r"^## (.+)\n\n`python examples/(\w+)\.py`", re.MULTILINE)


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: text, code and the text that the code printed."""
    cells = json.loads(path.read_text())["cells"]
    parts = ["".join(cells[0]["source"]), f"[Download this notebook]({path.name}){{ download }}"]
    for cell in cells[1:]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [f"```text\n{printed}\n```" for printed in printed_texts(cell)]
    return "\n\n".join(parts) + "\n"


def printed_texts(cell: dict[str, Any]) -> Iterator[str]:
    """Yield the text of each output of a cell."""
    for output in cell.get("outputs", ()):
        yield "".join(output["text"] if "text" in output else output["data"]["text/plain"]).rstrip()


def gallery_cards(markdown: str) -> str:
    """Return a card for each script of the gallery page, with a picture, that leads to its section."""
    cards = []
    for title, name in _SECTION.findall(markdown):
        head, _, rest = title.partition(": ")
        drawn = (ROOT / "docs" / "img" / f"{name}.png").exists()  # the script draws a picture of its own
        picture = f"img/{name}.png" if drawn else f"img/gallery/{name}.svg"
        cards.append(
            f'<a class="card" href="#{slugify(title, "-")}"><img src="{picture}" alt="" loading="lazy">'
            f"<b>{html.escape(head)}</b><span>{html.escape(rest)}</span></a>"
        )
    return '<div class="cards">\n' + "\n".join(cards) + "\n</div>"


def link_to_pages(markdown: str) -> str:
    """Links in the sources lead to files; on the site some of these files are pages in another place."""
    markdown = re.sub(
        r"\]\((?:\.\./|(?=[A-Z]+\.md))(" + "|".join(PROJECT) + r")\.md", lambda m: f"]({m[1].lower()}.md", markdown
    )
    markdown = markdown.replace("](../results/", "](results/").replace("](docs/", "](")
    return re.sub(r"\]\((notebooks/\w+)\.ipynb", r"](\1.md", markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the results and the pages of the project, which lie outside docs/, and a page for each notebook."""
    for name in PROJECT:
        text = (ROOT / f"{name}.md").read_text()
        files.append(File.generated(config, f"{name.lower()}.md", content=text))
    for path in sorted((ROOT / "results").iterdir()):
        if path.suffix in {".md", ".png"}:
            files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rank the page by its group in the navigation, and put the cards on the gallery page."""
    group = page.ancestors[-1].title if page.ancestors else "Results"
    page.meta.setdefault("search", {"boost": BOOSTS[group]})
    return link_to_pages(markdown.replace(CARDS, gallery_cards(markdown)))
