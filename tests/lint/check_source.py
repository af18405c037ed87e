"""Check rules of the source that no linter knows; run by ``make lint``.

Each rule is a function of a syntax tree that yields what breaks it. ``test_check_source.py`` shows each rule a
violation. Direction of imports and the place of torch are contracts of import-linter in ``pyproject.toml``.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from check_prose import read_retired_words

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dpscp"
GLOSSARY = SOURCE.parents[1] / "docs" / "notation.md"

# Names that hold records in this code base, and the only things a message may say about them.
RECORDS = {"X", "y", "rows", "targets", "labels", "scores", "values", "array", "chunk", "block", "frame", "texts"}
PUBLIC_PARTS = (".ndim", ".dtype", ".shape[1]", ".shape[1:]", "__name__")

# Where generators may be named: the secure source, the public starting point of a network, public directions,
# synthetic demo records.
RANDOM_FILES = {
    "privacy/random_streams.py": {"np.random.default_rng", "np.random.PCG64", "randomgen"},
    "training/engine/networks.py": {"np.random.PCG64"},
    "training/preprocessing/projections.py": {"np.random.PCG64"},
    "cli/demo.py": {"np.random.default_rng"},
}
# Types and seed arithmetic carry no randomness of their own.
HARMLESS_RANDOM = {"Generator", "SeedSequence", "BitGenerator"}

LONGEST_MODULE = 600
# These stand in for scikit-learn's classes, whose methods an estimator replaces.
SCIKIT_LEARN = {"BaseEstimator", "ClassifierMixin", "RegressorMixin"}
# What an observer sees is not private: it is for tests and audits of the parts.
WITHOUT_OBSERVER = ("cli/", "estimators/", "paper/", "report/")

# Attributes that hold sentences for people.
PROSE = {"sentence", "note", "advice", "proof", "words", "void_because"}
# Public facts that are read to be shown again, and the number that an audit of a release checks.
SHOWN_FACTS = {
    ("core/fit_plan.py", "trained.public_facts.get('mechanism', '')"),
    ("paper/system.py", "trained.public_facts.get('mechanism', '')"),
    ("core/fit.py", "trained.public_facts[name]"),
    ("privacy/ledger.py", "self.public_facts.get('delta')"),
    ("report/statement.py", "release.ledger.public_facts.get('date')"),
    ("report/statement.py", "release.ledger.public_facts.get('dpscp')"),
}


def dotted(node: ast.AST) -> str:
    """'np.random.normal' for such an attribute, '' for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Absolute names of everything that the code imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "numpy":
                yield from (f"numpy.{alias.name}" for alias in node.names)


def records_in_messages(tree: ast.Module, _: str) -> Iterator[str]:
    """No raised message is made from something that holds records."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Raise) and node.exc is not None):
            continue
        for piece in ast.walk(node.exc):
            if isinstance(piece, ast.FormattedValue):
                text = ast.unparse(piece.value)
                names = {n.id for n in ast.walk(piece.value) if isinstance(n, ast.Name)}
                if names & RECORDS and not any(part in text for part in PUBLIC_PARTS):
                    yield f"line {node.lineno}: a message made from records: {text}"


def other_randomness(tree: ast.Module, name: str) -> Iterator[str]:
    """Randomness comes from one file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path = dotted(node)
            for prefix in ("np.random.", "numpy.random."):
                if path.startswith(prefix) and path.removeprefix(prefix).split(".")[0] not in HARMLESS_RANDOM:
                    found.add(path)
        elif isinstance(node, ast.Name) and node.id in ("default_rng", "RandomState"):
            found.add(node.id)
    found |= {
        module
        for module in imported_modules(tree)
        if module.split(".")[0] in ("random", "secrets", "randomgen") or module.startswith("numpy.random")
    }
    yield from (f"randomness from {source}" for source in sorted(found - RANDOM_FILES.get(name, set())))


