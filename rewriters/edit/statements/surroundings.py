"""Where code stands in its function, what the dataflow says about it, and what may be moved."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import Span, segment, span
from npufix.rewriters.facts.occasions import is_hot
from npufix.rewriters.facts.site_facts import SourceFacts
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import is_plain_attribute
from npufix.rewriters.graph.modules.scopes import Scope
from npufix.rewriters.graph.modules.syntax import children, list_stored_names, walk
from npufix.rewriters.graph.special import Op
from npufix.rewriters.match.matching import Match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Node

LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LATER = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})
"""What has a body of its own, which is read by itself."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
PRIMARIES = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""What a method or an index can stand behind, as Python's grammar calls it."""
LEAVES = frozenset({Op.CONST, Op.DTYPE, Op.GLOBAL, Op.PARAM, Op.AFTER, Op.CARRIED, Op.ELEMENT})
METADATA = frozenset(
    {Op.SHAPE, Op.SIZE, Op.RANK, Op.DTYPE_OF, Op.TUPLE, Op.SLICE, Op.ITEM, Op.GETITEM, Op.CAST,
     Op.PHI, Op.AGAIN, Op.COMPARE, Op.NOT, Op.IS, Op.IS_NOT, Op.BOOLOP, Op.ATTR, Op.AUGMENTED}
)  # fmt: skip
_MAY_RAISE = frozenset({"cat", "stack", "item", "tolist", "linalg.inv", "inverse", "cholesky"})
_UNFIT = operators.RANDOM | operators.STATEFUL


_FEW = 3
"""Rounds that are not worth a name for one small operator."""


class TooLargeError(Exception):
    """A function holds so much that no more of it is looked at."""


