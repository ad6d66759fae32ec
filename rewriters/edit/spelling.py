"""From the ``replacement`` function of a rule to the text that goes into the user's file."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

from npufix.rewriters.edit.guards import Guard, is_simple, is_tensor
from npufix.rewriters.edit.imports import Import
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.expressions import ExpressionReader
from npufix.rewriters.graph.modules.names import ModuleNames
from npufix.rewriters.graph.modules.syntax import copy_tree, find_unused_name, last_name, walk
from npufix.rewriters.graph.special import Op
from npufix.rewriters.graph.state import State
from npufix.rewriters.match.matching import RULE_IMPORTS, Match, list_declared, parse_rule_function

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from npufix.rewriters.edit.wording import Wording
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import FunctionNode
    from npufix.rewriters.graph.nodes import Node


@dataclass(frozen=True, slots=True)
class Spelled:
    """The replacement in the user's own names."""

    text: str
    hoisted: Mapping[str, str]
    """New local names for expressions that the replacement needs more than once."""
    imports: tuple[Import, ...] = ()
    """What the text needs and the file does not import."""
    operands: str = ""
    """The operands as keywords, by the names of the rule: ``x=hidden_states, eps=self.eps``."""
    guard: str | None = ""
    """Where the text calls an operator for NPUs: the condition on which it can, if there is one."""
    unnamed: tuple[str, ast.expr] | None = None
    """A tensor that could be asked for its device if it had a name, and a name that is free."""
    tensors: frozenset[str] = frozenset()
    """The names that stand for tensors among the operands."""
    on_npu: str = ""
    """The condition on which text that runs everywhere runs on an NPU, if there is one."""


def spell(
    replacement: Callable[..., object],
    flow: FunctionFlow,
    match: Match,
    names: Mapping[str, Node],
    wording: Wording,
) -> Spelled | None:
    """Write the replacement where ``names`` are the local names; ``None`` if that is impossible."""
    code = parse_rule_function(replacement)
    flags = {n: b for n, b in match.bindings.items() if b.op == Op.CONST and _is_flag(b.value)}
    body = _fold(_Literals(flags).visit(without_defaults(code, match)))  # one arm of a choice
    parts = list_parts(code)
    uses = [n.id for n in walk(body, *parts.values()) if isinstance(n, ast.Name)]
    texts: dict[str, ast.expr] = {}
    hoisted: dict[str, ast.expr] = {}
    library = _Library(flow, set(uses) & {arg.arg for arg in code.args.args}, wording.lines)
    held = _list_held(flow, match)
    for param in (arg.arg for arg in code.args.args if arg.arg in uses):
        bound = match.bindings[param]
        here = match.evaluation.names
        expression = held.get(bound) if names is here else _find_later_name(bound, names, here)
        expression = expression or _expression(bound, flow, names)
        if expression is None and bound.op == Op.DTYPE:  # ``x.float()`` does not spell it
            expression = library.visit(_read_dotted(str(bound.value).split(".")))
        if expression is None:
            return None
        if uses.count(param) > 1 and not is_simple(expression):
            name = _name_operand(param, expression, flow, match)
            name = fresh(param, flow.function) if name in hoisted else name
            hoisted[name] = expression
            expression = ast.Name(name, ast.Load())
        texts[param] = expression
    left = [arg.arg for arg in code.args.args if arg.arg not in uses]
    spelled = {name: _expression(match.bindings[name], flow, names) for name in left}
    unused = {name: expression for name, expression in spelled.items() if expression is not None}
    shown = {param: wording.shown(code) for param, code in texts.items()}
    steps = {part: fresh(part, flow.function) for part in parts}
    shown |= {part: ast.Name(name, ast.Load()) for part, name in steps.items()}

    def substituted(code: ast.expr) -> ast.expr:
        return _fold(_Substitute(shown).visit(library.visit(copy_tree(code))))

    body = substituted(body)
    named = {steps[part]: wording.written(substituted(value)) for part, value in parts.items()}
    _call_as_before(body, flow, match.evaluation.code)
    tensors = [shown[a.arg] for a in code.args.args if a.arg in shown and is_tensor(a)]
    guard = Guard(flow, wording, hoisted)
    condition = guard.of(body, library.for_npu, tensors)
    operands = [a.arg for a in code.args.args if a.arg in shown and is_tensor(a)]
    return Spelled(
        wording.written(body),
        {name: wording.own(value) for name, value in hoisted.items()} | named,
        tuple(sorted(library.missing)),
        ", ".join(f"{name}={ast.unparse(code)}" for name, code in {**unused, **texts}.items()),
        condition,
        None
        if condition is not None or not operands
        else _unname(operands[0], texts, hoisted, flow),
        frozenset(t.id for t in tensors if isinstance(t, ast.Name)),
        guard.anyhow(tensors),
    )


