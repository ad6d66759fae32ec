"""Tensors of one number, which the device can fill."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.layout import style_of
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.graph.modules.syntax import is_scalar
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings

KINDS = {"FloatTensor": "float32", "LongTensor": "int64", "Tensor": "float32"}
"""What makes tensors of one dtype of lists."""
READING = frozenset({"item", "tolist"})
_LENGTHS = frozenset({"py:len", Op.SIZE})


def is_read_again(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether the host waits for what it has just made, whichever way that is made."""
    value = here.value(code)
    moved = here.parents.get(id(here.parents.get(id(code))))
    values = {value, here.value(moved) if isinstance(moved, ast.Call) else None} - {None}
    if any(user.op in {*READING, "cpu"} for v in values if v for user in here.users(v)):
        return True
    bound = here.statement_of(code)
    names = [ast.unparse(t) for t in bound.targets] if isinstance(bound, ast.Assign) else []
    return any(
        isinstance(n, ast.Call)
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
        case ast.List([one]):
            times, count, shape = ast.Constant(1), "1", "(1,)"
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
    return Proposal(
        whole,
        form="copied",
        changes=(Change(here.span(whole), text),),
        shown=text,
        asked=tuple(asked),
        proven=frozenset(proven),
    )


def _as_one_call(here: Surroundings, code: ast.Call) -> tuple[ast.Call, dict[str | None, ast.expr]]:
    """Return a call and its keywords, with the device that it is moved to at once."""
    given = {k.arg: k.value for k in code.keywords}
    named = {name: value for name, value in given.items() if name != "non_blocking"}
    match code:
        case ast.Call(ast.Attribute(ast.Call() as made, "to"), moved):
            to = [*moved, *named.values()]
            if len(to) == 1 and named.keys() <= {"device"} and _is_device(here, to[0]):
                return made, {**{k.arg: k.value for k in made.keywords}, "device": to[0]}
        case ast.Call(ast.Attribute(ast.Call() as made, "cuda" | "npu" as kind), []) if not named:
            return made, {**{k.arg: k.value for k in made.keywords}, "device": ast.Constant(kind)}
    return code, given


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
    return "device" in here.text(code).lower() and here.is_tensor(code) is not True


def is_number(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether it is one number."""
    node = here.value(code)
    return is_scalar(code) or (
        node is not None and here.facts(here.evaluations[id(code)], x=node).is_number("x") is True
    )
