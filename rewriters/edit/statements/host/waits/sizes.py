"""Numbers of the device that the host needs as sizes and borders.

::

    text = text[:, : lengths.max()]     # of a tensor: the host waits, and nothing says so
    out = x.new_zeros(len(x), total.max())
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import (
    ARITHMETIC,
    first_read,
    is_count,
    is_named_loss,
    is_of_host,
)
from npufix.rewriters.edit.statements.host.seldom import is_default, is_rare, is_seldom
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.graph.modules.syntax import last_name
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Evaluation, Node

FOR_SIZE = (
    "the host waits for this number, because it becomes a size or a border: hand it in where the "
    "host has known it (lengths of the batch, shapes, settings), or compute at the full width and "
    "mask the rest, torch.arange(width, device=x.device) < n[:, None]"
)
FROM_CALLER = (
    "the host waits for lengths that it once knew: keep them there too where they are made (the "
    "loader, the packing), hand both in, and read none back; or use an operator that takes a tensor"
)
OF_SHAPES = frozenset(
    {"arange", "chunk", "empty", "expand", "full", "linspace", "narrow", "new_empty", "new_full",
     "new_ones", "new_zeros", "ones", "pad", "py:range", "py:slice", "rand", "randint", "randn",
     "repeat", "repeat_interleave", "reshape", "roll", "slice", "split", "topk", "unfold", "view",
     "zeros"}
)  # fmt: skip
"""Operators for which the host needs a number before it can go on."""
_OF_TENSORS = frozenset(
    {"chunk", "expand", "narrow", "new_empty", "new_full", "new_ones", "new_zeros", "repeat",
     "reshape", "roll", "topk", "unfold", "view"}
)  # fmt: skip
"""Those whose first argument is no size."""
_NUMBERS = frozenset({"py:float", "py:int"})
_OF_MASK = re.compile(r"mask|valid|non_?pad")
_BATCH_SIZE = re.compile(r"(?i)bsz?|b_?sz|batch_?size|n(um)?_batch(es)?")
_ON_THE_WAY = frozenset({*ARITHMETIC, Op.LIST, Op.PHI, Op.TUPLE, "py:int", "py:max"})
"""What a size may be before it is one: ``int(n) + 1``."""
_COMPUTED = frozenset(
    {Op.CAST, Op.LIST, Op.PHI, Op.SLICE, Op.TUPLE, *ARITHMETIC, "floordiv", "py:max", "py:min"}
)
"""What a tensor may go through before it is a size: ``n.max().int() + 1``, ``max(1, n.max())``."""
_READ = frozenset({"item", "py:int"})
_NAMES_OF_SIZES = frozenset(
    {"batch_size", "dim_size", "max_len", "max_length", "max_seqlen", "maxlen", "minlength",
     "num_segments", "out_size", "total_length"}
)  # fmt: skip
"""What functions of other packages call a size."""
_TAKE_TENSORS = frozenset({"full", "linspace", "pad", "repeat_interleave", "split"})
"""Those that are handed tensors for something else than a size, or for which others speak."""
_HOLDS = re.compile(r"(^|_)(masks?|lens|lengths)$")
_REDUCED = frozenset({"amax", "max", "mean", "norm", "prod", "sum"})
_LIMITS = frozenset({"amax", "amin", "max", "min", "sum"})
_LENGTHS = re.compile(
    r"(^|_)(i?lens?|\w*lengths?|seq_?lens?|cu_?seq\w*|splits?|group_list|start_locs?)(_\w+)?$"
)
SIZES = re.compile(rf"{_LENGTHS.pattern}|(^|_)grid_t?hws?$")
"""Of the sizes of images the host needs a list somewhere, of the largest of them none."""


_FROM_RANKS = re.compile(r"(^|[._])(all_gather|all_reduce|all_to_all|broadcast|recv)(_\w+)?$")
_COUNTS = frozenset({"bincount", "histc", "one_hot", "sum"})
_FOUND = frozenset({"nonzero", "unique", "unique_consecutive"})


def find_sizes(here: Surroundings) -> Iterator[Proposal]:
    """Yield tensors that are sizes as they are: Python makes a number of them, and waits."""
    said = set[int]()
    for evaluation in here.flow.evaluations:
        op = evaluation.node.op.removesuffix("(*)")
        if op not in OF_SHAPES - _TAKE_TENSORS:
            continue
        for size in _list_sizes(evaluation.node.args[op in _OF_TENSORS :]):
            code = _code_of(here, size) if _is_one_number(here, evaluation, size) else None
            if code is None or code.lineno in said or is_of_host(here, code):
                continue
            if is_seldom(here, code) or (is_rare(here, code) and not is_default(here, code)):
                continue
            said.add(code.lineno)
            known = are_lengths(size, SIZES) or is_called_so(code)
            yield Proposal(code, FROM_CALLER if known else FOR_SIZE)


def _list_sizes(given: Sequence[Node]) -> Iterator[Node]:
    """Yield what may be a size: also what is computed with one, ``n.max()`` of ``n.max() + 1``."""
    for arg in given:
        parts = arg.walk(lambda part: part.args if part.op in _COMPUTED else ())
        yield from (part for part in parts if part.op not in _COMPUTED)


def _is_one_number(here: Surroundings, at: Evaluation, node: Node) -> bool:
    """Tell whether a value is a tensor of one number that a reduction has made."""
    if node.op not in _LIMITS or is_of_numpy(node) or not node.args:
        return False
    if len(node.args) > 1 and here.facts(at, x=node).ndim("x") != 0:
        return False
    sure = here.facts(at, x=node).is_tensor("x")
    of_what = node.args[0]
    named = of_what.op == Op.PARAM and _HOLDS.search(str(of_what.value)) is not None
    open_yet = here.facts(at, x=of_what).is_tensor("x") is None
    return sure is True or (open_yet and (named or here.flow.cls is not None))


def _code_of(here: Surroundings, node: Node) -> ast.expr | None:
    found = here.flow.by_operation.get(node.op, ())
    codes = (e.code for e in found if e.node is node and isinstance(e.code, ast.expr))
    return next(codes, None)


def makes_shapes(here: Surroundings, users: Sequence[Node]) -> bool:
    """Tell whether the host needs a number, or what it makes of it: ``randint(0, n + 1, (4,))``.

    Also in a list of sizes, ``zeros((rows, n))``, and by name: ``scatter(x, at, dim_size=n)``.
    """
    made = list(users)
    for user in made:  # grows
        if user.op in _ON_THE_WAY:
            made += [u for u in here.users(user) if u not in made]
    if any(user.op.removesuffix("(*)") in OF_SHAPES for user in made):
        return True
    called = {user for user in made if user.op == Op.CALL}
    return bool(called) and any(
        size in made or size.op in _READ
        for n in here.nodes
        if isinstance(n, ast.keyword) and n.arg in _NAMES_OF_SIZES
        if (size := here.value(n.value)) is not None
        if isinstance(outer := here.parents.get(id(n)), ast.Call) and here.value(outer) in called
    )


def counts_rounds(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a number says how many rounds there are: ``range(x.max().item() + 1)``."""
    for outer in here.around(code):
        match outer:
            case ast.BinOp():
                pass
            case ast.Call(ast.Name(called)):
                return called == "range"
            case _:
                return False
    return False