def _is_flag(value: Hashable) -> bool:
    return value is None or isinstance(value, bool)


def _name_operand(param: str, expression: ast.expr, flow: FunctionFlow, match: Match) -> str:
    """Return what to call an operand that is written several times.

    Of ``cos = x.cos().repeat_interleave(2, -1)`` the first one is ``cos`` as well, where nothing
    else is; another one is called as it is made, ``x_cos``, or as the rule calls it.
    """
    match match.evaluation.statement:
        case ast.Assign([ast.Name(name)], value) if value is match.evaluation.code:
            read = {n.id for n in walk(value) if isinstance(n, ast.Name)}
            first = next(iter(match.bindings), "") == param
            if first and name not in read and name not in flow.captured:
                return name
    match expression:
        case ast.Call(ast.Attribute(ast.Name(owner), attr), [], []):
            return fresh(f"{owner}_{attr}", flow.function)
    return fresh(param, flow.function)


def _find_later_name(
    node: Node, names: Mapping[str, Node], here: Mapping[str, Node]
) -> ast.expr | None:
    """Return the name of what is computed after the place of ``names``, and not computed again.

    What costs little is written out: a name that is bound behind a guard keeps the guard away.
    """
    if any(value is node for value in names.values()) or not any(map(_is_dear, node.walk())):
        return None
    found = next((name for name, value in here.items() if value is node), None)
    return None if found is None else ast.Name(found, ast.Load())


def _is_dear(node: Node) -> bool:
    return node.op in operators.PRODUCTS or node.op == Op.CALL or node.op.startswith("module:")


def _unname(
    param: str, texts: Mapping[str, ast.expr], hoisted: Mapping[str, ast.expr], flow: FunctionFlow
) -> tuple[str, ast.expr]:
    bound = fresh(param, flow.function)
    code = hoisted.get(bound, texts[param])
    return bound if bound == param else fresh("hidden", flow.function), code


def without_defaults(code: FunctionNode, match: Match) -> ast.expr:
    """Return what a replacement returns, without keywords whose values are its own defaults.

    What the author says stays said: ``lr=1e-3``.
    """
    spec = code.args
    old = match.evaluation.code
    said = {k.arg for k in walk(old) if isinstance(k, ast.keyword)}
    by_place = isinstance(old, ast.Call) and len(old.args) > 1
    said |= {"lr"} if by_place else set()
    defaults = dict(zip([a.arg for a in spec.args][::-1], spec.defaults[::-1], strict=False))

    def is_default(value: ast.expr) -> bool:
        if not isinstance(value, ast.Name) or value.id not in defaults:
            return False
        bound, default = match.bindings[value.id], ast.literal_eval(defaults[value.id])
        return (
            bound.op == Op.CONST and bound.value == default and type(bound.value) is type(default)
        )

    body = copy_tree(result_expression(code))
    for node in walk(body):
        if isinstance(node, ast.Call):
            node.keywords = [k for k in node.keywords if k.arg in said or not is_default(k.value)]
    match body:
        case ast.Call(_, [_], [ast.keyword("lr", rate), *rest]) if by_place:
            body.args, body.keywords = [*body.args, rate], rest  # ``Adam(params, 1e-3)``
    return body


