"""Calls of operators that a vendor's library has for the NPU, known by their names."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING

from npufix.rewriters.edit.imports import Import, insertion
from npufix.rewriters.edit.layout import style_of
from npufix.rewriters.edit.statements.deformable import find_sampling, list_operands
from npufix.rewriters.edit.statements.proposal import Change, Proposal, apply_changes
from npufix.rewriters.facts.module_facts import mentions
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class _Row:
    """What a call is known by, and what the operator of mx_driving is called with."""

    called: str
    operator: str
    package: str
    limits: str
    written: str
    """The new call, with ``{0}`` for the first argument; "" where it is only named."""


_ADD_RELU = (
    "mx_driving.npu_add_relu(x, y) of Ascend DrivingSDK adds and cuts off in one kernel: float32, "
    "x and y of one shape, and only for more than 2 million elements; Atlas A2"
)
RESIDUAL = r"(?:\+=|= \w+ \+ \w+)[^\n]*\n\s*(?:return |\w+ = )[\w.]*[rR]e[lL][uU]"
_OF_DRIVING = frozenset(
    {"mmcv", "mmdet", "mmdet3d", "mmengine", "mx_driving", "spconv", "torch_npu"}
)
_DEFORMABLE = "ms_deform_attn_core_pytorch"
_COPIES = r"(?i:\w*deform\w*)|grid_sample|unique"
"""How functions of one's own are called that compute it, and what they call; equal rows."""
_UNIQUE = (
    "rows are compared on the host: of coordinates of points, mx_driving._C.point_to_voxel(coords, "
    "[], [], 'XYZ') makes one number of each, in int32, and mx_driving.unique_voxel(numbers) finds "
    "equal ones: count, first of each, its place, the order; Atlas A2"
)
_POINTS = re.compile(r"(?i)voxel|point|pillar|lidar|\b(cat_)?pt_|sparse|coor(d|s\b)")
_FIRST = "dim 0: "
_MORE = "first: "
"""Before what is written for the first arguments of a call, which may have more of them."""
_SIZED = "dim_size=None"
"""How the signature of an operator says that it is told how many groups there are."""
_OTHER_CHIP = "only Atlas"
_FURTHEST = re.compile(r"(?i)f[au]rthest_?points?_?sampl\w*|fps|index_fps")
"""How functions are called that take the point that is furthest from all before, one by one."""
_STAYS = (operators.VIEWS | operators.KEEPS) - operators.MOVES
"""Methods of tensors alone whose result lies where the tensor does."""
_RELU = re.compile(r"relu\d?_?|ReLU")


@cache
def _rows() -> Sequence[_Row]:
    """Return the table ``mx_driving.txt``."""
    text = (files("npufix.rewriters.edit.statements") / "mx_driving.txt").read_text("utf-8")
    found = []
    for line in text.splitlines():
        if line and line[0] != "#":
            parts = [part.strip() for part in f"{line}||||".split("|")]
            called, *others = parts[:5]
            found.append(_Row(called.replace(" / ", "|"), *others))
    return found


@cache
def _pattern(row: _Row) -> re.Pattern[str]:
    return re.compile(rf"(?:.*\.)?(?:{row.called})")


def vendor_names() -> str:
    """Return an expression for the names of what an operator of theirs stands for."""
    return "|".join([_COPIES, *(row.called.replace(r"\.apply", "") for row in _rows())])


def find_vendor_operators(here: Surroundings) -> Iterator[Proposal]:
    """Yield the calls that an operator of mx_driving stands for."""
    yield from _find_copy(here)
    yield from _find_furthest(here)
    for node in here.nodes:
        if isinstance(node, ast.Call):
            if _groups_rows(node) and _POINTS.search(here.text(here.flow.function)):
                yield Proposal(node, _UNIQUE)
            row = (
                _row(find_imported_name(here, node.func))
                or _row_of_variable(here, node.func)
                or _row_of_copy(here, node.func)
            )
            if row is not None and not _is_elsewhere(here, node):
                text = _call(here, node, row)
                elsewhere = _in_place(here, node, text) if text else ()
                if not elsewhere and "mx_driving" not in here.flow.names.imports.values():
                    text = ""  # who has no NPU has no mx_driving either
                changes = (Change(here.span(node), text), *importing(here)) if text else ()
                given = tuple(
                    (f"x{n}", here.text(a))
                    for n, a in enumerate(node.args[:2])
                    if not isinstance(a, ast.Constant)
                )
                asked = given if text else ()
                yield Proposal(
                    node,
                    "" if text else _advice(row),
                    changes=changes,
                    elsewhere=elsewhere,
                    shown=text,
                    asked=asked,
                )


