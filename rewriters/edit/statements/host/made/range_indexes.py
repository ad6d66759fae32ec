"""Ranges of numbers that are indexes of tensors of the device, and made on the host.

``x[torch.arange(n), best]``, and ``rows = torch.arange(n)`` that is nothing but such an index.
"""

from __future__ import annotations

import ast
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.made.numbers import Made, OtherSourceError, proofs_of
from npufix.rewriters.edit.statements.host.of_host import is_of_layer
from npufix.rewriters.edit.statements.proposal import Change, Proposal, more_arguments
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import root_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings


def find_range_indexes(here: Surroundings) -> Iterator[Proposal]:
    """Yield each range of the host that picks of a tensor of the device."""
    for node in here.nodes:
        match node:
            case ast.Subscript(ast.Name() | ast.Attribute() as owner, ast.Tuple(indexes)):
                yield from _indexes(here, owner, indexes)
                yield from _of_arrays(here, node, owner, indexes)
            case ast.Assign([ast.Name(name)], value):
                yield from _named_indexes(here, name, value)


def _indexes(
    here: Surroundings, owner: ast.expr, indexes: Sequence[ast.expr]
) -> Iterator[Proposal]:
    """Yield ``torch.arange(n)`` of ``x[torch.arange(n), best]``, which is copied to the device.

    So is ``range(n)`` there, which becomes a list and a tensor of the host first.
    """
    for view in indexes:
        code = _viewed(view)
        numbers = _range_of(here, code)
        if (
            numbers is None
            and here.flow.names.dotted(getattr(code, "func", code)) != "torch.arange"
        ):
            continue
        others = [i for i in indexes if i is not view and isinstance(i, (ast.Name, ast.Call))]
        known = [here.is_tensor(part) for part in (owner, *others)]
        if not others or False in known or not (True in known or is_of_layer(here, owner)):
            continue
        if numbers is None and isinstance(code, ast.Call):
            yield from _made_beside(here, code, owner)
            continue
        device = f"device={here.text(owner)}.device"
        if numbers is not None:  # of ``range`` all are integers of Python
            text = f"torch.arange({numbers}, {device})"
            yield _placed(here, code, owner, Change(here.span(code), text), text, Made(here))


def _of_arrays(
    here: Surroundings, picked: ast.Subscript, owner: ast.expr, indexes: Sequence[ast.expr]
) -> Iterator[Proposal]:
    """Yield ``torch.arange(n)`` of ``x[np.arange(n), best]``, where ``x`` is a tensor.

    So it is where what is picked of it is used as one: ``x[np.arange(n), best].unsqueeze(1)``.
    """
    used = here.parents.get(id(picked))
    called = isinstance(used, ast.Attribute) and isinstance(here.parents.get(id(used)), ast.Call)
    sure = called and isinstance(used, ast.Attribute) and used.attr in operators.OF_TENSORS_ONLY
    if not here.imports_torch or not (sure or here.is_tensor(owner)):
        return
    for code in indexes:
        match code:
            case ast.Call(function, [_, *_] as given, []) if (
                here.flow.names.dotted(function) == "numpy.arange"
            ):
                numbers = ", ".join(map(here.text, given))
                text = f"torch.arange({numbers}, device={here.text(owner)}.device)"
                found = _placed(here, code, owner, Change(here.span(code), text), text, Made(here))
                yield replace(found, proven=found.proven | {"is-device"})


def _made_beside(here: Surroundings, code: ast.Call, owner: ast.expr) -> Iterator[Proposal]:
    """Yield ``torch.arange(n, device=x.device)`` for what is an index of ``x``."""
    made, device = Made(here), f"device={here.text(owner)}.device"
    with contextlib.suppress(OtherSourceError):
        made.read(code)
        change = more_arguments(code, here.lines, device)
        if change is not None and made.has_integers() is not False:
            yield _placed(here, code, owner, change, f"{here.text(code)[:-1]}, {device})", made)


