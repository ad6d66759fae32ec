"""Tensors of one number, which the device can fill."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.layout import style_of
from npufix.rewriters.edit.statements.host.host_values import is_kept_there
from npufix.rewriters.edit.statements.host.seldom import is_rare
from npufix.rewriters.edit.statements.proposal import Proposal, put
from npufix.rewriters.facts.index_facts import is_device
from npufix.rewriters.graph.modules.syntax import is_scalar, last_name, list_names
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings

KINDS = {"FloatTensor": "float32", "LongTensor": "int64", "Tensor": "float32"}
"""What makes tensors of one dtype of lists."""
_DEVICE = re.compile(r"(cuda|npu)(:\d+)?")
_CASTS = {"float": "float32", "half": "float16", "int": "int32", "long": "int64"}
_SAME_IN_ALL = range(2048)
"""Numbers that each of these has."""
READING = frozenset({"item", "tolist"})
_LENGTHS = frozenset({"py:len", Op.SIZE})
_OF_LENGTHS = re.compile(r"(GeneratorExp|ListComp)\(elt=Call\(func=Name\(id='len'")
"""What is added up by ``sum(len(row) for row in rows)``."""


def is_read_again(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether the host waits for what it has just made, whichever way that is made.

    Not so where what it reads in the end can stay on the device as well:
    ``n = torch.as_tensor([n], device=d)``, ``n = torch.clamp(n / ranks, min=1).item()``.
    """
    value = here.value(code)
    moved = here.parents.get(id(here.parents.get(id(code))))
    values = {value, here.value(moved) if isinstance(moved, ast.Call) else None} - {None}
    if any(user.op in {*READING, "cpu"} for v in values if v for user in here.users(v)):
        return True
    bound = here.statement_of(code)
    names = [ast.unparse(t) for t in bound.targets] if isinstance(bound, ast.Assign) else []
    if any(isinstance(n, ast.AugAssign) and ast.unparse(n.target) in names for n in here.nodes):
        return False  # a sum begins with it
    return any(
        isinstance(n, ast.Call)
        and not is_kept_there(here, n)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in READING
        and any(ast.unparse(part) in names for part in ast.walk(n.func.value))
        for n in here.nodes
    )


def fill(  # noqa: C901, PLR0912 - one case a way to make it
    here: Surroundings, code: ast.Call
) -> Proposal | None:
    """Return ``torch.full((n,), x, device=d)`` for ``torch.tensor([x] * n, device=d)``.

    ``torch.tensor([x], dtype=t).to(d)`` becomes ``torch.full((1,), x, dtype=t, device=d)``.
    """
    whole, (code, given) = code, _as_one_call(here, code)
    match code:
        case ast.Call(ast.Attribute(owner, "new_tensor"), [data]) if not given:
            made = f"{here.text(owner)}.new_full"
        case ast.Call(ast.Attribute(owner, "tensor" | "as_tensor"), [data]) if given.keys() <= {
            "device",
            "dtype",
            "requires_grad",
        }:
            made = f"{here.text(owner)}.full"
        case ast.Call(ast.Attribute(owner, kind), [ast.List([one]) as data]) if (
            kind in KINDS and given.keys() == {"device"}
        ):
            made = f"{here.text(owner)}.full"
            usual = float if kind != "LongTensor" else int
            if not (isinstance(one, ast.Constant) and type(one.value) is usual):
                dtype = ast.parse(f"{here.text(owner)}.{KINDS[kind]}", mode="eval").body
                given = {"dtype": dtype, **given}
        case _:
            return None
    match data:
        case ast.BinOp(ast.List([one]), ast.Mult(), times):
            count, shape = here.text(times), f"({here.text(times)},)"
        case ast.ListComp() if (same := same_in_all(data)) is not None:
            one, times = same
            count, shape = here.text(times), f"({here.text(times)},)"
        case ast.List([one, *others]) if all(ast.dump(o) == ast.dump(one) for o in others):
            times, count, shape = ast.Constant(1), str(len(data.elts)), f"({len(data.elts)},)"
        case _:
            one, times, count, shape = data, ast.Constant(1), "()", "()"
    if is_list(here, one):
        return None
    proven = {"one-number"} if is_number(here, one) else set[str]()
    length = here.value(times)
    if isinstance(times, ast.Constant) or (length is not None and length.op in _LENGTHS):
        proven.add("nonnegative-count")
    asked = [("value", here.text(one)), ("repeats", "1" if shape == "()" else count)]
    if made.endswith(".new_full"):
        asked.append(("x", made.removesuffix(".new_full")))
    if len(asked) == 2 or (isinstance(one, ast.Constant) and one.value in {0, 1}):  # noqa: PLR2004 - no dtype of another
        proven.add("value-fits-dtype")
    rest = "".join(f", {name}={_text(here, value)}" for name, value in given.items())
    text = f"{made}({shape}, {here.text(one)}{rest})"
    like = made.endswith(".new_full")
    match one:  # an integer without a dtype makes int64, as zeros() do not
        case ast.Constant(0 | 1 as value) if like or "dtype" in given or type(value) is float:
            kind = "ones" if value else "zeros"
            text = f"{made.removesuffix('full')}{kind}({count}{rest})"
    return put(here, whole, text, form="copied", asked=tuple(asked), proven=proven)


