"""What is copied to the device: settings, lists of this very call, or what the device has had."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.filled import READING
from npufix.rewriters.edit.statements.host.of_host import counts_up
from npufix.rewriters.graph.attributes import is_made_once, list_assigned
from npufix.rewriters.graph.modules.syntax import is_scalar, list_names, root_name
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_SETTINGS = re.compile(r"(?i)(^|_)(cfg|config|conf|hparams|settings|opts?)$")
_NEW_EACH_TIME = re.compile(
    r"(?i)\blen\(|\breq|hyp|temperature|(_|^)(ids?|tokens?|scores?|voted)\b|^\[\S+\[(\w+)\] for \3 "
)
"""What lists hold that is other in each call: lengths of sentences, tokens of requests."""
_PARTS = re.compile(r"(^|_)(coder|cfg|config|settings|generator|hparams|args)$")
"""What parts of an object are called that hold settings."""
_REDUCING = frozenset({"all", "amax", "amin", "any", "max", "mean", "min", "norm", "prod", "sum"})


def is_made_here(here: Surroundings, data: ast.expr) -> bool:
    """Tell whether it is a list that this very function makes."""
    match data:
        case ast.List([_, _, *_] as parts):
            return not any(isinstance(part, ast.Starred) for part in parts)
        case ast.ListComp():
            return True
    arrays = {"numpy.array", "numpy.asarray", "numpy.stack"}
    bound = list_bound(here, data)
    return bool(bound) and all(
        isinstance(b, (ast.List, ast.ListComp))
        or (isinstance(b, ast.Call) and here.flow.names.dotted(b.func) in arrays)
        for b in bound
    )


def list_bound(here: Surroundings, data: ast.expr) -> list[ast.expr]:
    """Return what a name is bound to before it is read here."""
    name = data.id if isinstance(data, ast.Name) else ""
    inner = here.statement_of(data)  # ``x = torch.tensor(\n    x, ...)`` begins a line above
    return [
        n.value
        for n in here.nodes
        if isinstance(n, ast.Assign) and n is not inner and n.lineno < data.lineno
        if any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
    ]


def is_new_each_time(here: Surroundings, data: ast.expr) -> bool:
    """Tell whether a list hardly comes again: of lengths, of ``[m is None for m in ms]``."""
    made = [data, *list_bound(here, data)]
    asks = (isinstance(m, ast.ListComp) and isinstance(m.elt, ast.Compare) for m in made)
    counts = any(counts_up(here, m) for m in made)
    return counts or any(asks) or any(_NEW_EACH_TIME.search(here.text(m)) for m in made)


def are_of_device(here: Surroundings, data: ast.expr) -> bool:
    """Tell whether a list is made of tensors, or of what the host reads of them.

    ``[n[0], 1]``, ``[m.sum() for m in masks]``, ``for i in places.tolist(): rows[i] = ...``
    """
    parts = [data]
    if isinstance(data, ast.Name):
        own = re.compile(rf"{data.id}( \+?= |\[.*\] \+?= |\.(append|extend|insert)\()")
        simple = [n for n in here.nodes if isinstance(n, (ast.Assign, ast.AugAssign, ast.Expr))]
        filled = [n for n in simple if own.match(ast.unparse(n))]
        loops = (here.loop_of(n) for n in filled)
        parts = [n.value for n in filled]
        parts += [loop.iter for loop in loops if isinstance(loop, ast.For)]
    inner = [n for part in parts for n in ast.walk(part)]
    reads = (n.func for n in inner if isinstance(n, ast.Call) and not n.args)
    owners = [f.value for f in reads if isinstance(f, ast.Attribute) and f.attr in READING]
    held = [e for p in parts if isinstance(p, ast.List | ast.ListComp) for e in _elements(p)]
    rows = {ast.unparse(n.iter) for n in inner if isinstance(n, ast.comprehension)}
    named = [n for n in here.nodes if isinstance(n, ast.Name) and n.id in rows]
    held += [n for n in named if n.lineno < data.lineno]  # later it may be called so as a tensor
    return any(here.is_tensor(o) is not False for o in owners) or any(
        here.is_tensor(e) or _is_reduced(here, e) or _is_of_row(here, e) for e in held
    )


def _elements(code: ast.expr) -> Iterator[ast.expr]:
    """Yield what a list holds, and the lists in it: ``[[w, -h], [n.sum() for n in rows]]``."""
    match code:
        case ast.List(elements) | ast.Tuple(elements):
            for element in elements:
                yield from _elements(element)
        case ast.ListComp(element):
            yield from _elements(element)
        case _:
            yield code


def _is_reduced(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether an element is reduced from a tensor: ``x[:n].sum()``."""
    match code:
        case ast.Call(ast.Attribute(owner, method)) if method in _REDUCING:
            while isinstance(owner, ast.Subscript):
                owner = owner.value
            if made := list_bound(here, owner):
                return all(map(here.is_tensor, made))
            # in a comprehension it has no value of its own
            same = (n for n in here.nodes if isinstance(n, ast.Name) and n.id == root_name(owner))
            return any(map(here.is_tensor, same))
    return False


