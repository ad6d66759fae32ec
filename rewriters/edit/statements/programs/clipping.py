"""Gradients that are clipped in front of the step of an optimizer that holds them together."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.programs.optimizers import (
    DECIDED,
    SHARDS,
    could_be_fused,
    scales_gradients,
)
from npufix.rewriters.edit.statements.proposal import Proposal, put
from npufix.rewriters.facts.module_facts import brings_no_decay, first_argument
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_FUSED = "torch_npu.optim.NpuFused"
_OPTIMIZER = re.compile(r"(?i)optim|(^|[._])opt\b")
_CLIPPED = ("parameters", "max_norm", "norm_type")


def find_clipping(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``clip_grad_norm_`` in front of the step of a fused optimizer of torch_npu."""
    if SHARDS.search("".join(here.lines)) is not None:
        return  # the norm is that of all ranks
    for node in here.nodes:
        if not isinstance(node, ast.Call) or not _clips(here, node.func):
            continue
        given = dict(zip(_CLIPPED, node.args, strict=False))
        given |= {k.arg or "**": k.value for k in node.keywords}
        optimizer, made = _optimizer_after(here, node)
        if made is not None and could_be_fused(here, made.func) and "max_norm" in given:
            kind = last_name(made.func)
            if not _is_fused_by_torch(here, made, kind):
                yield Proposal(node, _say_afterwards(kind, optimizer, here.text(given["max_norm"])))
            continue
        if made is None or given.keys() - set(_CLIPPED) or not {*_CLIPPED[:2]} <= given.keys():
            continue
        power = f", {here.text(given['norm_type'])}" if "norm_type" in given else ""
        text = f"{optimizer}.clip_grad_norm_fused_({here.text(given['max_norm'])}{power})"
        same = bool(made.args) and _is_same(here, made.args[0], given["parameters"])
        yield put(here, node, text, proven={"all-parameters"} if same else ())


def _is_fused_by_torch(here: Surroundings, made: ast.Call, kind: str) -> bool:
    """Tell whether ``fused=True`` comes first, which clips as torch does: of an AdamW, of an Adam.

    Of an Adam without decay, that is: an AdamW without decay is the same.
    """
    decays = any(k.arg in {"weight_decay", None} for k in made.keywords)
    params = first_argument(made, "params")
    alone = (
        kind == "Adam"
        and not decays
        and params is not None
        and brings_no_decay(here.flow.function, params)
    )
    return (kind == "AdamW" or alone) and not scales_gradients(here)


def _say_afterwards(kind: str, optimizer: str, limit: str) -> str:
    return (
        f"once the optimizer is a torch_npu.optim.NpuFused{kind}, which holds all gradients "
        f"together: {optimizer}.clip_grad_norm_fused_({limit}) is one norm and one product in "
        "place of one for each parameter"
    )


def _clips(here: Surroundings, function: ast.expr) -> bool:
    name = here.flow.names.dotted(function) or ""
    return name == "torch.nn.utils.clip_grad_norm_" or name.endswith("clip_grad.clip_grad_norm_")


def _is_same(here: Surroundings, one: ast.expr, other: ast.expr) -> bool:
    """Tell whether an optimizer was made of what is clipped.

    ``model.parameters()`` is anew what it was; ``params`` may be a generator that is used up.
    """
    if ast.unparse(one) != ast.unparse(other):
        return False
    match one, _value_of(here, one):
        case (ast.Call(), _) | (_, ast.List() | ast.ListComp() | ast.Call(ast.Name("list"))):
            return True
    return False


def _value_of(here: Surroundings, code: ast.expr) -> ast.expr | None:
    """Return what a local name is bound to, ``None`` if that is not one expression."""
    bound = [
        n.value
        for n in here.nodes
        if isinstance(n, ast.Assign) and any(ast.unparse(t) == ast.unparse(code) for t in n.targets)
    ]
    return bound[0] if len(bound) == 1 and isinstance(code, ast.Name) else None


def _optimizer_after(here: Surroundings, clip: ast.Call) -> tuple[str, ast.Call | None]:
    """Return the one optimizer whose step comes behind, and its constructor if it can clip.

    So it can if it is fused, or could be.
    """
    steps = {
        ast.unparse(code)
        for n in here.nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "step"
        for code in (n.func.value, *n.args[:1])  # ``scaler.step(optimizer)``
        if n.lineno > clip.lineno and is_optimizer(code)
    }  # fmt: skip
    if len(steps) != 1 or here.flow.names.tree is None:
        return "", None
    (name,) = steps
    # A name of the function itself, else what the methods of the class or the module bind.
    places = [here.flow.function, here.flow.names.tree]
    for place in places if name.isidentifier() else places[1:]:
        made = [
            n.value
            for n in walk(place)
            if isinstance(n, ast.Assign) and any(ast.unparse(t) == name for t in n.targets)
        ]
        if made:
            break
    if len(made) != 1 or not isinstance(made[0], ast.Call):
        return name, None
    is_fused = (here.flow.names.dotted(made[0].func) or "").startswith(_FUSED)
    plain = could_be_fused(here, made[0].func) and DECIDED.isdisjoint(
        k.arg for k in made[0].keywords
    )
    return name, made[0] if is_fused or plain else None


def is_optimizer(code: ast.expr) -> bool:
    """Tell whether code is called what optimizers are called."""
    return _OPTIMIZER.search(ast.unparse(code)) is not None
