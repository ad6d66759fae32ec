"""What the names of a module stand for: ``F.softmax`` is ``torch.nn.functional.softmax``."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
# The statements without blocks that there are most of.
_PLAIN = (ast.Assign, ast.Expr, ast.Return, ast.AugAssign, ast.AnnAssign, ast.Raise, ast.Import)

# Short names of one thing; the graph knows only the right-hand side.
_CANONICAL = {
    "torch.float": "torch.float32",
    "torch.half": "torch.float16",
    "torch.double": "torch.float64",
    "torch.long": "torch.int64",
    "torch.int": "torch.int32",
    "opt_einsum.contract": "torch.einsum",
}


_USUAL = {"F": "torch.nn.functional", "nn": "torch.nn", "torch": "torch"}
"""What the names are for in every file that has them."""


@dataclass(frozen=True)
class ModuleNames:
    """The imports, functions and classes of one module."""

    imports: Mapping[str, str]
    functions: Mapping[str, FunctionNode]
    classes: Mapping[str, ast.ClassDef]
    overridden: frozenset[str] = field(default=frozenset())
    """Methods (``Class.method``) that a subclass in this module redefines."""
    relative: Mapping[str, str] = field(default_factory=dict)
    """Names from the same package: ``Config`` -> ``..llama.configuration_llama.Config``."""
    bound: AbstractSet[str] = field(default=frozenset())
    """Every name that the top level of the module gives a meaning."""
    unsure: frozenset[str] = field(default=frozenset())
    """Names that it binds more than once: which of the meanings counts is not known."""
    starred: Sequence[str] = ()
    """Modules that it takes all names of, ``from .layers import *``, in their order."""
    home: str = ""
    """The module itself, as the file that is looked at would import it; empty for that file."""
    neighbour: Callable[[str], str | None] | None = None
    """Returns the text of a module of the same package: ``..llama.modeling_llama``."""
    neighbours: dict[str, ModuleNames | None] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Those that were looked into so far."""
    assigned: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What ``attributes.assigned_values`` has found out so far, by class."""
    tree: ast.Module | None = field(default=None, compare=False, repr=False)
    """The module itself, for questions about all of it: of others through ``read_whole``."""
    submodules: dict[tuple[str, str], Any] = field(default_factory=dict, compare=False, repr=False)
    """What ``submodules.submodule`` has found out so far, by class and attribute."""

    def read_whole(self) -> ast.Module | None:
        """Return the module itself; who keeps what is asked of another one learns of it."""
        iter(self.functions)
        return self.tree

    def dotted(self, node: ast.expr) -> str | None:
        """Return the imported name that an expression spells, or ``None``."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return None
        name = ".".join([self.imports[node.id], *reversed(parts)])
        return _CANONICAL.get(name, name)

    def bases(self, cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """Yield a class and its bases within this module, nearest first."""
        seen: set[str] = set()
        queue = [cls]
        while queue:
            current = queue.pop(0)
            if current.name in seen:
                continue
            seen.add(current.name)
            yield current
            queue += [
                self.classes[base.id]
                for base in current.bases
                if isinstance(base, ast.Name) and base.id in self.classes
            ]

    def is_rebound(self, name: str) -> bool:
        """Tell whether a function gives a name of the code around it another value."""
        if "global" not in self.assigned:
            body = self.tree.body if self.tree else []
            found = statements(body, inner=True)
            shared = [s.names for s in found if isinstance(s, (ast.Global, ast.Nonlocal))]
            self.assigned["global"] = frozenset(name for names in shared for name in names)
        return name in self.assigned["global"]

    def method(self, cls: ast.ClassDef, name: str) -> FunctionNode | None:
        """Return the method that ``self.name`` means in ``cls``; ``None`` if unsure."""
        for base in self.bases(cls):
            for item in reversed(base.body):  # the last definition is the one that counts
                if isinstance(item, FunctionNode):
                    if item.name == name:
                        return None if f"{base.name}.{name}" in self.overridden else item
                elif name in _list_bound_by(item):  # ``rotate = other_function``
                    return None
            if self._mixes_in(base):
                return None
        return None

    def _mixes_in(self, cls: ast.ClassDef) -> bool:
        """Tell whether a class that is not known comes before a base that is."""
        known = [isinstance(b, ast.Name) and b.id in self.classes for b in cls.bases]
        return any(
            not here and any(known[n:]) and not _is_plain_base(cls.bases[n])
            for n, here in enumerate(known)
        )


def _is_plain_base(base: ast.expr) -> bool:
    """Tell whether a class brings no methods that a helper may be called like."""
    code = base.value if isinstance(base, ast.Subscript) else base
    name = code.attr if isinstance(code, ast.Attribute) else getattr(code, "id", "")
    return name in {"ABC", "Generic", "Module", "Protocol", "object"}


def _list_bound_by(statement: ast.stmt) -> frozenset[str]:
    """Return the names that a statement of a class or module binds, inner functions aside."""
    if isinstance(statement, (FunctionNode, ast.ClassDef)):
        return frozenset({statement.name})
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return frozenset((a.asname or a.name).split(".")[0] for a in statement.names)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, (ast.Constant, ast.Call)):
        return frozenset()
    found: set[str] = set()
    for node in walk(statement):
        if isinstance(node, (FunctionNode, ast.ClassDef, ast.Import, ast.ImportFrom)):
            found |= _list_bound_by(node)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
    return frozenset(found)


_MAX_HELPER_STATEMENTS = 24