def patched_names(tree: ast.Module, _: str) -> Iterator[str]:
    """No code sets attributes by name on what it did not make."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in ("setattr", "delattr", "builtins.setattr"):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def reachable_observers(tree: ast.Module, name: str) -> Iterator[str]:
    """An observer is out of reach of users of the command line and the estimators."""
    if name.startswith(WITHOUT_OBSERVER):
        for node in ast.walk(tree):
            if (isinstance(node, ast.arg | ast.keyword) and node.arg == "observer") or dotted(node) == "observer":
                yield "an observer is within reach of users"


def terms_by_name(tree: ast.Module, _: str) -> Iterator[str]:
    """No code looks up a term of a certificate by a string: the type checker does not see a misspelled one."""
    for node, held in lookups(tree):
        if held.endswith("terms"):
            yield f"line {node.lineno}: a term by its name: {ast.unparse(node)}"


def lookups(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    """Yield what is looked up by a name, and in what."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            yield node, ast.unparse(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            yield node, ast.unparse(node.func.value)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            yield node, ast.unparse(node.comparators[0])


def decisions_by_prose(tree: ast.Module, name: str) -> Iterator[str]:
    """No code decides by a sentence or by a public fact of a ledger, which are for people: typed fields decide."""
    for node, held in lookups(tree):
        if held.endswith("public_facts") and (name, ast.unparse(node)) not in SHOWN_FACTS:
            yield f"line {node.lineno}: a public fact decides: {ast.unparse(node)}"
    for node in ast.walk(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        read = [side.attr for side in sides if isinstance(side, ast.Attribute) and side.attr in PROSE]
        if read:
            yield f"line {node.lineno}: code compares the text {read[0]!r}"


RULES: tuple[Callable[[ast.Module, str], Iterator[str]], ...] = (
    records_in_messages,
    other_randomness,
    patched_names,
    reachable_observers,
    terms_by_name,
    decisions_by_prose,
)


def unexplained_ignores(text: str) -> Iterator[str]:
    """What the type checker ignores has a code and a reason."""
    for number, line in enumerate(text.splitlines(), start=1):
        if "type: ignore" in line and not re.search(r"# type: ignore\[[a-z-]+\]  # \w", line):
            yield f"line {number}: 'type: ignore' without a code and a reason"


def retired_words(text: str, retired: dict[str, str]) -> Iterator[str]:
    """No comment, docstring or message uses a retired word of docs/notation.md; code in backquotes may."""
    patterns = {word: rf"\b{re.escape(word).replace(re.escape('*'), '[a-z]*')}\b" for word in retired}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        prose = token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string)
        if not prose:
            continue
        # names of parameters at the start of a line of a docstring are code as well
        words = re.sub(r"`+[^`]*`+|\{[^{}]*\}|'[a-z]+'|(?m:^ *[\w, ]+ : .*$)", "", token.string)
        for word, pattern in patterns.items():
            if found := re.search(pattern, words, re.IGNORECASE):
                yield f"line {token.start[0]}: '{found[0]}' is a retired word; use: {retired[word]}"


def unexplained_methods(trees: list[ast.Module]) -> Iterator[str]:
    """Every public method has a docstring, its own or that of the protocol or base class that it implements."""
    classes = [c for tree in trees for c in ast.walk(tree) if isinstance(c, ast.ClassDef)]
    bases = {base.id for c in classes for base in c.bases if isinstance(base, ast.Name)} - {"BaseEstimator"}
    methods = [(c, m) for c in classes for m in c.body if isinstance(m, ast.FunctionDef) and m.name[0] != "_"]
    explained = {
        m.name
        for c, m in methods
        if ast.get_docstring(m) and (c.name in bases or any("Protocol" in ast.unparse(base) for base in c.bases))
    }
    for c, m in methods:
        if c.name[0] != "_" and not ast.get_docstring(m) and m.name not in explained:
            yield f"{c.name}.{m.name} has no docstring"


