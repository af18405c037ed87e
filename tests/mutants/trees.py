"""Functions and pieces of code by name and syntax tree, so that neither layout nor place in a file matters."""

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path("src/dpscp")
MODULE = "<module>"
Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class NotFoundError(ValueError):
    """A piece of code that is not there, or more than once."""


@cache
def parse(text: str) -> ast.Module:
    """Return the tree of a file; each text is parsed once, so callers must not change it."""
    return ast.parse(text)


def scopes(tree: ast.Module) -> Iterator[tuple[str, Scope]]:
    """Yield the module, and each class and function with its qualified name (without ``<locals>``)."""
    yield MODULE, tree

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Scope]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _SCOPES):
                yield prefix + child.name, child
                yield from inside(child, f"{prefix}{child.name}.")
            else:
                yield from inside(child, prefix)

    yield from inside(tree, "")


@cache
def normal(node: ast.AST) -> str:
    """Return what two pieces of code share if they differ in layout only."""
    return ast.dump(node)


@dataclass(frozen=True)
class Place:
    """Statements of a block or one expression: where a replacement goes."""

    nodes: tuple[ast.AST, ...]


def find(scope: Scope, code: str) -> Place:
    """Return the one place in a scope where ``code`` (an expression, or statements) stands."""
    wanted = ast.parse(code).body
    found = list(_places(scope, wanted))
    if len(found) != 1:
        raise NotFoundError(f"found {len(found)} times: {code!r}")
    return found[0]


def _places(scope: Scope, wanted: list[ast.stmt]) -> Iterator[Place]:
    if len(wanted) == 1 and isinstance(wanted[0], ast.Expr):
        key = normal(wanted[0].value)
        for node in ast.walk(scope):
            # the type first: writing out every subtree takes most of the time
            if type(node) is type(wanted[0].value) and normal(node) == key:
                yield Place((node,))
        return
    keys = [normal(statement) for statement in wanted]
    for node in ast.walk(scope):
        for block in blocks(node):
            for start in range(len(block) - len(keys) + 1):
                part = block[start : start + len(keys)]
                if all(type(a) is type(b) for a, b in zip(part, wanted, strict=True)) and keys == [
                    normal(statement) for statement in part
                ]:
                    yield Place(tuple(part))


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements that belong to a node."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block


def spliced(text: str, place: Place, code: str) -> str:
    """Return the text of a file with ``code`` in that place; the rest keeps its layout."""
    first, last = place.nodes[0], place.nodes[-1]
    if isinstance(first, ast.expr):
        anchor = _anchor(parse(text), first)
        code = _with_replacement(anchor, first, code) if anchor is not first else f"({code})"
        return _between(text, anchor, anchor, code)
    indent = " " * first.col_offset  # type: ignore[attr-defined]
    lines = ast.unparse(ast.parse(code or "pass")).splitlines()
    return _between(text, first, last, ("\n" + indent).join(lines))


def _anchor(tree: ast.Module, node: ast.expr) -> ast.expr:
    """Return the outermost f-string around a node, whose parts have no positions of their own; else the node."""
    for outer in ast.walk(tree):
        if isinstance(outer, ast.JoinedStr) and any(inner is node for inner in ast.walk(outer)):
            return outer
    return node


def _with_replacement(anchor: ast.expr, node: ast.expr, code: str) -> str:
    new = ast.parse(code, mode="eval").body
    order = [inner is node for inner in ast.walk(anchor)].index(True)
    changed = deepcopy(anchor)
    target = list(ast.walk(changed))[order]

    class Replace(ast.NodeTransformer):
        def visit(self, visited: ast.AST) -> ast.AST:
            return new if visited is target else self.generic_visit(visited)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(changed)))


def _between(text: str, first: ast.AST, last: ast.AST, code: str) -> str:
    lines = text.splitlines(keepends=True)
    # positions count the bytes of a line
    start_line, start = first.lineno - 1, first.col_offset  # type: ignore[attr-defined]
    end_line, end = last.end_lineno - 1, last.end_col_offset  # type: ignore[attr-defined]
    before = lines[start_line].encode()[:start].decode()
    after = lines[end_line].encode()[end:].decode()
    decorators = getattr(first, "decorator_list", [])
    if decorators:  # a definition starts at its first decorator
        start_line = decorators[0].lineno - 1
        before = lines[start_line].split("@")[0]
    return "".join([*lines[:start_line], before, code, after, *lines[end_line + 1 :]])


# ---- the package


def module_path(module: str) -> Path:
    """Return the file of a module of the package, from the root of the repository."""
    return PACKAGE / (module.replace(".", "/") + ".py")


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the package, without the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def edited(root: Path, where: str, edits: tuple[tuple[str, str], ...]) -> tuple[Path, str]:
    """Return the file of ``module:qualified name`` and its text with the edits made.

    If the module or the code moved, the function is looked for by its qualified name in the whole package.
    """
    module, _, name = where.partition(":")
    own = root / module_path(module)
    tried = [own] if own.is_file() else []
    tried += sorted(path for path in (root / PACKAGE).rglob("*.py") if path != own)
    reason = f"no module has {name}"
    for path in tried:
        text = path.read_text()
        try:
            new = _edited_text(text, name, edits)
        except KeyError:
            continue
        except NotFoundError as error:
            reason = str(error)
            continue
        return path, new
    raise NotFoundError(reason)


def _edited_text(text: str, name: str, edits: tuple[tuple[str, str], ...]) -> str:
    for before, after in edits:
        text = spliced(text, find(_scopes_by_name(text)[name], before), after)
    return text


@cache
def _scopes_by_name(text: str) -> dict[str, Scope]:
    return dict(scopes(parse(text)))
