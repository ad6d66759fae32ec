"""Tables that a layer computes from what every layer is handed."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

from npufix.rewriters.edit.statements.columns import is_changed
from npufix.rewriters.edit.statements.kept.buffers import keep_table
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.edit.statements.surroundings import is_repeatable
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, list_defaults, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_LAYER = re.compile(r"(Layer|Block|Attention|Attn|SelfAttention|CrossAttention)\w*$")
_PER_LAYER = re.compile(
    r"(apply_?)?(rope|rotary)|apply_\w*(rope|rotary)|attention|attn", re.IGNORECASE
)
_TABLE = re.compile(
    r"freq|rope|rotary|(^|_)(pos(ition)?s?|cos|sin)(_|$)|mask|cu_?seq|seq_?lens?|lengths?$|spatial_shapes|grid"
)
"""What a model hands to all its layers is called like this."""
_LABOUR = frozenset(
    {
        "arange", "argsort", "bincount", "cat", "cos", "cumsum", "diff", "meshgrid", "nonzero",
        "one_hot", "outer", "polar", "repeat_interleave", "searchsorted", "sin", "sort", "tril",
        "triu", "unique",
    }
)  # fmt: skip
"""Operators that make tables; what is cheap is as cheap as handing it down."""
_OF_PIECES = frozenset({"chunk", "enumerate", "len", "range", "split", "unbind", "zip"})
"""What a list of the pieces of a table calls."""
_OF_NUMBERS = frozenset({"add", "div", "floordiv", "mod", "mul", "pow", "sub", Op.SIZE})
"""What Python computes as well, ``int(x.shape[2] * rotary_factor)``: no wait, no table."""
_READING = frozenset({"cpu", "item", "numpy", "py:int", "tolist"})
_ADVICE = (
    "every layer gets this and computes it anew: compute it once where the layers are called, and "
    "hand the result down"
)

_KEPT = (
    "nothing in it changes from call to call: compute it in __init__, "
    'register_buffer("name", ..., persistent=False), and read self.name'
)
_KEPT_BY_SIZE = (
    "sizes alone decide what is in it: compute it once for each of them, and keep it on the device "
    "in a dictionary by (height, width, device)"
)
_KEPT_BY_DEVICE = (
    "nothing in it changes from call to call: make it in a function of the device that keeps what "
    "it returns (functools.lru_cache)"
)
_SIZE = re.compile(
    r"(?i)([hwdzl]|bev_[hwz]|(img|feat|image|patch|pad)?_?(height|width|depth|size|shape)s?"
    r"|num_points\w*)(_(in|out|pad|\d))?"
)
"""What counts the places of an image, a volume or a window."""
_ROTARY = re.compile(r"_?(rotary|rope)(_\w+)?")
_POSITIONS = re.compile(r"(^|_)pos(ition)?(_?ids?|s)?$")
_FEWEST_OF_SETTINGS = 2
"""Operators: what one kernel fills is as cheap as reading it."""
_FEWEST_OF_SIZES = 4
"""The same where something has to be kept by size."""


def find_handed_in(here: Surroundings) -> Iterator[Proposal]:
    """Yield what a layer computes from masks, positions and lengths alone, once a statement."""
    if not _is_of_layer(here) or _is_picked(here):
        return
    for code, value in _wholes(_list_tables(here)):
        if _is_optional(here, code, value):
            continue
        tests = " ".join(map(here.text, here.tests_around(code)))
        if "export" not in tests or re.search(r"\bnot\b", tests):
            yield Proposal(code, _ADVICE)
    for node in here.nodes:
        match node:
            case ast.Assign([ast.Tuple([ast.Name("cos"), ast.Name("sin")])], ast.Call() as call):
                if _turns_positions(here, call) and not here.tests_around(call):
                    yield Proposal(call, _ADVICE)


def _list_tables(here: Surroundings) -> list[tuple[ast.expr, Node]]:
    """Return the tables that a layer makes, without views of those that have a name already."""
    found: list[tuple[ast.expr, Node]] = []
    named: set[str] = set()
    for node in here.nodes:
        match node:
            case ast.Assign([ast.Name(name), *_], code):
                value = here.value(code)
                viewed = _viewed_name(code, value)
                if value is None or viewed in named or not _is_table(here, value):
                    continue  # ``mask = mask.unsqueeze(1)`` below what it is made by
                found.append((code, value))
                named.add(name)
    return found


def _viewed_name(code: ast.expr, value: Node | None) -> str:
    """Return the name that an expression is a view of, "" if it is none."""
    match code:
        case ast.Call(ast.Attribute(ast.Name(name), _)) | ast.Subscript(ast.Name(name)):
            return name if value is not None and value.op in operators.VIEWS else ""
    return ""


def _is_optional(here: Surroundings, code: ast.expr, value: Node) -> bool:
    """Tell whether it is one copy, in a branch of a branch: ``if mem: if mask: cat((a, mask))``."""
    work = [part.op for part in _parts(value) if part.op.removesuffix("(*)") in _LABOUR]
    return work == ["cat"] and len(here.tests_around(code)) > 1


def _turns_positions(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether a layer asks for cosines of positions: ``self.rotary_emb(v, position_ids)``.

    The first argument tells dtype and device, or how many rows are taken of what is kept.
    """
    match code.func:
        case ast.Attribute(ast.Name("self"), name) if _ROTARY.fullmatch(name):
            given = [*code.args, *(k.value for k in code.keywords)]
            values = [v for v in map(here.value, given) if v is not None and v.op == Op.PARAM]
            return any(_POSITIONS.search(_name(value)) for value in values)
    return False


