"""Places that a mask marks, and different values: for how many there are the host waits.

::

    at = torch.nonzero(kind != n, as_tuple=True)[0]   at = kind != n
    y[at, kind[at]] = 1                               all_of = torch.arange(y.shape[1], ...)
                                                      y[at[:, None] & (kind[:, None] == all_of)] = 1
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.handed_in import is_handed_in
from npufix.rewriters.edit.statements.host.of_host import READING, is_of_host
from npufix.rewriters.edit.statements.host.seldom import is_rare, is_seldom
from npufix.rewriters.edit.statements.host.waits.written_places import is_named, write_by_mask
from npufix.rewriters.edit.statements.masked.formulas import reads_of_formulas
from npufix.rewriters.edit.statements.masked.sums import reads_under_mask
from npufix.rewriters.edit.statements.mixtures.experts import find_rows_of_masks
from npufix.rewriters.edit.statements.proposal import Change, Proposal, put
from npufix.rewriters.facts.steps.classes import list_words
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import list_indexes
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Evaluation, Node

_SELECTS = frozenset(
    {
        "decode", "detect", "detections", "filter", "generate", "infer", "inference", "keep", "nms",
        "postprocess", "predict", "prune", "results", "select", "unpad",
    }
)  # fmt: skip
"""Words of what hands over as much as there is, which is another number each time."""
_LEARNS = frozenset({"criterion", "loss", "losses"})
_ENDS_EPISODE = re.compile(r"(^|[._])(dones?|reset_buf|terminat(ed|ions?)|truncat(ed|ions?))$")
"""Which environments begin anew: few do, and the host is told of their scores."""
_COUNTED = frozenset({"any", "count_nonzero", "numel", "py:len", Op.RANK, Op.SHAPE, Op.SIZE})
_MASKS = operators.COMPARISONS | {
    "and", "bitwise_and", "bitwise_not", "bitwise_or", "invert", "isfinite", "isnan",
    "logical_and", "logical_not", "logical_or", "or",
}  # fmt: skip
_RESHAPED = frozenset({"flatten", "reshape", "squeeze", "t", "view", Op.GETITEM})
_SUMS = frozenset({"mean", "sum"})
_TAKEN = _RESHAPED | {Op.ITEM}
_FORM_MARKED = "marked"
_PLACES = (
    "the host waits for how many places there are, and what they pick has another shape each time: "
    "compute with all elements and weigh by the mask, (loss * mask).sum() / "
    "mask.sum().clamp(min=1), compare labels with arange for rows of one-hot, or take a fixed "
    "number with topk"
)
_PLACES_IN_LOOP = (
    "the host waits in every round for how many places there are: find those of all rounds at once "
    "before the loop (one nonzero of the stacked masks), or compute with all elements and weigh by "
    "the mask"
)
_DIFFERENT = (
    "the host waits for how many different values there are: where they are small numbers, count "
    "them in a vector of fixed length, torch.bincount(x, minlength=n), or find them once where the "
    "host has the data"
)
_PLACE_OF_EACH = (
    "the host waits for how many different values there are: where they are small numbers, each "
    "says itself where it belongs, out.index_add_(0, x, values) into a fixed number of rows; or "
    "find them once where the host has the data"
)
_DIFFERENT_ROWS = (
    "the host waits for how many different rows there are: find them once where the host has the "
    "data, or give each row one number, (x * strides).sum(1), and count those in a vector of fixed "
    "length"
)


def find_positions(here: Surroundings) -> Iterator[Proposal]:
    """Yield each mask whose places the host waits for, and each tensor whose values it counts."""
    words = list_words(here.flow.qualname)
    if not words.isdisjoint(_SELECTS):
        return
    told: set[Node] = set()
    operations = ("nonzero", "masked_select", "unique")
    every = [found for op in operations for found in here.flow.by_operation.get(op, ())]
    of_rows = bool(every) and any(find_rows_of_masks(here))  # NPU222 finds those of all rounds
    without = reads_under_mask(here) if "masked_select" in {e.node.op for e in every} else set()
    for found in every:
        if id(found.code) in without:
            continue  # it is added up without them
        if (first := _copied_first(here, found)) is not None:
            yield first
            continue
        in_loop = isinstance(found.code, ast.expr) and here.loop_of(found.code) is not None
        if found.node not in told and not (of_rows and in_loop) and _waits(here, found):
            told.add(found.node)
            yield _mark(here, found) or _write(here, found) or _tell(here, found)
    if words & _LEARNS:
        yield from _list_selected(here)


def _write(here: Surroundings, found: Evaluation) -> Proposal | None:
    mask = _mask_of(found.code) if isinstance(found.code, ast.Call) else None
    return None if mask is None or found.node.op != "nonzero" else write_by_mask(here, found, mask)


def _tell(here: Surroundings, found: Evaluation) -> Proposal:
    assert isinstance(found.code, ast.expr)  # noqa: S101 - a call
    if found.node.op == "unique":
        words = {w.arg for w in found.code.keywords} if isinstance(found.code, ast.Call) else set()
        each = _PLACE_OF_EACH if "return_inverse" in words else _DIFFERENT
        return Proposal(found.code, _DIFFERENT_ROWS if "dim" in words else each)
    return Proposal(found.code, _PLACES if here.loop_of(found.code) is None else _PLACES_IN_LOOP)


def _waits(here: Surroundings, found: Evaluation) -> bool:
    """Tell whether each step waits for it: no other rule counts the places, or is of experts."""
    code = found.code
    if not isinstance(code, ast.Call) or is_handed_in(here, found.node):
        return False
    mask = _mask_of(code)
    if mask is None or is_of_host(here, mask) or is_seldom(here, code) or is_rare(here, code):
        return False
    if _ENDS_EPISODE.search(here.text(mask)):
        return False
    users = {user.op for user in here.users(found.node)}
    if users and users <= _COUNTED | _SUMS and found.node.op != "unique":
        return False  # NPU209 counts and adds up without the places
    known = (_is_read, _only_writes, _numbers_anew)
    if any(answers(here, found.node) for answers in known):
        return False  # the host waits for the places themselves, or a mask would not help
    loop = here.loop_of(code)
    around = "" if loop is None else here.text(loop)[:200] if isinstance(loop, ast.stmt) else ""
    return "expert" not in f"{here.flow.qualname}{around}".lower()


def _numbers_anew(here: Surroundings, found: Node) -> bool:
    """Tell whether values get numbers from 0 on: ``_, y = x.unique(return_inverse=True)``.

    A loss of classes wants those; nothing of fixed length says them.
    """
    losses = (e.node for e in here.flow.by_operation.get("cross_entropy", ()))
    classes = [loss.args[1] for loss in losses]
    arms = [*classes, *(arm for node in classes if node.op == Op.PHI for arm in node.args)]
    is_named = any(user.args[1].value == 0 for user in here.users(found) if user.op == Op.GETITEM)
    return not is_named and any(
        arm.op == Op.GETITEM and arm.args[0] is found and arm.args[1].value == 1 for arm in arms
    )


def _is_read(here: Surroundings, places: Node) -> bool:
    """Tell whether the host reads the places, or goes through them: ``x.nonzero()[:, 0].tolist()``.

    What to do instead of a loop the rules of loops know.
    """
    todo = [places]
    for node in todo:  # grows
        for user in here.users(node):
            if user.op in READING or user.op == Op.LOOP:
                return True
            if user.op in _RESHAPED and user not in todo:
                todo.append(user)
    return False


def _only_writes(here: Surroundings, places: Node) -> bool:
    """Tell whether rows are written where a mask is: ``text[0, places] = images``.

    As many as there are: they stand in no tensor of the width of the mask.
    """
    todo, found = [places], False
    for node in todo:  # grows
        for user in here.users(node):
            if user.op == Op.SETITEM and node not in {user.args[0], user.args[-1]}:
                if user.args[-1].op == Op.CONST:
                    return False
                found = True
            elif user.op == Op.TUPLE or (user.op in _TAKEN and user.args[0] is node):
                todo += [user] if user not in todo else []
            else:
                return False
    return found


def _copied_first(here: Surroundings, found: Evaluation) -> Proposal | None:
    """Return how a mask is copied to the host whole, where its places are: one wait, not two.

    ``mask.any(1).nonzero().cpu()``
    """
    code = found.code
    mask = _mask_of(code) if isinstance(code, ast.Call) and found.node.op == "nonzero" else None
    of = None if mask is None else here.value(mask)
    if mask is None or of is None or of.op not in _MASKS | {"all", "any"}:
        return None
    places = found.node
    while len(users := here.users(places)) == 1 and users[0].op in _RESHAPED:
        places = users[0]
    if any(o.node in {found.node, places} for o in here.flow.observables):
        return None
    if not users or any(user.op not in READING for user in users):
        return None
    if is_of_host(here, mask) or is_seldom(here, code):
        return None
    return put(
        here,
        mask,
        f"{here.text_of_owner(mask)}.cpu()",
        form="found_on_device",
        proven={"is-tensor"} if here.is_tensor(mask) else set(),
    )


def _mask_of(code: ast.Call) -> ast.expr | None:
    """Return ``mask`` of ``torch.nonzero(mask)`` and of ``mask.nonzero()``."""
    match code:
        case ast.Call(ast.Attribute(ast.Name("torch" | "th")), [mask, *_]):
            return mask
        case ast.Call(ast.Attribute(mask)):
            return mask
    return None


def _list_selected(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``x[mask]`` of which a loss is taken, where the mask selects nothing else besides."""
    picked: dict[Node, list[ast.Subscript]] = {}
    for node in here.nodes:
        match node:
            case ast.Subscript(owner, index, ast.Load()) if here.is_tensor(owner) is not False:
                for part in list_indexes(index)[:1]:
                    mask = here.value(part)
                    if mask is not None and mask.op in _MASKS:
                        picked.setdefault(mask, []).append(node)
    without = reads_under_mask(here) | reads_of_formulas(here) if picked else set()
    for places in picked.values():
        if id(places[0]) in without:
            continue  # it is written without them
        if len(places) == 1 and _needs_all(here, places[0]) and not _is_tested(here, places[0]):
            yield Proposal(
                places[0], _PLACES if here.loop_of(places[0]) is None else _PLACES_IN_LOOP
            )


