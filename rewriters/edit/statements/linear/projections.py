"""Linear layers that read one input, and could be one."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.graph.attributes import is_made_once, list_assigned
from npufix.rewriters.graph.modules.syntax import nodes_of, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

PROJECTED = r"(?i:[qkv]|to_?[qkv]|w[qkv]|[qkv]_?(proj|lin|linear)|\w*(query|key|value)\w*)"
_KEY_OR_VALUE = re.compile(r"(?i)(?:.*_)?(?:w|to)?_?(?P<which>k|v)(?:ey|alue)?(?:_.*|s|\d*)?$")
_OF_ATTENTION = re.compile(r"(?i)(^|_)(to_?|w)?[qkv]s?(_|\d|proj|lin|$)|query|key|value")
"""Whoever else has three layers of one input gains less than new names in checkpoints cost."""
NAMES_ARE_FIXED = r"\b(PreTrainedModel|modeling_utils|_tp_plan|ColumnParallel\w*)\b"
"""What says that the layers of a model are called by others: checkpoints, plans, adapters."""
_JOINED = re.compile(r"(?i)q_?k_?v|(^|_)k_?v(_|$)")
"""What one layer for several is called."""
_FUNCTIONS = frozenset({"torch.nn.functional.linear", "torch._C._nn.linear"})
_LEAST = 3
_WIDTHS = frozenset({"in_features", "out_features"})


def find_projections(here: Surroundings) -> Iterator[Proposal]:
    """Yield the first of several layers ``nn.Linear`` of one input, once for each input.

    Query, key and value, or key and value of another sequence.
    """
    if here.flow.cls is None:
        return
    groups: dict[Node, dict[str, tuple[ast.Call, ast.Call]]] = {}
    for node in here.nodes:
        layer = _layer_called(here, node)
        if not isinstance(node, ast.Call) or not layer or here.loop_of(node) is not None:
            continue
        made, value = _linear(here, layer), here.value(node.args[0])
        if made is None or value is None:
            continue
        groups.setdefault(value, {}).setdefault(layer, (node, made))
    for layers in groups.values():
        alike = _alike(layers)
        if (alike and _is_joined_beside(here, alike)) or len(_list_unbiased(alike)) == len(alike):
            continue
        if len(alike) >= _LEAST or _are_key_and_value(alike):
            yield Proposal(min((c for c, _ in alike.values()), key=_place), _say(here, alike))


def _is_joined_beside(here: Surroundings, layers: dict[str, tuple[ast.Call, ast.Call]]) -> bool:
    """Tell whether the other way of a branch has one layer for all: ``else: self.qkv(x)``."""
    call, _ = next(iter(layers.values()))
    return any(
        isinstance(node, ast.Call) and _JOINED.search(_layer_called(here, node))
        for outer in here.around(call)
        if isinstance(outer, ast.If)
        for block in (outer.body, outer.orelse)
        if (inside := list(walk(*block))) and call not in inside
        for node in inside
    )


def _layer_called(here: Surroundings, node: ast.AST) -> str:
    """Return ``q`` of ``self.q(x)`` and of ``F.linear(x, self.q.weight)``, "" for anything else."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("self"), layer), [_], []):
            return layer
        case ast.Call(
            function, [_, ast.Attribute(ast.Attribute(ast.Name("self"), layer), "weight")], []
        ):
            return layer if here.flow.names.dotted(function) in _FUNCTIONS else ""
    return ""


def _linear(here: Surroundings, layer: str) -> ast.Call | None:
    """Return how ``self.layer`` is made, if it is one ``nn.Linear`` and stays it."""
    if here.flow.cls is None or not is_made_once(here.flow.names, here.flow.cls, layer):
        return None
    others = _list_others(here, here.flow.cls)
    assigned = list_assigned(here.flow.names, here.flow.cls, layer)
    values = [value for method, value in assigned if method not in others]
    made = values[0] if len(values) == 1 else None
    if not isinstance(made, ast.Call) or here.flow.names.dotted(made.func) != "torch.nn.Linear":
        return None
    if not _arguments(made).keys() >= _WIDTHS:
        return None  # ``nn.Linear(*sizes)``
    nodes = nodes_of(here.flow.cls)
    called = [n for n in nodes if _layer_called(here, n) == layer]
    plain = {id(n) for call in called for n in ast.walk(call)}
    tied = any(
        isinstance(n, ast.Attribute) and n.attr in {"weight", "bias"} and _is_self(n.value, layer)
        for n in nodes
        if id(n) not in plain
    )
    return None if tied else made


