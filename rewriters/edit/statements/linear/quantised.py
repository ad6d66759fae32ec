"""Products whose quantised weight is made wide first, in every call."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_WIDEN = r"(?i:\w*de_?quant\w*|\w*extract_weight_to_\w+)"
WIDENS = rf"{_WIDEN}|_int_mm"
_WIDENS = re.compile(_WIDEN)
_OF_FLOATS = re.compile(r"(?i)fp8|float8|fp4|float4|e4m3|e5m2|nf4")
_OF_WEIGHTS = re.compile(r"(?i)weight|\bq?w\d?\b")
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "linear", "addmm"})
_WIDE = (
    "the whole weight is written in sixteen bits for each call and read again: "
    "torch_npu.npu_weight_quant_batchmatmul(x, weight, scales, antiquant_offset=offsets, "
    "antiquant_group_size=group) widens it in the core; x is a matrix of float16 or bfloat16, "
    "weight (depth, columns) of int8, or of int4 packed once by "
    "torch_npu.npu_convert_weight_to_int4pack; inference alone, Atlas A2 and newer"
)
_INTEGERS = (
    "torch_npu.npu_quant_matmul(x, weight, scale, pertoken_scale=scale of the rows, "
    "output_dtype=torch.bfloat16) multiplies int8 and scales in one kernel, and "
    "torch_npu.npu_dynamic_quant(x) makes x and its scales in one; inference alone, Atlas A2 on"
)


def find_quantised_products(here: Surroundings) -> Iterator[Proposal]:
    """Yield products with a weight that a function makes wide, and products of integers."""
    text = here.text(here.flow.function)
    if here.flow.function.name == "backward" or "npu_" in text:
        return
    if _OF_FLOATS.search(here.flow.qualname + text):
        return  # the operators take integers
    widened: dict[str, ast.Call] = {}
    for node in sorted(
        (n for n in here.nodes if isinstance(n, ast.Call)), key=lambda n: (n.lineno, n.col_offset)
    ):
        if here.flow.names.dotted(node.func) == "torch._int_mm":
            yield Proposal(node, _INTEGERS)
            return
        if not _WIDENS.fullmatch(last_name(node.func)) or not _OF_WEIGHTS.search(here.text(node)):
            continue
        match here.parents.get(id(node)):
            case ast.Assign([ast.Name(name)]):
                widened[name] = node
            case ast.Call(function) if last_name(function) in _PRODUCTS:
                yield Proposal(node, _WIDE)
                return
    for product in here.nodes:
        used = _used_in(product)
        made = next((widened[name] for name in used if name in widened), None)
        if made is not None and made.lineno <= getattr(product, "lineno", 0):
            yield Proposal(made, _WIDE)
            return


def _used_in(product: ast.AST) -> list[str]:
    """Return the names of what a product multiplies, in the order of its operands."""
    match product:
        case ast.Call(function, args) if last_name(function) in _PRODUCTS:
            operands = [*args, *([function.value] if isinstance(function, ast.Attribute) else [])]
        case ast.BinOp(left, ast.MatMult(), right):
            operands = [left, right]
        case _:
            return []
    return [n.id for operand in operands for n in walk(operand) if isinstance(n, ast.Name)]
