"""What the source proves about the operands of an attention: scale, mask, heads."""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING

from npufix.rewriters.facts.annotations import annotation
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.syntax import nodes_of
from npufix.rewriters.graph.nodes import once_per_value
from npufix.rewriters.graph.special import STARRED, Op
from npufix.rules.substitution import all_hold

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.match.matching import Match

_SMALLEST_LIMIT = 65504.0
"""What ``finfo(x.dtype).max`` is at least: that of float16."""
_NEGLIGIBLE = -1e4
"""From here on the exponential of a masked score is 0, beside scores of an ordinary size."""
_INFINITIES = frozenset({"math.inf", "torch.inf", "numpy.inf", "numpy.Inf"})
_ARITHMETIC = frozenset(
    {"add", "sub", "mul", "div", "floordiv", "pow", "sqrt", "rsqrt", "square", "neg", "reciprocal"}
)
_NUMBER_ANNOTATION = re.compile(r"(Optional\[)?(float|int)\]?( \| None)?")
_KEEPS_VALUES = operators.KEEPS | {Op.CAST, "to", Op.GETITEM, "type_as"}
_BIAS_NAME = re.compile(r"bias|alibi|slope|rel|pos|dist|embed|shift", re.IGNORECASE)
_MASK_NAME = re.compile(r"mask", re.IGNORECASE)
_FUSED_NAME = re.compile(
    r"scaled_dot_product|sdpa|flash_att|efficient_attention|fused_att", re.IGNORECASE
)
_UNCLEAR = frozenset({Op.GETITEM, Op.ITEM, Op.GLOBAL, Op.UNSET, Op.CARRIED, Op.AFTER})
_FILLS = frozenset(
    {"ones", "ones_like", "zeros", "zeros_like", "new_zeros", "new_ones", "full", "tril", "triu",
     "masked_fill", "where", "eq", "ne", "lt", "gt", "le", "ge", "cos", "sin"}
)  # fmt: skip
"""What decides about the values of a mask or a table of angles."""
_VIEWS = operators.VIEWS | {"einops.rearrange", "reshape", "reshape(*)", "view", "view(*)"}
_TENSORS = frozenset(operators.TABLE) | {Op.CAST, "einops.rearrange", "module:Linear"}
"""What computes one tensor: its parts have one number of heads."""
Dims = tuple["Node | int | None", ...]


class AttentionFacts:
    """Answers of ``SourceFacts`` that only rules about attention ask for."""

    flow: FunctionFlow
    match: Match

    def number(self, name: str) -> float | None:
        """Return the value of a number that is written out; ``finfo(...).min`` as of float16."""
        return _number(self.match.bindings[name])

    def is_scalar(self, name: str) -> bool | None:
        """Tell whether the value is a Python number: a setting or computed from lengths."""
        return _is_scalar(self.flow, self.match.bindings[name])

    def is_boolean_bias(self, name: str) -> bool | None:
        """Tell whether what is added to scores holds nothing but 0 and very negative numbers."""
        answer = _is_boolean_bias(self.match.bindings[name])
        return answer if answer is False or self._is_unchanged(name) else None

    def is_zero_or_one(self, name: str) -> bool | None:
        """Tell whether a mask holds nothing but 0 and 1: it was bool or compared before."""
        node = self.match.bindings[name]
        if not self._is_unchanged(name):
            return None
        while node.op in _KEEPS_VALUES:
            node = node.args[0]
        if node.op in operators.COMPARISONS:
            return True
        if node.op in {"tril", "triu"} and node.args[0].op in {"ones", "ones_like"}:
            return True
        return None if _MASK_NAME.search(" ".join(map(_name, node.walk()))) else False

    def leaves_a_key(self, name: str, *, kept: bool) -> bool | None:
        """Tell whether a mask leaves every query a key; ``kept``: it marks those that are left."""
        if not self._is_unchanged(name):
            return None
        return _leaves_a_key(self.flow, self.match.bindings[name], kept=kept)

    def _is_unchanged(self, name: str) -> bool:
        """Tell whether nothing may have been written into a tensor since it was computed."""
        now = self.match.evaluation.node.epoch
        return not any(
            node.epoch != now for node in self.match.bindings[name].walk() if node.op in _FILLS
        )

    def same_heads(self, *names: str, heads: int = 1) -> bool | None:
        """Tell whether tensors agree in batch size and number of heads, without broadcasting."""
        nodes = [_undo_scaling(self.match.bindings[name]) for name in names]
        ends = _undo_alike(nodes)
        parts = [n.args[0] for n in ends if n.op in {Op.ITEM, Op.GETITEM} and _is_position(n)]
        if len(parts) == len(nodes) and len(set(parts)) == 1:
            return True  # ``qkv[0], qkv[1], qkv[2]``
        dims = [_dims(node) for node in nodes]
        known = [(d[0], d[heads]) for d in dims if d is not None and len(d) == 4]  # noqa: PLR2004 - BNSD
        known = [pair for pair in known if None not in pair]
        return True if len(known) == len(nodes) and len(set(known)) == 1 else None

    def is_one_of_several(self) -> bool:
        """Tell whether a setting of transformers chooses this function among implementations."""
        return self.flow.function.name.startswith("eager_attention_forward")

    def has_fused_branch(self) -> bool:
        """Tell whether the function computes attention with a fused operator as well."""
        if self.is_one_of_several():
            return True
        for node in nodes_of(self.flow.function):
            name = (
                node.attr
                if isinstance(node, ast.Attribute)
                else node.id
                if isinstance(node, ast.Name)
                else ""
            )
            if _FUSED_NAME.search(name):
                return True
        return False


