"""Turn the text of a user's module into a namespace that holds the function to verify.

Only the definitions that the function needs are executed: that is faster than the whole module
(``transformers`` imports for seconds), survives imports that are missing here, and does not
start a training script. Where that fails the whole module is executed, and at last the needed
definitions again, with placeholders for what cannot be imported.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import linecache
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.attempt import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_IMPORT_S = 30.0
_OURS = "__npufix__"
_IMPORTS = (ast.Import, ast.ImportFrom)


class LoadError(Exception):
    """The text cannot be brought to life here; the message says why."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module of the user, or the part of it that was needed."""

    namespace: dict[str, object]
    filename: str
    """What its code objects carry: tells the lines of two versions of one file apart."""
    missing: tuple[str, ...] = ()
    """Imports that a placeholder stands for."""


class Placeholder:
    """Stands for something that could not be imported.

    Harmless as a decorator or a base class while the definitions are executed; an error as soon
    as the function to verify uses it, for what it computes would be neither right nor wrong.
    """

    def __init__(self, name: str, loading: list[bool]) -> None:
        """Remember what is missing, and the flag that says when loading is over."""
        self._name = name
        self._loading = loading

    def _use(self) -> None:
        if not self._loading:
            raise ImportError(f"{self._name} could not be imported")

    def __call__(self, *args: object, **keywords: object) -> object:
        """Return a decorated function as it was; anything else stays a placeholder."""
        self._use()
        if len(args) == 1 and not keywords and isinstance(args[0], types.FunctionType | type):
            return args[0]
        return Placeholder(f"{self._name}(...)", self._loading)

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        self._use()
        return Placeholder(f"{self._name}.{name}", self._loading)

    def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
        return (torch.nn.Module,)

    def __bool__(self) -> bool:
        self._use()
        return False


def package_of(path: Path) -> tuple[str, Path]:
    """Return the dotted package of a file ("" if none) and the folder that holds the package."""
    parts: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").exists() and folder != folder.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def make_importable(*folders: Path) -> None:
    """Put folders behind the standard library and before installed packages."""
    at = next(
        (i for i, entry in enumerate(sys.path) if entry.endswith(("site-packages", "-packages"))),
        len(sys.path),
    )
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.insert(at, str(folder))


def load(text: str, path: str, root: str, qualname: str, tag: str) -> Loaded:
    """Execute what ``qualname`` needs of ``text``; raise ``LoadError`` if nothing works."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise LoadError(f"the text does not compile: {error}") from None
    package, folder = package_of(Path(path))
    make_importable(folder, Path(root))
    module = _Module(text, Path(path), package, tag)
    target = qualname.partition(".")[0]
    needed = needed_statements(tree, target)
    if not any(target in _bound(statement) for statement in needed):
        raise LoadError(f"{target} is not defined in this file")
    reasons: list[str] = []
    for execute in (
        lambda: module.parts(needed, strict=True),
        lambda: module.whole(tree),
        lambda: module.parts(needed, strict=False),
    ):
        outcome = attempt(execute, _IMPORT_S)
        loaded = outcome.value
        if isinstance(loaded, Loaded) and target in loaded.namespace:
            return loaded
        reasons.append(outcome.error or f"{target} is not there after the import")
    raise LoadError(f"the definitions cannot be executed: {reasons[0]}")


class _Module:
    def __init__(self, text: str, path: Path, package: str, tag: str) -> None:
        self._path = path
        # Statements may be compiled one by one, where a future import would bind only itself.
        lazy = "from __future__ import annotations" in text
        self._flags = __future__.annotations.compiler_flag if lazy else 0
        self._package = package
        self._name = f"{package}.{path.stem}" if package else path.stem
        self._filename = f"{path} ({tag})"
        linecache.cache[self._filename] = (
            len(text),
            None,
            text.splitlines(keepends=True),
            self._filename,
        )

    def _fresh(self) -> types.ModuleType:
        module = types.ModuleType(self._name)
        module.__file__ = str(self._path)
        module.__package__ = self._package
        module.__dict__[_OURS] = True
        # Dataclasses and typing look their module up by name. A real module of that name stays:
        # a user's ``random.py`` must not replace the library's.
        previous = sys.modules.get(self._name)
        if previous is None or hasattr(previous, _OURS):
            sys.modules[self._name] = module
        return module

    def _execute(self, body: list[ast.stmt], module: types.ModuleType) -> None:
        code = compile(
            ast.Module(body, []), self._filename, "exec", flags=self._flags, dont_inherit=True
        )
        exec(code, module.__dict__)  # noqa: S102 — running the user's code is this package's purpose

    def whole(self, tree: ast.Module) -> Loaded:
        if self._package:
            importlib.import_module(self._package)
        module = self._fresh()
        self._execute(tree.body, module)
        return Loaded(module.__dict__, self._filename)

    def parts(self, statements: Sequence[ast.stmt], *, strict: bool) -> Loaded:
        module = self._fresh()
        missing: list[str] = []
        loading = [True]
        for statement in statements:
            if strict:
                self._execute([statement], module)
                continue
            outcome = attempt(lambda s=statement: self._execute([s], module), _IMPORT_S)  # type: ignore[misc]
            if not outcome.error:
                continue
            for name in _bound(statement) - module.__dict__.keys():
                if isinstance(statement, _IMPORTS):
                    module.__dict__[name] = Placeholder(name, loading)
                    missing.append(name)
        loading.clear()
        return Loaded(module.__dict__, self._filename, tuple(sorted(missing)))


def needed_statements(tree: ast.Module, target: str) -> list[ast.stmt]:
    """Return the top-level statements that ``target`` needs, in their order.

    A statement that changes a needed definition (``Norm.forward = ...``, ``register(Norm)``)
    belongs to it.
    """
    bound = [_bound(statement) for statement in tree.body]
    used = [_used(statement) for statement in tree.body]
    imported = set[str]().union(
        *(b for s, b in zip(tree.body, bound, strict=True) if isinstance(s, _IMPORTS))
    )
    changes = [_changes(statement) - imported for statement in tree.body]
    wanted, queue = set[int](), [target]
    seen: set[str] = set()
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        for index in range(len(tree.body)):
            if (name in bound[index] or name in changes[index]) and index not in wanted:
                wanted.add(index)
                queue.extend(used[index])
    unresolved = seen - set[str]().union(*bound)
    wanted |= {i for i, names in enumerate(bound) if "*" in names and unresolved}
    return [tree.body[index] for index in sorted(wanted)]


def _walk_scope(statement: ast.stmt, visit: Callable[[ast.AST], None]) -> None:
    visit(statement)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.expr | ast.withitem):
            _walk_scope(child, visit)  # type: ignore[arg-type]


def _bound(statement: ast.stmt) -> set[str]:
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, _IMPORTS):
            names.update((a.asname or a.name.partition(".")[0]) for a in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)

    _walk_scope(statement, visit)
    return names


def _used(statement: ast.stmt) -> set[str]:
    names = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(statement):
        # Annotations in quotes name classes that a dataclass or a signature may look up.
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and value.isidentifier():
            names.add(value)
    return names


def _changes(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AugAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        # ``train()`` at the end of a script uses the definition; ``Norm.update()`` changes it.
        targets = [*call.args, *([] if isinstance(call.func, ast.Name) else [call.func])]
    else:
        return set()
    return {
        node.id
        for target in targets
        if not isinstance(target, ast.Name) or isinstance(statement, ast.Expr)
        for node in ast.walk(target)
        if isinstance(node, ast.Name)
    }