def _is_of_row(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a name is an element of a tensor, as the one beside it is.

    ``w / 2`` in front of ``torch.cos(angle)``, of ``x, y, w, angle = box``.
    """
    own = list_names(code)
    for node in here.nodes:
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Name()) if own:
                names = {t.id for t in targets if isinstance(t, ast.Name)}
                beside = (n for n in here.nodes if isinstance(n, ast.Name) and n.id in names)
                if own <= names and any(map(here.is_tensor, beside)):
                    return True
    return False


def is_constant(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a list holds numbers that are written out, or settings of the object."""
    if not isinstance(code, (ast.List, ast.Tuple)):
        return is_of_self(here, code)
    return all(is_scalar(e) or is_constant(here, e) for e in code.elts)


def is_of_self(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether it is a setting: ``self.x``, and ``c.LIMITS`` with ``c = self.config.HEAD``."""
    match code:
        case ast.Subscript(inner, ast.Constant(str())):  # ``self.config.WEIGHTS["code"]``
            return isinstance(inner, ast.Attribute) and is_of_self(here, inner)
    node = here.value(code) if isinstance(code, ast.Attribute) else None
    is_own = isinstance(code, ast.Attribute) and ast.unparse(code.value) == "self"
    while node is not None and node.op == Op.ATTR:
        node = node.args[0]
        is_own |= node.op == Op.ATTR and bool(_SETTINGS.search(str(node.value)))
    return is_own and (node is None or (node.op == Op.PARAM and node.value == "self"))


def is_of_part(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether it is a setting of a part of the object, which never sets that again.

    ``self.bbox_coder.mean_sizes``, and ``w`` of ``w = self.train_cfg.get("code_weight", None)``.
    """
    match code:
        case ast.Name():
            bound = list_bound(here, code)
            return bool(bound) and all(
                isinstance(b, ast.Call)
                and isinstance(b.func, ast.Attribute)
                and b.func.attr == "get"
                and is_of_self(here, b.func.value)
                for b in bound
            )
        case ast.Attribute(ast.Attribute(ast.Name("self"), part)) if here.flow.cls is not None:
            held = here.flow.names, here.flow.cls, part
            return _PARTS.search(part) is not None or (
                bool(list_assigned(*held)) and is_made_once(*held)
            )
    return False


def is_handed(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a caller hands numbers in: ``view``, ``img_meta["scale_factor"][:2]``.

    Only of what takes no tensor: ``x.new_tensor(view)``.
    """
    root = code
    while isinstance(root, ast.Subscript):
        root = root.value
    value = here.value(root) if isinstance(root, ast.Name) else None
    return value is not None and value.op == Op.PARAM and not here.is_tensor(code)