def _groups_rows(call: ast.Call) -> bool:
    """Tell whether equal rows get a number: ``coords.unique(return_inverse=True, dim=0)``."""
    named = {k.arg: ast.unparse(k.value) for k in call.keywords}
    grouped = named.get("dim") == "0" and named.get("return_inverse") == "True"
    return grouped and last_name(call.func) == "unique"


def _find_copy(here: Surroundings) -> Iterator[Proposal]:
    """Yield where a function samples that computes what an operator does, and that others call."""
    function, tree = here.flow.function, here.flow.names.tree
    sampling, row = find_sampling(function), _row(_DEFORMABLE)
    if sampling is None or row is None or tree is None:
        return
    if mentions(here.flow.names, {row.operator.partition("(")[0]}):
        return  # its author has chosen
    if here.flow.cls is None and any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == function.name
        for n in walk(tree)
    ):
        return  # its calls are told
    yield Proposal(sampling, _advice(row))


def _find_furthest(here: Surroundings) -> Iterator[Proposal]:
    """Yield the loop of a function that samples points, each the furthest of those before."""
    function = here.flow.function
    row = _row("furthest_point_sample") if _FURTHEST.fullmatch(function.name) else None
    if row is None or "np." in here.text(function):
        return
    for loop in (n for n in here.nodes if isinstance(n, ast.For)):
        called = {last_name(n.func) for n in walk(loop) if isinstance(n, ast.Call)}
        if called & {"argmax", "max"}:
            yield Proposal(loop, _advice(row))
            return


def _advice(row: _Row) -> str:
    limits = f"{row.limits}; " if row.limits else ""
    chip = "" if _OTHER_CHIP in row.limits else "Atlas A2"
    return f"mx_driving.{row.operator} of Ascend DrivingSDK: {limits}{chip}".rstrip("; ")


def _call(here: Surroundings, call: ast.Call, row: _Row) -> str:
    """Return the call of the operator, "" if this one says something that it does not take."""
    template = row.written
    form = template.removeprefix(_FIRST).removeprefix(_MORE)
    named = {k.arg: k.value for k in call.keywords}
    given = [None if isinstance(a, ast.Starred) else here.text(a) for a in call.args]
    every = "{*}" in form
    used = [int(number) for number in re.findall(r"{(\d)}", form)]
    count = len(given) if every else max(used, default=-1) + 1
    surplus = form == template and len(given) > count
    if not form or None in given[:count] or len(given) < count or surplus:
        return ""
    if any(arg is not None and arg.endswith("_list") for arg in given[:count]):
        return ""  # ``spatial_shapes_list``: it takes tensors
    if any(used.count(n) > 1 and not isinstance(call.args[n], ast.Name) for n in used):
        return ""  # it would be computed twice
    own = re.findall(r"{([a-z_]+)}", form)
    arguments = {a.arg for a in here.flow.function.args.args}
    if not arguments.issuperset(own):
        return ""  # ``level_start_index``, which what is called does without
    if template.startswith(_FIRST):
        along = call.args[count] if len(given) > count else named.pop("dim", None)
        if len(given) > count + 1 or along is None or ast.unparse(along) != "0":
            return ""
        if "dim_size" in named and _SIZED in row.operator:
            form = f"{form[:-1]}, dim_size={here.text(named.pop('dim_size'))})"
    if every:
        form = form.replace("{*}", ", ".join(map("{{{}}}".format, range(count))))
    return "" if named else f"mx_driving.{form.format(*given, **{n: n for n in own})}"


