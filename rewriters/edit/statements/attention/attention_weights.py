"""Attention of ``torch.nn`` that stays in small operators: with unused weights, or with masks."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import (
    Proposal,
    more_arguments,
    text_after,
)
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_MADE = re.compile(r"torch\.nn(\.modules(\.activation)?)?\.MultiheadAttention")
_WEIGHTS = frozenset({"need_weights", "average_attn_weights", None})
_MASKS = frozenset({"key_padding_mask", "attn_mask"})
_LAYERS = re.compile(r"torch\.nn(?:\.modules\.\w+)?\.(Transformer(?:(?:En|De)coderLayer)?)")
_NAMED = re.compile(r"(?i)transformer|encoder|decoder|layer|attn|atten|fusion")
_MASKED = re.compile(
    r"\w*mask\w*\s*=\s*(?!None\b|False\b)[\w.~]|\(\s*\w+(\s*,\s*\w+)?\s*,\s*\w*mask\w*\s*[,)]"
)
_OPERANDS = frozenset({"query", "key", "value"})
_POSITIONAL = 4
"""Query, key, value and mask; the fifth argument asks for the weights."""


def find_unused_weights(here: Surroundings) -> Iterator[Proposal]:
    """Yield the calls of which only the first result is read."""
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(ast.Name("self"), attribute), args, keywords):
                made = _find_constructions(here, attribute)
                named = {k.arg for k in keywords}
                starred = any(isinstance(arg, ast.Starred) for arg in args)
                if not made or starred or named & _WEIGHTS or len(args) > _POSITIONAL:
                    continue
                if len(args) + len(named & _OPERANDS) < len(_OPERANDS):
                    continue  # of another module in its place: ``FlashMHA``
                text = "need_weights=False"
                added = more_arguments(node, here.lines, text)
                if added is None or not _is_first_alone(here, node) or _is_masked(here, node):
                    continue
                masks = [k.value for k in keywords if k.arg in _MASKS] + args[_POSITIONAL - 1 :]
                masks = [code for code in masks if ast.unparse(code) != "None"]
                proven = set() if masks else {"no-mask", "no-fully-masked-row"}
                proven |= set() if any(map(_drops, made)) else {"other-random-numbers"}
                yield Proposal(
                    node,
                    changes=(added,),
                    shown=text_after(here, node, [added]),
                    asked=tuple(zip(("mask", "hidden"), map(here.text, masks), strict=False)),
                    proven=frozenset(proven),
                )


def find_masked_layers(here: Surroundings) -> Iterator[Proposal]:
    """Yield where a class makes layers of ``torch.nn`` that it calls with a mask."""
    for node in here.nodes:
        if isinstance(node, ast.Call) and here.flow.cls is not None:
            found = _LAYERS.fullmatch(here.flow.names.dotted(node.func) or "")
            if found and _is_called_with_mask(here, here.flow.cls):
                yield Proposal(node, _of_layer(found[1]))


def _of_layer(name: str) -> str:
    return (
        f"the mask becomes one of floating point in nn.{name}, with which scores, softmax and "
        "products stay operators of their own: write the layer with Linear layers of the same "
        "names around torch_npu.npu_fusion_attention(q, k, v, heads, 'BNSD', atten_mask=hidden, "
        "scale=head_dim ** -0.5)[0], where hidden (batch, 1, length, length) is True where a key "
        "must not be seen"
    )


def _is_called_with_mask(here: Surroundings, cls: ast.ClassDef) -> bool:
    """Tell whether a submodule is called with something that is named as a mask."""
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and isinstance(n.func.value, ast.Name)
        and n.func.value.id == "self"
        and (_NAMED.search(n.func.attr) or _is_of_layers(here, cls, n.func.attr))
        and _MASKED.search(ast.unparse(n))
        for n in walk(cls)
    )


def _is_of_layers(here: Surroundings, cls: ast.ClassDef, attribute: str) -> bool:
    """Tell whether ``self.attribute`` is a transformer of torch.nn, or several of its layers."""
    return any(
        isinstance(made, ast.Call)
        and (here.flow.names.dotted(made.func) or "").startswith("torch.nn.Transformer")
        for _, made in list_assigned(here.flow.names, cls, attribute)
    )


def _find_constructions(here: Surroundings, attribute: str) -> list[ast.Call]:
    """Return how ``self.attribute`` is made, nothing if it may be anything else."""
    if here.flow.cls is None:
        return []
    values = [v for _, v in list_assigned(here.flow.names, here.flow.cls, attribute)]
    calls = [v for v in values if isinstance(v, ast.Call)]
    known = all(_MADE.fullmatch(here.flow.names.dotted(call.func) or "") for call in calls)
    return calls if known and len(calls) == len(values) else []


def _is_masked(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether a call is handed a mask that is computed here, so that it is not ``None``."""
    given = [k.value for k in call.keywords if k.arg in _MASKS]
    values = [here.value(code) for code in given]
    return any(v is not None and (v.op in operators.TABLE or v.op == Op.GETITEM) for v in values)


def _drops(made: ast.Call) -> bool:
    """Tell whether an attention drops weights in training, or may."""
    given = {k.arg: k.value for k in made.keywords}
    dropout = made.args[2] if len(made.args) > 2 else given.get("dropout")  # noqa: PLR2004 - its place
    if dropout is None:
        return None in given
    return not (isinstance(dropout, ast.Constant) and not dropout.value)


def _is_first_alone(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether nobody reads any but the first of the results."""
    match here.parents.get(id(call)):
        case ast.Subscript(_, ast.Constant(0)):
            return True
        case ast.Assign([ast.Tuple([_, ast.Name(weights)])]):
            return not any(isinstance(n.ctx, ast.Load) for n in _list_named(here, weights))
        case ast.Assign([ast.Name(both)]):
            stored = [n for n in _list_named(here, both) if isinstance(n.ctx, ast.Store)]
            read = [n for n in _list_named(here, both) if isinstance(n.ctx, ast.Load)]
            if _is_taken_at_once(here, call, both):
                return True  # ``x = attn(x, x, x)`` and ``x = x[0]``
            return len(stored) == 1 and all(_takes_first(here, name) for name in read)
    return False


def _is_taken_at_once(here: Surroundings, call: ast.Call, both: str) -> bool:
    """Tell whether the next statement gives a name the first of the two results it holds."""
    own = here.statement_of(call)
    block = here.block_of(own)
    match block[block.index(own) + 1 :]:
        case [ast.Assign([ast.Name(name)], ast.Subscript(ast.Name(held), ast.Constant(0))), *_]:
            return name == held == both
    return False


def _takes_first(here: Surroundings, name: ast.Name) -> bool:
    match here.parents.get(id(name)):
        case ast.Subscript(_, ast.Constant(0)):
            return True
    return False


def _list_named(here: Surroundings, name: str) -> list[ast.Name]:
    return [n for n in walk(here.flow.function) if isinstance(n, ast.Name) and n.id == name]