def _call_as_before(body: ast.expr, flow: FunctionFlow, code: ast.AST) -> None:
    """Have ``x.cumsum(1, dtype=d)`` called as the author calls: ``torch.cumsum(x, dim=1)``."""
    own = {last_name(call.func): call for call in walk(code) if isinstance(call, ast.Call)}
    for node in walk(body):
        match node:
            case ast.Call(ast.Attribute(owner, name), [dim]) if (
                name in own and flow.names.dotted(owner) is None  # a method
            ):
                old, is_method = own[name], flow.names.dotted(own[name].func) != f"torch.{name}"
                if not (is_method or old.args) or not any(k.arg for k in node.keywords):
                    continue
                node.args = [dim] if is_method else [owner, dim]
                node.func = node.func if is_method else old.func
                if len(old.args) < len(node.args) and any(k.arg == "dim" for k in old.keywords):
                    node.keywords.insert(0, ast.keyword("dim", node.args.pop()))


class _Library(ast.NodeTransformer):
    """Writes ``torch``, ``F`` and the like as the user's file does."""

    def __init__(self, flow: FunctionFlow, params: set[str], lines: Sequence[str]) -> None:
        self.params = params
        self.lines = lines
        self.missing: set[Import] = set()
        self.for_npu: set[str] = set()
        """What of ``torch_npu`` and MindSpeed is used, as it is written."""
        self.tree = flow.names.tree
        hidden = flow.bound
        named = {full: name for name, full in flow.names.imports.items() if name not in hidden}
        # ``import torch`` beside ``import torch as th``
        self.known = {full: full if full in flow.names.imports else n for full, n in named.items()}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        parts: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in RULE_IMPORTS and inner.id not in self.params:
            return self._spell([*RULE_IMPORTS[inner.id].split("."), *reversed(parts)])
        return self.generic_visit(node)  # type: ignore[return-value]

    def _spell(self, parts: list[str]) -> ast.expr:
        """Return a dotted name by the longest import of the file that leads to it."""
        if parts[0] in {"torch_npu", "mindspeed"}:
            found = self._for_npu(parts)
            self.for_npu.add(ast.unparse(found))
            return found
        is_class = parts[-1][0].isupper()  # ``AdamW`` of ``from torch.optim import AdamW``
        for length in range(len(parts) - (not is_class), 0, -1):
            name = self.known.get(".".join(parts[:length]))
            if name is not None:
                return _read_dotted([name, *parts[length:]])
        self.missing.add(Import(parts[0]))
        return _read_dotted(parts)

    def _for_npu(self, parts: list[str]) -> ast.expr:
        """Return an operator as the file imports it, or is going to."""
        *path, last = parts
        known = self.known.get(".".join(parts))
        if known is not None:
            return ast.Name(known, ast.Load())
        if parts[0] == "torch_npu":
            self.missing.add(Import("torch_npu"))
        elif not self._is_taken(last):
            self.missing.add(Import(".".join(path), last))
            return ast.Name(last, ast.Load())
        else:
            self.missing.add(Import(".".join(path)))
        return _read_dotted(parts)

    def _is_taken(self, name: str) -> bool:
        """Tell whether anything in the module has this name."""
        if self.tree is None or not any(name in line for line in self.lines):
            return False
        return name in _names_of(self.tree)


@lru_cache(maxsize=2)
def _names_of(tree: ast.Module) -> frozenset[str]:
    """Return every name in a module, whatever it stands for."""
    found = {
        getattr(node, field, "") for node in walk(tree) for field in ("id", "name", "arg", "asname")
    }
    return frozenset(name for name in found if isinstance(name, str))


def _read_dotted(parts: list[str]) -> ast.expr:
    found: ast.expr = ast.Name(parts[0], ast.Load())
    for part in parts[1:]:
        found = ast.Attribute(found, part, ast.Load())
    return found


def result_expression(code: FunctionNode) -> ast.expr:
    """Return the expression that a ``replacement`` returns or, for a write, executes.

    Raises:
        TypeError: it ends with something else.

    """
    last = code.body[-1]
    if isinstance(last, (ast.Return, ast.Expr)) and last.value is not None:
        return last.value
    raise TypeError(f"{code.name} must end with one expression")


