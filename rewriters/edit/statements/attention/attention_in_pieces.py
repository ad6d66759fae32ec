"""Attention written out in a way that no pattern has: masks in branches, letters, other ranks."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.attention.biased_attention import drops, has_bias, is_needed
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.scopes import scopes
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

FUSED = (
    r"scaled_dot_product_attention|flash_?attn|flash_?attention|npu_fusion_attention|xformers"
    r"|ATTENTION_FUNCTIONS|_attn_implementation|flex_attention"
)
"""What a module mentions whose author has chosen between this and a fused attention."""
_PRODUCTS = frozenset({"matmul", "bmm", "einsum", "baddbmm"})
_OF_SCORES = frozenset(
    {"add", "sub", "mul", "div", "view", "reshape", "unsqueeze", "squeeze", "contiguous",
     "flatten", "masked_fill", "where", "clamp", "float", "transpose", "permute", "cat",
     "einops.rearrange", "add_", "mul_", "div_", "masked_fill_", Op.CAST, Op.AUGMENTED, Op.AUGMENT,
     Op.TUPLE, Op.PHI}
)  # fmt: skip
"""What may stand between the product of queries and keys and the softmax."""
_OF_WEIGHTS = frozenset(
    {"dropout", "contiguous", "view", "reshape", "transpose", "permute", "masked_fill",
     "nan_to_num", "flatten", "unsqueeze", "squeeze", "einops.rearrange", Op.CAST, Op.GETITEM,
     Op.PHI}
)  # fmt: skip
"""What may stand between the softmax and the product with the values."""
_LAST = frozenset({-1, 2, 3})
"""Where the keys are: the softmax of slots is over the queries."""
_TURNS = frozenset(
    {"transpose", "permute", "unsqueeze", "expand", "contiguous", Op.CAST, Op.GETITEM, "view"}
)
_MASKS = re.compile(r"(?i)mask|bias|(^|_)pos|sparse|scores?$|attn_w")
"""Functions that change scores and return them: ``apply_sparse_mask(scores, length)``."""
_CHANNELS = re.compile(r"(?i)channel|linear_?att|pool|cluster|codebook|vlad")
_ADVICE = (
    "scores of all queries and keys are written to memory and read again by each operator: "
    "F.scaled_dot_product_attention(q, k, v, attn_mask=shown, scale=scale), of (batch, heads, "
    "length, size) and a bool mask that is True where a key is seen, or torch_npu."
    "npu_fusion_attention(..., pse=bias, atten_mask=hidden) where more is added to the scores"
)
_SINKS = (
    "a column of sinks takes what no key wants, and scores of all queries and keys are written to "
    "memory: torch_npu.npu_fusion_attention(q, k, v, heads, 'BNSD', scale=scale, "
    "atten_mask=hidden, sink=sinks)[0], one number of float32 for each head, in one kernel; "
    "torch_npu from 7.3.0"
)
_HANDED = "; hand the queries and keys on to here in place of the scores"
_PRODUCT = re.compile(r"matmul\(|bmm\(|einsum\(| @ ")
_NEEDED = "; the probabilities are a result too: return None in their place where nobody reads them"


def find_attention_in_pieces(here: Surroundings) -> Iterator[Proposal]:
    """Yield the products of values and a softmax over products of queries and keys."""
    if _CHANNELS.search(here.flow.qualname) is not None:
        return
    found = [e for op in sorted(_PRODUCTS) for e in here.flow.by_operation.get(op, ())]
    carried: dict[Node, list[Node]] = {}
    for seen in here.flow.observables:
        if seen.node.op == Op.CARRY:
            carried.setdefault(seen.node.args[0], []).append(seen.node.args[1])
    for evaluation in found:
        if not isinstance(evaluation.code, (ast.BinOp, ast.Call)):
            continue  # a name of what is computed
        for weights in evaluation.node.args:
            soft = _softmax_of(here, weights)
            if soft is None:
                continue
            handed = _are_handed_in(here, soft)
            if handed or _is_of_own_scores(here, soft, carried):
                needed = is_needed(here, weights, evaluation.node)
                kept = _is_read_by_callers(here) if needed else has_bias(soft.args[0])
                if not kept and _is_replaceable(here, weights, soft, evaluation.node):
                    advice = _SINKS if _has_sinks(weights, soft) else _ADVICE
                    advice += _HANDED * handed + _NEEDED * needed
                    yield Proposal(evaluation.code, advice)
                break


def _is_read_by_callers(here: Surroundings) -> bool:
    """Tell whether a module of this file does something with the probabilities in every call.

    ``x, weights = self.attention(x)``, and then ``return x, weights``; not so where a setting is
    asked first: ``if output_attentions: found += (weights,)``.
    """
    tree, cls = here.flow.names.tree, here.flow.cls
    if tree is None or cls is None or here.flow.function.name != "forward":
        return False
    held = {
        last_name(made.targets[0])
        for made in walk(tree)
        if isinstance(made, ast.Assign)
        and isinstance(made.value, ast.Call)
        and last_name(made.value.func) == cls.name
    }
    for scope in scopes(tree):
        nodes = list(nodes_of(scope.function))
        asked = (n for n in nodes if isinstance(n, ast.If | ast.IfExp))
        seldom = {id(inner) for branch in asked for inner in walk(branch)}
        for node in nodes:
            match node:
                case ast.Assign([ast.Tuple([_, *others])], ast.Call(ast.Attribute(_, name))) if (
                    name in held
                ):
                    names = {other.id for other in others if isinstance(other, ast.Name)}
                    loads = (n for n in nodes if isinstance(n, ast.Name) and n.id in names)
                    if any(isinstance(n.ctx, ast.Load) and id(n) not in seldom for n in loads):
                        return True
    return False


def _is_put_elsewhere(here: Surroundings, ways: tuple[Node, Node]) -> bool:
    """Tell whether another object is given the probabilities, and asked for them.

    ``block.attn_map = weights`` of a function that takes the place of its ``forward``.
    """
    stores = (u for way in ways for u in here.users(way) if u.op == Op.SETATTR)
    names = {u.value for u in stores if u.args[0].value != "self"}
    tree = here.flow.names.tree
    return tree is not None and any(
        isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and n.attr in names
        for n in (walk(tree) if names else ())
    )


def _is_replaceable(here: Surroundings, weights: Node, soft: Node, product: Node) -> bool:
    """Tell whether one kernel computes a product with a softmax, and nothing else needs that."""
    values = [arg for arg in product.args if arg is not weights]
    if any(map(_is_parameter, values)) or _is_changed(weights, soft):
        return False
    if _is_put_elsewhere(here, (weights, soft)):
        return False
    return not _is_computed_with(here, soft, product)


def _softmax_of(here: Surroundings, node: Node) -> Node | None:
    """Return the softmax that weights are: dropped, cast, turned, or one of two branches."""
    if node.op == "softmax" or _is_own_softmax(here, node):
        return node if node.op == Op.CALL or node.args[1].value in _LAST else None
    dropped = node.op == Op.CALL and "drop" in str(node.args[0].value).lower()
    if node.op not in _OF_WEIGHTS and not dropped:
        return None
    parts = node.args[1:] if node.op in {Op.PHI, Op.CALL} else node.args[:1]
    return next((soft for part in parts if (soft := _softmax_of(here, part)) is not None), None)


def _is_changed(weights: Node, soft: Node) -> bool:
    """Tell whether a mask hides weights that hid no scores: no kernel does so.

    ``softmax(x.masked_fill(mask, -inf)).masked_fill(mask, 0)`` only says what rows without any
    key become.
    """
    known = set(map(_mask_of, soft.walk()))
    way = weights.walk(lambda node: () if node is soft else node.args)
    return any(_mask_of(part.args[1]) not in known for part in way if part.op == "masked_fill")


def _is_computed_with(here: Surroundings, soft: Node, product: Node) -> bool:
    """Tell whether the weights are factors of something else too: they have to be in memory.

    Perhaps by way of a method: ``torch.matmul(self._relative(weights), self.emb)``.
    """
    others = {e.node for op in _PRODUCTS for e in here.flow.by_operation.get(op, ())} - {product}
    if any(soft in other.walk(lambda n: () if n is product else n.args) for other in others):
        return True
    seen = {soft}
    todo = [soft]
    while todo:
        for user in here.users(todo.pop()):
            if user is product or user in seen:
                continue
            is_dropped = drops(user)
            if user.op in _PRODUCTS | {"mul"} or (user.op == Op.CALL and not is_dropped):
                return True  # or handed on: ``self._by_distance(weights)``
            seen.add(user)
            todo += [user] if is_dropped or user.op in _OF_WEIGHTS else []
    return False


def _mask_of(node: Node) -> Node:
    """Return a mask as it was before it was turned over: ``mask`` of ``~mask``, ``mask == 0``."""
    while node.op in {"logical_not", "invert", "eq", Op.CAST, "unsqueeze"}:
        node = node.args[0]
    return node


def _has_sinks(weights: Node, soft: Node) -> bool:
    """Tell whether the last column is left out: ``softmax(cat([scores, sinks], -1))[..., :-1]``."""
    return weights is not soft and any(part.op == Op.GETITEM for part in _way_to(soft, weights))


def _way_to(soft: Node, node: Node) -> list[Node]:
    """Return what stands between a softmax and the product with the values."""
    found = []
    while node is not soft and node.args:
        found.append(node)
        node = node.args[node.op in {Op.PHI, Op.CALL}]
    return found


def _is_own_softmax(here: Surroundings, node: Node) -> bool:
    """Tell whether a function of the author's own is a softmax: ``softmax_float32(scores, -1)``.

    Or a sequence that begins with one: ``nn.Sequential(nn.Softmax(dim=-1), nn.Dropout(p))``.
    """
    if node.op != Op.CALL or len(node.args) < 2:  # noqa: PLR2004 - the function and the scores
        return False
    function = node.args[0]
    made = [str(function.value)]
    if function.op == Op.ATTR and here.flow.cls is not None:
        values = list_assigned(here.flow.names, here.flow.cls, made[0])
        made += [
            ast.unparse(value.args[0])
            for _, value in values
            if isinstance(value, ast.Call)
            and value.args
            and "Sequential" in ast.unparse(value.func)
        ]
    return any("softmax" in text.lower() and "log" not in text.lower() for text in made)


def _is_of_own_scores(here: Surroundings, soft: Node, carried: dict[Node, list[Node]]) -> bool:
    """Tell whether a softmax is of products, which serve no other one: ``s.mT.softmax(-1)``.

    One kernel for each way would compute them twice. Of two branches only one is taken.
    """
    scores = _product_of(soft, carried)
    found = here.flow.by_operation.get("softmax", ())
    others = {e.node for e in found if e.certain} - {soft}
    return scores is not None and all(_product_of(o, carried) is not scores for o in others)


def _product_of(soft: Node, carried: dict[Node, list[Node]]) -> Node | None:
    """Return the product of two values, none of them a parameter, that scores are made of."""
    seen: set[Node] = set()
    todo = [soft.args[1 if soft.op == Op.CALL else 0]]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in _PRODUCTS:
            operands = [arg for arg in node.args if arg.op != Op.CONST][-2:]
            return node if len(operands) > 1 and not any(map(_is_parameter, operands)) else None
        if node in carried:
            todo += carried[node]  # ``for bias in biases: scores += bias``
        if node.op in _OF_SCORES or (node.op == Op.CALL and _MASKS.search(str(node.args[0].value))):
            todo += reversed(node.args)
    return None


def _are_handed_in(here: Surroundings, soft: Node) -> bool:
    """Tell whether another method hands products on as scores: ``self.attend(v, q @ k.mT, mask)``.

    What is multiplied with a weight there is no score, and is no name that ends as scores do.
    """
    node = soft.args[1 if soft.op == Op.CALL else 0]
    while node.op in _OF_SCORES and node.args and node.op != Op.PHI:
        node = node.args[0]
    cls, function = here.flow.cls, here.flow.function
    if cls is None or node.op != Op.PARAM:
        return False
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    place = names.index(str(node.value)) - 1 if str(node.value) in names else -1
    for other in cls.body if place >= 0 else ():
        if not isinstance(other, ast.FunctionDef) or other is function:
            continue
        for call in ast.walk(other):
            match call:
                case ast.Call(ast.Attribute(ast.Name("self"), method), args) if (
                    method == function.name and len(args) > place
                ):
                    made = [args[place], *_bindings(other, args[place])]
                    return any(_PRODUCT.search(ast.unparse(code)) for code in made)
    return False


def _bindings(function: ast.FunctionDef, code: ast.expr) -> Iterator[ast.expr]:
    """Yield what the names in code are bound to in a function."""
    names = {n.id for n in ast.walk(code) if isinstance(n, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id in names for t in node.targets
        ):
            yield node.value


def _is_parameter(node: Node) -> bool:
    """Tell whether an operand is a weight of the module, be it turned: then it is a layer.

    So is a sum of them: ``self.users.weight + self.items.weight``.
    """
    while node.args and (node.op in _TURNS or node.value in {"T", "mT"}):
        node = node.args[0]
    if node.op == "add":
        return all(map(_is_parameter, node.args[:2]))
    return node.op == Op.ATTR
