"""Loops whose rounds have a table, a module, a function or an image of their own."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.rounds import list_bound
from npufix.rewriters.graph.modules.syntax import last_name, list_indexes, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.edit.loops.given.reading import Loop
    from npufix.rewriters.graph.dataflow import FunctionFlow

EMBEDDED = (
    "each round looks up one column in a table of its own: where the tables have one width and no "
    "padding_idx, one nn.Embedding(sum(sizes), width) holds the rows of all of them (torch.cat of "
    "the old weights), with starts = torch.tensor([0, *sizes[:-1]]).cumsum(0) as a buffer: "
    "table(x + starts) looks up all columns at once, .flatten(-2) lays them side by side as "
    "torch.cat(..., -1) does, and .sum(-2) adds them up"
)
EXPERTS = (
    "each round multiplies rows of its own with weights of its own: torch.baddbmm(b[:, None], x, "
    "w) takes all experts at once, with x = torch.stack(xs), and w (transposed) and b of all "
    "experts as one parameter each; of several counts of rows, torch_npu.npu_grouped_matmul does"
)
FREQUENCIES = (
    "each round launches kernels for one frequency: y = x[..., None, :] * freqs[:, None] holds all "
    "of them, torch.stack([y.sin(), y.cos()], dim=-2).flatten(-3) has them in the same order, each "
    "frequency with its sine before its cosine, and torch.cat([x, ...], dim=-1) puts x before them"
)
PICTURES = (
    "each round copies one image into the corner of a padded batch: torch.stack(images) takes "
    "those of one size at once; pad those of several sizes where the loader joins them, on the "
    "host, and copy the batch once; what is no padding is (torch.arange(h, device=x.device)[:, "
    "None] < heights[:, None, None]) & (torch.arange(w, device=x.device) < widths[:, None, None])"
)
OF_SEVERAL = (EMBEDDED, EXPERTS, FREQUENCIES, PICTURES)
_WAVES = frozenset({"torch.cos", "torch.sin"})
_EXPERTS = re.compile(r"(?i)expert")


def say_of_several(flow: FunctionFlow, loop: Loop) -> str:
    """Return what takes all tables, experts, frequencies or images at once, "" for other loops."""
    made = list(_list_made(loop))
    if made and all(_looks_up(flow, code, loop) for code in made):
        return EMBEDDED
    if made and all(_asks_expert(code, loop) for code in made):
        return EXPERTS
    if _computes_waves(flow, loop):
        return FREQUENCIES
    return PICTURES if _copies_image(loop) else ""


def _list_made(loop: Loop) -> Iterator[ast.expr]:
    """Yield what each round makes, if that is all that it does."""
    if loop.body:
        return
    if loop.made is not None:
        yield loop.made
    yield from (one.made for one in loop.lists)


def _list_gone_over(items: ast.expr) -> Iterator[ast.expr]:
    match items:
        case ast.Call(ast.Name("enumerate" | "zip"), several):
            yield from several
        case _:
            yield items


def _looks_up(flow: FunctionFlow, code: ast.expr, loop: Loop) -> bool:
    """Tell whether code is ``table(x[:, i])``, or ``self.tables[i](x[:, i])``, of embeddings."""
    own = list_names(loop.target)
    match code:
        case ast.Call(ast.Name(module), [ast.Subscript(_, index)], []) if module in own:
            tables = [t for t in _list_gone_over(loop.items) if isinstance(t, ast.Attribute)]
        case ast.Call(
            ast.Subscript(ast.Attribute() as held, ast.Name(number)), [ast.Subscript(_, index)], []
        ) if number in own:
            tables = [held]
        case _:
            return False
    *others, last = list_indexes(index)
    before = all(isinstance(i, ast.Slice) or ast.unparse(i) == "..." for i in others)
    counted = isinstance(last, ast.Name) and last.id in own
    return bool(others) and before and counted and len(tables) == 1 and _are_tables(flow, tables[0])


def _are_tables(flow: FunctionFlow, held: ast.expr) -> bool:
    """Tell whether the class fills a list of modules with embeddings, and with nothing else."""
    nodes = [] if flow.cls is None else list(walk(flow.cls))
    names, filled = {ast.unparse(held)}, list[str]()
    for code in nodes:
        match code:  # ``self.tables = nn.ModuleList(tables)``
            case ast.Assign([target], ast.Call(_, [ast.Name(kept)])) | ast.Call(
                ast.Attribute(target, "append"), [ast.Name(kept)]
            ) if ast.unparse(target) in names:
                names.add(kept)
    for code in nodes:
        match code:
            case ast.Assign([target], value) if ast.unparse(target) in names:
                filled += _list_modules(value)
            case ast.Call(ast.Attribute(owner, "append"), [value]) if ast.unparse(owner) in names:
                filled += _list_modules(value)
    return bool(filled) and {*filled} == {"Embedding"}


def _list_modules(code: ast.expr) -> list[str]:
    called = [last_name(n.func) for n in walk(code) if isinstance(n, ast.Call)]
    return [name for name in called if name[:1].isupper() and name != "ModuleList"]


def _asks_expert(code: ast.expr, loop: Loop) -> bool:
    """Tell whether code is ``expert(x)`` of ``for expert, x in zip(self.experts, xs)``."""
    match code, loop.target, loop.items:
        case (
            ast.Call(ast.Name(module), [ast.Name(rows)], []),
            ast.Tuple([ast.Name(first), ast.Name(second)]),
            ast.Call(ast.Name("zip"), [one, other]),
        ) if {module, rows} == {first, second} and module != rows:
            experts = one if module == first else other
            of_self = isinstance(experts, ast.Attribute) and "self" in list_names(experts)
            return of_self and _EXPERTS.search(f"{module} {last_name(experts)}") is not None
    return False


def _computes_waves(flow: FunctionFlow, loop: Loop) -> bool:
    """Tell whether a round appends the sine and the cosine of ``x * frequency``."""
    if not isinstance(loop.statement, ast.For):
        return False
    code, waves = loop.statement.body, list[str]()
    match code:
        case [ast.For(ast.Name(called), over, [inner], [])]:
            waves, code = _list_waves(flow, over), [inner]
        case _:
            called = ""
    own = list_names(loop.target)
    for statement in code:
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(), "append"), [made])) | ast.AugAssign(
                ast.Name(), ast.Add(), ast.List([made])
            ):
                pass
            case _:
                return False
        match made:
            case ast.Call(func, [ast.BinOp(left, ast.Mult(), right)], []):
                if bool(list_names(left) & own) == bool(list_names(right) & own):
                    return False
                if not (called and isinstance(func, ast.Name) and func.id == called):
                    waves.append(flow.names.dotted(func) or "")
            case _:
                return False
    return len(waves) == len({*waves}) > 1 and {*waves} <= _WAVES


def _list_waves(flow: FunctionFlow, over: ast.expr) -> list[str]:
    """Return the functions of ``[torch.sin, torch.cos]``, also of one that the class keeps."""
    name = ast.unparse(over) if isinstance(over, ast.Attribute) else ""
    for code in [] if flow.cls is None or not name else walk(flow.cls):
        match code:
            case ast.Assign([target], value) if ast.unparse(target) == name:
                over = value
    functions = over.elts if isinstance(over, ast.List | ast.Tuple) else []
    return [flow.names.dotted(one) or "" for one in functions]


def _copies_image(loop: Loop) -> bool:
    """Tell whether a round is ``pad[:, : img.shape[1], : img.shape[2]].copy_(img)``."""
    own, bound = list_names(loop.target), dict(list_bound(loop.body))
    for code in loop.body:
        match code:
            case ast.Expr(
                ast.Call(ast.Attribute(ast.Subscript(base, index), "copy_"), [image])
            ) | ast.Assign([ast.Subscript(base, index)], image):
                pass
            case _:
                continue
        ends = [i.upper for i in list_indexes(index) if isinstance(i, ast.Slice) and not i.lower]
        sizes = _list_sizes(loop, image)
        sized = [e for e in ends if e and (ast.unparse(e) in sizes or _measures(e, image, bound))]
        taken = list_names(base) | list_names(index)
        of_round = isinstance(image, ast.Name) and bool(
            ({image.id} | list_names(bound.get(image.id, image))) & own  # ``img = images[i]``
        )
        if of_round and len(sized) > 1 and taken & own:
            return True
    return False


def _list_sizes(loop: Loop, image: ast.expr) -> set[str]:
    """Return ``h`` and ``w`` of ``_, h, w = img.shape``."""
    text = ast.unparse(image)
    return {
        name
        for code in loop.body
        if isinstance(code, ast.Assign) and isinstance(code.targets[0], ast.Tuple)
        if ast.unparse(code.value).startswith((f"{text}.shape", f"{text}.size()"))
        for name in list_names(code.targets[0])
    }


def _measures(end: ast.expr, image: ast.expr, bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether a number is one of ``img.shape``, also by a name: ``h = img.shape[1]``."""
    text = ast.unparse(bound.get(end.id, end) if isinstance(end, ast.Name) else end)
    name = re.escape(ast.unparse(image))
    return re.fullmatch(rf"{name}\.(shape\[-?\d\]|size\(-?\d\))", text) is not None