def list_parts(code: FunctionNode) -> Mapping[str, ast.expr]:
    """Return what a replacement names before it returns: ``starts = torch.arange(...)``."""
    assigned = [s for s in code.body if isinstance(s, ast.Assign)]
    return {ast.unparse(s.targets[0]): s.value for s in assigned}


def replacement_node(replacement: Callable[..., object], flow: FunctionFlow, match: Match) -> Node:
    """Return the replacement as a node of the user's graph: what the patched code must compute."""
    code = parse_rule_function(replacement)
    state = State(ModuleNames(RULE_IMPORTS, {}, {}), None, flow.graph, list_declared(code))
    state.epoch, state.reshapes = match.epoch, flow.reshapes
    state.env = {arg.arg: match.bindings[arg.arg] for arg in code.args.args}
    body = without_defaults(code, match)
    reader = ExpressionReader(state)
    for part, value in list_parts(code).items():
        state.env[part] = reader.read(value)
    found = reader.read(_fold(_Literals(match.bindings).visit(body), match.bindings))
    reader.close()
    return found


def _list_held(flow: FunctionFlow, match: Match) -> dict[Node, ast.expr]:
    """Return the names and attributes that the statement itself calls its values by.

    A number has no identity: of ``n = 1`` and ``x[n] * 1`` nobody knows which one is meant. It
    keeps its name where no literal of the same value stands beside it.
    """
    inside = {id(e.statement) for e in flow.evaluations if e.node in match.covered}
    here = [
        e for e in flow.evaluations if id(e.statement) in inside and isinstance(e.code, ast.expr)
    ]
    literals = {e.node for e in here if isinstance(e.code, ast.Constant)}
    return {
        e.node: e.code
        for e in here
        if isinstance(e.code, (ast.Name, ast.Attribute))
        and is_simple(e.code)
        and e.node not in literals
        and (e.statement is match.evaluation.statement or e.node.op == Op.CONST)
    }


def _expression(  # noqa: C901, PLR0911 - one way to write a value after the other
    node: Node, flow: FunctionFlow, names: Mapping[str, Node]
) -> ast.expr | None:
    """Return the shortest way to write a value where ``names`` are the local names."""
    if node.op == Op.CONST:
        constant = ast.Constant(node.value)  # type: ignore[arg-type]  # a literal of the user
        codes = (e.code for e in flow.evaluations if e.node is node)
        return next((c for c in codes if _is_literal(c)), constant)
    for name, value in names.items():
        if value is node:
            return ast.Name(name, ast.Load())
    for evaluation in flow.evaluations:
        code = evaluation.code
        if (
            evaluation.node is node
            and isinstance(code, ast.expr)
            and not isinstance(code, ast.Name)
        ):
            free = {n.id for n in walk(code) if isinstance(n, ast.Name)}
            if all(names.get(f) is evaluation.names.get(f) for f in free):
                return code
    if node.op == "rsqrt":  # ``x / d ** 0.5`` is read as ``x * d ** -0.5``
        base = _expression(node.args[0], flow, names)
        return base and ast.BinOp(base, ast.Pow(), ast.UnaryOp(ast.USub(), ast.Constant(0.5)))
    if node.op == Op.DTYPE_OF:  # ``x.type_as(y)``
        base = _expression(node.args[0], flow, names)
        return base and ast.Attribute(base, "dtype", ast.Load())
    if node.op == Op.ATTR:  # read in a helper only: ``self.eps``
        base = _expression(node.args[0], flow, names)
        return base and ast.Attribute(base, str(node.value), ast.Load())
    if node.op == Op.BOOLOP:  # as well: ``self.training or self.always``
        parts = [_expression(arg, flow, names) for arg in node.args]
        known = [part for part in parts if part is not None]
        operator = ast.Or() if node.value == "Or" else ast.And()
        return ast.BoolOp(operator, known) if len(known) == len(parts) else None
    return None


