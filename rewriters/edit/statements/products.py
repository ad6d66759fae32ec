"""Equations of einsum that are matrix products, written with ``matmul``."""

from __future__ import annotations

import ast
import re
from itertools import combinations
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Proposal, put
from npufix.rewriters.graph.canonical import spell_with_letters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_MATRIX = 2
_MOST_TURNS = 3
"""Einsum turns as much, but a text of more is hard to read."""
_TURNS = re.compile(r"\.permute\(|\.transpose\((?!-2, -1\))")
_COMPLEX = re.compile(r"\b(complex|conj|polar|view_as_complex|i?r?fft\w*)\b")


def find_einsum_products(here: Surroundings) -> Iterator[Proposal]:
    """Yield the einsums of two operands that are one matrix product, and of three that are two."""
    for node in here.nodes:
        match node:
            case ast.Call(function, [*_], []):
                equation, operands = _read_einsum(here, node)
                if any(isinstance(o, ast.Starred) or _is_complex(here, o) for o in operands):
                    continue  # of complex numbers no product of the NPU is
                product = _matmul(here, function)
                if product and _are_tensors(here, function, operands):
                    yield from _propose(here, node, equation, operands, product)


def _propose(
    here: Surroundings, call: ast.Call, equation: str, operands: list[ast.expr], product: str
) -> Iterator[Proposal]:
    texts = [*map(here.text_of_owner, operands)]
    plain = (ast.Name, ast.Attribute)
    once = [text for o, text in zip(operands, texts, strict=True) if not isinstance(o, plain)]
    match texts:
        case [left, right]:
            text = spell_product(equation, left, right, product, once=once)
        case [_, _, _]:
            text = spell_chain(equation, texts, product, once=once)
        case _:
            return
    if text is None:
        return
    *parts, out = re.split(",|->", equation.replace(" ", ""))
    shared = {*out}.intersection(*parts)
    turns = len(_TURNS.findall(text))
    if turns > _MOST_TURNS or (shared and turns and "oftmax" in here.text(here.flow.function)):
        return  # what is turned for attention is for the fused operator to take as it lies
    yield put(here, call, text, form="scores" if shared else "graph")


def _are_tensors(here: Surroundings, einsum: ast.expr, operands: Sequence[ast.expr]) -> bool:
    """Tell whether an einsum surely takes tensors: that of another library takes arrays as well."""
    name = ast.unparse(einsum).partition(".")[0]
    if not here.flow.names.imports.get(name, "").startswith("opt_einsum"):
        return True
    return any(map(here.is_tensor, operands))


def _read_einsum(here: Surroundings, call: ast.Call) -> tuple[str, list[ast.expr]]:
    """Return the equation and the operands of an einsum of torch or of einops, none of others."""
    match here.flow.names.dotted(call.func), call.args:
        case "torch.einsum", [ast.Constant(str(equation)), ast.Tuple(parts) | ast.List(parts)]:
            return _with_result(equation), parts
        case "torch.einsum", [ast.Constant(str(equation)), *parts]:
            return _with_result(equation), parts
        case "einops.einsum", [*parts, ast.Constant(str(words))]:
            return spell_with_letters(words) or "", parts
    return "", []


def _with_result(equation: str) -> str:
    """Return ``...ij,...j->...i`` for ``...ij,...j``: what is there once, capitals first."""
    if "->" in equation:
        return equation
    once = sorted(i for i in {*equation} if i.isalpha() and equation.count(i) == 1)
    return f"{equation}->{'...' * ('...' in equation)}{''.join(once)}"


def _is_complex(here: Surroundings, code: ast.expr) -> bool:
    value = here.value(code)
    return value is not None and any(_COMPLEX.search(str(part.op)) for part in value.walk())