def same_in_all(code: ast.ListComp) -> tuple[ast.expr, ast.expr] | None:
    """Return ``x`` and ``n`` of ``[x for _ in range(n)]``, of which each is the same."""
    match code:
        case ast.ListComp(
            ast.Name() | ast.Constant() | ast.Attribute() as one,
            [ast.comprehension(ast.Name(each), ast.Call(ast.Name("range"), [times], []), [], 0)],
        ) if each not in list_names(one):
            return one, times
    return None


def _as_one_call(here: Surroundings, code: ast.Call) -> tuple[ast.Call, dict[str | None, ast.expr]]:
    """Return a call and its keywords, with the device that it is moved to at once."""
    given = {k.arg: k.value for k in code.keywords}
    named = {name: value for name, value in given.items() if name != "non_blocking"}
    match code:
        case ast.Call(ast.Attribute(ast.Call() as made, "to" | "type_as" as how), moved):
            made, held = _cast_within(made)
            to = _place_of(here, moved, named, like_tensor=how == "type_as")
            if to is not None and not ("dtype" in held and "dtype" in to):
                return made, {**held, **to}
        case ast.Call(ast.Attribute(ast.Call() as made, "cuda" | "npu" as kind), []) if not named:
            made, held = _cast_within(made)
            return made, {**held, "device": ast.Constant(kind)}
    return code, given


def _cast_within(code: ast.Call) -> tuple[ast.Call, dict[str | None, ast.expr]]:
    """Return what makes a tensor and its keywords: of ``tensor(0.0).float()`` with its dtype.

    The number is a small integer, which is the same in all of them.
    """
    match code:
        case ast.Call(
            ast.Attribute(
                ast.Call(ast.Attribute(owner, "tensor"), [ast.Constant(value)], []) as made, cast
            ),
            [],
            [],
        ) if cast in _CASTS and value in _SAME_IN_ALL:
            return made, {"dtype": ast.Attribute(owner, _CASTS[cast], ast.Load())}
        case ast.Call(
            ast.Attribute(ast.Call(ast.Attribute(owner, "tensor"), [data], []) as made, "long"),
            [],
            [],
        ) if _range_of(data) is not None:  # of no number ``tensor`` makes one of floats
            return made, {"dtype": ast.Attribute(owner, "long", ast.Load())}
    return code, {k.arg: k.value for k in code.keywords}


def _place_of(
    here: Surroundings,
    moved: Sequence[ast.expr],
    named: Mapping[str | None, ast.expr],
    *,
    like_tensor: bool,
) -> dict[str | None, ast.expr] | None:
    """Return what ``.to(...)`` says: a device, a dtype as well, or a tensor that has both."""
    match moved, [*named]:
        case [ast.Name() | ast.Attribute() as like], [] if like_tensor or here.is_tensor(like):
            kinds = ("dtype", "device")
            return {kind: ast.Attribute(like, kind, ast.Load()) for kind in kinds}
    words = dict(zip(("device", "dtype"), moved, strict=False))
    held: dict[str | None, ast.expr] = {**named}
    held.update({n: v for n, v in words.items() if n not in named})
    where = held.get("device")
    plain = len(moved) <= 2 and len(held) == len(moved) + len(named)  # noqa: PLR2004 - as ``to`` takes them
    if not plain or where is None or not _is_device(here, where):
        return None
    return {name: held[name] for name in ("dtype", "device") if name in held}