def _is_literal(code: ast.AST) -> TypeGuard[ast.expr]:
    """Tell whether code is a number or a string as written: ``-1e9``, ``1 / 2.1``, no ``n``."""
    match code:
        case ast.BinOp(left, _, right):
            return _is_literal(left) and _is_literal(right)
        case ast.Constant() | ast.UnaryOp(ast.USub(), ast.Constant(float())):
            return True
    return False


def fresh(wanted: str, function: FunctionNode) -> str:
    """Return a name like the one wanted that nothing in a function has."""
    found = [n for n in walk(function) if isinstance(n, (ast.Name, ast.arg))]
    return find_unused_name(wanted, {n.id if isinstance(n, ast.Name) else n.arg for n in found})


class _Substitute(ast.NodeTransformer):
    def __init__(self, texts: Mapping[str, ast.expr]) -> None:
        self.texts = texts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.texts.get(node.id, node)


class _Literals(ast.NodeTransformer):
    """Puts the values of ``literal_`` variables in place, so that arithmetic on them folds."""

    def __init__(self, bindings: Mapping[str, Node]) -> None:
        self.bindings = bindings

    def visit_Name(self, node: ast.Name) -> ast.expr:
        bound = self.bindings.get(node.id)
        if bound is None or bound.op != Op.CONST:
            return node
        return ast.copy_location(ast.Constant(bound.value), node)  # type: ignore[arg-type]


def _choose(node: ast.IfExp, bindings: Mapping[str, Node]) -> ast.expr:
    def meant(code: ast.expr) -> object:
        bound = bindings.get(code.id) if isinstance(code, ast.Name) else None
        return ast.dump(code) if bound is None else bound

    match node:
        case ast.IfExp(ast.Constant(bool(chosen))):
            return node.body if chosen else node.orelse
        case ast.IfExp(
            ast.Compare(asked, [ast.Is()], [ast.Constant(None)]), ast.Constant(None), other
        ) if meant(asked) == meant(other):
            return other
    return node


def _is_truth(code: ast.expr, value: bool) -> bool:  # noqa: FBT001 - which of the two
    return isinstance(code, ast.Constant) and code.value is value


class _Fold(ast.NodeTransformer):
    def __init__(self, bindings: Mapping[str, Node]) -> None:
        self.bindings = bindings

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.Constant(int(left)), op, ast.Constant(int(right))):
                if isinstance(op, (ast.Add, ast.Sub)):
                    total = left + right if isinstance(op, ast.Add) else left - right
                    return ast.copy_location(ast.Constant(total), node)
            case ast.BinOp(left, ast.Div(), ast.Constant(1.0)):
                return left  # a divisor that the code does not have
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(ast.Constant(left), [ast.Is()], [ast.Constant(None)]):
                return ast.copy_location(ast.Constant(left is None), node)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.UnaryOp(ast.Not(), ast.Constant(bool(known))):
                return ast.copy_location(ast.Constant(not known), node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        decides = isinstance(node.op, ast.Or)  # of a test; what does not decide it is left out
        rest = [v for v in node.values if not _is_truth(v, not decides)]
        if not rest or any(_is_truth(v, decides) for v in rest):
            return ast.copy_location(ast.Constant(decides if rest else not decides), node)
        return ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return _choose(node, self.bindings)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        known = (
            operators.signature(node.func.attr) if isinstance(node.func, ast.Attribute) else None
        )
        node.keywords = [k for k in node.keywords if not _is_default(k, known or {})]
        return node


def _fold(code: ast.expr, bindings: Mapping[str, Node] | None = None) -> ast.expr:
    """Return ``x.unsqueeze(1 + 1)`` as ``x.unsqueeze(2)``, ``None if m is None else m`` as ``m``.

    Names that are bound to one value are one: the mask, and what is shown of it.
    """
    folded: ast.expr = _Fold(bindings or {}).visit(code)
    return folded


def _is_default(keyword: ast.keyword, signature: Mapping[str, Hashable]) -> bool:
    """Tell whether a call says what an operator of torch does anyway: ``dropout_p=0.0``."""
    match keyword.value:
        case ast.Constant(value):
            default = signature.get(keyword.arg or "", ...)
            return type(value) is type(default) and value == default
    return False