def _number(node: Node) -> float | None:  # noqa: PLR0911 - one case a spelling
    match node.op:
        case Op.CONST if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            return float(node.value)
        case "py:float" if node.args[0].op == Op.CONST:
            try:
                return float(str(node.args[0].value))
            except ValueError:
                return None
        case "neg":
            inner = _number(node.args[0])
            return None if inner is None else -inner
        case Op.GLOBAL if node.value in _INFINITIES:
            return math.inf
        case Op.ATTR if node.args[0].op in {"finfo", Op.CALL} and node.value in {"min", "max"}:
            if node.args[0].op == "finfo":
                return -_SMALLEST_LIMIT if node.value == "min" else _SMALLEST_LIMIT
    return None


@once_per_value
def _is_scalar(flow: FunctionFlow, node: Node) -> bool | None:  # noqa: PLR0911 - one case a kind
    if node.op == Op.CONST:
        return isinstance(node.value, (int, float))
    if node.op in {Op.SIZE, Op.RANK} or node.op.startswith(("py:math.", "py:len", "py:int")):
        return True
    if node.op == "py:float":
        return True
    if node.op in _ARITHMETIC:
        return all_hold([_is_scalar(flow, arg) for arg in node.args])
    if node.op == Op.PHI:
        return all_hold([_is_scalar(flow, arg) for arg in node.args[1:]])
    if node.op == Op.PARAM:
        declared = annotation(flow, str(node.value))
        if "Tensor" in declared or "Parameter" in declared:
            return False
        return True if _NUMBER_ANNOTATION.fullmatch(declared) else None
    if node.op == Op.ATTR:
        own = node.args[0].op == Op.PARAM and node.args[0].value == "self" and flow.cls is not None
        values = list_assigned(flow.names, flow.cls, str(node.value)) if own and flow.cls else []
        return (
            all_hold([None if value is None else _is_scalar_code(value) for _, value in values])
            if values
            else None
        )
    return None if node.op in _UNCLEAR else False


def _is_scalar_code(code: ast.expr) -> bool | None:  # noqa: PLR0911 - one case a syntax
    """Tell whether an expression of ``__init__`` is a number: settings and arithmetic on them."""
    match code:
        case ast.Constant(value):
            return isinstance(value, (int, float)) or value is None
        case ast.Name() | ast.Attribute():
            return True
        case ast.UnaryOp(_, operand):
            return _is_scalar_code(operand)
        case ast.BinOp(left, _, right):
            return all_hold([_is_scalar_code(left), _is_scalar_code(right)])
        case ast.BoolOp(_, values):
            return all_hold([_is_scalar_code(value) for value in values])
        case ast.IfExp(_, body, orelse):
            return all_hold([_is_scalar_code(body), _is_scalar_code(orelse)])
        case ast.Call(function):
            name = ast.unparse(function)
            return name in {"float", "int", "getattr"} or name.startswith(("math.", "np."))
    return None


def _is_boolean_bias(node: Node) -> bool | None:  # noqa: PLR0911 - one case a spelling
    while node.op in _KEEPS_VALUES:
        node = node.args[0]
    args = node.args
    match node.op:
        case "masked_fill" if args[0].op in {"zeros", "zeros_like", "new_zeros"}:
            return _is_negligible(args[2])
        case "where":
            values = [_number(arg) for arg in args[1:]]
            if None in values or 0.0 not in values:
                return None
            return min(v for v in values if v is not None) <= _NEGLIGIBLE
        case "triu" | "tril" if args[0].op == "full":
            return _is_negligible(args[0].args[1])
        case Op.PHI:
            return all_hold([_is_boolean_bias(arg) for arg in args[1:]])
    names = [_name(part) for part in node.walk()]
    if any(_BIAS_NAME.search(name) for name in names):
        return False
    return None if any(_MASK_NAME.search(name) for name in names) else False


def _name(node: Node) -> str:
    return str(node.value) if node.op in {Op.PARAM, Op.ATTR, Op.GLOBAL} else ""


def _is_negligible(node: Node) -> bool | None:
    value = _number(node)
    return None if value is None else value <= _NEGLIGIBLE