def _wholes(found: Sequence[tuple[ast.expr, Node]]) -> Iterator[tuple[ast.expr, Node]]:
    """Yield what is no part of another one: ``inv_freq`` that only ``angles`` needs is one."""
    for code, value in found:
        if not any(value in other.walk() for _, other in found if other is not value):
            yield code, value


def is_handed_in(here: Surroundings, node: Node) -> bool:
    """Tell whether a value is the same in every layer, and each of them computes it."""
    return _is_of_layer(here) and _is_table(here, node)


def _is_of_layer(here: Surroundings) -> bool:
    cls, name = here.flow.cls, here.flow.function.name
    if cls is not None and re.fullmatch("forward(_(oot|npu|native|impl))?", name):
        return bool(_LAYER.search(cls.name))
    return bool(_PER_LAYER.match(name))


def _is_picked(here: Surroundings) -> bool:
    """Tell whether a step calls one layer of a class: no loop goes over what holds them.

    ``self.layers[str(step)](x)`` of ``self.layers = ModuleDict({str(i): Layer() for i in ids})``;
    not so an ``Attention`` of a ``Block`` that is one of many, or that another file has.
    """
    tree = here.flow.names.tree
    if here.flow.cls is None or tree is None:
        return False
    called, holders_of = _list_called_in_loops(tree), _list_holders(tree)
    names = [here.flow.cls.name]
    for name in names:  # grows
        holders = holders_of.get(name, ())
        several = any(
            last_name(kept) in called or "Sequential" in ast.unparse(made)
            for _, kept, made in holders
        )
        if several or (not holders and _LAYER.search(name)):
            return False
        names += sorted({owner for owner, _, _ in holders} - {*names})
    return True


@lru_cache(maxsize=2)  # all layers of a module ask
def _list_called_in_loops(tree: ast.Module) -> frozenset[str]:
    looped = (part for n in walk(tree) if isinstance(n, ast.For) for part in walk(n))
    return frozenset(n.attr for n in looped if isinstance(n, ast.Attribute))


