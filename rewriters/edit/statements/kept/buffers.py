"""Tensors that every call makes of numbers and settings alone, kept as buffers of the module.

::

    def __init__(self, n):                   def __init__(self, n):
        self.n = n                               self.n = n
                                                 at = torch.arange(self.n)
    def forward(self, x):                        scale = 0.5 ** (at // 2)
        at = torch.arange(self.n,                self.register_buffer("scale", scale, ...)
            device=x.device)
        scale = 0.5 ** (at // 2)             def forward(self, x):
        return x * scale                         return x * self.scale
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import is_made_once, list_assigned
from npufix.rewriters.graph.modules.syntax import is_scalar, list_defaults, names_bound_in, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_ROOM = 74
"""Characters for the arguments of ``self.register_buffer(...)`` on one line."""
_SHOWS = operators.VIEWS | {Op.CAST, Op.GETITEM, Op.PHI, "to", "float", "expand"}
"""What may give the tensor itself, or a part of it."""
_MAKES = frozenset({"torch.tensor", "torch.as_tensor"})
_OF_TYPE = frozenset({"torch.FloatTensor", "torch.LongTensor", "torch.Tensor"})
_MOVES = operators.TO_DEVICE | {"float", "half", "int", "long", "bool", "to", "type"}
_ABOUT = frozenset({Op.DTYPE_OF, Op.RANK, Op.SHAPE, Op.SIZE})


def keep_numbers(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return a buffer that ``__init__`` makes of numbers that are written out, or that it is given.

    Nobody may write into it, or get hold of it: it is only computed with.
    """
    made, start = _first_made(code), _init(here)
    at = None if start is None else _end_of(here, start)
    if made is None or start is None or at is None or not _is_kept(here, start, code, made):
        return None
    numbers = made.args[0]
    dtype = "".join(f", {k.arg}={here.text(k.value)}" for k in made.keywords if k.arg == "dtype")
    devices = [here.text(k.value) for k in made.keywords if k.arg == "device"]
    asked = [d.removesuffix(".device") for d in devices if d.endswith(".device")]
    maker, cast, form = here.text(made.func), "", "in_forward"
    match made.func:
        case ast.Attribute(ast.Name(like), "new_tensor"):
            maker, cast, form, asked = "torch.tensor", f".to({like}.dtype)", "as_another", [like]
    text = re.sub(r"\s+", " ", f"{maker}({here.text(numbers)}{dtype})")
    name = _free_name(here, _name_for(here, code, numbers))
    return Proposal(
        code,
        form=form,
        asked=tuple(("x", of) for of in asked),
        changes=(
            Change(at, _register(name, text, here.indent(start.body[0]))),
            Change(here.span(made), f"self.{name}{cast}"),
        ),
        shown=f"self.{name}{cast}",
    )


def _is_kept(here: Surroundings, start: ast.FunctionDef, code: ast.Call, made: ast.Call) -> bool:
    """Tell whether a tensor is made of numbers alone, in a dtype that is known, and is left so."""
    value = here.value(code)
    match made:
        case ast.Call(ast.Attribute(ast.Name(), "new_tensor"), [numbers], words):
            known = here.flow.names.imports.get("torch") == "torch"
            known &= all(word.arg == "device" for word in words)
        case ast.Call(function, [ast.List() as numbers], []) if (
            here.flow.names.dotted(function) in _OF_TYPE
        ):
            known = _is_written_out(numbers)
        case ast.Call(function, [numbers], words):
            known = here.flow.names.dotted(function) in _MAKES
            dtypes = [here.text(w.value) for w in words if w.arg == "dtype"]
            known &= all(w.arg in {"device", "dtype"} for w in words)
            known &= all(dtype.startswith("torch.") for dtype in dtypes)
        case _:
            return False
    if not known or value is None or not _is_computed_with(here, value):
        return False
    return _is_written_out(numbers) or _is_list_of_settings(here, start, numbers)


def _name_for(here: Surroundings, code: ast.Call, numbers: ast.expr) -> str:
    """Return the name that a tensor gets here, or that its numbers have."""
    above = here.parents.get(id(code))
    while isinstance(above, (ast.Attribute, ast.Call)):  # ``limits = constant.float()``
        above = here.parents.get(id(above))
    match above:
        case ast.Assign([ast.Name(name), *_]):
            return name
    return numbers.attr if isinstance(numbers, ast.Attribute) else "constant"


def _first_made(code: ast.expr) -> ast.Call | None:
    """Return what makes a tensor that is cast and moved: of ``torch.tensor([1]).float().cuda()``.

    A buffer that lies there and has that dtype is neither copied nor cast again.
    """
    match code:
        case ast.Call(ast.Attribute(ast.Call() as inner, method)):
            return _first_made(inner) if method in _MOVES else None
    return code if isinstance(code, ast.Call) else None