def _is_tested(here: Surroundings, code: ast.Subscript) -> bool:
    """Tell whether a test asks what is in the mask, which NPU217 tells of: ``if mask.any():``."""
    masks = {here.value(part) for part in list_indexes(code.slice)[:1]}
    tests = (here.value(test) for test in here.tests_around(code))
    return any(part in masks for test in tests if test is not None for part in test.walk())


def _needs_all(here: Surroundings, code: ast.Subscript) -> bool:
    """Tell whether more is done with what is selected than to count it, or to add it up."""
    if is_seldom(here, code) or is_rare(here, code) or is_of_host(here, code.value):
        return False
    value = here.value(code)
    users = set() if value is None else {user.op for user in here.users(value)}
    return not users <= _COUNTED | _SUMS


def _mark(here: Surroundings, found: Evaluation) -> Proposal | None:
    """Return how ``y[at, kind[at]] = 1`` marks a column of each row that a mask has."""
    code = found.code
    bound = here.statement_of(code) if isinstance(code, ast.Call) else None
    mask = _mask_of(code) if isinstance(code, ast.Call) else None
    match bound:
        case ast.Assign([ast.Name(name)], value) if isinstance(mask, ast.Compare):
            pass
        case _:
            return None
    names = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name]
    loads = [n for n in names if isinstance(n.ctx, ast.Load)]
    if len(names) != len(loads) + 1 or not loads or here.torch != "torch":
        return None
    written = here.statement_of(loads[0])
    match written:
        case ast.Assign(
            [
                ast.Subscript(
                    ast.Name(matrix),
                    ast.Tuple(
                        [ast.Name(first), ast.Subscript(ast.Name(labels), ast.Name(second))]
                    ) as index,
                )
            ],
            ast.Constant(int() | float()),
        ) if first == second == name and len(loads) == 2:  # noqa: PLR2004 - both in this statement
            pass
        case _:
            return None
    block = here.block_of(written)
    start = block.index(bound) + 1 if bound in block else None
    if start is None or is_named(block[start : block.index(written)], labels):
        return None
    if not _is_vector(here, value, found.node):
        return None
    columns = f"torch.arange({matrix}.shape[1], device={matrix}.device)"
    same = " == ".join((f"{labels}.unsqueeze(1)", columns))
    marked = " & ".join((f"{name}.unsqueeze(1)", f"({same})"))
    text = here.text(mask)
    return Proposal(
        code,
        form=_FORM_MARKED,
        changes=(Change(here.span(value), text), Change(here.span(index), marked)),
        shown=f"{name} = {text}; {matrix}[{marked}] = {here.text(written.value)}",
        proven=frozenset({"is-tensor"} if here.is_tensor(mask.left) else ()),
    )


def _is_vector(here: Surroundings, code: ast.expr, places: Node) -> bool:
    """Tell whether the places of a mask of one dimension are taken as a vector of them."""
    value = here.value(code)
    if value is None or value is places or places not in value.args:
        return False
    if value.op == Op.GETITEM:
        index = value.args[1]
        return index.op == Op.CONST and index.value == 0 and places.args[-1].value is True
    return value.op in _RESHAPED - {"t"}
