"""Runs the notebooks and keeps the text that they print: ``python docs/notebooks.py [NAME ...]``.

No Jupyter is needed: the code cells run one after the other in one namespace, as a kernel would run them. The value of
a cell's last line is shown as text. Pictures and HTML are not kept, so that the files stay small. The metadata of a
notebook name the replacements (smaller numbers) that make it run fast in the tests.
"""

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "notebooks"


def run_cells(notebook: dict[str, Any], *, fast: bool = False) -> Iterator[tuple[dict[str, Any], str]]:
    """Run the code cells in order; yield each cell with the text that it printed."""
    smaller: dict[str, str] = notebook["metadata"]["dpscp"]["fast"] if fast else {}
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            source = "".join(cell["source"])
            for text, replacement in smaller.items():
                source = source.replace(text, replacement)
            with contextlib.redirect_stdout(printed):
                _run_cell(source, f"cell {number}", namespace)
            yield cell, printed.getvalue()


def _run_cell(source: str, name: str, namespace: dict[str, Any]) -> None:
    tree = ast.parse(source, name)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if shown is not None:
        value = eval(compile(ast.Expression(shown.value), name, "eval"), namespace)
        if value is not None:
            print(value)


def main(names: list[str]) -> None:
    """Run the notebooks in an empty folder and write their outputs into the files."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        notebook = json.loads(path.read_text())
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch), warnings.catch_warnings():
            warnings.simplefilter("error")
            for cell, printed in run_cells(notebook):
                lines = printed.splitlines(keepends=True)
                cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        print(f"{path.stem}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