def keep_table(here: Surroundings, code: ast.expr) -> Proposal | None:
    """Return a buffer for a table that the statements up to ``code`` make of settings alone.

    They move to the end of ``__init__``, without the device: what they read must be known there,
    and nothing but the last may be read by others.
    """
    start, last, value = _init(here), here.statement_of(code), here.value(code)
    at = None if start is None else _end_of(here, start)
    if start is None or at is None or value is None or not _is_computed_with(here, value):
        return None
    steps = _list_steps(here, last)
    if steps is None or not _may_move(here, start, steps) or _casts_itself(value):
        return None
    assert isinstance(last, ast.Assign)  # noqa: S101 - ``_list_steps`` has looked
    target = last.targets[0]
    assert isinstance(target, ast.Name)  # noqa: S101 - same
    name, indent = _free_name(here, target.id), here.indent(start.body[0])
    texts = [_without_device(here, step) for step in steps]
    if any(text is None for text in texts):
        return None
    lines = "".join(f"{textwrap.indent(text or '', indent)}\n" for text in texts[:-1])
    whole = texts[-1] or ""
    if "\n" in whole or len(steps) > 1:
        lines += f"{textwrap.indent(whole, indent)}\n"
        made = target.id
    else:
        made = whole.partition(" = ")[2]
    text = lines + _register(name, made, indent)
    removed = [here.whole_lines(step) for step in steps[:-1]]
    return Proposal(
        code,
        form="in_calls",
        asked=tuple(("x", of) for of in _list_devices(here, steps)[:1]),
        changes=(
            Change(at, text),
            *(Change(span, "") for span in removed if span is not None),
            Change(here.span(code), f"self.{name}"),
        ),
        shown=f"self.{name}",
    )


def _list_steps(here: Surroundings, last: ast.stmt) -> list[ast.Assign] | None:
    """Return the statements of a block that make a table, ``None`` where others read parts."""
    steps: list[ast.Assign] = []
    wanted: set[str] = set()
    block = here.block_of(last)
    for statement in reversed(block[: block.index(last) + 1]):
        match statement:
            case ast.Assign([ast.Name(name)], value) if statement is last or name in wanted:
                if here.whole_lines(statement) is None:
                    return None
                steps.insert(0, statement)
                read = {p.id for p in _read_there(value) if isinstance(p, ast.Name)}
                wanted = (wanted - {name}) | read
            case _ if names_bound_in(statement) & wanted:
                return None
    local = set(here.flow.captured) & {n for s in steps for n in names_bound_in(s)}
    inside = {id(n) for step in steps for n in walk(step)}
    own = {n for step in steps for n in names_bound_in(step)} - names_bound_in(last)
    loads = (n for n in here.nodes if isinstance(n, ast.Name) and n.id in own)
    return None if local or any(id(n) not in inside for n in loads) else steps


def _may_move(here: Surroundings, start: ast.FunctionDef, steps: Sequence[ast.Assign]) -> bool:
    """Tell whether all that statements read but the device is known at the end of ``__init__``."""
    args = [a.arg for a in ast.walk(start.args) if isinstance(a, ast.arg)]
    taken = {*args}.union(*map(names_bound_in, start.body))
    tree = here.flow.names.tree
    known = set(here.flow.names.imports) | set(dir(builtins))
    for statement in tree.body if tree is not None else ():
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            known.add(statement.name)
        else:
            known |= names_bound_in(statement)
    own: set[str] = set()
    for step in steps:
        for part in _read_there(step.value):
            if isinstance(part, ast.Attribute):
                if not _is_set(here, start, part.attr):
                    return False
            elif part.id not in own and (part.id not in known or part.id in taken):
                return False
        own |= names_bound_in(step)
    return not own & taken