def _is_elsewhere(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code runs where there is no NPU: its author has chosen."""
    tests = (ast.unparse(n.test) for n in here.around(code) if isinstance(n, ast.If))
    return any("'npu'" in test for test in tests)


def _in_place(here: Surroundings, call: ast.Call, text: str) -> tuple[Change, ...]:
    """Return a call beside the old one, which stays for other devices."""
    roots = (root for a in call.args if (root := _root(here, a)) is not None)
    statement, asked = here.statement_of(call), next(roots, None)
    whole = here.whole_lines(statement)
    if asked is None or whole is None or not isinstance(statement, ast.Assign | ast.Return):
        return ()
    new = change_within(here, whole, Change(here.span(call), text))
    return beside(here, whole, new, asked.id)


def _root(here: Surroundings, code: ast.expr) -> ast.Name | None:
    """Return ``x`` of ``x.permute(1, 0)[mask]``, which lies on the same device.

    Not of ``x[0]``, unless ``x`` is known: it may be a list of tensors.
    """
    inner, is_item = code, False
    while not isinstance(inner, ast.Name):
        match inner:
            case ast.Subscript(owner):
                is_item = True
            case ast.Call(ast.Attribute(owner, method)) if method in _STAYS:
                is_item = False
            case _:
                return None
        inner = owner
    is_tensor = here.is_tensor(inner)
    return inner if is_tensor or (is_tensor is None and not is_item) else None


def change_within(here: Surroundings, whole: Span, change: Change) -> str:
    """Return some lines of the file with a change in them."""
    above = whole[0] - 1
    first, start, last, end = change.span
    moved = replace(change, span=(first - above, start, last - above, end))
    return apply_changes(here.lines[above : whole[2]], [moved])


def beside(
    here: Surroundings, whole: Span, new: str, asked: str, module: str = "mx_driving"
) -> tuple[Change, ...]:
    """Return new lines for the NPU beside the old ones, and what imports the library of theirs.

    ``asked`` is a tensor, which knows its device.
    """
    old = here.lines[whole[0] - 1 : whole[2]]
    indent = old[0][: len(old[0]) - len(old[0].lstrip())]
    end = "\r\n" if old[0].endswith("\r\n") else "\n"
    quote = style_of("".join(here.lines)).quote
    fused = (f"    {line}" for line in new.splitlines(keepends=True))
    other = (f"    {line}" if line.strip() else line for line in old)
    guard = f"{indent}if {asked}.device.type == {quote}npu{quote}:{end}"
    block = "".join([guard, *fused, f"{indent}else:{end}", *other])
    return Change(whole, block), *importing(here, module, guarded=True)


def importing(
    here: Surroundings, module: str = "mx_driving", *, guarded: bool = False
) -> list[Change]:
    """Return what imports a library, nothing if the file does."""
    needed = Import(module)
    at, block = insertion(here.flow.names, here.lines, needed, guarded=guarded)
    return [Change((at + 1, 0, at + 1, 0), "".join(block))] if block else []


def find_sums_cut_off(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``out += identity`` with ``out = relu(out)`` behind it, in files that use mmcv."""
    if not _is_of_driving(here):
        return
    blocks = [getattr(n, name, None) for n in here.nodes for name in ("body", "orelse")]
    for block in (here.flow.function.body, *blocks):
        if isinstance(block, list):
            yield from _sums_cut_off(here, block)


def _row(called: str) -> _Row | None:
    if not called or called.startswith(("mx_driving", "torch.", "torch_npu")):
        return None
    if called == "torchvision.ops.deform_conv2d":
        return None  # which torchvision_npu has, with and without a mask
    for row in _rows():
        if _pattern(row).fullmatch(called) and called.startswith(row.package):
            return row
    return None


def _row_of_copy(here: Surroundings, code: ast.expr) -> _Row | None:
    """Return what a function of this file computes, whatever it is called: deformable attention."""
    own = here.flow.names.functions.get(code.id) if isinstance(code, ast.Name) else None
    if own is None or find_sampling(own) is None:
        return None
    found = _row(_DEFORMABLE)
    return found if found is None or list_operands(own) else replace(found, written="")


def _row_of_variable(here: Surroundings, code: ast.expr) -> _Row | None:
    """Return what ``Function.apply`` stands for, of a variable that holds one of a few."""
    if not isinstance(code, ast.Attribute) or not isinstance(code.value, ast.Name):
        return None
    held = here.assigned.get(code.value.id, ())
    found = {_row(f"{find_imported_name(here, value)}.{code.attr}") for value in held}
    return found.pop() if len(found) == 1 else None


def find_imported_name(here: Surroundings, code: ast.expr) -> str:
    """Return the full name of a function or class that is imported, "" for anything else."""
    known = here.flow.names.dotted(code)
    if known is not None:
        return known
    parts: list[str] = []
    while isinstance(code, ast.Attribute):
        parts.append(code.attr)
        code = code.value
    if not isinstance(code, ast.Name) or code.id not in here.flow.names.relative:
        return ""
    return ".".join([here.flow.names.relative[code.id].lstrip("."), *reversed(parts)])


def _is_of_driving(here: Surroundings) -> bool:
    """Tell whether a file uses mx_driving anyhow, or packages whose operators it has."""
    known = here.flow.names.imports.values()
    return any(full.split(".")[0] in _OF_DRIVING for full in known)


def _sums_cut_off(here: Surroundings, block: list[ast.stmt]) -> Iterator[Proposal]:
    """Yield the pairs of statements of a block that add and cut off."""
    for first, second in pairwise(block):
        match first:
            case ast.AugAssign(ast.Name(name), ast.Add(), ast.Name() | ast.Attribute() as other):
                own = True
            case ast.Assign(
                [ast.Name(name)], ast.BinOp(ast.Name(left), ast.Add(), ast.Name() as other)
            ):
                own = left == name
            case _:
                continue
        match second:
            case ast.Assign(value=ast.Call(function, [ast.Name(cut)], []) as call) | ast.Return(
                ast.Call(function, [ast.Name(cut)], []) as call
            ) if (
                cut == name
                and _RELU.fullmatch(last_name(function))
                and not _is_elsewhere(here, call)
            ):
                if own and _is_relu(here, function) and _is_fresh(here, name, first):
                    new = f"mx_driving.npu_add_relu({name}, {here.text(other)})"
                    yield _fuse_addition(here, first, call, new, name)
                else:
                    yield Proposal(call, _ADD_RELU)


def _fuse_addition(
    here: Surroundings, first: ast.stmt, call: ast.Call, text: str, name: str
) -> Proposal:
    """Return the change of a sum and what is called with it into one call."""
    whole, last = here.whole_lines(first), here.whole_lines(here.statement_of(call))
    if whole is None or last is None:
        return Proposal(call, _ADD_RELU)
    begin, _, end, _ = whole
    gone, added = Change((begin, 0, end + 1, 0), ""), Change(here.span(call), text)
    both = (begin, 0, last[2], last[3])
    return Proposal(
        call,
        changes=(gone, added, *importing(here)),
        elsewhere=beside(here, both, change_within(here, last, added), name),
        shown=text,
    )


def _is_relu(here: Surroundings, function: ast.expr) -> bool:
    """Tell whether a function or submodule is the ReLU of torch."""
    if here.flow.names.dotted(function) in {"torch.relu", "torch.nn.functional.relu"}:
        return True
    match function:
        case ast.Attribute(ast.Name("self"), name) if here.flow.cls is not None:
            made = [v for _, v in list_assigned(here.flow.names, here.flow.cls, name)]
            return bool(made) and all(
                isinstance(v, ast.Call) and here.flow.names.dotted(v.func) == "torch.nn.ReLU"
                for v in made
            )
    return False


def _is_fresh(here: Surroundings, name: str, at: ast.stmt) -> bool:
    """Tell whether nobody else has what is overwritten: a submodule has just returned it."""
    named = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name]
    before = [n for n in named if n.lineno < at.lineno]
    stored = [n for n in before if isinstance(n.ctx, ast.Store)]
    if not stored:
        return False
    last = max(stored, key=lambda n: n.lineno)
    match here.parents.get(id(last)):
        case ast.Assign([ast.Name()], ast.Call(ast.Attribute(ast.Name("self"), _))) as made:
            read = (n for n in before if isinstance(n.ctx, ast.Load) and n.lineno > last.lineno)
            return here.loop_of(made) is here.loop_of(at) and not any(read)
    return False
