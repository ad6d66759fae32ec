"""Calls of operators that a vendor's library has for the NPU, known by their names."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Proposal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class _Row:
    """What a call is known by, and what the operator of mx_driving is called with."""

    called: str
    operator: str
    package: str
    limits: str


_ADD_RELU = (
    "mx_driving.npu_add_relu(x, y) of Ascend DrivingSDK adds and cuts off in one kernel: float32, "
    "x and y of one shape, and only for more than 2 million elements; Atlas A2"
)
_FLASH = (
    "torch_npu.npu_fusion_attention({0})[0]; with dropout keep_prob=1 - dropout_p; a causal call "
    "takes sparse_mode=3 and atten_mask=torch.triu(torch.ones(2048, 2048, dtype=torch.bool, "
    "device=q.device), diagonal=1)"
)
_DENSE = 'q, k, v, q.shape[2], "BSND", scale=q.shape[-1] ** -0.5'
_PACKED_ROWS = (
    'q, k, v, q.shape[1], "TND", scale=q.shape[-1] ** -0.5, '
    "actual_seq_qlen=cu_seqlens_q[1:].tolist(), actual_seq_kvlen=cu_seqlens_k[1:].tolist()"
)
_ATTENTIONS = re.compile(
    r"(flash_attn|flash_attention|flash_attn_interface)\."
    r"(?:\w+\.)*flash_attn_(varlen_|unpadded_)?(?:qkvpacked_|kvpacked_)?func"
)
_WITHOUT_COUNTERPART = frozenset({"alibi_slopes", "softcap", "return_attn_probs", "block_table"})
RESIDUAL = r"(?:\+=|= \w+ \+ \w+)[^\n]*\n\s*(?:return |\w+ = )[\w.]*[rR]e[lL][uU]"
_OF_DRIVING = frozenset(
    {"mmcv", "mmdet", "mmdet3d", "mmengine", "mx_driving", "spconv", "torch_npu"}
)
_RELU = re.compile(r"relu\d?_?|ReLU")


@cache
def _rows() -> Sequence[_Row]:
    """Return the table ``mx_driving.txt``."""
    text = (files("npufix.rewriters.edit.statements") / "mx_driving.txt").read_text("utf-8")
    found = []
    for line in text.splitlines():
        if line and line[0] != "#":
            parts = [part.strip() for part in f"{line}|||".split("|")]
            called, operator, package, limits = parts[:4]
            found.append(_Row(called.replace(" / ", "|"), operator, package, limits))
    return found


@cache
def _pattern(row: _Row) -> re.Pattern[str]:
    return re.compile(rf"(?:.*\.)?(?:{row.called})")


@cache
def is_vendor_name(name: str) -> bool:
    """Tell whether an operator of theirs stands for what is called so: ``ops.scatter_max``."""
    return any(_pattern(row).fullmatch(name) for row in _rows())


def find_vendor_operators(here: Surroundings) -> Iterator[Proposal]:
    """Yield the calls that an operator of mx_driving stands for."""
    for node in here.nodes:
        if isinstance(node, ast.Call):
            row = _row(_imported(here, node.func))
            if row is not None:
                limits = f"{row.limits}; " if row.limits else ""
                operator = f"mx_driving.{row.operator}"
                yield Proposal(node, f"{operator} of Ascend DrivingSDK: {limits}Atlas A2")
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            if isinstance(block, list):
                yield from _sums_cut_off(here, block)
    yield from _sums_cut_off(here, here.flow.function.body)


def find_flash_attention(here: Surroundings) -> Iterator[Proposal]:
    """Yield the calls of the package flash_attn, which has no kernels for the NPU."""
    for node in here.nodes:
        if not isinstance(node, ast.Call):
            continue
        found = _ATTENTIONS.fullmatch(_imported(here, node.func))
        if found and not {k.arg for k in node.keywords} & _WITHOUT_COUNTERPART:
            yield Proposal(node, _FLASH.format(_PACKED_ROWS if found[2] else _DENSE))


def _row(called: str) -> _Row | None:
    if not called or called.startswith(("mx_driving", "torch.", "torch_npu")):
        return None
    for row in _rows():
        if _pattern(row).fullmatch(called) and called.startswith(row.package):
            return row
    return None


def _imported(here: Surroundings, code: ast.expr) -> str:
    """Return the full name of a function or class that is imported, "" for anything else."""
    known = here.flow.names.dotted(code)
    if known is not None:
        return known
    parts: list[str] = []
    while isinstance(code, ast.Attribute):
        parts.append(code.attr)
        code = code.value
    if not isinstance(code, ast.Name) or code.id not in here.flow.names.relative:
        return ""
    return ".".join([here.flow.names.relative[code.id].lstrip("."), *reversed(parts)])


def _is_of_driving(here: Surroundings) -> bool:
    """Tell whether a file uses mx_driving anyhow, or packages whose operators it has."""
    known = here.flow.names.imports.values()
    return any(full.split(".")[0] in _OF_DRIVING for full in known)


def _sums_cut_off(here: Surroundings, block: list[ast.stmt]) -> Iterator[Proposal]:
    """Yield ``out += identity`` with ``out = relu(out)`` behind it."""
    for first, second in pairwise(block):
        match first:
            case ast.AugAssign(ast.Name(name), ast.Add(), ast.Name() | ast.Attribute()):
                pass
            case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(), ast.Add(), ast.Name())):
                pass
            case _:
                continue
        match second:
            case ast.Assign(value=ast.Call(function, [ast.Name(cut)]) as call) | ast.Return(
                ast.Call(function, [ast.Name(cut)]) as call
            ) if cut == name:
                last = function.attr if isinstance(function, ast.Attribute) else ""
                if _RELU.fullmatch(last) and here.is_hot and _is_of_driving(here):
                    yield Proposal(call, _ADD_RELU)