@dataclass(frozen=True)
class Surroundings:
    """A function: its syntax from the inside out, and its values."""

    flow: FunctionFlow
    lines: Sequence[str]
    may_look: Callable[[], bool] = lambda: True
    """Asked before anything whose cost grows with the function: whether there is effort left."""

    @cached_property
    def is_hot(self) -> bool:
        """Tell whether the function runs in every step."""
        scope = self.flow.scope or Scope(self.flow.function, self.flow.cls)
        return is_hot(scope, self.flow.names.tree)

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """Return all syntax of the function, outer before inner, not that of inner functions."""
        return list(walk(*self.flow.function.body, closed=_LATER))

    @cached_property
    def parents(self) -> Mapping[int, ast.AST]:
        """Return what each node stands in, by the ``id`` of the node."""
        return {id(inner): node for node in self.nodes for inner in children(node)}

    @cached_property
    def assigned(self) -> Mapping[str, Sequence[ast.expr]]:
        """Return what is assigned to each plain name."""
        found: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for name in {t.id for t in node.targets if isinstance(t, ast.Name)}:
                    found.setdefault(name, []).append(node.value)
        return found

    @cached_property
    def evaluations(self) -> Mapping[int, Evaluation]:
        """Return what each expression has for a value, by the ``id`` of its code."""
        return {id(e.code): e for e in self.flow.evaluations}

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node stands in, from the inside out."""
        while (outer := self.parents.get(id(node))) is not None:
            yield outer
            node = outer

    def holder_of(self, code: ast.expr) -> ast.AST | None:
        """Return what holds code as it is, or under a name: ``dict(n=code)``."""
        above = self.parents.get(id(code))
        return self.parents.get(id(above)) if isinstance(above, ast.keyword) else above

    def tests_around(self, code: ast.AST) -> list[ast.expr]:
        """Return the conditions under which code runs, the nearest first."""
        return [o.test for o in self.around(code) if isinstance(o, (ast.If, ast.IfExp))]

    def loop_of(self, node: ast.AST) -> ast.AST | None:
        """Return the innermost loop or comprehension that runs a node again and again."""
        inner = node
        for outer in self.around(node):
            if isinstance(outer, LOOPS) and inner is not getattr(outer, "iter", None):
                return outer
            if isinstance(outer, COMPREHENSIONS) and inner is not outer.generators[0]:
                return outer
            inner = outer
        return None

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that a node stands in."""
        if isinstance(node, ast.stmt):
            return node
        return next(outer for outer in self.around(node) if isinstance(outer, ast.stmt))

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements that a statement is one of."""
        outer = self.parents.get(id(statement), self.flow.function)
        blocks = (getattr(outer, name, None) for name in ("body", "orelse", "finalbody"))
        return next(b for b in blocks if isinstance(b, list) and statement in b)

    def list_behind(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements of its block that stand behind a statement."""
        block = self.block_of(statement)
        return block[block.index(statement) + 1 :]

    def value(self, code: ast.expr) -> Node | None:
        """Return the value of an expression, ``None`` where it is not followed."""
        found = self.evaluations.get(id(code))
        return None if found is None else found.node

    def dotted(self, code: ast.expr) -> str | None:
        """Return the imported name that an expression spells, or ``None``.

        Also of what the function imports for itself, unless it is one of several of that name.
        """
        known = self.flow.names.dotted(code)
        if known is not None or not self._imported:
            return known
        text = ast.unparse(code)
        if not text.replace(".", "").isidentifier():
            return None
        first, _, rest = text.partition(".")
        imported = {full for name, full in self._imported if name == first}
        return ".".join(filter(None, [*imported, rest])) if len(imported) == 1 else None

    @cached_property
    def _imported(self) -> Sequence[tuple[str, str]]:
        """Return what the function imports for itself."""
        return [
            (alias.asname or alias.name, f"{n.module}.{alias.name}")
            for n in self.nodes
            if isinstance(n, ast.ImportFrom) and not n.level
            for alias in n.names
        ]

    def is_tensor(self, code: ast.expr) -> bool | None:
        """Tell whether an expression is a tensor."""
        at, node = self.place_of(code)
        if at is None or node is None:
            return None
        if isinstance(code, ast.Name) and self._is_tested_for_another(code):
            return False
        return self.facts(at, x=node).is_tensor("x")

    def place_of(self, code: ast.expr) -> tuple[Evaluation | None, Node | None]:
        """Return where an expression is evaluated, and its value.

        Of a name also in what is not looked into: ``{"loss": loss.item()}``, and ``best`` of
        ``[i for i in range(n) if best[i] > 0]``.
        """
        found = self.evaluations.get(id(code))
        if found is not None or not isinstance(code, ast.Name):
            return found, None if found is None else found.node
        for outer in self.around(code):
            if isinstance(outer, (ast.Lambda, ast.GeneratorExp, ast.stmt)):
                break
            if isinstance(outer, COMPREHENSIONS) and any(
                code.id in list_stored_names(g.target) for g in outer.generators
            ):
                break
            if (found := self.evaluations.get(id(outer))) is not None:
                return found, found.names.get(code.id)
        return None, None

    def is_written_to(
        self, name: str, besides: ast.Call | None = None, lines: range | None = None
    ) -> bool:
        """Tell whether anything changes a tensor where it is: ``mask[0] = True``, ``mask &= m``."""
        for node in self.nodes:
            if lines is not None and getattr(node, "lineno", 0) not in lines:
                continue
            match node:
                case ast.Subscript(whole, ctx=ast.Store()) | ast.AugAssign(whole):
                    pass
                case ast.Call(ast.Attribute(whole, method)) if method.endswith("_"):
                    if node is besides:
                        continue
                case _:
                    continue
            while isinstance(whole, ast.Subscript):
                whole = whole.value
            if ast.unparse(whole) == name:
                return True
        return False

    def _is_tested_for_another(self, name: ast.Name) -> bool:
        """Tell whether a name is something else where it stands: ``if isinstance(x, list):``."""
        inner: ast.AST = name
        for outer in self.around(name):
            if isinstance(outer, ast.If) and inner in outer.body:
                match outer.test:
                    case ast.BoolOp(ast.And(), parts):
                        tests = parts
                    case test:
                        tests = [test]
                for test in tests:
                    match test:
                        case ast.Call(ast.Name("isinstance"), [ast.Name() as tested, kinds]) if (
                            tested.id == name.id
                            and self.value(tested) == self.value(name)
                            and "Tensor" not in ast.unparse(kinds)
                        ):
                            return True
            inner = outer
        return False

    def facts(self, at: Evaluation, **values: Node) -> SourceFacts:
        """Return what the source says of values at a place.

        Raises:
            TooLargeError: enough has been asked about this function.

        """
        if not self.may_look():
            raise TooLargeError
        return SourceFacts(self.flow, Match(at, values, frozenset(), {}))

    def comments_of(self, code: ast.AST) -> str:
        """Return what comments say in the statement of some code, above it and its tests."""
        statement = self.statement_of(code)
        lines = list(self.lines[statement.lineno - 1 : statement.end_lineno])
        for outer in (statement, *(n for n in self.around(statement) if isinstance(n, ast.If))):
            number = outer.lineno - 1
            while number and self.lines[number - 1].lstrip().startswith("#"):
                number -= 1
                lines.append(self.lines[number])
        return " ".join(line.partition("#")[2] for line in lines)

    def users(self, node: Node) -> list[Node]:
        """Return the values that are computed from a value directly, effects included."""
        return list(self._users.get(node, ()))

    @cached_property
    def _users(self) -> Mapping[Node, Mapping[Node, None]]:
        found: dict[Node, dict[Node, None]] = {}
        seen = [e.node for e in self.flow.evaluations] + [o.node for o in self.flow.observables]
        for user in seen:
            for arg in user.args:
                found.setdefault(arg, {})[user] = None
        return found

    def text(self, code: ast.expr | ast.stmt) -> str:
        """Return code as it is written."""
        return segment(self.lines, code)

    def text_of_owner(self, code: ast.expr) -> str:
        """Return code as it is written, so that ``.detach()`` can stand behind: ``(x + y)``."""
        return self.text(code) if isinstance(code, PRIMARIES) else f"({self.text(code)})"

    def text_detached(self, code: ast.expr) -> str:
        """Return code with ``.detach()`` behind it, unless it says so: ``loss.detach().mean()``."""
        inner = code
        while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            if inner.func.attr == "detach":
                return self.text(code)
            if not all(isinstance(a, ast.Constant) for a in inner.args) or inner.keywords:
                break
            inner = inner.func.value
        return f"{self.text_of_owner(code)}.detach()"

    @property
    def torch(self) -> str:
        """What the file calls torch, ``th``; "" if it imports only parts of it."""
        imports = self.flow.names.imports.items()
        return next((name for name, module in imports if module == "torch"), "")

    @property
    def functional(self) -> str:
        """What the file calls ``torch.nn.functional``, ``F``; "" if it does not import it so."""
        imports = self.flow.names.imports.items()
        return next((name for name, module in imports if module == "torch.nn.functional"), "")

    @property
    def imports_torch(self) -> bool:
        """Whether the file calls torch by its own name."""
        return self.flow.names.imports.get("torch") == "torch"

    def span(self, code: ast.expr | ast.stmt) -> Span:
        """Return where code is."""
        return span(code, self.lines)

    def whole_lines(self, code: ast.stmt) -> Span | None:
        """Return the lines of a statement, ``None`` where it shares them with other code."""
        first, start, last, end = self.span(code)
        before, after = self.lines[first - 1][:start], self.lines[last - 1][end:]
        if before.strip() or after.strip()[:1] not in {"", "#"}:
            return None
        return first, 0, last, len(self.lines[last - 1])

    def indent(self, code: ast.stmt) -> str:
        """Return what stands before the first line of a statement."""
        return self.lines[code.lineno - 1][: self.span(code)[1]]