def _placed(  # noqa: PLR0913, PLR0917 - all that is known of it
    here: Surroundings, code: ast.expr, owner: ast.expr, change: Change, text: str, made: Made
) -> Proposal:
    sure = {"is-device"} if here.is_tensor(owner) else set[str]()
    return Proposal(
        code,
        changes=(change,),
        shown=text,
        asked=(("device", f"{here.text(owner)}.device"),),
        proven=frozenset(proofs_of(here, code, made) | sure),
    )


def _named_indexes(here: Surroundings, name: str, value: ast.expr) -> Iterator[Proposal]:
    """Yield ``rows = torch.arange(n)`` that is only an index of tensors: ``x[rows, best]``."""
    code = _viewed(_shaped(value))
    words = {k.arg for k in code.keywords} if isinstance(code, ast.Call) else set()
    if not isinstance(code, ast.Call) or "device" in words or name in here.flow.captured:
        return
    if here.flow.names.dotted(code.func) != "torch.arange":
        return
    uses = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name]
    loads = [n for n in uses if isinstance(n.ctx, ast.Load)]
    picked = [_picked_by(here, load) for load in loads]
    if len(uses) != len(loads) + 1 or not loads or not all(picked):
        return
    for owner, others in filter(None, picked):
        known = [here.is_tensor(part) for part in (owner, *others)]
        sure = True in known or is_of_layer(here, owner)
        if others and False not in known and sure and _is_bound_before(here, owner, code):
            yield from _made_beside(here, code, owner)
            return


def _shaped(code: ast.expr) -> ast.expr:
    """Return what is given another shape: ``torch.arange(n)[:, None]`` of its ``expand(n, m)``."""
    match code:
        case ast.Call(ast.Attribute(inner, "expand" | "repeat" | "reshape" | "tile" | "view")):
            return _shaped(inner)
    return code


def _picked_by(here: Surroundings, name: ast.expr) -> tuple[ast.expr, list[ast.expr]] | None:
    """Return ``x`` and ``best`` of ``x[rows, best]`` and ``x[rows[:, None], best]``."""
    inner: ast.AST = name
    for outer in here.around(name):
        match outer:
            case ast.Subscript(whole) if whole is inner and _viewed(outer) is not outer:
                pass
            case ast.Subscript(whole, ast.Constant() | ast.Tuple()) if whole is inner:
                pass
            case ast.Tuple(parts) if inner in parts:
                above = here.parents.get(id(outer))
                if not isinstance(above, ast.Subscript) or above.slice is not outer:
                    return None
                others: list[ast.expr] = [
                    p for p in parts if p is not inner and isinstance(p, (ast.Name, ast.Call))
                ]
                return above.value, others
            case _:
                return None
        inner = outer
    return None


def _is_bound_before(here: Surroundings, owner: ast.expr, code: ast.expr) -> bool:
    """Tell whether what an object is called is its name already where code stands."""
    root = root_name(owner)
    if not (isinstance(owner, ast.Name) or root == "self"):
        return False
    made, block = here.statement_of(code), here.block_of(here.statement_of(code))
    stores = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == root]
    stores = [n for n in stores if not isinstance(n.ctx, ast.Load)]
    if any(code.lineno <= n.lineno <= owner.lineno for n in stores):
        return False
    before = block[: block.index(made)]
    return not stores or any(here.statement_of(n) in before for n in stores)


def _viewed(code: ast.expr) -> ast.expr:
    """Return ``torch.arange(n)`` of ``torch.arange(n)[:, None]`` and its ``unsqueeze(1)``."""
    match code:
        case ast.Subscript(ast.Call() as inner, index) if not any(
            isinstance(n, (ast.Name, ast.Call, ast.Attribute)) for n in ast.walk(index)
        ):
            return _viewed(inner)
        case ast.Call(ast.Attribute(ast.Call() as inner, "unsqueeze"), [ast.Constant()], []):
            return _viewed(inner)
    return code


def _range_of(here: Surroundings, code: ast.expr) -> str | None:
    """Return ``0, n`` of ``range(0, n)`` and of ``list(range(0, n))``."""
    match code:
        case ast.Call(ast.Name("list"), [inner], []):
            return _range_of(here, inner)
        case ast.Call(ast.Name("range"), [_, *_] as given, []):
            return ", ".join(map(here.text, given)) if here.imports_torch else None
    return None
