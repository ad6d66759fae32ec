"""Tensors that are computed on the host from numbers alone, and then copied to the device."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.doubles import is_double
from npufix.rewriters.edit.statements.host.of_host import is_of_layer
from npufix.rewriters.edit.statements.proposal import (
    Change,
    Proposal,
    apply_changes,
    more_arguments,
    put,
)
from npufix.rewriters.facts.occasions import is_in_loop, occasion
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.graph.modules.syntax import last_name, list_stored_names, root_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_RANGES = frozenset({"arange", "linspace"})
_MAKERS = frozenset(f"torch.{name}" for name in {*_RANGES, "eye", "full", "ones", "zeros"})
_GIVEN = frozenset({"dtype", "end", "fill_value", "m", "n", "size", "start", "step", "steps"})
"""Arguments that say nothing of where, and ask for no gradient."""
_COMPUTING = frozenset(
    {
        "abs", "bool", "cat", "clamp", "concat", "contiguous", "cos", "cumsum", "div",
        "eq", "exp", "expand", "flatten", "flip", "float", "ge", "gt", "half", "int", "le", "log",
        "logical_and", "logical_not", "logical_or", "long", "lt", "masked_fill", "mul", "ne",
        "outer", "pow", "repeat", "reshape", "rsqrt", "sin", "sqrt", "square", "squeeze", "stack",
        "sub", "t", "tile", "transpose", "tril", "triu", "unsqueeze", "view",
    }
)  # fmt: skip
_OF_NUMBERS = re.compile(r"math\.\w+|float|int|len")
"""What returns a number of Python, whatever it is given."""
_OF_SHAPES = frozenset({"dim", "ndim", "shape", "size", "squeeze", "unsqueeze", "view"})


class _OtherSourceError(Exception):
    """Something else than numbers is read."""


class _Made:
    """What an expression is computed from: makers of tensors, and what has to be numbers."""

    def __init__(self, here: Surroundings) -> None:
        self.here = here
        self.makers: list[ast.Call] = []
        self.named: list[ast.expr] = []
        """What has a name first that nothing else reads: ``rows = torch.arange(n)``."""
        self.numbers: list[ast.expr] = []
        self.steps: list[ast.expr] = []
        """Where ranges start, and their steps: what is no integer is rounded in another way."""

    def read(self, code: ast.expr) -> None:  # noqa: C901, PLR0912 - one case a kind of code
        """Take in an expression.

        Raises:
            _OtherSourceError: another tensor takes part, or a call that may do anything.

        """
        match code:
            case ast.Call(func, args, words) if self.here.flow.names.dotted(func) in _MAKERS:
                name = last_name(code.func)
                filled = name != "arange" and args and self.here.is_tensor(args[-1])
                if filled or not {k.arg for k in words} <= _GIVEN:
                    raise _OtherSourceError
                if name not in _RANGES and any(_holds_none(arg) for arg in args[:1]):
                    raise _OtherSourceError  # nothing is copied
                self._refuse_double(k.value for k in words)
                self.makers.append(code)
                if name == "arange":
                    self.steps += _starts_and_steps(code)
            case ast.Call(ast.Attribute(owner, name), args, words) if name in _COMPUTING:
                self._refuse_double(k.value for k in words)
                is_method = self.here.flow.names.dotted(code.func) != f"torch.{name}"
                values = [k.value for k in words if k.arg not in {"dim", "dtype"}]
                for part in (*([owner] if is_method else []), *args, *values):
                    self.read(part)
            case ast.Call(
                ast.Attribute(owner, "to" | "type"), [ast.Attribute(ast.Name("torch")) as kind], []
            ):
                self._refuse_double([kind])
                self.read(owner)
            case ast.BinOp(left, _, right):
                self.read(left)
                self.read(right)
            case ast.Compare(
                left,
                [ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() | ast.Eq() | ast.NotEq()],
                [right],
            ):
                self.read(left)
                self.read(right)
            case ast.Subscript(whole, index) if not isinstance(whole, ast.Attribute) and (
                not isinstance(whole, ast.Name) or self.here.is_tensor(whole)
            ):
                self._take_view(whole, index)
            case ast.Name() if self.here.is_tensor(code):
                self._take_named(code)
            case ast.UnaryOp(_, inner):
                self.read(inner)
            case ast.List(parts) | ast.Tuple(parts):
                for part in parts:
                    self.read(part)
            case ast.Constant():
                pass
            case ast.Attribute(ast.Name("torch")):
                pass  # a dtype
            case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call():
                self._take_number(code)
            case _:
                raise _OtherSourceError

    def _refuse_double(self, kinds: Iterable[ast.expr]) -> None:
        """Leave float64 to the host: no AI core computes it."""
        if any(is_double(self.here, kind) for kind in kinds):
            raise _OtherSourceError

    def _take_view(self, whole: ast.expr, index: ast.expr) -> None:
        """Take in ``x[None]``, ``x[:, None]`` and ``x[..., :-1]``: no index is a tensor."""
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            match part:
                case ast.Slice(first, last, step):
                    limits = [limit for limit in (first, last, step) if limit is not None]
                case ast.Constant():
                    limits = []
                case _:
                    raise _OtherSourceError
            for limit in limits:
                self.read(limit)
        before = len(self.makers)
        self.read(whole)
        if before == len(self.makers):
            raise _OtherSourceError

    def _take_named(self, name: ast.Name) -> None:
        source = _source_of(self.here, name)
        if source is None or isinstance(source, ast.Name):
            raise _OtherSourceError
        self.named.append(source)
        self.read(source)

    def _take_number(self, code: ast.expr) -> None:
        if self.here.is_tensor(code):
            raise _OtherSourceError
        if isinstance(code, ast.Call):
            if not _OF_NUMBERS.fullmatch(ast.unparse(code.func)):
                raise _OtherSourceError
            return
        self.numbers.append(code)

    def has_integers(self) -> bool | None:
        """Tell whether all ranges go from integer to integer."""
        known = [_is_integer(self.here, code) for code in self.steps]
        return False if False in known else (True if all(known) else None)

    def are_numbers(self) -> bool:
        """Tell whether the source shows that no tensor of the host takes part."""
        lengths = {self.here.value(part) for m in self.makers for part in _lengths(m)}
        for code in self.numbers:
            value = self.here.value(code)
            if value is None:
                return False
            known = self.here.facts(self.here.evaluations[id(code)], x=value).is_number("x")
            if not known and value not in lengths:
                return False
        return True


def _holds_none(shape: ast.expr) -> bool:
    """Tell whether a tensor of some lengths has no elements: ``(0, n)``."""
    lengths = shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else [shape]
    return any(isinstance(n, ast.Constant) and n.value == 0 for n in lengths)


def _starts_and_steps(code: ast.Call) -> list[ast.expr]:
    given = code.args if len(code.args) > 1 else []
    return [*given[:1], *given[2:], *(k.value for k in code.keywords if k.arg in {"start", "step"})]


def _is_integer(here: Surroundings, code: ast.expr) -> bool | None:
    value = here.value(code)
    if isinstance(code, ast.Constant) or value is None:
        return isinstance(code, ast.Constant) and type(code.value) is int
    return here.facts(here.evaluations[id(code)], x=value).is_int("x")


def _move(place: Span, by: int) -> Span:
    first, start, last, end = place
    return first + by, start, last + by, end


def _lengths(maker: ast.Call) -> Iterator[ast.expr]:
    """Yield what is a number because it is the length of a tensor: ``half`` of ``arange(half)``."""
    for code in (*maker.args, *(k.value for k in maker.keywords if k.arg != "dtype")):
        yield from (n for n in ast.walk(code) if isinstance(n, (ast.Name, ast.Attribute)))


def find_creations(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``torch.exp(torch.arange(n) / n).to(x.device)``, and the same in two steps."""
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(moved, "to" | "cuda" | "type_as")):
                if _is_dropped(here, node):
                    continue
                made = _Made(here)
                source = _source_of(here, moved)
                target = None if source is None else _target(here, node)
                if source is None or target is None:
                    continue
                try:
                    made.read(source)
                except _OtherSourceError:
                    continue
                if made.makers and made.has_integers() is not False:
                    found = _there(here, node, made, source, target)
                    if found is not None:
                        yield found
            case ast.Subscript(ast.Name() | ast.Attribute() as owner, ast.Tuple(indexes)):
                yield from _indexes(here, owner, indexes)