def _matmul(here: Surroundings, einsum: ast.expr) -> str:
    """Return how the file calls ``torch.matmul``, "" if it imports only ``einsum`` of torch."""
    if isinstance(einsum, ast.Attribute) and here.flow.names.dotted(einsum.value) == "torch":
        return f"{here.text(einsum.value)}.matmul"
    return f"{here.torch}.matmul" if here.torch else ""


def spell_product(
    equation: str,
    left: str,
    right: str,
    product: str = "torch.matmul",
    *,
    once: Sequence[str] = (),
) -> str | None:
    """Return ``einsum(equation, left, right)`` as a matrix product, ``None`` if it is none.

    ``left`` and ``right`` are the code of the operands; what is said ``once`` is not repeated.
    """
    parts = equation.replace(" ", "").replace("->", ",").split(",")
    if "..." in equation:
        known = _spell_broadcast(parts, left, right, product)
        return known or _spell_any_batch(parts, (left, right), product, once=once)
    if len(parts) != 3 or not all(p.isalpha() and len(set(p)) == len(p) for p in parts):  # noqa: PLR2004
        return None
    a, b, out = parts
    alone = [[i for i in own if i not in other and i not in out] for own, other in ((a, b), (b, a))]
    if any(alone):  # einsum adds up what only one operand has before it multiplies
        texts = [_add_up(t, o, s) for t, o, s in zip((left, right), (a, b), alone, strict=True)]
        kept = ["".join(i for i in o if i not in s) for o, s in zip((a, b), alone, strict=True)]
        inner = f"{','.join(kept)}->{out}"
        return spell_product(inner, texts[0], texts[1], product, once=[*once, *texts])
    summed = [i for i in a if i in b and i not in out]
    if not summed or set(out) != set(a) ^ set(b) | (set(a) & set(b)) - {*summed}:
        return None
    if len(summed) == 1:
        ways = [
            _spell(x, y, out, summed[0], texts, product, once=once)
            for x, y, texts in ((a, b, (left, right)), (b, a, (right, left)))
        ]
        # As few turns as possible; the user's order of the operands where both take as many.
        if any(ways):
            return min(filter(None, ways), key=lambda way: way.count("."))
    if turned := _in_one_order((a, b, out), summed):
        right, b, once = _turn(right, b, turned), turned, [*once, right]
    merged = _spell_merged((a, b, out), left, right, product)
    again = merged is not None and any(merged.count(text) > 1 for text in once)
    return None if again else merged


def _add_up(text: str, own: str, alone: Sequence[str]) -> str:
    """Return code for a tensor without the dimensions that are there ``alone``."""
    match [own.index(i) for i in alone]:
        case []:
            return text
        case [dim]:
            return f"{text}.sum({dim})"
        case dims:
            return f"{text}.sum(({', '.join(map(str, dims))}))"


def _in_one_order(parts: tuple[str, str, str], summed: Sequence[str]) -> str:
    """Return the indices of the second operand with those added up as the first one has them.

    ``pcd`` of ``ncp,pcd->nd`` becomes ``cpd``; "" where they lie so, or a batch would be turned.
    """
    a, b, out = parts
    together = "".join(summed)
    places = sorted(map(b.index, summed))
    if together in b or together not in a or places[-1] - places[0] >= len(places):
        return ""
    is_batch = bool({*a} & {*b} & {*out})
    return "" if is_batch else b[: places[0]] + together + b[places[-1] + 1 :]


def _spell_broadcast(parts: list[str], left: str, right: str, product: str) -> str | None:
    """Return the product of matrices whose batches are not spelled out: ``...nd,...dh->...nh``."""
    if len(parts) != 3 or (parts[0] + parts[2]).count("...") != 2:  # noqa: PLR2004
        return None
    a, b, out = (part.removeprefix("...") for part in parts)
    if "..." not in parts[1] and len(out) > 1 and (b[:-2], out) == (a[:-1], a[:-1] + b[-1:]):
        fits = b[:-1] == a and b.isalpha() and len(set(b)) == len(b)  # a matrix for each row
        return f"{product}({left}.unsqueeze(-2), {right}).squeeze(-2)" if fits else None
    if "..." in parts[1] and len({*a, *b}) == max(len(a), len(b)) == _MATRIX and len(out) == 1:
        by_column = f"{product}({left}, {right}.unsqueeze(-1)).squeeze(-1)"
        by_row = f"{product}({left}.unsqueeze(-2), {right}).squeeze(-2)"
        return by_column if a == out + b else by_row if b == a + out else None
    return None