def are_lengths(node: Node, names: re.Pattern[str] = _LENGTHS) -> bool:
    """Tell whether a value is computed from lengths alone, as far as names tell."""
    parts = [p for p in node.walk(_of_values) if p.op in {Op.PARAM, Op.ATTR, Op.CALL}]
    held = {id(part.args[0]) for part in parts if part.op == Op.ATTR}  # ``packed`` of ``packed.x``
    parts = [part for part in parts if id(part) not in held]
    return bool(parts) and all(
        part.op != Op.CALL and names.search(str(part.value)) for part in parts
    )


def _of_values(node: Node) -> Sequence[Node]:
    """Return what a value is computed from, not the places that are taken: ``n`` of ``x[:n]``."""
    return node.args[:1] if node.op == Op.GETITEM else node.args


def is_called_so(code: ast.expr) -> bool:
    """Tell whether a name says that the largest of lengths is read: ``seq_lens.max()``."""
    match code:
        case ast.Call(ast.Attribute(ast.Name() | ast.Attribute() as whole), []):
            return _LENGTHS.search(last_name(whole)) is not None
    return False


def tell_size(here: Surroundings, code: ast.expr, value: Node | None) -> Proposal | None:
    """Return what to do about a number that becomes a size, unless nobody can know it before.

    How much other ranks have is such a number, how many a search has found, and how many rows a
    router gives to each expert.
    """
    parts = set() if value is None else {*value.walk()}
    calls = (found.node.args for found in here.flow.by_operation.get(Op.CALL, ()))
    if any(_FROM_RANKS.search(str(to.value)) and parts & {*x[:1]} for to, *x in calls):
        return None  # ``dist.all_reduce(longest)`` has written to it
    operators = {node.op for node in parts}
    if "topk" in operators and not _COUNTS.isdisjoint(operators):
        return None
    for node in parts:
        called = str(node.args[0].value) if node.op == Op.CALL else ""
        if node.op in _FOUND or _FROM_RANKS.search(called):
            return None
    return Proposal(code, FOR_SIZE)