def count_up(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return ``torch.arange(4, 8, device=d)`` for ``torch.tensor([4, 5, 6, 7], device=d)``.

    So for each list of integers that are written out, one as far from the other as the next.
    """
    whole, (code, given) = code, _as_one_call(here, code)
    match code:
        case ast.Call(ast.Attribute(owner, "tensor" | "as_tensor"), [data]) if given.keys() <= {
            "device",
            "dtype",
        }:
            if (limits := _range_of(data)) is not None and _is_exact(given.get("dtype")):
                return _range(here, whole, owner, limits, given)
            numbers = _list_numbers(data)
        case ast.Call(ast.Attribute(owner, "LongTensor"), [data]) if given.keys() == {"device"}:
            numbers = _list_numbers(data)
        case _:
            return None
    if "device" not in given or len(numbers) < 2 or not _is_exact(given.get("dtype")):  # noqa: PLR2004 - of one there is no step
        return None
    first, step = numbers[0], numbers[1] - numbers[0]
    if step == 0 or numbers != [first + i * step for i in range(len(numbers))]:
        return None
    end = first + len(numbers) * step
    between = [str(end)] if (first, step) == (0, 1) else [str(first), str(end)]
    between += [] if step == 1 else [str(step)]
    text = _arange(here, owner, between, given)
    return put(here, whole, text, form="listed")


def _range_of(data: ast.expr) -> ast.Call | None:
    """Return ``range(n)`` of ``list(range(n))`` and of ``[i for i in range(n)]``."""
    match data:
        case ast.Call(ast.Name("range"), [_, *_], []):
            return data
        case ast.Call(ast.Name("list"), [inner], []):
            return _range_of(inner)
        case ast.ListComp(ast.Name(name), [ast.comprehension(ast.Name(each), inner, [])]):
            return _range_of(inner) if name == each else None
    return None


def _range(
    here: Surroundings,
    whole: ast.Call,
    owner: ast.expr,
    limits: ast.Call,
    given: Mapping[str | None, ast.expr],
) -> Proposal | None:
    """Return ``torch.arange(n, device=d)`` for ``torch.tensor(range(n), device=d)``."""
    if "device" not in given:
        return None
    text = _arange(here, owner, [*map(here.text, limits.args)], given)
    return put(
        here,
        whole,
        text,
        form="ranged",
        proven={"some-numbers"} if "dtype" in given else (),
    )


def _arange(
    here: Surroundings,
    owner: ast.expr,
    limits: Sequence[str],
    given: Mapping[str | None, ast.expr],
) -> str:
    rest = [f"{name}={_text(here, value)}" for name, value in given.items()]
    return f"{here.text(owner)}.arange({', '.join([*limits, *rest])})"


def fill_parts(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return ``torch.cat([torch.ones(n, device=d), torch.zeros(m, device=d)])``.

    It is that of ``torch.Tensor([1] * n + [0] * m).to(d)``, and of other numbers.
    """
    whole, (code, given) = code, _as_one_call(here, code)
    match code:
        case ast.Call(ast.Attribute(ast.Name() as owner, kind), [ast.BinOp() as data]) if (
            "device" in given and given.keys() <= {"device", "dtype"}
        ):
            parts = _list_parts(data)
        case _:
            return None
    dtype = _text(here, given["dtype"]) if "dtype" in given else ""
    if kind in KINDS and not dtype:
        dtype = f"{owner.id}.{KINDS[kind]}"
    kinds = {type(number.value) for number, _ in parts}
    makes = kind in {*KINDS, "tensor", "as_tensor"} and not is_rare(here, whole)
    if len(parts) <= 1 or not makes or len(kinds) != 1:
        return None
    rest = [f"dtype={dtype}"] if dtype else []
    rest.append(f"device={_text(here, given['device'])}")
    arguments = ([f"({here.text(n)},)", repr(number.value), *rest] for number, n in parts)
    made = [f"{owner.id}.full({', '.join(each)})" for each in arguments]
    lengths = [here.value(n) for _, n in parts]
    sure = all(length is not None and length.op in _LENGTHS for length in lengths)
    proven = {"one-number", *(["nonnegative-count"] if sure else [])}
    if {number.value for number, _ in parts} <= {0, 1}:
        proven.add("value-fits-dtype")
    text = f"{owner.id}.cat([{', '.join(made)}])"
    return put(here, whole, text, form="copied", proven=proven)


def _list_parts(code: ast.expr) -> list[tuple[ast.Constant, ast.expr]]:
    """Return each number of ``[1] * n + [0] * m``, and how often it stands there."""
    match code:
        case ast.BinOp(left, ast.Add(), right):
            first, second = _list_parts(left), _list_parts(right)
            return [*first, *second] if first and second else []
        case ast.BinOp(ast.List([ast.Constant(int() | float()) as number]), ast.Mult(), times):
            return [(number, times)]
    return []


def _list_numbers(code: ast.expr) -> list[int]:
    """Return the integers of a list that is written out, none if it holds anything else."""
    if not isinstance(code, ast.List | ast.Tuple):
        return []
    try:
        values = ast.literal_eval(code)
    except ValueError:
        return []
    return [*values] if all(type(value) is int for value in values) else []


def _is_exact(dtype: ast.expr | None) -> bool:
    """Tell whether a dtype holds small integers as they are; none is that of integers."""
    name = "int64" if dtype is None else ast.unparse(dtype).rpartition(".")[2]
    return name in {"int64", "long", "int32", "int", "float32", "float", "float64", "double"}


def is_list(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether it holds several numbers: ``[0] * n + [1] * m``, ``*sizes``."""
    if isinstance(code, ast.BinOp):
        return is_list(here, code.left) or is_list(here, code.right)
    node = here.value(code)
    kinds = (ast.List, ast.ListComp, ast.Starred, ast.Tuple)
    return isinstance(code, kinds) or (node is not None and node.op in {Op.LIST, Op.TUPLE})


def _text(here: Surroundings, code: ast.expr) -> str:
    """Return code as it is written, or as it is to be where nobody has written it."""
    if hasattr(code, "lineno") and here.value(code) is not None:
        return here.text(code)
    if isinstance(code, ast.Constant) and isinstance(code.value, str):
        quote = style_of("".join(here.lines)).quote
        return f"{quote}{code.value}{quote}"
    return ast.unparse(code)


def _is_device(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code is called a device: neither a dtype nor a tensor to be like."""
    if isinstance(code, ast.Constant):
        return isinstance(code.value, str) and _DEVICE.fullmatch(code.value) is not None
    value = here.value(code)
    if value is not None and is_device(value):
        return True  # ``where = x.device`` above
    return "device" in here.text(code).lower() and here.is_tensor(code) is not True


def is_number(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether it is one number; ``sum(len(row) for row in rows)`` is."""
    node = here.value(code)
    if is_scalar(code) or node is None:
        return is_scalar(code)
    if node.op == "py:sum" and _OF_LENGTHS.match(str(node.args[0].value)):
        return len(node.args) == 1
    return here.facts(here.evaluations[id(code)], x=node).is_number("x") is True


def holds_elements(here: Surroundings, code: ast.Call, data: ast.expr) -> bool:
    """Tell whether elements of a tensor are copied back: ``x.new_tensor([0, -corners[7, -1]])``."""
    listed = isinstance(data, ast.List) and last_name(code.func) == "new_tensor"
    return listed and any(
        isinstance(n, ast.Subscript)
        and isinstance(n.slice, ast.Tuple)
        and here.is_tensor(n.value) is not False
        and "numpy" not in (here.dotted(n.value) or "")
        for n in ast.walk(data)
    )
