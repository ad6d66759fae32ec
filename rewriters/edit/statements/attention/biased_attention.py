"""Attention written out whose scores get a bias of the position: Swin, SAM, T5."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.attention.flash_attention import is_of_torch
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

BIAS = r"(?i:bias|alibi|slope|rel_|relative)"
_OF_POSITION = re.compile(rf"{BIAS}|(?i:(^|_)pos)")
_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})
_ON_THE_WAY = frozenset(
    {"add", "mul", "div", "view", "reshape", "unsqueeze", "squeeze", "contiguous", "flatten",
     "masked_fill", "clamp", Op.CAST, Op.AUGMENTED, "dropout"}
)  # fmt: skip
"""What may stand between the product of queries and keys and the softmax."""
_SAME_WEIGHTS = frozenset({"dropout", Op.CAST, "contiguous", "view", "reshape"})
_PICKS = frozenset({Op.GETITEM, "view", "reshape", "expand", "repeat"})
_ADVICE = (
    "scores and their bias are written to memory: torch_npu.npu_fusion_attention(q, k, v, heads, "
    "'BNSD', pse=bias, atten_mask=hidden)[0] adds the bias (batch or 1, heads, "
    "queries, keys), of the dtype of q, in the kernel, before it multiplies by the scale: give it "
    "queries that are scaled already, without `scale`. A bias that is trained must get its "
    "gradient through pse: check that of your CANN release first"
)


def find_biased_attention(here: Surroundings) -> Iterator[Proposal]:
    """Yield the products of values and weights whose scores got a bias."""
    if any(map(is_of_torch, here.nodes)):
        return  # which is what its author has written it out beside
    found = [e for op in sorted(_PRODUCTS) for e in here.flow.by_operation.get(op, ())]
    for evaluation in found:
        if not isinstance(evaluation.code, (ast.BinOp, ast.Call)):
            continue  # a name of what is computed
        weights = next((w for w in evaluation.node.args if _list_softmax(w)), None)
        if weights is None or here.loop_of(evaluation.code) is not None:
            continue
        if any(has_bias(soft.args[0]) for soft in _list_softmax(weights)) and not is_needed(
            here, weights, evaluation.node
        ):
            yield Proposal(evaluation.code, _ADVICE)


def _list_softmax(node: Node) -> list[Node]:
    """Return the softmax that weights are, one for each branch, dropped or cast."""
    return [part for part in _list_way(node) if part.op == "softmax"]


def _list_way(node: Node) -> list[Node]:
    """Return weights and what they are made of, down to the softmax of each branch."""
    if node.op == "softmax":
        return [node]
    if node.op == Op.PHI:
        arms = node.args[1:]
    else:
        arms = node.args[1:2] if drops(node) else node.args[: node.op in _SAME_WEIGHTS]
    inner = [part for arm in arms for part in _list_way(arm)]
    return [node, *inner] if inner else []


def drops(node: Node) -> bool:
    """Tell whether a layer drops weights: ``self.attn_drop(weights)``."""
    called = node.op == Op.CALL and "drop" in str(node.args[0].value).lower()
    return called or node.op == "module:Dropout"


def has_bias(scores: Node) -> bool:
    """Tell whether scores are a product of queries and keys and, added to it, a bias."""
    match scores.op, scores.args:
        case Op.PHI, (_, *arms):
            return any(map(has_bias, arms))
        case "add", (first, second, *_):
            return any(
                _leads_to_product(product) and (_is_bias(bias) or has_bias(product))
                for product, bias in ((first, second), (second, first))
            )
        case Op.CALL, (function, *given):  # ``add_decomposed_rel_pos(scores, q, ...)``
            named = _OF_POSITION.search(str(function.value)) is not None
            return named and any(map(_leads_to_product, given))
    return scores.op in _ON_THE_WAY and has_bias(scores.args[0])


def _leads_to_product(node: Node) -> bool:
    def list_ways(part: Node) -> tuple[Node, ...]:
        if part.op == Op.PHI:
            return part.args[1:]
        return part.args[: 2 if part.op == "add" else part.op in _ON_THE_WAY]

    return any(part.op in _PRODUCTS for part in node.walk(list_ways))


def _is_bias(node: Node) -> bool:
    """Tell whether something is made of a table of positions, or of queries once more.

    Not so ``attention_mask[..., :n]``, whatever its length comes from.
    """
    if _leads_to_product(node):
        return True
    parts = node.walk(lambda part: part.args[:1] if part.op in _PICKS else part.args)
    leaves = {Op.PARAM, Op.ATTR, Op.GLOBAL}
    named = [str(part.value) for part in parts if part.op in leaves]
    return any(map(_OF_POSITION.search, named)) and not any("mask" in name for name in named)


def is_needed(here: Surroundings, weights: Node, product: Node) -> bool:
    """Tell whether something else reads the weights: they are returned, or changed."""
    ways = {*_list_way(weights)}
    readers = {user for way in ways for user in here.users(way)} - ways - {product}
    returned = {n for o in here.flow.observables if o.kind == "return" for n in _parts(o.node)}
    return bool(returned & ways) or any(
        user.op not in _SAME_WEIGHTS | {Op.PHI, Op.STATEMENT} and not drops(user)
        for user in readers
    )


def _parts(node: Node) -> list[Node]:
    """Return what is returned, a pair in its parts."""
    if node.op in {Op.TUPLE, Op.LIST}:
        return [part for arg in node.args for part in _parts(arg)]
    return [node]