def _spell_any_batch(
    parts: list[str], texts: tuple[str, str], product: str, *, once: Sequence[str]
) -> str | None:
    """Return the product with one letter for the three dots, where it holds for any number.

    ``...i,ijk->...jk`` is spelled as ``zi,ijk->zjk``. What counts the dimensions of an operand with
    dots from the front, ``flatten(1)``, or those of the result, would be that of one number alone.
    """
    if len(parts) != 3 or any("..." in part[1:] for part in parts) or parts[2][:1] != ".":  # noqa: PLR2004
        return None
    letter = next(one for one in "zyxwvutsrqponm" if not any(one in part for part in parts))
    operands = dict(zip(("LEFT__", "RIGHT__"), texts, strict=True))  # which nothing else is called
    equation = "{},{}->{}".format(*(part.replace("...", letter) for part in parts))
    named = [name for name, code in operands.items() if code in once]
    left, right = operands
    text = spell_product(equation, left, right, product, once=named)
    if text is None:
        return None
    dotted = {name for name, part in zip(operands, parts, strict=False) if "..." in part}
    call = _behind(ast.parse(text, mode="eval").body, from_end=True)
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != product:
        return None
    for operand in call.args:
        names = {n.id for n in ast.walk(operand) if isinstance(n, ast.Name)}
        plain = _behind(operand, from_end=not names.isdisjoint(dotted))
        if not isinstance(plain, ast.Name):
            return None
    for name, code in operands.items():
        text = text.replace(name, code)
    return text


def _behind(code: ast.expr, *, from_end: bool) -> ast.expr:
    """Return what methods are called on; those that count ``from_end`` alone, if that is asked.

    ``x`` of ``x.transpose(-2, -1)``, and ``x.flatten(1)`` as it is, which counts from the front.
    """
    while isinstance(code, ast.Call) and isinstance(code.func, ast.Attribute):
        places = code.args[:1] if code.func.attr == "unflatten" else code.args
        if code.func.attr == "matmul":
            break
        if from_end and not all(isinstance(place, ast.UnaryOp) for place in places):
            break
        code = code.func.value
    return code


def _spell_merged(parts: tuple[str, str, str], left: str, right: str, product: str) -> str | None:
    """Return the product with dimensions that lie together everywhere taken as one.

    ``sec,sm->ecm`` is that of ``s(ec)`` and ``sm``. Those of a batch stay: nothing is gained.
    """
    every = [] if left == right else _together(parts)
    chosen = (c for n in range(len(every)) for c in combinations(every, n + 1))
    return next(filter(None, (_merge(c, parts, left, right, product) for c in chosen)), None)


def _merge(
    groups: Sequence[str], parts: tuple[str, str, str], left: str, right: str, product: str
) -> str | None:
    """Return the product with each group as one dimension, ``None`` if it is none yet."""
    (a, b, out), own = parts, {left: parts[0], right: parts[1]}
    flat = dict.fromkeys((left, right), "")
    for text, part in own.items():
        inside = sorted((g for g in groups if g in part), key=part.index, reverse=True)
        flat[text] = text + "".join(_flatten(part, group) for group in inside)
    for group in groups:
        a, b, out = (part.replace(group, group[0]) for part in (a, b, out))
    merged = spell_product(
        f"{a},{b}->{out}", flat[left], flat[right], product, once=[*flat.values()]
    )
    if merged is None:
        return None
    own_turns = sum(len(_TURNS.findall(text)) for text in own)
    is_batch = bool({*a} & {*b} & {*out})  # which einsum turns as well; one image stays as it lies
    if len(_TURNS.findall(merged)) > own_turns and not is_batch:
        return None
    for group in sorted((g for g in groups if g in parts[2]), key=parts[2].index, reverse=True):
        text, part = next((text, part) for text, part in own.items() if group in part)
        at = part.index(group)
        to = "" if at + len(group) == len(part) else at + len(group)
        merged += f".unflatten({out.index(group[0])}, {text}.shape[{at}:{to}])"
    return merged


