"""Random mutants of the modules that carry promises: small changes of the syntax tree, drawn with a seed."""

import ast
import random
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from trees import PACKAGE, Place, Scope, blocks, module_name, normal, parse, scopes, spliced

# Files and folders of the package whose numbers or words are promises.
PROMISES = (
    "privacy", "threshold", "guarantees", "estimators", "data", "core", "deployment", "report/numbers.py",
    "training/base.py", "training/mechanisms", "training/engine/loop.py", "training/engine/gradients.py",
    "training/engine/noise.py", "training/preprocessing/private_bounds.py",
    "training/preprocessing/rescaled.py", "torch",
)  # fmt: skip
# What needs Java, several processes or a graphics card has tests of its own.
LEFT_OUT = ("data/sources/spark.py", "data/sources/distributed.py")

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Div,
}  # fmt: skip
_PAIRED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "floor": "ceil", "ceil": "floor"}
# Words for a person and bookkeeping: a change there is no error in a promise.
_UNCHANGED = ("__repr__", "__all__", "__reduce__", "_warn", "warn")


@dataclass(frozen=True)
class RandomMutant:
    """One change: file, function, kind, and the code before and after."""

    file: Path
    scope: str
    kind: str
    place: Place
    after: str

    @property
    def name(self) -> str:
        """Say what changed, in a line."""
        line = self.place.nodes[0].lineno  # type: ignore[attr-defined]
        before = " ".join(ast.unparse(self.place.nodes[0]).split())
        after = " ".join(self.after.split()) or "(nothing)"
        return f"{module_name(self.file)}:{self.scope} line {line}, {self.kind}: {before[:90]}  ->  {after[:90]}"

    def apply(self, root: Path) -> None:
        """Make the change in the tree at ``root``."""
        path = root / self.file
        path.write_text(spliced(path.read_text(), self.place, self.after))


def promise_files(root: Path) -> list[Path]:
    """Return the files to draw from, relative to ``root``."""
    found: set[Path] = set()
    for name in PROMISES:
        path = root / PACKAGE / name
        found |= set(path.rglob("*.py")) if path.is_dir() else {path} if path.is_file() else set()
    named = {path.relative_to(root) for path in found if path.name != "__init__.py"}
    return sorted(named - {PACKAGE / name for name in LEFT_OUT})


def sample(root: Path, size: int, seed: int) -> list[RandomMutant]:
    """Draw mutants: a function by its number of candidates, then a kind of change, then one of that kind."""
    by_scope: dict[tuple[Path, str], list[RandomMutant]] = {}
    for file in promise_files(root):
        for mutant in candidates(file, (root / file).read_text()):
            by_scope.setdefault((file, mutant.scope), []).append(mutant)
    rng = random.Random(seed)
    drawn: list[RandomMutant] = []
    while by_scope and len(drawn) < size:
        keys = list(by_scope)
        (key,) = rng.choices(keys, [len(by_scope[k]) for k in keys])
        kind = rng.choice(sorted({m.kind for m in by_scope[key]}))
        mutant = rng.choice([m for m in by_scope[key] if m.kind == kind])
        by_scope[key] = [m for m in by_scope[key] if m is not mutant]
        if not by_scope[key]:
            del by_scope[key]
        if _compiles((root / mutant.file).read_text(), mutant.place, mutant.after):
            drawn.append(mutant)
    return drawn


def candidates(file: Path, text: str) -> Iterator[RandomMutant]:
    """Yield every change of a file that is no change of words alone."""
    named = dict(scopes(parse(text)))
    for name, scope in named.items():
        if not _is_outermost(name, named) or name.rpartition(".")[2] in _UNCHANGED:
            continue
        for kind, place, after in _changes(scope, _fields_of(named.get(name.rpartition(".")[0]))):
            yield RandomMutant(file, name, kind, place, after)


def _is_outermost(name: str, named: dict[str, Scope]) -> bool:
    """Whether a scope is the module, or a function that lies in no other function."""
    parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
    return not isinstance(named[name], ast.ClassDef) and all(isinstance(named[p], ast.ClassDef) for p in parents)