def is_of_caller(here: Surroundings, code: ast.Call, tensor: ast.expr, how: str) -> bool:
    """Tell whether the lengths that a function is handed are read, or the largest of them.

    ``lengths.tolist()``, ``cu_seqlens.diff().max().item()``, ``packed.cu_seqlens[1:].tolist()``,
    ``query_lens.max().item()`` of what another method has returned.
    """
    outer = here.parents.get(id(code))
    if isinstance(outer, ast.Call) and last_name(outer.func) == "pack_padded_sequence":
        return True  # which wants them on the host
    first = first_read(tensor)
    node = here.value(first)
    if node is None:
        return False
    if how in {"item", "int"}:
        if node.op in _REDUCED:
            return are_lengths(node, SIZES) or is_called_so(first)
        return node.op == Op.GETITEM and node.args[1].op == Op.CONST and are_lengths(node)
    is_own = node.op == Op.ATTR and node.args[0].value == "self"  # which somebody has filled
    return how in {"cpu", "numpy", "tolist"} and not is_own and are_lengths(node)


def is_returned(here: Surroundings, code: ast.expr, tensor: ast.expr) -> bool:
    """Tell whether another method of a module gets a count, besides tensors.

    So does another function of the file: ``loss, n_right = evaluate_batch(pred, gold)``. Whoever
    wants the loss of a step calls from anywhere.
    """
    value, of = here.value(code), here.value(tensor)
    if value is None or of is None:
        return False
    if not is_count(of) and not (of.op == "sum" and _OF_MASK.search(here.text(tensor))):
        return False
    ends = [n.value for n in here.nodes if isinstance(n, ast.Return)]
    beside = [e for end in ends if isinstance(end, ast.Tuple) for e in end.elts]
    own = "" if here.flow.cls is None else "self."
    calls = re.compile(rf"(?<!def )(?<![\w.]){own}{here.flow.function.name}\(")
    values = [here.value(e) for e in beside]
    given = any(v is value or (v and v.op in _NUMBERS and value in v.args) for v in values)
    given = given and any(here.is_tensor(e) or is_named_loss(e) for e in beside)
    of_step = here.is_hot and any(map(is_named_loss, beside))
    return given and (of_step or any(map(calls.search, here.lines)))


def is_batch_size(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether the host reads how many samples there are: ``batch_size = c[-1, 0].item() + 1``.

    It has put them together.
    """
    match here.statement_of(code):
        case ast.Assign([ast.Name(name)], value) if _BATCH_SIZE.fullmatch(name):
            while isinstance(value, ast.BinOp) and isinstance(value.right, ast.Constant):
                value = value.left
            inner = value.args[0] if isinstance(value, ast.Call) and _is_int_call(value) else value
            return value is code or inner is code
    return False


def _is_int_call(code: ast.expr) -> bool:
    return isinstance(code, ast.Call) and ast.unparse(code.func) == "int" and bool(code.args)