@lru_cache(maxsize=2)
def _list_holders(
    tree: ast.Module,
) -> Mapping[str, Sequence[tuple[str, ast.Attribute, ast.expr]]]:
    """Return of each class which classes keep an object of it, as what, and what makes that."""
    found: dict[str, list[tuple[str, ast.Attribute, ast.expr]]] = {}
    for cls in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        for node in walk(cls):
            match node:
                case ast.Assign([ast.Attribute() as kept], made):
                    calls = (n.func for n in walk(made) if isinstance(n, ast.Call))
                    for name in dict.fromkeys(map(last_name, calls)):
                        found.setdefault(name, []).append((cls.name, kept, made))
    return found


def _is_table(here: Surroundings, node: Node) -> bool:
    how = ""
    while node.op in _READING or _is_to_host(node):  # ``cu_seqlens.diff().max().item()``
        node, how = node.args[0], node.op
    if how == "py:int" and node.op in _OF_NUMBERS:
        return False
    parts = list(_parts(node))
    if not how and not any(part.op.removesuffix("(*)") in _LABOUR for part in parts):
        return False
    handed = [part for part in parts if part.op in {Op.PARAM, Op.ELEMENT} and _name(part) != "self"]
    tables = all(_TABLE.search(_name(part)) for part in handed)
    return bool(handed) and tables and all(_is_repeatable(here, part) for part in parts)


def _is_repeatable(here: Surroundings, part: Node) -> bool:
    """Tell whether a part of a value is the same in every layer; a list of pieces is read as text.

    ``[m[i % 3] for i, m in enumerate(cos.split(sections, dim=-1))]``
    """
    if part.op != Op.OPAQUE:
        return is_repeatable(here, part)
    called = re.findall(r"func=(?:Name\(id=|Attribute\(.*?attr=)'(\w+)'", str(part.value))
    return "ListComp(" in str(part.value) and _OF_PIECES.issuperset(called)


def _parts(node: Node) -> Iterator[Node]:
    """Yield what a value is computed from, but for what only shapes and devices are read of."""
    return node.walk(lambda part: () if _is_about(part) else part.args)


def _is_about(part: Node) -> bool:
    """Tell whether something is read about a tensor: ``device=x.device`` reads nothing of ``x``."""
    of_shape = part.op in {Op.DTYPE_OF, Op.RANK, Op.SHAPE, Op.SIZE}
    return of_shape or (part.op == Op.ATTR and part.value == "device")


def _is_to_host(node: Node) -> bool:
    """Tell whether a value is brought over by name: ``x.to("cpu")``."""
    return node.op == "to" and any(arg.value == "cpu" for arg in node.args[1:])


def _name(node: Node) -> str:
    """Return the name of a parameter, or of what a loop goes through."""
    return str(node.value[-1] if isinstance(node.value, tuple) else node.value)


def find_constants(here: Surroundings) -> Iterator[Proposal]:
    """Yield what is computed in each call from settings or sizes alone, once a table."""
    in_module = here.flow.cls is not None and _is_module(here.flow.cls)
    if (here.flow.cls is not None and not in_module) or _fills_buffers(here):
        return
    made = [
        (node.value, value)
        for node in here.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and here.loop_of(node) is None
        and (value := here.value(node.value)) is not None
    ]
    found = [(code, value) for code, value in made if _is_of_settings(here, value)]
    for code, _ in _wholes(found):
        kept = keep_table(here, code) if in_module else None
        yield kept or Proposal(code, _KEPT if in_module else _KEPT_BY_DEVICE)
    known = {value for _, value in found}
    sized = [(c, v) for c, v in made if v not in known and _is_of_settings(here, v, of_sizes=True)]
    for code, _ in _wholes(sized):
        yield Proposal(code, _KEPT_BY_SIZE)
    for node in here.nodes:
        if isinstance(node, ast.For) and _fills_with_numbers(here, node):
            yield Proposal(node, _KEPT_BY_SIZE)