def _together(parts: tuple[str, str, str]) -> list[str]:
    """Return the indices that follow each other wherever they are, several at a time."""
    a, b, out = parts
    groups = [""]
    for index in dict.fromkeys(a + b):
        wide = groups[-1] + index
        fits = all(wide in part or not set(wide) & set(part) for part in parts)
        if groups[-1] and fits and not set(wide) & set(a) & set(b) & set(out):
            groups[-1] = wide
        else:
            groups.append(index)
    return [group for group in groups if len(group) > 1]


def _flatten(part: str, group: str) -> str:
    first, last = part.index(group), part.index(group) + len(group) - 1
    return f".flatten({first})" if last == len(part) - 1 else f".flatten({first}, {last})"


def _spell(  # noqa: PLR0911, PLR0913, PLR0917 - an equation in parts, a case a kind of it
    a: str,
    b: str,
    out: str,
    summed: str,
    texts: tuple[str, str],
    product: str,
    *,
    once: Sequence[str],
) -> str | None:
    """Return the product with the rows of ``a`` and the columns of ``b``."""
    left, right = texts
    shared = "".join(i for i in out if i in a and i in b)
    rows, columns = ("".join(i for i in out if i in own and i not in shared) for own in (a, b))
    if not rows or not columns:
        return _spell_column(a, b, out, summed, texts, product) if rows else None
    if not shared and len(columns) == 1:  # one matrix for all rows
        if len(rows) > 1 and a != rows + summed:
            return None  # turning an image costs more than it saves
        text = f"{product}({_turn(left, a, rows + summed)}, {_turn(right, b, summed + columns)})"
        return _turn(text, rows + columns, out)
    if not shared and len(rows) == 1 and b[-_MATRIX:-1] == summed:  # one for all images
        batch, last = b[:-_MATRIX], b[-1]
        if out == batch + rows + last:
            return f"{product}({_turn(left, a, rows + summed)}, {right})"
        return None
    if wide := _spell_wide(a, b, out, summed, texts, product):
        return wide if right not in once or not wide.count(right) > 1 else None
    if not shared or len(rows) != 1:
        return None
    first = _turn(left, a, shared + rows + summed)
    if len(columns) == 1:
        second = _turn(right, b, shared + summed + columns)
        return _turn(f"{product}({first}, {second})", shared + rows + columns, out)
    if b == shared + summed + columns and out == shared + rows + columns and right not in once:
        at = len(shared) + 1  # the pixels of an image as one dimension
        return f"{product}({first}, {right}.flatten({at})).unflatten({at}, {right}.shape[{at}:])"
    return None


def _spell_column(  # noqa: PLR0913, PLR0917 - the same
    a: str, b: str, out: str, summed: str, texts: tuple[str, str], product: str
) -> str | None:
    """Return the product of matrices ``a`` and vectors ``b``: ``bij,bj->bi``, ``bi,bij->bj``."""
    left, right = texts
    at = a.index(summed)
    if (
        out != a.replace(summed, "")
        or not out
        or out[-1] in b
        or b != "".join(i for i in a if i in b)
    ):
        return None
    if at < len(a) - _MATRIX:
        return None  # the matrices would have to be turned
    is_last = at == len(a) - 1
    if b == summed:
        return f"{product}({left}, {right})" if is_last else f"{product}({right}, {left})"
    places = [":" if i in b else "None" for i in out[:-1]]
    places += [":", "None"] if is_last else ["None", ":"]
    if places.count("None") == 1:
        column = f"{right}.unsqueeze({-1 if is_last else -2})"
    else:
        column = f"{right}[{', '.join(places)}]"
    operands = f"{left}, {column}" if is_last else f"{column}, {left}"
    return f"{product}({operands}).squeeze({-1 if is_last else -2})"


