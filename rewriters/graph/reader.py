"""From a function of the user to its dataflow."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.graph.aliases import is_new_container
from npufix.rewriters.graph.canonical import arithmetic
from npufix.rewriters.graph.control_flow import BlockReader, list_assigned_in
from npufix.rewriters.graph.dataflow import FunctionFlow, ReadAgainError, UnsupportedCodeError
from npufix.rewriters.graph.expressions import BINARY, ExpressionReader
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rewriters.graph.modules.syntax import list_stored_names, walk
from npufix.rewriters.graph.nodes import Graph, Node
from npufix.rewriters.graph.special import Op
from npufix.rewriters.graph.state import State

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
        state = State(names, cls, Graph(), declared)
        state.outside, state.reshapes = outside, reshapes
        state.epoch = state.effects = int(reshapes)
        if scope is not None:
            state.env = {name: state.graph.node(Op.OUTSIDE, value=name) for name in scope.hidden}
            if scope.sees_self:
                state.env["self"] = state.graph.node(Op.PARAM, value="self")
        reader = FunctionReader(state)
        try:
            reader.run(function)
        except ReadAgainError as again:
            outside, reshapes = outside | again.names, reshapes or again.reshapes
        else:
            break
        finally:
            reader.close()
    return FunctionFlow(
        function=function,
        cls=cls,
        names=names,
        graph=state.graph,
        evaluations=tuple(state.evaluations),
        observables=tuple(state.observables),
        places=state.places,
        captured=frozenset(
            state.captured | (list_stored_names(function) if state.sees_all else set())
        ),
        scope=scope,
        for_npu=frozenset(state.for_npu),
        reshapes=reshapes,
    )


_IN_PLACE = frozenset({"add_", "div_", "masked_fill_", "mul_", "sub_"})
_FROM_PRODUCTS = frozenset({"add", "div", "masked_fill", "mul", "sub"})


class FunctionReader:
    """Follows the statements of a function, branch by branch."""

    code: FunctionNode | None = None
    """The function that is read."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.expressions = ExpressionReader(state)
        self.blocks = BlockReader(state, self.expressions, self)

    def close(self) -> None:
        """Let go of the parts that know each other."""
        self.expressions.close()
        vars(self.blocks).clear()

    def run(self, function: FunctionNode) -> None:
        """Read the whole function."""
        self.code = function
        self.state.is_module = function.name == MODULE
        if self.state.is_module:  # functions that it calls may bind its names
            self.state.outside |= {
                name for name in self.state.names.bound if self.state.names.is_rebound(name)
            }
        spec = function.args
        params = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
        params += [a for a in (spec.vararg, spec.kwarg) if a is not None]
        for param in params:
            if param.arg not in self.state.outside:
                self.state.env[param.arg] = self.state.graph.node(Op.PARAM, value=param.arg)
        self.blocks.read_block(function.body)
        self.blocks.observe_carried()

    def _container(self, node: Node) -> Node:
        """Return a list that gets a name: no two of those that are filled later are one."""
        if not self._is_container(node):
            return node
        kept = node.op == Op.LIST and node.args and not self._lists_grow
        return node if kept else self.state.op(Op.CONTAINER, node, value=self.state.unique())

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
        """Read one statement; return whether control leaves there.

        Raises:
            UnsupportedCodeError: nobody knows what it does.

        """
        match code:
            case ast.Expr(value):
                self._discard(value)
            case ast.Assign(targets, value):
                node = self._mapped(targets[0], value) or self._make(value)
                self.expressions.calls.helpers.keep_lambda(node, value)
                for target in targets:
                    self.assign(target, node, code)
            case ast.AnnAssign(target, _, value) if value is not None:
                self.assign(target, self.expressions.read(value), code)
            case ast.AugAssign():
                self._read_augmented(code)
            case ast.Return(value):
                node = self.expressions.read(value) if value else self.state.graph.constant(None)
                self.state.observe("return", node)
                return True
            case ast.If():
                return self.blocks.read_if(code)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.blocks.read_loop(code)
            case ast.With() | ast.AsyncWith():
                return self.blocks.read_with(code)
            case ast.Try():
                self.blocks.read_try(code)
            case ast.Raise() | ast.Assert() | ast.Delete():
                parts = [
                    self.expressions.read(e)
                    for e in ast.iter_child_nodes(code)
                    if isinstance(e, ast.expr)
                ]
                self.state.effect(type(code).__name__, self.state.op(Op.STATEMENT, *parts))
                if isinstance(code, ast.Assert):
                    self._learn_rank(parts[0])
                return isinstance(code, ast.Raise)
            case ast.Break() | ast.Continue():
                self.state.observe(type(code).__name__, self.state.graph.constant(None))
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._define(code)
            case ast.Import() | ast.ImportFrom():
                self._local_import(code)
            case ast.Match():
                self.blocks.read_match(code)
            case ast.Global(names) | ast.Nonlocal(names):
                self._not_ours(names)
            case ast.Pass() | ast.AnnAssign():
                pass
            case _:
                raise UnsupportedCodeError(type(code).__name__)
        return False

    def _learn_rank(self, test: Node) -> None:
        """Take note of ``assert x.ndim == 4``, as of ``b, h, n, d = x.shape``."""
        tests = test.args if test.op == Op.BOOLOP and test.value == "And" else (test,)
        for part in tests:
            rank, number = part.args if part.op == "eq" else (part, part)
            known = rank.op == Op.RANK and number.op == Op.CONST and not self.state.reshapes
            if known and isinstance(number.value, int):
                self.state.ranks = {**self.state.ranks, rank.args[0]: number.value}

    def _mapped(self, target: ast.expr, value: ast.expr) -> Node | None:
        """Return what names get from ``q, k, v = map(f, (q, k, v))``."""
        match target:
            case ast.Tuple(items) if all(isinstance(item, ast.Name) for item in items):
                return self.expressions.calls.helpers.mapped(value, len(items))
        return None

    def _make(self, code: ast.expr) -> Node:
        """Read what a name is to stand for: of two equal lists, each is one of its own."""
        if isinstance(code, ast.Tuple) and any(map(is_new_container, code.elts)):
            return self.state.graph.node(Op.TUPLE, *map(self._make, code.elts))  # ``a, b = [], []``
        node = self.expressions.read(code)
        return self.state.once(node) if is_new_container(code) else node

    def _discard(self, code: ast.expr) -> None:
        """Read an expression whose value nobody wants: a call is there for what it changes."""
        match code:
            case ast.Call(ast.Attribute(ast.Name(name) as owner, attr), args, options) if (
                attr in _IN_PLACE and self._is_ours_alone(name)
            ):  # ``scores.masked_fill_(mask, value)``
                plain = ast.Attribute(owner, attr.removesuffix("_"), ast.Load())
                again = ast.Call(ast.copy_location(plain, code), args, options)
                node = self.expressions.evaluate(ast.copy_location(again, code))
                self.state.record(node, code)
                self.state.bind(name, node)
                return
        observed = len(self.state.observables)
        node = self.expressions.read(code)
        if isinstance(code, ast.Call) and len(self.state.observables) == observed:
            self.state.effect("call", node)

    def _is_ours_alone(self, name: str) -> bool:
        """Tell whether a name stands for a product that nothing else can see, and nothing has.

        To change it in place is to give the name another value then: ``scores /= 8``, right behind
        ``scores = q @ k.T``. Of a loop around it that is not so, but in it another moment begins.
        """
        node = self.state.env.get(name)
        hidden = self.state.outside | self.state.captured
        if node is None or name in hidden or self.state.reshapes or not self._is_product(node):
            return False
        if self.state.epoch != node.epoch:
            return False
        seen = [o.node for o in self.state.observables]
        others = [value for other, value in self.state.env.items() if other != name]
        held = [*seen, *others, *self.state.stored.values()]
        return not any(node is inner for value in held for inner in value.walk())

    @staticmethod
    def _is_product(node: Node) -> bool:
        """Tell whether a value is a product of matrices, or new memory computed from one."""
        while node.op in _FROM_PRODUCTS:
            node = node.args[0]
        return node.op in {"bmm", "matmul"}

    def _define(self, code: FunctionNode | ast.ClassDef) -> None:
        """Read the definition of an inner function, not the function."""
        for inner in walk(code):
            if isinstance(inner, ast.Nonlocal):
                self._not_ours(inner.names)
            if isinstance(inner, ast.Name):
                self.state.captured.add(inner.id)
        node = self.state.op(Op.DEF, value=(self.state.unique(), code.name))
        self.state.bind(code.name, node)
        if isinstance(code, ast.FunctionDef) and not code.decorator_list:
            self.state.inner[node] = code
        self.state.effect("def", node)

    def _not_ours(self, names: list[str]) -> None:
        """Take note that other functions may bind names of this one."""
        if not self.state.outside.issuperset(names):
            raise ReadAgainError(names)

    def assign(self, target: ast.expr, node: Node, code: ast.stmt) -> None:
        """Give a target a value.

        Raises:
            UnsupportedCodeError: it is no name, attribute, item or sequence of these.

        """
        match target:
            case ast.Name(name):
                self.state.bind(name, self._container(node))
            case ast.Tuple(items) | ast.List(items):
                if any(isinstance(item, ast.Starred) for item in items):
                    for name in list_assigned_in([code]):
                        self.state.bind(
                            name, self.state.op(Op.OPAQUE, node, value=(self.state.unique(), name))
                        )
                    return
                if all(isinstance(item, ast.Name) for item in items):
                    self.state.learn_rank(node, len(items))
                for index, item in enumerate(items):
                    self.assign(item, self.expressions.item(node, index), code)
            case ast.Subscript(base, index):
                written = self.state.op(
                    Op.SETITEM, self.expressions.read(base), self.expressions.read(index), node
                )
                self.state.record(written, code)
                self.state.effect("write", written)
                if isinstance(base, ast.Name) and written.args[0].op == Op.LIST:
                    self.state.bind(
                        base.id, self.state.op(Op.CONTAINER, written, value=self.state.unique())
                    )
            case ast.Attribute(base, attr):
                self._set_attribute(self.expressions.read(base), attr, node)
            case _:
                raise UnsupportedCodeError(type(target).__name__)

    def _set_attribute(self, owner: Node, name: str, node: Node) -> None:
        """Read ``owner.name = node``."""
        if name == "data":
            self.state.reshaping()
        stored = self.state.op(Op.SETATTR, owner, node, value=name)
        if name in {"data", "grad"}:  # a tensor holds other values from here on
            self.state.effect("write", stored)
        else:
            self.state.observe("setattr", stored)
        self._store(owner, name, node)

    def _store(self, owner: Node, name: str, node: Node) -> None:
        """Remember what an attribute is; that of any other object may be the same one."""
        self.state.effects += 1  # a later moment for the attributes of this name, not for tensors
        self.state.moved[name] = self.state.moved[""] = self.state.effects
        self.state.stored = {
            key: value for key, value in self.state.stored.items() if key[1] != name
        }
        self.state.stored[owner, name] = node

    def _read_augmented(self, code: ast.AugAssign) -> None:
        """Read ``x += y``: a write to the tensor that every alias of ``x`` sees."""
        left = self.expressions.read(_as_load(code.target))
        right = self.expressions.read(code.value)
        alone = isinstance(code.target, ast.Name) and self._is_ours_alone(code.target.id)
        node = arithmetic(self.state.graph, BINARY[type(code.op)], [left, right], self.state.epoch)
        if alone and isinstance(code.target, ast.Name):
            self.state.record(node, code)
            self.state.bind(code.target.id, node)
            return
        written = self.state.op(Op.AUGMENT, left, node)
        self.state.record(written, code)
        self.state.effect("write", written)
        if isinstance(code.target, ast.Name):
            # The updated tensor is not the value of the expression before the write.
            self.state.bind(code.target.id, self.state.op(Op.AUGMENTED, node))
        elif isinstance(code.target, ast.Attribute):
            owner = self.expressions.read(code.target.value)
            self._store(owner, code.target.attr, self.state.op(Op.AUGMENTED, node))

    def _local_import(self, code: ast.Import | ast.ImportFrom) -> None:
        names = [alias.asname or alias.name.split(".")[0] for alias in code.names]
        if self.state.is_module and set(names) <= set(self.state.names.imports):
            return  # the imports of the module itself: what they mean is known
        self.state.observe("import", self.state.graph.constant(ast.dump(code)))
        for name, alias in zip(names, code.names, strict=True):
            self.state.bind(
                name, self.state.graph.node(Op.GLOBAL, value=_resolve_import(code, alias))
            )


def _resolve_import(code: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    """Return what one name of an import means, whatever is imported beside it.

    The whole statement for each name would be the square of its length, of which packages that
    import all that they have are full.
    """
    if isinstance(code, ast.Import):
        return f"import {ast.dump(alias)}"
    return f"from {code.level} {code.module} import {alias.name}"


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