def _read_there(code: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """Yield what an expression reads but devices: names, and ``self.n`` as a whole."""
    match code:
        case ast.Attribute(ast.Name("self"), _):
            yield code
        case ast.Name():
            yield code
        case ast.Call(function, args, words):
            yield from _read_there(function)
            moves = isinstance(function, ast.Attribute) and function.attr == "to"
            for arg in [] if moves else args:
                yield from _read_there(arg)
            for word in words:
                if word.arg != "device":
                    yield from _read_there(word.value)
        case _:
            for inner in ast.iter_child_nodes(code):
                if isinstance(inner, ast.expr):
                    yield from _read_there(inner)


def _is_set(here: Surroundings, start: ast.FunctionDef, name: str) -> bool:
    """Tell whether ``__init__`` has set an attribute, for sure and for good, before it ends."""
    cls = here.flow.cls
    set_there = (t for s in start.body if isinstance(s, ast.Assign) for t in s.targets)
    named = any(ast.unparse(target) == f"self.{name}" for target in set_there)
    return named and cls is not None and is_made_once(here.flow.names, cls, name)


def _without_device(here: Surroundings, step: ast.Assign) -> str | None:
    """Return the text of a statement without ``device=d`` and ``.to(d)``."""
    text = textwrap.dedent(here.indent(step) + here.text(step)).rstrip()
    for call in (n for n in walk(step) if isinstance(n, ast.Call)):
        for word in call.keywords:
            if word.arg == "device":
                gone = re.escape(f"device={here.text(word.value)}")
                text, count = re.subn(rf",\s*{gone}|{gone}(,\s*)?", "", text)
                if not count:
                    return None
        match call:
            case ast.Call(ast.Attribute(_, "to"), [device], []):
                moved = f".to({here.text(device)})"
                if not moved.endswith(".device)") or moved not in text:
                    return None
                text = text.replace(moved, "")
            case ast.Call(ast.Attribute(_, "to" | "cuda" | "npu" | "type_as")):
                return None
    return text


def _list_devices(here: Surroundings, steps: Sequence[ast.Assign]) -> list[str]:
    """Return the tensors that are asked for their device: the module is to be where they are."""
    parts = (n for step in steps for n in walk(step) if isinstance(n, ast.Attribute))
    return [here.text(n.value) for n in parts if n.attr == "device"]


def _casts_itself(value: Node) -> bool:
    """Tell whether a value has another dtype under autocast: what makes products."""
    return any(p.op in operators.PRODUCTS or p.op in {"einsum", "outer"} for p in value.walk())


def _free_name(here: Surroundings, name: str) -> str:
    while re.search(rf"[.\"']{name}\b", "".join(here.lines)):
        name = f"{name}_"
    return name


def _register(name: str, made: str, indent: str) -> str:
    inner = f'"{name}", {made}, persistent=False'
    if len(indent) + len(inner) > _ROOM:
        inner = f"\n{indent}    {inner}\n{indent}"
    return f"{indent}self.register_buffer({inner})\n"


def _end_of(here: Surroundings, start: ast.FunctionDef) -> tuple[int, int, int, int] | None:
    """Return the place behind the last line of ``__init__``."""
    whole = here.whole_lines(start.body[-1])
    if whole is None or here.indent(start.body[0]).strip() or whole[2] >= len(here.lines):
        return None
    return whole[2] + 1, 0, whole[2] + 1, 0


def _init(here: Surroundings) -> ast.FunctionDef | None:
    """Return the ``__init__`` that makes a module before it ends, if the code is elsewhere."""
    cls = here.flow.cls
    found = (
        next((s for s in cls.body if getattr(s, "name", "") == "__init__"), None) if cls else None
    )
    if not isinstance(found, ast.FunctionDef) or here.flow.function is found:
        return None
    calls = [here.text(s) for s in found.body if isinstance(s, ast.Expr)]
    ends = any(isinstance(n, ast.Return) for n in walk(*found.body))
    made = any(re.match(r"(super\(.*\)|nn\.Module)\.__init__\(", call) for call in calls)
    return found if made and not ends else None


def _is_written_out(code: ast.expr) -> bool:
    if isinstance(code, (ast.List, ast.Tuple)):
        return bool(code.elts) and all(map(_is_written_out, code.elts))
    return is_scalar(code)


def _is_list_of_settings(here: Surroundings, start: ast.FunctionDef, code: ast.expr) -> bool:
    """Tell whether ``__init__`` is given what ``self.factors`` holds, and nobody changes it.

    What it makes itself may be a parameter, which training changes.
    """
    match code:
        case ast.Attribute(ast.Name("self"), name) if here.flow.cls is not None:
            values = list_assigned(here.flow.names, here.flow.cls, name)
        case _:
            return False
    given = all(isinstance(v, (ast.Name, ast.Attribute, ast.Subscript)) for _, v in values)
    optional = list_defaults(start.args).items()
    # which need not be given, and are ``None`` then, of which no tensor is made
    absent = {n for n, d in optional if isinstance(d, ast.Constant) and d.value is None}
    given &= not any(isinstance(v, ast.Name) and v.id in absent for _, v in values)
    given &= not any(f"self.{name}" in here.text(test) for test in here.tests_around(code))
    changed = re.compile(rf"self\.{name}(\.\w+\(|\[[^\]]*\] *[-+*/]?=(?!=)| *[-+*/]=)")
    return _is_set(here, start, name) and given and not changed.search("".join(here.lines))


def _is_computed_with(here: Surroundings, value: Node) -> bool:
    """Tell whether nobody but operators that make new tensors reads a tensor, or parts of it."""
    if any(o.node is value for o in here.flow.observables):
        return False
    users = [user for user in here.users(value) if user.op not in _ABOUT]
    return bool(users) and all(
        (user.op in operators.NEW and user.op not in _SHOWS)
        or (user.op in _SHOWS and _is_computed_with(here, user))
        for user in users
    )