def undocumented_names(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Every public name has a NumPy-style docstring: parameters and returned values, each parameter by name.

    Public is what ``__all__`` of a package lists; ``cli`` is an entry point for the shell. A protocol or an error has
    no parameters of its own, and the fields
    of a result may stand under ``Attributes``.
    """
    modules = {_module_name(path): tree for path, tree in trees.items()}
    packages = [tree for path, tree in trees.items() if path.endswith("__init__.py") and not path.startswith("cli")]
    public = {_origin(found, modules) for tree in packages for found in _exported_names(tree)}
    for path, tree in trees.items():
        for node in tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or "overload" in map(dotted, node.decorator_list):
                continue
            if (_module_name(path), node.name) in public:
                text = ast.get_docstring(node) or ""
                parameters = _parameter_names(node)
                sections = ("Parameters\n---", "Attributes\n---")
                if parameters and not any(section in text for section in sections):
                    yield f"{path}: {node.name} has no section Parameters"
                missing = [name for name in parameters if not re.search(rf"\b{name}\b", text)]
                if missing:
                    yield f"{path}: the docstring of {node.name} does not name {', '.join(missing)}"
                if _returns_value(node) and "Returns\n---" not in text:
                    yield f"{path}: {node.name} has no section Returns"


def _exported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of ``__all__``, and those imported "as" themselves, with the module that each comes from."""
    listed: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and dotted(node.targets[0]) == "__all__":
            listed |= {e.value for e in getattr(node.value, "elts", ()) if isinstance(e, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names if alias.asname or alias.name in listed)


def _origin(name: tuple[str, str], modules: dict[str, ast.Module]) -> tuple[str, str]:
    """Return the module that defines a name, following imports at the top of modules."""
    module, own = name
    for node in modules[module].body if module in modules else ():
        if isinstance(node, ast.ImportFrom) and node.module and own in {alias.name for alias in node.names}:
            return _origin((node.module, own), modules)
    return name


def _parameter_names(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    """Return the parameters of a function, of ``__init__`` or of a dataclass that is no protocol."""
    if isinstance(node, ast.ClassDef):
        if _is_protocol(node):
            return []
        decorators = {dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}
        if decorators & {"dataclass", "attr.frozen"}:
            fields = [m for m in node.body if isinstance(m, ast.AnnAssign) and "init=False" not in ast.unparse(m)]
            names = [dotted(m.target) for m in fields if "ClassVar" not in ast.unparse(m.annotation)]
            return [name for name in names if not name.startswith("_")]
        own = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"]
        return _parameter_names(own[0]) if own else []
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [a.arg for a in arguments if a.arg != "self" and not a.arg.startswith("_")]


def _returns_value(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) != "None"


# Documented bases for other people's classes: their methods are defaults, except those that are marked as final.
OPEN_BASES = {
    "Around",
    "ColumnType",
    "GaussianSums",
    "Mechanism",
    "RecordSource",
    "Model",
    "Prediction",
    "PublicStep",
    "Step",
    "SummedStep",
    "Task",
    "Transform",
}


def overridden_methods(trees: list[ast.Module]) -> Iterator[str]:
    """A method is abstract or final: no class changes what a base class of this package does."""
    classes = {c.name: c for tree in trees for c in ast.walk(tree) if isinstance(c, ast.ClassDef)}

    def ancestors(c: ast.ClassDef) -> Iterator[ast.ClassDef]:
        for base in c.bases:
            known = classes.get(dotted(base.value if isinstance(base, ast.Subscript) else base))
            if known is not None and known is not c:
                yield known
                yield from ancestors(known)

    for c in classes.values():
        concrete = {
            m.name: base.name
            for base in ancestors(c)
            if not _is_protocol(base) and base.name not in SCIKIT_LEARN | OPEN_BASES
            for m in base.body
            if isinstance(m, ast.FunctionDef) and not any("abstract" in ast.unparse(d) for d in m.decorator_list)
        }
        for m in c.body:
            if isinstance(m, ast.FunctionDef) and m.name in concrete and not m.name.startswith("__"):
                yield f"{c.name}.{m.name} overrides {concrete[m.name]}.{m.name}; make that one abstract"


def _is_protocol(c: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in c.bases)


def check_package(source: Path = SOURCE) -> list[str]:
    """Return every violation in the package, with its file."""
    files = sorted(source.rglob("*.py"))
    texts = {file.relative_to(source).as_posix(): file.read_text() for file in files}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    found = [f"{name}: {broken}" for name, tree in trees.items() for rule in RULES for broken in rule(tree, name)]
    found += [f"{name}: {broken}" for name, text in texts.items() for broken in unexplained_ignores(text)]
    retired = read_retired_words(GLOSSARY.read_text())
    found += [f"{name}: {broken}" for name, text in texts.items() for broken in retired_words(text, retired)]
    found += [
        f"{name}: longer than {LONGEST_MODULE} lines"
        for name, text in texts.items()
        if text.count("\n") > LONGEST_MODULE
    ]
    found += list(unexplained_methods(list(trees.values())))
    found += list(undocumented_names(trees))
    found += list(overridden_methods(list(trees.values())))
    return found


def _module_name(name: str) -> str:
    parts = ["dpscp", *name.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    violations = check_package()
    print("\n".join(violations) or "source rules: all kept")
    sys.exit(bool(violations))
