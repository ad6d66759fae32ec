"""From a function of the user to its dataflow."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.graph.canonical import arithmetic
from npufix.rewriters.graph.control_flow import BlockReader, assigned_in
from npufix.rewriters.graph.dataflow import FunctionFlow, ReadAgainError, UnsupportedCodeError
from npufix.rewriters.graph.expressions import BINARY
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.nodes import Graph, Node
from npufix.rewriters.graph.special import Op
from npufix.rewriters.graph.twins import CONTAINERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.modules.scopes import Scope

_CONTAINERS = frozenset({"list", "py:dict", "py:list", "py:set"})
# What code is that is not looked into: ``{}``, ``[f(x) for x in y]``.
_DISPLAY = re.compile(r"(\S* )?(Dict|DictComp|ListComp|Set|SetComp)\(")
_FILLING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "remove",
     "reverse", "setdefault", "sort", "update"}
)  # fmt: skip


def read_function(
    function: FunctionNode,
    names: ModuleNames,
    cls: ast.ClassDef | None = None,
    declared: Mapping[str, str] | None = None,
    scope: Scope | None = None,
) -> FunctionFlow:
    """Return the dataflow of ``function``.

    ``scope`` says where it stands: names of the functions around it are values from outside.
    ``declared`` names the parameters of a rule that stand for submodules and activations.

    Raises:
        UnsupportedCodeError: it may read or bind any of its names (``locals()``).

    """
    outside: frozenset[str] = frozenset()
    reshapes = False
    while True:  # no more often than there are names
        reader = FunctionReader(names, cls, Graph(), declared)
        reader.outside, reader.reshapes = outside, reshapes
        reader.epoch = reader.effects = int(reshapes)
        if scope is not None:
            reader.env = {name: reader.graph.node(Op.OUTSIDE, value=name) for name in scope.hidden}
        try:
            reader.run(function)
        except ReadAgainError as again:
            outside, reshapes = outside | again.names, reshapes or again.reshapes
        else:
            break
    return FunctionFlow(
        function=function,
        cls=cls,
        names=names,
        graph=reader.graph,
        evaluations=tuple(reader.evaluations),
        observables=tuple(reader.observables),
        places=reader.places,
        captured=frozenset(reader.captured),
        scope=scope,
        reshapes=reshapes,
    )


class FunctionReader(BlockReader):
    """Follows the statements of a function, branch by branch."""

    code: FunctionNode | None = None
    """The function that is read."""

    def run(self, function: FunctionNode) -> None:
        """Read the whole function."""
        self.code = function
        self.is_module = function.name == MODULE
        if self.is_module:  # functions that it calls may bind its names
            self.outside |= {name for name in self.names.bound if self.names.is_rebound(name)}
        spec = function.args
        params = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
        params += [a for a in (spec.vararg, spec.kwarg) if a is not None]
        for param in params:
            if param.arg not in self.outside:
                self.env[param.arg] = self.graph.node(Op.PARAM, value=param.arg)
        self.read_block(function.body)
        self.observe_carried()

    def _container(self, node: Node) -> Node:
        """Return a list that gets a name: no two of those that are filled later are one."""
        if not self._is_container(node):
            return node
        kept = node.op == Op.LIST and node.args and not self._lists_grow
        return node if kept else self.op(Op.CONTAINER, node, value=self.unique())

    @cached_property
    def _lists_grow(self) -> bool:
        """Tell whether a list may hold more later than from the start."""
        return self.code is not None and any(map(_fills, walk(self.code)))

    def _is_container(self, node: Node) -> bool:
        if node.op in {"mul", "add"}:  # ``[None] * n``
            return any(arg.op == Op.LIST for arg in node.args)
        written = str(node.value) if node.op == Op.OPAQUE else ""
        return node.op in _CONTAINERS or bool(_DISPLAY.match(written))

    def statement_of(self, code: ast.stmt) -> bool:  # noqa: C901, PLR0912 - one case a syntax
        """Read one statement; return whether control leaves there."""
        match code:
            case ast.Expr(value):
                self._discard(value)
            case ast.Assign(targets, value):
                node = self._made(value)
                self.keep_lambda(node, value)
                for target in targets:
                    self.assign(target, node, code)
            case ast.AnnAssign(target, _, value) if value is not None:
                self.assign(target, self.read(value), code)
            case ast.AugAssign():
                self._augmented(code)
            case ast.Return(value):
                node = self.read(value) if value else self.graph.constant(None)
                self.observe("return", node)
                return True
            case ast.If():
                return self.read_if(code)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.read_loop(code)
            case ast.With() | ast.AsyncWith():
                return self.read_with(code)
            case ast.Try():
                self.read_try(code)
            case ast.Raise() | ast.Assert() | ast.Delete():
                parts = [
                    self.read(e) for e in ast.iter_child_nodes(code) if isinstance(e, ast.expr)
                ]
                self.effect(type(code).__name__, self.op(Op.STATEMENT, *parts))
                return isinstance(code, ast.Raise)
            case ast.Break() | ast.Continue():
                self.observe(type(code).__name__, self.graph.constant(None))
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._define(code)
            case ast.Import() | ast.ImportFrom():
                self._local_import(code)
            case ast.Match():
                self.read_match(code)
            case ast.Global(names) | ast.Nonlocal(names):
                self._not_ours(names)
            case ast.Pass() | ast.AnnAssign():
                pass
            case _:
                raise UnsupportedCodeError(type(code).__name__)
        return False

    def _made(self, code: ast.expr) -> Node:
        """Read what a name is to stand for: of two equal lists, each is one of its own."""
        if isinstance(code, ast.Tuple) and any(isinstance(e, CONTAINERS) for e in code.elts):
            return self.graph.node(Op.TUPLE, *map(self._made, code.elts))  # ``a, b = [], []``
        node = self.read(code)
        return self.once(node) if isinstance(code, CONTAINERS) else node

    def _discard(self, code: ast.expr) -> None:
        """Read an expression whose value nobody wants: a call is there for what it changes."""
        observed = len(self.observables)
        node = self.read(code)
        if isinstance(code, ast.Call) and len(self.observables) == observed:
            self.effect("call", node)

    def _define(self, code: FunctionNode | ast.ClassDef) -> None:
        """Read the definition of an inner function, not the function."""
        for inner in walk(code):
            if isinstance(inner, ast.Nonlocal):
                self._not_ours(inner.names)
            if isinstance(inner, ast.Name):
                self.captured.add(inner.id)
        node = self.op(Op.DEF, value=(self.unique(), code.name))
        self.bind(code.name, node)
        if isinstance(code, ast.FunctionDef) and not code.decorator_list:
            self.inner[node] = code
        self.effect("def", node)

    def _not_ours(self, names: list[str]) -> None:
        """Take note that other functions may bind names of this one."""
        if not self.outside.issuperset(names):
            raise ReadAgainError(names)

    def assign(self, target: ast.expr, node: Node, code: ast.stmt) -> None:
        """Give a target a value."""
        match target:
            case ast.Name(name):
                self.bind(name, self._container(node))
            case ast.Tuple(items) | ast.List(items):
                if any(isinstance(item, ast.Starred) for item in items):
                    for name in assigned_in([code]):
                        self.bind(name, self.op(Op.OPAQUE, node, value=(self.unique(), name)))
                    return
                plain = all(isinstance(item, ast.Name) for item in items)
                if node.op == Op.SHAPE and plain and not self.reshapes:
                    self.ranks = {**self.ranks, node.args[0]: len(items)}
                for index, item in enumerate(items):
                    self.assign(item, self.item(node, index), code)
            case ast.Subscript(base, index):
                written = self.op(Op.SETITEM, self.read(base), self.read(index), node)
                self.record(written, code)
                self.effect("write", written)
                if isinstance(base, ast.Name) and written.args[0].op == Op.LIST:
                    self.bind(base.id, self.op(Op.CONTAINER, written, value=self.unique()))
            case ast.Attribute(base, attr):
                self._set_attribute(self.read(base), attr, node)
            case _:
                raise UnsupportedCodeError(type(target).__name__)

    def _set_attribute(self, owner: Node, name: str, node: Node) -> None:
        """Read ``owner.name = node``."""
        if name == "data":
            self.reshaping()
        stored = self.op(Op.SETATTR, owner, node, value=name)
        if name in {"data", "grad"}:  # a tensor holds other values from here on
            self.effect("write", stored)
        else:
            self.observe("setattr", stored)
        self._store(owner, name, node)

    def _store(self, owner: Node, name: str, node: Node) -> None:
        """Remember what an attribute is; that of any other object may be the same one."""
        self.effects += 1  # a later moment for the attributes of this name, not for tensors
        self.moved[name] = self.moved[""] = self.effects
        self.stored = {key: value for key, value in self.stored.items() if key[1] != name}
        self.stored[owner, name] = node

    def _augmented(self, code: ast.AugAssign) -> None:
        """Read ``x += y``: a write to the tensor that every alias of ``x`` sees."""
        left = self.read(_as_load(code.target))
        right = self.read(code.value)
        node = arithmetic(self.graph, BINARY[type(code.op)], [left, right], self.epoch)
        written = self.op(Op.AUGMENT, left, node)
        self.record(written, code)
        self.effect("write", written)
        if isinstance(code.target, ast.Name):
            # The updated tensor is not the value of the expression before the write.
            self.bind(code.target.id, self.op(Op.AUGMENTED, node))
        elif isinstance(code.target, ast.Attribute):
            owner = self.read(code.target.value)
            self._store(owner, code.target.attr, self.op(Op.AUGMENTED, node))

    def _local_import(self, code: ast.Import | ast.ImportFrom) -> None:
        names = [alias.asname or alias.name.split(".")[0] for alias in code.names]
        if self.is_module and set(names) <= set(self.names.imports):
            return  # the imports of the module itself: what they mean is known
        self.observe("import", self.graph.constant(ast.dump(code)))
        for name, alias in zip(names, code.names, strict=True):
            self.bind(name, self.graph.node(Op.GLOBAL, value=f"{ast.dump(code)}.{alias.name}"))


def _fills(code: ast.AST) -> bool:
    """Tell whether code may add to a list; what rules exchange must not matter here."""
    match code:
        case ast.Attribute(_, attr):
            return attr in _FILLING
        case ast.AugAssign(_, _, ast.List() | ast.ListComp()):
            return True
    return False


def _as_load(target: ast.Name | ast.Attribute | ast.Subscript) -> ast.expr:
    """Return an assignment target as the expression that reads it."""
    read: ast.expr
    match target:
        case ast.Name(name):
            read = ast.Name(name, ast.Load())
        case ast.Attribute(base, attr):
            read = ast.Attribute(base, attr, ast.Load())
        case ast.Subscript(base, index):
            read = ast.Subscript(base, index, ast.Load())
    return ast.copy_location(read, target)