def is_pure(here: Surroundings, node: Node) -> bool:
    """Tell whether computing a value changes nothing, and gives the same every time."""
    parts = set(node.walk())
    made = [part for part in parts if part.op in operators.FACTORIES]
    parts -= {sizes for part in made for sizes in part.args if sizes.op == Op.LIST}
    return all(is_repeatable(here, part) and not _may_raise(part) for part in parts)


def _may_raise(node: Node) -> bool:
    """Tell whether an operator may refuse what it gets: not so ``torch.cat([x, x])``."""
    if node.op in {"cat", "stack"} and node.args[0].op in {Op.LIST, Op.TUPLE}:
        return len(set(node.args[0].args)) > 1
    if node.op == "stack" and node.args[0].op.removesuffix("(*)") == "meshgrid":
        return False  # all of one shape
    return node.op.removesuffix("(*)") in _MAY_RAISE


def is_repeatable(here: Surroundings, part: Node) -> bool:
    """Tell whether one operator changes nothing, and gives the same of the same every time."""
    op = part.op.removesuffix("(*)")
    if op in LEAVES or (op in METADATA and op != Op.ATTR):
        return True
    if op == "py:float" and all(arg.op == Op.CONST for arg in part.args):
        return True  # ``float("-inf")``
    if op.startswith("py:math."):
        return True
    if op == Op.ATTR:
        of_tensor = part.value in {"device", "dtype", "T", "mT", "is_cuda", "is_npu"}
        return of_tensor or _is_setting(here, part)
    return not (op not in operators.TABLE or op in _UNFIT or op.endswith("_") or _writes(part))


def _writes(node: Node) -> bool:
    """Tell whether the result goes into a tensor that is there already."""
    return isinstance(node.value, tuple) and "out" in node.value


def _is_setting(here: Surroundings, node: Node) -> bool:
    return bool(is_plain_attribute(here.flow, node))


def list_parameters(here: Surroundings) -> set[str]:
    """Return what a function is handed, by name."""
    return {a.arg for a in ast.walk(here.flow.function.args) if isinstance(a, ast.arg)}


def saves_little(loop: ast.AST, operands: Sequence[ast.expr]) -> bool:
    """Tell whether two or three rounds add a number: ``for n in (4, 8): f(x + 1 - n)``."""
    match loop:
        case ast.For(iter=ast.Tuple(rounds) | ast.List(rounds)) if len(rounds) <= _FEW:
            pass
        case ast.For(iter=ast.Call(ast.Name("range"), [ast.Constant(int() as count)], [])) if (
            count <= _FEW
        ):
            pass
        case _:
            return False
    return (
        all(
            isinstance(code, ast.BinOp)
            and isinstance(code.left, ast.Name | ast.Attribute | ast.Constant)
            and isinstance(code.right, ast.Name | ast.Attribute | ast.Constant)
            for code in operands
        )
        and len({ast.dump(code) for code in operands}) == 1
    )