def _leaves_a_key(flow: FunctionFlow, node: Node, *, kept: bool) -> bool | None:
    """Prove it for a causal mask: it never hides the first key."""
    while node.op in {Op.CAST, "to", "unsqueeze", "view", "reshape", "expand", "contiguous"}:
        node = node.args[0]
    if node.op == Op.GETITEM:
        index = node.args[1].args if node.args[1].op == Op.TUPLE else ()
        last = index[-1] if index else node.args[1]
        starts = last.op == Op.SLICE and last.args[0].value in {None, 0}
        steps = last.op == Op.SLICE and last.args[2].value is None
        return _leaves_a_key(flow, node.args[0], kept=kept) if starts and steps else None
    if node.op == Op.ATTR and node.args[0].op == Op.PARAM and flow.cls is not None:
        values = list_assigned(flow.names, flow.cls, str(node.value))
        causal = [value is not None and _is_causal(value, kept=kept) for _, value in values]
        return True if causal and all(causal) else None
    diagonal = [arg.value for arg in node.args[1:]]
    if node.op == ("tril" if kept else "triu") and node.args[0].op in {"ones", "ones_like"}:
        return _is_after(diagonal[0] if diagonal else 0, kept=kept)
    return None


def _is_causal(code: ast.expr, *, kept: bool) -> bool:
    """Tell whether an expression is ``torch.tril(torch.ones(n, n))`` in some shape and dtype."""
    for call in ast.walk(code):
        match call:
            case ast.Call(ast.Attribute(_, "tril" | "triu" as name), args, keywords) if name == (
                "tril" if kept else "triu"
            ):
                given = [*args[1:], *(k.value for k in keywords if k.arg == "diagonal")]
                rest = ast.unparse(code)
                plain = "ones(" in rest and not re.search(r"~|==|<|>|not|1 - |-", rest)
                match given:
                    case []:
                        return plain and kept
                    case [ast.Constant(diagonal)]:
                        return plain and _is_after(diagonal, kept=kept) is True
    return False


def _is_after(diagonal: Hashable, *, kept: bool) -> bool | None:
    if not isinstance(diagonal, int):
        return None
    return diagonal >= 0 if kept else diagonal >= 1


def _is_position(node: Node) -> bool:
    """Tell whether a value is ``qkv[0]`` of one tensor, not of several that a call returns."""
    if node.op == Op.ITEM:
        return node.args[0].op in {"unbind", "chunk"}
    if node.args[0].op.removesuffix(STARRED) not in _TENSORS:
        return False
    return node.args[1].op == Op.CONST and isinstance(node.args[1].value, int)


def _undo_scaling(node: Node) -> Node:
    """Return the tensor before it was cast or multiplied by a number."""
    while node.op in operators.SAME_SHAPE or (
        node.op in {"mul", "div"}
        and (node.args[1].op in {Op.CONST, Op.ATTR, "rsqrt", "div"} or node.args[1].op[:3] == "py:")
    ):
        node = node.args[0]
    return node


def _undo_alike(nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the tensors of which all are one view: those of ``t.transpose(1, 2)`` for each."""
    while all(n.op in _VIEWS and n.args[1:] == nodes[0].args[1:] for n in nodes) and (
        len({(n.op, n.value) for n in nodes}) == 1
    ):
        nodes = [_undo_scaling(n.args[0]) for n in nodes]
    return nodes


def _dims(node: Node) -> Dims | None:  # noqa: PLR0911 - one case an operator
    """Return the lengths as values of the function, ``None`` if not even their number is known."""
    node, args = _undo_scaling(node), _undo_scaling(node).args
    match node.op:
        case "view" | "reshape":
            sizes = args[1].args if args[1].op in {Op.TUPLE, Op.LIST} else args[1:]
            if any(s.op in {Op.STAR, Op.SHAPE, "add"} for s in sizes) and len(sizes) < 4:  # noqa: PLR2004 - BNSD
                return None
            return tuple(s.value if s.op == Op.CONST and type(s.value) is int else s for s in sizes)
        case "transpose" | "permute" if all(type(a.value) is int for a in args[1:]):
            inner, order = _dims(args[0]), [a.value for a in args[1:] if isinstance(a.value, int)]
            if inner is None or not all(-len(inner) <= at < len(inner) for at in order):
                return None
            if node.op == "transpose":
                swapped = list(inner)
                swapped[order[0]], swapped[order[1]] = inner[order[1]], inner[order[0]]
                return tuple(swapped)
            return tuple(inner[at] for at in order)
        case Op.ITEM | Op.GETITEM if _is_position(node):
            whole = args[0].args[0] if node.op == Op.ITEM else args[0]
            first = node.op == Op.GETITEM or args[0].args[1].value == 0
            inner = _dims(whole)
            return inner[1:] if inner is not None and first else None
    return None