def _fills_with_numbers(here: Surroundings, loop: ast.For) -> bool:
    """Tell whether two loops write numbers into a tensor of some size: a mask of windows.

    ``for h in slices: for w in slices: mask[:, h, w, :] = n; n += 1``
    """
    match loop.body:
        case [ast.For(body=[ast.Assign([ast.Subscript(ast.Name() as filled)], value), *rest])]:
            pass
        case _:
            return False
    counts = all(isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name) for s in rest)
    counted = {s.target.id for s in rest if isinstance(s, ast.AugAssign) and _is_name(s.target)}
    number = isinstance(value, ast.Constant) or (_is_name(value) and value.id in counted)
    tensor = here.value(filled)
    made = tensor is not None and any(
        part.op.removesuffix("(*)") in operators.FACTORIES for part in tensor.walk()
    )
    return counts and number and made and here.loop_of(loop) is None


def _is_name(code: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(code, ast.Name)


def _fills_buffers(here: Surroundings) -> bool:
    """Tell whether a method is where tables are kept: ``self.cos.copy_(theta.cos())``."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "copy_"
        and here.text(node.func.value).startswith("self.")
        for node in here.nodes
    )


def _is_module(cls: ast.ClassDef) -> bool:
    """Tell whether a class is a module, or that of a library: it has a ``forward``."""
    bases = [last_name(base) for base in cls.bases]
    forward = any(getattr(item, "name", "") == "forward" for item in cls.body)
    own = forward and bool(bases) and not any(base.endswith("Function") for base in bases)
    return own or any(base.endswith("Module") for base in bases)


def _is_of_settings(here: Surroundings, node: Node, *, of_sizes: bool = False) -> bool:
    """Tell whether nothing but settings and a device is read, and several operators are run.

    With ``of_sizes`` also the sizes of images, for what is made of two ranges at least.
    """
    parts: list[Node] = []
    stack = [node]
    while stack:
        part = stack.pop()
        parts.append(part)
        if of_sizes and part.op == Op.SIZE:
            continue
        # ``device=x.device`` reads nothing of ``x``
        about = part.op == Op.DTYPE_OF or (part.op == Op.ATTR and part.value == "device")
        given = part.op in {Op.PARAM, Op.ELEMENT, Op.CARRIED, Op.AFTER}
        given = given and _name(part) not in {"self", "device", "dtype"}
        if given and not _is_size(here, part, of_sizes=of_sizes):
            return False
        stack += () if about else part.args
    made = {
        part
        for part in parts
        if part.op.removesuffix("(*)") in operators.FACTORIES
        and any(arg.value != 1 for arg in part.args)  # one number is no table
    }
    if not made:
        return False
    # ``self.count - 1`` is computed by Python; what brings a table over is no reason to keep it,
    # nor what copies it: who writes into the copy needs one each time
    work = [
        p
        for p in parts
        if p.op in operators.TABLE
        and p.op not in operators.VIEWS | operators.MOVES | {"clone"}
        and not made.isdisjoint(p.walk())
    ]
    if is_changed(here, _names_of(here, made), 0):
        return False  # ``mask.scatter_(1, ids, 0)``
    fewest = _FEWEST_OF_SIZES if of_sizes else _FEWEST_OF_SETTINGS
    ranges = {p for p in made if p.op.removesuffix("(*)") in {"arange", "linspace"}}
    if of_sizes and len(ranges) < _FEWEST_OF_SETTINGS:
        return False
    # what ``device`` is asked of is none of its parts: ``tensors.data.device``
    return len(work) >= fewest and all(is_repeatable(here, p) or p.op == Op.SIZE for p in parts)


def _names_of(here: Surroundings, made: set[Node]) -> set[str]:
    """Return what the tensors that makers fill are called."""
    bound = (n for n in here.nodes if isinstance(n, ast.Assign) and here.value(n.value) in made)
    return {ast.unparse(target) for assign in bound for target in assign.targets}


def _is_size(here: Surroundings, node: Node, *, of_sizes: bool) -> bool:
    """Tell whether an argument is a number that is the same in each call, or an image's size."""
    if node.op != Op.PARAM:
        return False
    default = list_defaults(here.flow.function.args).get(str(node.value))
    fixed = isinstance(default, ast.Constant) and type(default.value) in {int, float}
    return fixed or (of_sizes and _SIZE.fullmatch(str(node.value)) is not None)
