"""Tensors that are computed on the host from numbers alone, and then copied to the device."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.made.numbers import (
    Made,
    OtherSourceError,
    proofs_of,
    source_of,
)
from npufix.rewriters.edit.statements.host.made.range_indexes import find_range_indexes
from npufix.rewriters.edit.statements.proposal import (
    Change,
    Proposal,
    more_arguments,
    put,
    text_after,
)
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import list_stored_names, root_name
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_MOVING = operators.TO_DEVICE | {"type_as"}
_SPREAD = frozenset({"broadcast_to", "expand", "expand_as"})
_OF_SHAPES = frozenset({"dim", "ndim", "shape", "size", "squeeze", "unsqueeze", "view"})


def find_creations(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``torch.exp(torch.arange(n) / n).to(x.device)``, and the same in two steps."""
    yield from find_range_indexes(here)
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(moved, how)) if how in _MOVING:
                if _is_dropped(here, node) or _is_spread_and_written(here, node, moved):
                    continue
                made = Made(here)
                source = source_of(here, moved)
                target = None if source is None else _target(here, node)
                if source is None or target is None:
                    continue
                try:
                    made.read(source)
                except OtherSourceError:
                    continue
                if made.makers and made.has_integers() is not False:
                    found = _there(here, node, made, source, target)
                    if found is not None:
                        yield found


