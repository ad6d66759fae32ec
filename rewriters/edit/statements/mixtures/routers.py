"""Routers of mixtures of experts, which select the most probable."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.graph.modules.syntax import last_name, list_stored_names
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_ROUTER = re.compile(r"(?i:expert|router|routing|gating)|M[oO]E|\bmoe|_moe\b|Gate\b|\bgate\b")
_HIDES = frozenset({"masked_fill", "masked_fill_", "where"})
_SELECTS_KEYS = re.compile(r"(?i)indexer(_|\.|$)")
_TWO_OF_GROUP = re.compile(r"topk\([^()]*\b2\b")
_BESIDE = frozenset({"mean", "sum", "log", "bincount"})
"""What an auxiliary loss makes of all scores."""
_EXPERTS = re.compile(r"(?i)expert|(^|[^a-z])moe|MoE")
_LAST = frozenset({-1, 1, 2})
"""Where the experts are: behind tokens, or behind batch and sequence."""
_GROUPS = ", k_group=groups taken, group_count=groups, group_select_mode={}"


def find_routers(here: Surroundings) -> Iterator[Proposal]:
    """Yield the selections of the most probable experts from a softmax that nothing else reads."""
    text = here.text(here.flow.function)
    around = f"{here.flow.qualname} {text}"
    if _ROUTER.search(around) is None or _SELECTS_KEYS.search(here.flow.qualname):
        return  # an ``Indexer`` selects keys of attention
    if "scatter" in text and not _EXPERTS.search(around):
        return  # slots of a memory: what is not selected becomes zero, and all of them are read
    if re.search(r"(?i)vocab|temperature|top_p\b|npu_moe_gating|softplus", text):
        return
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(_, "topk") as function, args, keywords):
                found = _find_selected(here, function, args, keywords)
                if found is None:
                    continue
                scores, count = found
                soft = _softmax_of(here, scores, node)
                if soft is not None:
                    yield _router(here, node, soft, count)
                elif _is_softmax_of_selected(here, node):
                    yield _late_router(here, node, scores, count)
                else:
                    yield from _find_gated(here, node, count)


def _find_selected(
    here: Surroundings,
    function: ast.Attribute,
    args: list[ast.expr],
    keywords: list[ast.keyword],
) -> tuple[ast.expr, ast.expr] | None:
    """Return the scores and how many are taken of ``torch.topk(scores, k)``, ``scores.topk(k)``."""
    given = [*args] if here.flow.names.dotted(function) == "torch.topk" else [function.value, *args]
    named = {k.arg: k.value for k in keywords}
    scores = given[0] if given else named.get("input")
    count = given[1] if len(given) > 1 else named.get("k")
    dim = given[2] if len(given) > 2 else named.get("dim")  # noqa: PLR2004 - scores, k, dim
    if scores is None or count is None or (dim is not None and ast.unparse(dim) not in {"-1", "1"}):
        return None
    return scores, count


def _softmax_of(here: Surroundings, scores: ast.expr, at: ast.Call) -> ast.Call | None:
    """Return the softmax that scores are, if nobody else needs it."""
    if isinstance(scores, ast.Call):
        return scores if last_name(scores.func) == "softmax" else None
    if not isinstance(scores, ast.Name):
        return None
    own = here.statement_of(at)
    bound = [
        n.value
        for n in here.nodes
        if isinstance(n, ast.Assign)
        and n is not own
        and any(isinstance(t, ast.Name) and t.id == scores.id for t in n.targets)
        and n.lineno < at.lineno
    ]
    if not bound:
        return None
    soft = [c for c in bound if isinstance(c, ast.Call) and last_name(c.func) == "softmax"]
    again = list_stored_names(own)
    reads = [
        n
        for n in here.nodes
        if isinstance(n, ast.Name) and n.id == scores.id and isinstance(n.ctx, ast.Load)
        and not _gathers(here, n)
    ]  # fmt: skip
    if len(soft) != 1 or (scores.id not in again and len(reads) != 1):
        return None
    return soft[0]


def _gathers(here: Surroundings, scores: ast.Name) -> bool:
    """Tell whether only the weights of the selected are read: ``scores.gather(1, indices)``."""
    outer = here.parents.get(id(scores))
    outer = here.parents.get(id(outer)) if isinstance(outer, ast.Attribute) else outer
    return isinstance(outer, ast.Call) and last_name(outer.func) == "gather"


def _is_softmax_of_selected(here: Surroundings, topk: ast.Call) -> bool:
    """Tell whether what is selected becomes the softmax, and nothing else."""
    node = here.value(topk)
    if node is None or node.op != "topk" or node.args[0].op in {"softmax", "sigmoid"}:
        return False
    values = [user for user in here.users(node) if user.op == Op.ITEM and user.value == 0]
    users = [user for value in values for user in _users_but_casts(here, value)]
    return bool(users) and all(u.op == "softmax" and u.args[1].value in _LAST for u in users)


def _users_but_casts(here: Surroundings, node: Node) -> list[Node]:
    """Return what reads a value, be it as another dtype."""
    found = [[u] if u.op != Op.CAST else _users_but_casts(here, u) for u in here.users(node)]
    return [user for users in found for user in users]


def _late_router(here: Surroundings, topk: ast.Call, logits: ast.expr, count: ast.expr) -> Proposal:
    """Return the fused selection of a router that selects first: ``renorm=1``."""
    k = here.text(count)
    new = f"torch_npu.npu_moe_gating_top_k_softmax_v2({here.text(logits)}, k={k}, renorm=1)[:2]"
    return Proposal(
        topk,
        f"inference: {new} (torch_npu from 2.8.0.post5), the weights behind their softmax and the "
        "experts as int32; the operator has no gradient",
    )


def _find_gated(here: Surroundings, topk: ast.Call, count: ast.expr) -> Iterator[Proposal]:
    """Yield a selection by scores that a bias corrects, of a sigmoid or within groups."""
    node, text = here.value(topk), here.text(here.flow.function)
    selections = [n for n in here.nodes if isinstance(n, ast.Call) and last_name(n.func) == "topk"]
    if node is None or node.op != "topk" or topk.lineno < max(n.lineno for n in selections):
        return  # the groups are selected, not yet the experts
    parts = set(node.args[0].walk())
    roots = [part for part in parts if part.op in {"sigmoid", "softmax"}]
    kinds = {root.op for root in roots}
    grouped = len(selections) > 1 and "group" in text and _is_hidden_before(here, topk)
    corrected = any(part.op == "add" and set(part.args) & set(roots) for part in parts)
    if not (grouped or "sigmoid" in kinds or corrected):
        return
    if any(_is_read_beside(here, root) for root in roots):
        return
    norm = {"sigmoid": "1", "softmax": "0"}.get("".join(kinds), "1 or 0")
    shown = _GROUPS.format("1" if _TWO_OF_GROUP.search(text) else "0") if grouped else ""
    settings = f"bias=bias{shown}, norm_type={norm}, routed_scaling_factor=factor"
    call = f"torch_npu.npu_moe_gating_top_k(logits, {here.text(count)}, {settings})[:2]"
    yield Proposal(
        topk,
        f"inference: {call} computes the scores, selects and scales in one kernel, the experts as "
        "int32; the bias counts for the selection alone. norm_type=1 is the sigmoid, whose weights "
        "come out divided by their sum, norm_type=0 the softmax, whose weights do not",
    )


def _is_hidden_before(here: Surroundings, topk: ast.Call) -> bool:
    """Tell whether scores of other groups are hidden before the selection."""
    return any(
        isinstance(n, ast.Call) and last_name(n.func) in _HIDES and n.lineno <= topk.lineno
        for n in here.nodes
    )


def _is_read_beside(here: Surroundings, scores: Node) -> bool:
    """Tell whether all scores are a result, or what a loss is computed from."""
    returned = {n for o in here.flow.observables if o.kind == "return" for n in o.node.args}
    return scores in returned or any(user.op in _BESIDE for user in here.users(scores))


def _router(here: Surroundings, topk: ast.Call, soft: ast.Call, count: ast.expr) -> Proposal:
    """Return the fused selection: written where the softmax and it stand in one block."""
    match soft:
        case ast.Call(ast.Attribute(owner), [] | [ast.Constant() | ast.UnaryOp(), *_]) if (
            not here.flow.names.dotted(soft.func)
        ):
            logits: ast.expr | None = owner  # logits.softmax(-1)
        case _:
            named = (k.value for k in soft.keywords if k.arg == "input")
            logits = soft.args[0] if soft.args else next(named, None)
    text = "logits" if logits is None else here.text(logits)
    if any(k.arg == "dtype" for k in soft.keywords) and not text.endswith(".float()"):
        text = f"{text}.float()"
    new = f"torch_npu.npu_moe_gating_top_k_softmax({text}, None, {here.text(count)})[:2]"
    return Proposal(
        topk,
        f"inference: {new}, the experts as int32; in training the operator raises in the backward "
        "pass",
    )