def inlinable(function: FunctionNode) -> bool:
    """Tell whether a helper only assigns names, branches and returns."""
    if isinstance(function, ast.AsyncFunctionDef) or function.args.vararg or function.args.kwarg:
        return False
    if not _only_returns(function.body, last=True):
        return False
    return sum(1 for _ in statements(function.body)) <= _MAX_HELPER_STATEMENTS


def _only_returns(body: list[ast.stmt], *, last: bool) -> bool:
    """Tell whether statements compute a value and nothing else; the last one returns it."""
    for statement in body:
        match statement:
            case ast.Return(value):
                return value is not None
            case ast.Expr(ast.Constant()) | ast.AnnAssign(ast.Name()) | ast.Assign([ast.Name()]):
                pass
            case ast.Assign([ast.Tuple(items)]) if all(isinstance(i, ast.Name) for i in items):
                pass
            case ast.If(_, then, other):
                if not _only_returns(then, last=False) or not _only_returns(other, last=False):
                    return False
            case _:
                return False
    return not last or (bool(body) and _ends(body[-1]))


def _ends(statement: ast.stmt) -> bool:
    """Tell whether every way through a statement returns."""
    match statement:
        case ast.If(_, then, other):
            return bool(other) and _ends(then[-1]) and _ends(other[-1])
    return isinstance(statement, ast.Return)


def inner_blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
        yield part.body


def statements(body: list[ast.stmt], *, inner: bool = False) -> Iterator[ast.stmt]:
    """Yield the statements of a body and its blocks; ``inner``: those of inner functions too."""
    found: list[ast.stmt] = []
    _gather(body, found, inner=inner)
    return iter(found)


def _gather(body: list[ast.stmt], found: list[ast.stmt], *, inner: bool) -> None:
    for node in body:
        found.append(node)
        if not isinstance(node, _PLAIN) and (
            inner or not isinstance(node, (FunctionNode, ast.ClassDef))
        ):
            for block in inner_blocks(node):
                _gather(block, found, inner=inner)


@lru_cache(maxsize=4)
def source_lines(source: str) -> Sequence[str]:
    """Return the lines as Python counts them, ends kept: a form feed does not end one."""
    lines = source.splitlines(keepends=True)
    if len(lines) == source.count("\n") + (source[-1:] not in {"\n", "\r"}):
        # Nothing but line feeds ends a line here, and ``splitlines`` is much faster.
        return [*lines, ""] if source.endswith("\n") else lines
    return tuple(re.split(r"(?<=\n)|(?<=\r)(?!\n)", source))


def module_names(
    tree: ast.Module, neighbour: Callable[[str], str | None] | None = None
) -> ModuleNames:
    """Read the top level of a module (``if``/``try`` blocks included)."""
    imports: dict[str, str] = {}
    relative: dict[str, str] = {}
    functions: dict[str, FunctionNode] = {}
    classes: dict[str, ast.ClassDef] = {}
    times: Counter[str] = Counter()
    starred: list[str] = []
    outermost = {id(node) for node in tree.body}
    for node in _top_level(tree.body):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            level = getattr(node, "level", 0)
            (relative if level else imports).update(given := list_imported_names(node))
            starred += [given["*"][:-1].rstrip(".") or "."] if "*" in given else []
        elif isinstance(node, FunctionNode):
            functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            classes[node.name] = node
        if not isinstance(node, (ast.If, ast.Try)):  # their statements come one by one
            times.update(_list_bound_by(node))
        for name in _list_defined(node, is_outermost=id(node) in outermost):
            imports.pop(name, None)
    if "*" in relative or "*" in imports:
        # ``from .modules import *`` brings what everybody calls so; ``*`` itself stands for nothing
        imports.update({k: v for k, v in _USUAL.items() if k not in times and k not in relative})
    # Two definitions of one name (if/else): which one runs is not known here.
    unsure = frozenset(name for name, count in times.items() if count > 1)
    return ModuleNames(
        imports,
        {name: node for name, node in functions.items() if name not in unsure},
        classes,
        _overridden(classes),
        relative=relative,
        bound=frozenset(times),
        unsure=unsure,
        starred=starred,
        neighbour=neighbour,
        tree=tree,
    )


def list_imported_names(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Return the names that an import binds, with what they stand for."""
    if isinstance(node, ast.ImportFrom):
        package = "." * node.level + (f"{node.module}." if node.module else "")
        return {a.asname or a.name: f"{package}{a.name}" for a in node.names}
    tops = [a.name.split(".")[0] for a in node.names]
    return {
        a.asname or top: a.name if a.asname else top
        for a, top in zip(node.names, tops, strict=True)
    }


def _list_defined(node: ast.stmt, *, is_outermost: bool) -> list[str]:
    """Return the names that no longer mean what an import above made them mean."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign(targets) if is_outermost:  # not the `torch_npu = None` of a fallback
            return [ast.unparse(target) for target in targets]
    return []


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
                yield from _top_level(node.body)
            yield from _top_level(node.orelse)
            for handler in getattr(node, "handlers", []):
                yield from _top_level(handler.body)


def _overridden(classes: Mapping[str, ast.ClassDef]) -> frozenset[str]:
    found: set[str] = set()
    for cls in classes.values():
        own = {item.name for item in cls.body if isinstance(item, FunctionNode)}
        pending = list(cls.bases)
        seen: set[str] = set()
        while pending:
            base = pending.pop()
            if isinstance(base, ast.Name) and base.id in classes and base.id not in seen:
                seen.add(base.id)
                found |= {f"{base.id}.{name}" for name in own}
                pending += classes[base.id].bases
    return frozenset(found)