def _compiles(text: str, place: Place, after: str) -> bool:
    try:
        ast.parse(spliced(text, place, after))
    except SyntaxError:
        return False
    return True


def _fields_of(owner: Scope | None) -> dict[str, list[str]]:
    """Return, for each declared field of the class around a method, the fields of the same type."""
    if not isinstance(owner, ast.ClassDef):
        return {}
    types = {
        node.target.id: ast.unparse(node.annotation)
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {name: [other for other in types if other != name and types[other] == types[name]] for name in types}


# ---- the kinds of changes

Change = tuple[str, Place, str]


def _changes(scope: Scope, fields: dict[str, list[str]]) -> Iterator[Change]:
    for node in _walk(scope):
        if isinstance(node, ast.expr):
            for kind, new in _expression_changes(node, fields):
                if normal(new) != normal(node):
                    yield kind, Place((node,)), ast.unparse(new)
        if scope.__class__ is not ast.Module or node is not scope:
            for block in blocks(node):
                yield from _statement_changes(block)


def _walk(scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a scope that do something: no annotations, messages, doc strings or decorators."""
    stack: list[ast.AST] = [scope]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom) or _is_text(node) or _is_warning(node):
            continue
        if isinstance(scope, ast.Module) and isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            stack += [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _is_warning(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _UNCHANGED


def _expression_changes(node: ast.expr, fields: dict[str, list[str]]) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(ops=[operator], comparators=[_]):
            for other in _COMPARED.get(type(operator), ()):
                yield "comparison", _changed(node, ops=[other()])
        case ast.BinOp():
            yield from _arithmetic_changes(node)
        case ast.BoolOp(op=operator, values=values):
            yield "boolean", _changed(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
            yield "boolean", values[0]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign", operand
        case ast.IfExp(body=body, orelse=orelse):
            yield "branch", body
            yield "branch", orelse
        case ast.Constant(value=value):
            yield from (("constant", ast.Constant(other)) for other in _other_constants(value))
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
            yield from (("field", _changed(node, attr=other)) for other in fields.get(name, ()))
        case ast.Call():
            yield from _call_changes(node)


def _arithmetic_changes(node: ast.BinOp) -> Iterator[tuple[str, ast.expr]]:
    """Yield another operator, and each operand without the other where that is no error of types."""
    swapped = _SWAPPED.get(type(node.op))
    if swapped is None or isinstance(node.left, ast.List | ast.Tuple | ast.JoinedStr):
        return
    yield "operator", _changed(node, op=swapped())
    kind = "term" if isinstance(node.op, ast.Add | ast.Sub) else "factor"
    if not isinstance(node.op, ast.Pow | ast.FloorDiv):
        yield kind, node.left
    if isinstance(node.op, ast.Add | ast.Mult):
        yield kind, node.right


def _call_changes(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    for place, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "strict"):
            yield "keyword", _changed(node, keywords=[*node.keywords[:place], *node.keywords[place + 1 :]])
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    swaps = len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args[:2])
    if swaps and name not in ("isinstance", "getattr", "hasattr", "min", "max", "hypot"):
        yield "arguments", _changed(node, args=[node.args[1], node.args[0], *node.args[2:]])
    if name in _PAIRED:
        other = _PAIRED[name]
        func = _changed(node.func, **({"attr": other} if isinstance(node.func, ast.Attribute) else {"id": other}))
        yield "extreme", _changed(node, func=func)
    if name in ("sqrt", "abs", "replace", "hypot") and node.args and len(node.args) == 1:
        yield "call", node.args[0]


def _other_constants(value: object) -> tuple[object, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1)
    return (2 * value, value / 2) if isinstance(value, float) else ()


def _changed(node: ast.expr, **fields: object) -> ast.expr:
    new = copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _statement_changes(block: list[ast.stmt]) -> Iterator[Change]:
    for statement in block:
        match statement:
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield "statement", Place((statement,)), ""
            case ast.If(test=test, body=body, orelse=orelse):
                yield "condition", Place((test,)), ast.unparse(ast.UnaryOp(ast.Not(), test))
                if not orelse and len(body) <= 2:
                    yield "statement", Place((statement,)), ""