def _is_dropped(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether nobody reads what is made: ``mask = zeros(n).to(d)``, then ``mask = a & b``."""
    value, bound = here.value(code), here.parents.get(id(code))
    if value is None or not isinstance(bound, ast.Assign) or here.users(value):
        return False
    names = isinstance(bound.targets[0], ast.Name) and len(bound.targets) == 1
    return names and all(o.node is not value for o in here.flow.observables)


def _indexes(
    here: Surroundings, owner: ast.expr, indexes: Sequence[ast.expr]
) -> Iterator[Proposal]:
    """Yield ``torch.arange(n)`` of ``x[torch.arange(n), best]``, which is copied to the device.

    So is ``range(n)`` there, which becomes a list and a tensor of the host first.
    """
    for view in indexes:
        made, code = _Made(here), _viewed(view)
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
        device = f"device={here.text(owner)}.device"
        if numbers is not None:  # of ``range`` all are integers of Python
            text = f"torch.arange({numbers}, {device})"
            change: Change | None = Change(here.span(code), text)
        elif isinstance(code, ast.Call):
            try:
                made.read(code)
            except _OtherSourceError:
                continue
            text = f"{here.text(code)[:-1]}, {device})"
            change = more_arguments(code, here.lines, device)
        if change is not None and made.has_integers() is not False:
            yield Proposal(
                code,
                changes=(change,),
                shown=text,
                asked=(("device", f"{here.text(owner)}.device"),),
                proven=frozenset(
                    _proven(here, code, made) | ({"is-device"} if here.is_tensor(owner) else set())
                ),
            )


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
            has_torch = here.flow.names.imports.get("torch") == "torch"
            return ", ".join(map(here.text, given)) if has_torch else None
    return None


def draw_there(here: Surroundings, code: ast.Call, drawn: ast.Call) -> Proposal | None:
    """Return random numbers of the device in place of a copy of those of the host."""
    target, made = _target(here, code), _Made(here)
    made.makers.append(drawn)
    found = None if target is None else _there(here, code, made, drawn, target)
    return None if found is None else replace(found, form="drawn")


def _source_of(here: Surroundings, moved: ast.expr) -> ast.expr | None:
    """Return what is moved, also where it gets a name that nothing else reads."""
    if not isinstance(moved, ast.Name):
        return moved
    value = here.value(moved)
    if value is None or len(here.users(value)) != 1 or here.loop_of(moved) is not None:
        return None
    codes = [e.code for e in here.flow.evaluations if e.node is value]
    sources = [code for code in codes if isinstance(code, (ast.Call, ast.BinOp))]
    whole = [s for s in sources if isinstance(here.parents.get(id(s)), ast.Assign)]
    return whole[0] if len(whole) == 1 else None


def _target(  # noqa: PLR0911 - one case a way to say where
    here: Surroundings, code: ast.Call
) -> tuple[str, bool | None, str] | None:
    """Return the device, whether it is one for sure, and what is left of the call behind it."""
    assert isinstance(code.func, ast.Attribute)  # noqa: S101 - ``find_creations`` has looked
    words = {k.arg: k.value for k in code.keywords}
    cast = f".to({here.text(words['dtype'])})" if "dtype" in words else ""
    whole = f".{code.func.attr}({', '.join(map(here.text, code.args))})"
    match code.func.attr, code.args, sorted(map(str, words)):
        case "cuda", [], []:
            return '"cuda"', True, ""
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
    made: _Made,
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
    proven = _proven(here, code, made) | ({"is-device"} if sure else set[str]())
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
    first, start, until, stop = here.span(code if moved is source else source)
    own = [c for c in changes if first <= c.span[0] and c.span[2] <= until]
    lines = here.lines[first - 1 : until]
    text = apply_changes(lines, [replace(c, span=_move(c.span, 1 - first)) for c in own])
    return Proposal(
        code,
        changes=tuple(changes),
        shown=text[start : len(text) - len(lines[-1]) + stop],
        asked=asked,
        asked_at=at,
        proven=frozenset(proven),
    )


def _proven(here: Surroundings, code: ast.expr, made: _Made) -> set[str]:
    """Return the conditions that the source shows of what is made."""
    proven = set[str]()
    if made.are_numbers():
        proven.add("numbers-alone")
    if made.has_integers():
        proven.add("integer-limits")
    if occasion(here.flow, code=code) is Occasion.STEP or is_in_loop(here.flow, code.lineno):
        proven.add("runs-often")
    return proven


def _made_like(
    here: Surroundings, moved: ast.expr, made: _Made, target: tuple[str, bool | None, str]
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