def _is_dropped(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether nobody reads what is made: ``mask = zeros(n).to(d)``, then ``mask = a & b``."""
    value, bound = here.value(code), here.parents.get(id(code))
    if value is None or not isinstance(bound, ast.Assign) or here.users(value):
        return False
    names = isinstance(bound.targets[0], ast.Name) and len(bound.targets) == 1
    return names and all(o.node is not value for o in here.flow.observables)


def _is_spread_and_written(here: Surroundings, code: ast.Call, moved: ast.expr) -> bool:
    """Tell whether only the copy can be written to: ``t = eye(4).expand(n, 4, 4).to(d)``.

    What ``expand`` repeats is one place in memory, and ``t[i] = x`` then raises.
    """
    node, bound = here.value(moved), here.parents.get(id(code))
    while node is not None and node.op not in _SPREAD:
        node = node.args[0] if node.args and node.op in operators.VIEWS | {Op.GETITEM} else None
    if node is None or not isinstance(bound, ast.Assign):
        return False
    return any(map(here.is_written_to, map(ast.unparse, bound.targets)))


def draw_there(here: Surroundings, code: ast.Call, drawn: ast.Call) -> Proposal | None:
    """Return random numbers of the device in place of a copy of those of the host."""
    target, made = _target(here, code), Made(here)
    made.makers.append(drawn)
    found = None if target is None else _there(here, code, made, drawn, target)
    return None if found is None else replace(found, form="drawn")


def draw_permutation(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return ``torch.randperm(n, device=d)`` for a permutation that NumPy draws, and its copy.

    ``torch.from_numpy(np.random.permutation(n)).to(d)``
    """
    match code:
        case ast.Call(ast.Attribute(ast.Call(made, [ast.Call(drawn, [number], [])], []))):
            names = here.flow.names.dotted(made), here.flow.names.dotted(drawn)
        case _:
            return None
    target = _target(here, code)
    if target is None or names != ("torch.from_numpy", "numpy.random.permutation"):
        return None
    value = here.value(number)
    if value is None or not here.torch:
        return None
    length = value.op in {"numel", "py:len", Op.SIZE}
    if not length and not here.facts(here.evaluations[id(number)], x=value).is_int("x"):
        return None  # perhaps what is permuted itself
    device, sure, rest = target
    new = f"{here.torch}.randperm({here.text(number)}, device={device}){rest}"
    asked = (("device", device),)
    return put(here, code, new, form="drawn", asked=asked, proven={"is-device"} if sure else set())


def _target(  # noqa: PLR0911 - one case a way to say where
    here: Surroundings, code: ast.Call
) -> tuple[str, bool | None, str] | None:
    """Return the device, whether it is one for sure, and what is left of the call behind it."""
    assert isinstance(code.func, ast.Attribute)  # noqa: S101 - ``find_creations`` has looked
    words = {k.arg: k.value for k in code.keywords}
    cast = f".to({here.text(words['dtype'])})" if "dtype" in words else ""
    whole = f".{code.func.attr}({', '.join(map(here.text, code.args))})"
    match code.func.attr, code.args, sorted(map(str, words)):
        case "cuda" | "npu" as kind, [], []:
            return f'"{kind}"', True, ""
        case "type_as", [other], []:
            return (f"{here.text(other)}.device", True, whole) if _is_plain(other) else None
        case "to", [], ["device"] | ["device", "dtype"]:
            return _place(here, words["device"], cast)
        case "to", [first], []:
            if (here.is_tensor(first) or _is_like(here, first)) and _is_plain(first):
                return f"{here.text(first)}.device", True, whole
            return _place(here, first, "")
        case "to", [first], ["dtype"]:
            return _place(here, first, cast)
        case "to", [first, second], []:
            return _place(here, first, f".to({here.text(second)})")
    return None


def _place(here: Surroundings, code: ast.expr, rest: str) -> tuple[str, bool | None, str] | None:
    at = here.evaluations.get(id(code))
    sure = None if at is None else here.facts(at, device=at.node).is_device("device")
    text = here.text(code)
    if not sure and not re.search(r"(?i)dev|rank|gpu", text):
        return None  # perhaps a tensor or a dtype
    if sure is False or re.search(r"(?i)dtype|^torch\.\w+$|cpu", text) or here.is_tensor(code):
        return None
    return text, sure, rest


def _is_like(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether ``to(x)`` gets a tensor: neither a device nor a dtype has a shape."""
    named = here.text(code)
    return here.is_tensor(code) is not False and any(
        isinstance(n, ast.Attribute) and n.attr in _OF_SHAPES and here.text(n.value) == named
        for n in here.nodes
    )


def _is_plain(code: ast.expr) -> bool:
    return isinstance(code, (ast.Name, ast.Attribute))


def _follows(here: Surroundings, first: ast.expr, second: ast.expr) -> bool:
    """Tell whether nothing between two statements of a block returns or asks: ``if x is None:``."""
    start, end = here.statement_of(first), here.statement_of(second)
    block = here.block_of(start)
    if end not in block:
        return False
    between = block[block.index(start) : block.index(end)]
    return all(isinstance(s, (ast.Assign, ast.AugAssign, ast.Expr)) for s in between)


def _there(
    here: Surroundings,
    code: ast.Call,
    made: Made,
    source: ast.expr,
    target: tuple[str, bool | None, str],
) -> Proposal | None:
    device, sure, rest = target
    assert isinstance(code.func, ast.Attribute)  # noqa: S101 - ``find_creations`` has looked
    moved = code.func.value
    root = root_name(ast.parse(device, mode="eval").body)
    sources = [*([] if moved is source else [source]), *made.named]
    if sources and (
        root in list_stored_names(here.flow.function)
        or not all(_follows(here, each, code) for each in sources)
    ):
        return None  # the device may not be known yet where the tensor is made
    if len(made.makers) > 1 and "(" in device:
        return None
    added = [more_arguments(maker, here.lines, f"device={device}") for maker in made.makers]
    changes = [change for change in added if change is not None]
    *_, line, end = here.span(code.func)
    *_, last, close = here.span(code)
    end -= len(f".{code.func.attr}")
    if len(changes) < len(added) or here.lines[line - 1][end : end + 1] != ".":
        return None
    proven = proofs_of(here, code, made) | ({"is-device"} if sure else set[str]())
    asked, at = (("device", device),), here.statement_of(source)
    if (like := _made_like(here, moved, made, target)) is not None:
        return put(here, code, like, asked=asked, asked_at=at, proven=proven)
    statement = here.statement_of(code)
    match statement:
        case ast.Assign([ast.Name(name)], value) if value is code and name == getattr(
            moved, "id", ""
        ):
            whole = None if rest else here.whole_lines(statement)  # ``mask = mask.to(device)``
        case _:
            whole = None
    bare = _without_brackets(here, code, rest)
    if whole is not None:
        changes.append(Change(whole, ""))
    else:
        *_, behind, after = here.span(moved)
        own_line = not here.lines[line - 1][:end].strip()  # ``.to(device)`` on a line of its own
        before = here.lines[behind - 1][after:].strip()
        gone = (behind, after) if own_line and not (rest or before) else (line, end)
        changes += bare or [Change((*gone, last, close), rest)]
    main = source if moved is not source and source in made.makers else code
    first, _, until, _ = here.span(main)
    above = [each for each in made.makers if not first <= each.lineno <= until]
    return Proposal(
        code,
        changes=tuple(changes),
        shown="\n".join(text_after(here, each, changes) for each in (*above, main)),
        asked=asked,
        asked_at=at,
        proven=frozenset(proven),
    )


def _made_like(
    here: Surroundings, moved: ast.expr, made: Made, target: tuple[str, bool | None, str]
) -> str | None:
    """Return ``x.new_zeros(n)`` for ``torch.zeros(n).type_as(x)``: one call says it all."""
    device, _, rest = target
    like = device.removesuffix(".device")
    match moved:
        case ast.Call(ast.Attribute(_, "zeros" | "ones" | "full" as name), args, words):
            plain = [moved] == made.makers and {k.arg for k in words} <= {"size", "fill_value"}
            told = {f".type_as({like})", f".to({like})", f".to({like}.dtype)"}
            if plain and args and like != device and rest in told:
                *_, first, start = here.span(moved.func)
                *_, last, end = here.span(moved)
                text = "".join(here.lines[first - 1 : last])
                text = text[start : len(text) - len(here.lines[last - 1]) + end]
                return f"{like}.new_{name}{text}"
    return None


def _without_brackets(here: Surroundings, code: ast.Call, rest: str) -> list[Change]:
    """Return what makes ``f(a * b)`` of ``f((a * b).to(device))``; nothing if brackets stay."""
    assert isinstance(code.func, ast.Attribute)  # noqa: S101 - ``find_creations`` has looked
    line, start, last, end = here.span(code)
    first, inner, until, outer = here.span(code.func.value)
    match here.parents.get(id(code)):
        case ast.Call() as call:
            in_brackets = code is not call.func
        case ast.keyword() | ast.Assign() | ast.Return():
            in_brackets = first == until == line == last
        case _:
            return []
    head = "".join(here.lines[line - 1 : first])[start:]
    head = head[: len(head) - len(here.lines[first - 1]) + inner]
    if rest or not in_brackets or head.strip() != "(":
        return []
    return [Change((line, start, first, inner), ""), Change((until, outer, last, end), "")]