def spell_chain(
    equation: str,
    texts: Sequence[str],
    product: str = "torch.matmul",
    *,
    once: Sequence[str] = (),
) -> str | None:
    """Return the einsum of three operands as two products, from left to right as einsum goes."""
    parts = equation.replace(" ", "").replace("->", ",").split(",")
    if len(parts) != 4 or not all(p.isalpha() and len(set(p)) == len(p) for p in parts):  # noqa: PLR2004
        return None
    a, b, c, out = parts
    kept = [i for i in dict.fromkeys(a + b) if i in c or i in out]
    batch = [i for i in kept if i in a and i in b]
    rows, columns = ([i for i in kept if i in own and i not in batch] for own in (a, b))
    found = []
    orders = (batch + rows + columns, batch + columns + rows, columns[:-1] + rows + columns[-1:])
    for between in dict.fromkeys(map("".join, orders)):
        first = spell_product(f"{a},{b}->{between}", texts[0], texts[1], product, once=once)
        if first is None:
            continue
        second = spell_product(
            f"{between},{c}->{out}", first, texts[2], product, once=[first, *once]
        )
        if second is not None and not _TURNS.search(second):
            found.append(second)
    return min(found, key=lambda way: way.count("."), default=None)


def _spell_wide(  # noqa: PLR0913, PLR0917 - the same
    a: str, b: str, out: str, summed: str, texts: tuple[str, str], product: str
) -> str | None:
    """Return the product with what has more dimensions than a batch of matrices.

    One matrix may have columns of several, ``ibh,hnd->ibnd``, and a smaller batch of matrices may
    stand for all of a larger one, ``bhwc,hkc->bhwk``.
    """
    left, right = texts
    shared = "".join(i for i in out if i in a and i in b)
    rows, columns = ("".join(i for i in out if i in own and i not in shared) for own in (a, b))
    if not shared:
        if a != rows + summed or out != rows + columns or len(columns) == 1:
            return None
        sizes = ", ".join(f"{right}.shape[{b.index(i)}]" for i in columns)
        shape = f"{right}.shape[1:]" if b == summed + columns else f"({sizes})"
        flat = f"{_turn(right, b, summed + columns)}.flatten(1)"
        return f"{product}({left}, {flat}).unflatten(-1, {shape})"
    before = out[: out.index(shared[0])]
    fits = bool(before) and a == before + shared + rows[len(before) :] + summed
    if not fits or len(columns) != 1 or len(rows) != len(before) + 1 or out != a[:-1] + columns:
        return None
    if b[:-_MATRIX] != shared:
        return None  # ``sbhd,tbd->sbht``: all keys of a sequence would be copied for each query
    return f"{product}({left}, {_turn(right, b, shared + summed + columns)})"


def _turn(text: str, have: str, want: str) -> str:
    """Return code for a tensor with its dimensions in another order."""
    if have == want:
        return text
    moved = [at for at, (one, other) in enumerate(zip(have, want, strict=True)) if one != other]
    if moved == [len(have) - 2, len(have) - 1]:
        return f"{text}.transpose(-2, -1)"
    if len(moved) == 2:  # noqa: PLR2004 - two change places
        return f"{text}.transpose({moved[0]}, {moved[1]})"
    return f"{text}.permute({', '.join(str(have.index(i)) for i in want)})"