def _list_others(here: Surroundings, cls: ast.ClassDef) -> list[ast.stmt]:
    """Return the methods of subclasses that have a method of their own in place of this one."""
    names, own = here.flow.names, here.flow.function.name
    below = [c for c in names.classes.values() if c is not cls and cls in names.bases(c)]
    bodies = [c.body for c in below]
    return [
        part
        for body in bodies
        if any(isinstance(m, ast.FunctionDef) and m.name == own for m in body)
        for part in body
    ]


def _is_self(code: ast.expr, layer: str) -> bool:
    match code:
        case ast.Attribute(ast.Name("self"), name):
            return name == layer
    return False


def _alike(layers: dict[str, tuple[ast.Call, ast.Call]]) -> dict[str, tuple[ast.Call, ast.Call]]:
    """Return the layers that have the settings of the first, but for the width of the result."""
    first = next(iter(layers.values()))[1]
    return {
        n: (c, m)
        for n, (c, m) in layers.items()
        if _settings(m) == _settings(first) and _OF_ATTENTION.search(n)
    }


def _arguments(made: ast.Call) -> dict[str, str]:
    given = dict(zip(("in_features", "out_features", "bias"), made.args, strict=False))
    given |= {k.arg or "**": k.value for k in made.keywords}
    return {name: ast.unparse(value) for name, value in given.items()}


def _settings(made: ast.Call) -> dict[str, str]:
    return {n: v for n, v in _arguments(made).items() if n != "out_features"}


def _are_key_and_value(layers: dict[str, tuple[ast.Call, ast.Call]]) -> bool:
    found = [m["which"].lower() for name in layers if (m := _KEY_OR_VALUE.match(name))]
    return len(layers) == len(found) and set(found) == {"k", "v"}


def _place(call: ast.Call) -> tuple[int, int]:
    return call.lineno, call.col_offset


def _say(here: Surroundings, layers: dict[str, tuple[ast.Call, ast.Call]]) -> str:
    made = [m for _, m in layers.values()]
    first_made = _arguments(made[0])
    widths = [_arguments(m)["out_features"] for m in made]
    bias = f"bias={first_made['bias']}" if "bias" in first_made else ""
    read = here.text(next(iter(layers.values()))[0].args[0])
    merged, results, first = _join(list(layers)), ", ".join(layers), next(iter(layers))
    arguments = ", ".join(filter(None, [first_made["in_features"], _total(widths), bias]))
    parts = ", ".join(widths)
    unbiased = ", ".join(_list_unbiased(layers))
    zeros = f"; zeros as the bias of {unbiased}, which adds none" if unbiased else ""
    return (
        f"in __init__ make one layer of {len(layers)}: self.{merged} = nn.Linear({arguments}); "
        f"here {results} = self.{merged}({read}).split([{parts}], dim=-1). Old checkpoints stay "
        "loadable with a pre-hook (register_load_state_dict_pre_hook) that replaces "
        f"prefix + '{first}.weight' and the others by their torch.cat as prefix + "
        f"'{merged}.weight', the biases alike{zeros}"
    )


def _list_unbiased(layers: dict[str, tuple[ast.Call, ast.Call]]) -> list[str]:
    """Return the layers whose weight alone is read: ``F.linear(x, self.key.weight)``."""
    return [
        name
        for name, (call, made) in layers.items()
        if len(call.args) > 1 and _arguments(made).get("bias") != "False"
    ]


def _join(layers: Sequence[str]) -> str:
    """Return ``add_qkv_proj`` for ``add_q_proj``, ``add_k_proj`` and ``add_v_proj``."""
    one = re.compile(r"(?P<first>(?:.*_|[wW])?)(?P<own>[qkv])(?P<last>(?:_.*|\d*)?)")
    found = [m for layer in layers if (m := one.fullmatch(layer))]
    around = {(m["first"], m["last"]) for m in found}
    if len(found) < len(layers) or len(around) > 1:
        return "_".join(layers)
    own = "".join(sorted((m["own"] for m in found), key="qkv".find))
    return f"{found[0]['first']}{own}{found[0]['last']}"


def _total(widths: Sequence[str]) -> str:
    if len(set(widths)) > 1:
        return " + ".join(widths)
    one = widths[0] if re.fullmatch(r"[\w.]+", widths[0]) else f"({widths[0]})"
    return f"{len(widths)} * {one}"
