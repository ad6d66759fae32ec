"""Loops over the rows of a batch in code of each step, with what a person writes for all rows.

``ragged`` and ``rows`` know loops of one purpose. What is left computes row by row what one call
takes for all of them, and here the loop's obstacle says which form that has.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.independence import (
    Round,
    asks_for_objects,
    base_of,
    is_other,
    is_stored,
    needs_others,
    read_round,
)
from npufix.rewriters.edit.loops.advice.objects import goes_back, shapes_rows, stands_alone
from npufix.rewriters.edit.loops.advice.ragged import MERGED
from npufix.rewriters.edit.loops.advice.rounds import look_up, reads_own_list
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_indexes,
    list_names,
    nodes_of,
    walk,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop
    from npufix.rewriters.graph.dataflow import FunctionFlow

DRAWN = (
    "each round draws random numbers of its own: draw those of all rows at once, below a limit of "
    "each row with (torch.rand(n, k, device=x.device) * limits[:, None]).long(), and choose with "
    "torch.where"
)
PAIRS = (
    "each round compares one element with all others: (x[:, :, None] - x[:, None]).norm(dim=-1) "
    "or torch.cdist compares all pairs at once, and masked_fill with torch.eye, or with "
    "F.one_hot(labels).bool(), leaves out one of each row"
)
NEIGHBOURS = (
    "each round compares a column with the one before, and only the first differs: "
    "x[:, 1:] - x[:, :-1] takes all others at once, and torch.cat puts the first in front"
)
PREFIXES = (
    "each round takes as much of one row as its length says: known = torch.arange(width, "
    "device=x.device) < lengths[:, None] tells it of all rows at once; torch.where(known, x, y) "
    "copies, (x * known[..., None]).sum(1) / lengths[:, None] is the mean, out[known] = "
    "torch.cat(parts) pads, and x[torch.arange(n, device=x.device)[:, None], starts[:, None] + "
    "torch.arange(width, device=x.device)] takes windows"
)
SELECTED = (
    "each round takes what a mask picks of one row, and the host waits for how many: place = "
    "mask.cumsum(1) - 1 tells where each goes in all rows, rows, columns = mask.nonzero("
    "as_tuple=True) waits once, out[rows, place[rows, columns]] = x[rows, columns]; what is only "
    "summed or averaged is torch.where(mask, x, 0).sum(1) / mask.sum(1)"
)
BATCHED = (
    "each round computes one row of a batch with kernels of its own: compute with x instead of "
    "x[i] (pieces as x.unflatten(0, (n, -1))), dimensions counted from the end (dim=-1, "
    "transpose(-1, -2), diagonal(dim1=-2, dim2=-1)), numbers of a row as n.view(-1, 1), gather for "
    "what each row picks, and torch.where for what a row decides"
)
REPEATED = (
    "each round repeats one row in a list: torch.repeat_interleave(x, counts, dim=0, "
    "output_size=total) repeats all of them at once, where total is known to the host"
)
GRADIENTS = (
    "each round goes back through the model for one element: torch.autograd.grad(y, x, "
    "torch.eye(y.numel(), dtype=y.dtype, device=y.device).view(-1, *y.shape), "
    "is_grads_batched=True), or torch.func.jacrev, goes back once for all of them, where all on "
    "the way can be batched and there is memory for it"
)
OF_BATCHES = (GRADIENTS, DRAWN, REPEATED, PAIRS, NEIGHBOURS, PREFIXES, SELECTED, BATCHED)
_MOST = 24
"""Statements of a round: nobody writes more anew."""
_FEW = 4
"""Rounds that are written out and hardly cost anything."""
_NO_ROWS = re.compile(
    r"(?i)(layer|block|level|lvl|stage|scale|iter|epoch|expert|module|branch|steps?\b|depth"
    r"|shapes|feats|splits|chunks|heads?\b)"
)
"""What is gone over that is no row of a batch: ``range(self.num_layers)``."""
_NOT_AT_ONCE = re.compile(
    r"(?i)(nms|fbank|iou3d|^index$|linear_sum_assign|assign|match|hungarian|decode|beam|search|tokeni[sz]|ctc|unique"
    r"|print|format|join|split_name|open|numpy|cpu|isinstance|setattr|deepcopy|backward"
    r"|copy_|all_reduce|all_gather|broadcast|barrier|item_list|log_|record|detect|render|generate"
    r"|crop|load|interpolate|grid_sample|roi|interp|resize|append_|extend|insert|add_|update|keys"
    r"|values|items|svd|solve|lstsq|eig)"
)
"""Calls that take one row or image after the other, or work for the host."""
_DRAWS = frozenset({"bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm"})
_PICKS = re.compile(r"(^|_)(mask|valid|keep|pos|neg|is)(s|_\w+)?$|mask$")
_ONE_BY_ONE = frozenset({"empty_cache", "from_numpy", "unique", "unique_consecutive"})
"""What torch has that takes no rows of a batch, or stands where memory is short."""
_OF_ONE_ROW = frozenset({"item", "masked_select", "nonzero", "tolist", "unique"})
"""What a method calls whose rows have results of several sizes."""
_REDUCES = re.compile(r"(?i)(loss|criterion|metric)(_?fn|_?func(tion)?)?$")
_COUNTERS = frozenset({"enumerate", "range", "zip"})
_SIZE = re.compile(r"(?i)(^|_)(axes_)?(dims?|sizes?|widths?|channels|num_\w+|nvec|classes)(_\w+)?$")
"""What says how many columns, or classes, something has."""
_LISTED = re.compile(r"(?i)(lists?|dicts?|metas)$")
"""What holds tensors of different sizes, or objects, by its name."""
_OUT = (
    ast.AsyncFor, ast.Await, ast.Break, ast.Delete, ast.Dict, ast.JoinedStr, ast.Lambda, ast.Raise,
    ast.Return, ast.Try, ast.While, ast.Yield,
)  # fmt: skip


def say_of_batch(flow: FunctionFlow, facts: Facts, loop: Loop) -> str:
    """Return the form of a loop that computes the rows of a batch one by one, "" for any other."""
    taken = read_round(flow, facts, loop)
    if any(_repeats(s, taken) for s in taken.body):
        return REPEATED
    if not _counts_rows(loop) or not _may_be_at_once(taken) or reads_own_list(loop.body):
        return ""
    return _form(taken) if _takes_rows(taken) else ""


def _form(taken: Round) -> str:
    """Return the form for what stands in the way of taking all rows as they are."""
    nodes = list(walk(*taken.code))
    picks = [n for n in nodes if isinstance(n, ast.Subscript)]
    tests = [n.test for n in nodes if isinstance(n, ast.If | ast.IfExp)]
    calls = list(taken.calls())
    first = any(_asks_first(test, taken) for test in tests)
    counts = any(last_name(call.func) in {"masked_select", "nonzero"} for call in calls)
    forms = {
        GRADIENTS: goes_back(taken),
        DRAWN: any(_draws(taken, call) for call in calls),
        PAIRS: _leaves_one_out(taken, picks),
        NEIGHBOURS: first and any(_is_before(pick, taken) for pick in picks),
        PREFIXES: any(_ends(pick, taken) for pick in picks),
        SELECTED: counts or any(_is_picked(pick, taken) for pick in picks),
        MERGED: any(map(_is_of_self, calls)),
        BATCHED: True,
    }
    form = next(form for form, fits in forms.items() if fits)
    sized = form in {MERGED, BATCHED} and (
        any(_sizes_row(taken, call) for call in calls) or shapes_rows(taken, nodes)
    )
    if sized or (form in {MERGED, BATCHED} and not _counts_up(taken)):
        return ""  # lists hold tensors of different sizes
    if form == BATCHED and (_only_reads(taken, nodes) or any(map(taken.shifts, picks))):
        return ""  # what the host reads in each round is told by itself
    if form == MERGED and any(
        taken.is_piece(item) for pick in picks for item in list_indexes(pick.slice)
    ):
        return ""  # who takes pieces of one tensor has little memory
    if form == MERGED and any(_takes_one_row(taken.flow, call) for call in calls):
        return ""
    if form == PREFIXES and any(taken.is_window(pick) or _is_part(pick, taken) for pick in picks):
        return ""
    cuts = _only_cuts if form == PREFIXES else _only_views if form == BATCHED else None
    return "" if cuts is not None and cuts(taken) else form


def _is_part(pick: ast.Subscript, taken: Round) -> bool:
    """Tell whether code is a part of joined rows that begins where the last ended: ``x[a:b]``."""
    match list_indexes(pick.slice)[0]:
        case ast.Slice(ast.Name(begin), ast.expr(), None):
            return begin in taken.moved
    return False


def _sizes_row(taken: Round, call: ast.Call) -> bool:
    """Tell whether a call makes as much of each row as a list says: ``rope(x[:, i], n[i])``."""
    given = [("", value) for value in call.args]
    given += [(word.arg or "", word.value) for word in call.keywords]
    for name, value in given:
        if not isinstance(value, ast.Subscript) or not list_names(value.slice) <= taken.own:
            continue
        sizes = any(map(_SIZE.search, (name, last_name(value.value))))
        if sizes and taken.facts.is_tensor(value.value) is not True:
            return True
    return False


def _only_reads(taken: Round, nodes: Sequence[ast.AST]) -> bool:
    """Tell whether all that a round takes of a tensor are numbers: ``n = lengths[i].item()``."""
    picks = [n for n in nodes if isinstance(n, ast.Subscript)]
    read = {
        ast.unparse(n.func.value)
        for n in nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "item"
    }
    rows = [n for n in picks if not is_stored(n) and list_names(n) & taken.own]
    filled = any(is_stored(n) and taken.facts.is_tensor(n.value) for n in picks)
    return bool(read) and all(ast.unparse(row) in read for row in rows) and not filled


def _only_cuts(taken: Round) -> bool:
    """Tell whether a round only collects parts as they are: ``parts.append(x[a:b])``.

    A list that is as long from the start takes them as well: ``parts[i] = x[i, :n[i]]``.
    """
    made: list[ast.expr | None] = [one.made for one in taken.loop.lists]
    made = made or [taken.loop.made]
    listed: list[ast.expr] = []
    for code in taken.code:
        match code:
            case ast.Expr(ast.Call(ast.Attribute(_, "append"), [value])):
                made.append(value)
            case ast.Assign([ast.Subscript(ast.Name(name)) as place], value) if _is_list(
                taken, name
            ):
                listed.append(place)
                made.append(value)
    writes = any(is_stored(n) and n not in listed for n in walk(*taken.code))
    known = [value for value in made if value is not None]
    return bool(known) and not writes and all(isinstance(v, ast.Subscript) for v in known)


def _only_views(taken: Round) -> bool:
    """Tell whether rounds list views, for which no kernel runs: ``[x[i] for i in range(n)]``."""
    match taken.loop.items:
        case ast.Call(ast.Name("range")):
            own = list_names(taken.loop.target)
        case _:
            return False
    picks = [n for n in walk(*taken.code) if isinstance(n, ast.Subscript)]
    places = [part for n in picks for part in list_indexes(n.slice)]
    numbers = all(isinstance(p, ast.Slice | ast.Constant) or list_names(p) <= own for p in places)
    made = any(isinstance(n.value, ast.Call) for n in picks)  # ``grid_sample(x[i], at)[0]``
    return _only_cuts(taken) and numbers and not made


def _repeats(code: ast.stmt, taken: Round) -> bool:
    """Tell whether code is ``rows += [x[i]] * n``."""
    match code:
        case ast.AugAssign(
            ast.Name(), ast.Add(), ast.BinOp(ast.List([ast.Subscript(base, row)]), ast.Mult())
        ):
            counted = isinstance(row, ast.Name) and row.id in taken.own
            return counted and taken.facts.is_tensor(base) is not False
    return False


def _counts_up(taken: Round) -> bool:
    """Tell whether a loop counts to a number, or goes over a tensor: ``range(batch_size)``.

    No row of a round may come out of a list.
    """
    for node in walk(*taken.code):
        match node:
            case ast.Subscript(ast.Name(name) | ast.Attribute(attr=name), ast.Name(counter)):
                if counter in taken.own and (_LISTED.search(name) or _is_list(taken, name)):
                    return False
    match taken.loop.items:
        case ast.Call(ast.Name("range"), [*_, ast.Call(ast.Name("len"), [over])]):
            return taken.facts.is_tensor(over) is True
        case ast.Call(ast.Name("range")):
            return True
        case ast.Call(ast.Name("enumerate"), [over]):
            return taken.facts.is_tensor(over) is True
    return False


def _is_list(taken: Round, name: str) -> bool:
    """Tell whether a function fills a list of that name: ``x = []``, ``parts = [None] * n``."""
    return any(
        isinstance(n, ast.Assign) and _makes_list(n.value) and name in map(ast.unparse, n.targets)
        for n in nodes_of(taken.flow.function)
    )


def _makes_list(code: ast.expr) -> bool:
    match code:
        case ast.List() | ast.ListComp() | ast.BinOp(ast.List(), ast.Mult()):
            return True
    return False


def _draws(taken: Round, call: ast.Call) -> bool:
    """Tell whether a call draws on the device."""
    name = last_name(call.func)
    return name in _DRAWS and taken.flow.names.dotted(call.func) == f"torch.{name}"


def _is_of_self(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name("self")):
            return True
    return False


def _takes_one_row(flow: FunctionFlow, call: ast.Call) -> bool:
    """Tell whether a method of the class itself decides, or goes over what one row has.

    ``self.clashes(x[i])`` with a loop over the chains of one protein; a module takes batches.
    A loss of one row, ``self.loss(x[i], y[i])``, is no part of that of all: it is their mean.
    """
    if _REDUCES.search(last_name(call.func)):
        return True
    methods = [] if flow.cls is None else flow.cls.body
    own = [m for m in methods if isinstance(m, FunctionNode) and m.name == last_name(call.func)]
    nodes = list(walk(*own))
    looks = any(isinstance(n, ast.Call) and last_name(n.func) in _OF_ONE_ROW for n in nodes)
    return looks or any(isinstance(n, ast.For | ast.While) for n in nodes)


def _counts_rows(loop: Loop) -> bool:
    """Tell whether a loop goes over rows, many of them perhaps."""
    text = f"{ast.unparse(loop.target)} {ast.unparse(loop.items)}"
    match loop.items:
        case ast.Call(ast.Name("range"), [_, _, _]):
            return False  # windows
        case ast.Call(ast.Name("range"), [*first, ast.Constant(int(count))]):
            begins = first[0].value if first and isinstance(first[0], ast.Constant) else 0
            return isinstance(begins, int) and count - begins > _FEW
        case ast.Call(ast.Name(name)) if name in _COUNTERS:
            return _NO_ROWS.search(text) is None
    return False


def _may_be_at_once(taken: Round) -> bool:
    """Tell whether nothing in a round asks for the rounds before, for the host or for objects."""
    nodes = list(walk(*taken.code))
    if sum(isinstance(n, ast.stmt) for n in nodes) > _MOST or any(
        isinstance(n, _OUT) for n in nodes
    ):
        return False
    for call in taken.calls():
        dotted = taken.flow.names.dotted(call.func) or ""
        of_torch = dotted.startswith("torch.") and last_name(call.func) not in _ONE_BY_ONE
        if not of_torch and _NOT_AT_ONCE.search(last_name(call.func)):
            return False
        called = call.func
        if isinstance(called, ast.Attribute) and called.attr == "forward":
            called = called.value  # ``self.layers[i].forward(x)``, as ``self.layers[i](x)``
        if isinstance(called, ast.Subscript) or dotted.split(".")[0] in {"numpy", "random"}:
            return False
    alone = stands_alone(taken, nodes) or asks_for_objects(taken, nodes)
    return not (alone or needs_others(taken, nodes))


def _takes_rows(taken: Round) -> bool:
    """Tell whether a round takes, or writes, rows that only a tensor of a device has.

    ``x[i, :n]`` and ``x[:, i]`` are of tensors, or of arrays; what is known of them decides.
    """
    found = False
    draws = any(_draws(taken, call) for call in taken.calls())
    for node in walk(*taken.code):
        if not isinstance(node, ast.Subscript):
            continue
        known = taken.facts.is_tensor(node.value)
        inner = taken.facts.node(node.value)
        if inner is not None and is_of_numpy(inner):
            return False
        if _fills_whole(node, taken):
            return False
        items = list_indexes(node.slice)
        of_round = any(isinstance(i, ast.Name) and i.id in taken.own for i in items)
        of_round |= any(isinstance(i, ast.Slice) and is_other(i, taken) for i in items)
        found |= any(isinstance(i, ast.Slice) and list_names(i) & taken.moved for i in items)
        found |= known is not False and any(map(taken.is_piece, items))
        parts = len(items) > 1 and any(isinstance(i, ast.Slice) or _is_dots(i) for i in items)
        found |= of_round and (known is True or (parts and known is not False))
        found |= of_round and draws and known is not False
        found |= of_round and known is not False and _is_counted_by(taken, node.value)
        own = isinstance(node.value, ast.Name) and node.value.id in list_names(taken.loop.target)
        found |= own and _ends(node, taken) and known is not False
    return found


def _fills_whole(code: ast.Subscript, taken: Round) -> bool:
    """Tell whether all of ``x[i]`` is written into: ``x[i][:] = 0``, as into one of a list."""
    match code:
        case ast.Subscript(
            ast.Subscript(_, ast.Name(name)), ast.Slice(None, None, None), ast.Store()
        ):
            return name in taken.own
    return False


def _is_counted_by(taken: Round, code: ast.expr) -> bool:
    """Tell whether the rounds are as many as a tensor has rows: ``range(x.shape[0])``, ``x[i]``."""
    node = taken.facts.node(code)
    match taken.loop.items:
        case ast.Call(ast.Name("range"), [stop]) if node is not None:
            end = taken.facts.node(stop)
            return end is not None and end.op == Op.SIZE and taken.facts.spans(end, node, 0)
    return False


def _is_dots(item: ast.expr) -> bool:
    return isinstance(item, ast.Constant) and item.value is ...


def _is_before(code: ast.Subscript, taken: Round) -> bool:
    """Tell whether an index is ``i - 1``."""
    return any(
        isinstance(i, ast.BinOp)
        and isinstance(i.op, ast.Sub)
        and isinstance(i.left, ast.Name)
        and i.left.id in taken.own
        for i in list_indexes(code.slice)
    )


def _asks_first(test: ast.expr, taken: Round) -> bool:
    """Tell whether a test is ``i == 0``."""
    match test:
        case ast.Compare(ast.Name(name), [ast.Eq() | ast.Gt() | ast.NotEq()], [ast.Constant(0)]):
            return name in taken.own
    return False


def _ends(code: ast.Subscript, taken: Round) -> bool:
    """Tell whether an index goes up to, or begins, where a table says of the round: ``i, :n[i]``.

    Columns of all rows, ``x[:, start:end]``, belong to heads of different widths.
    """
    for item in list_indexes(code.slice):
        if isinstance(item, ast.Slice):
            bounds = [b for b in (item.lower, item.upper) if b is not None]
            if not bounds:
                return False
            if any(_is_of_table(n, taken) for bound in bounds for n in walk(bound)):
                return True
        elif not (list_names(item) & taken.own or ast.unparse(item) == "None"):
            return False
    return False


def _is_of_table(code: ast.AST, taken: Round) -> bool:
    """Tell whether a number is one that the round looks up, and not its counter."""
    if isinstance(code, ast.Subscript):
        return bool(list_names(code.slice) & taken.own)
    return isinstance(code, ast.Name) and code.id in taken.of_round - taken.counted


def _leaves_one_out(taken: Round, picks: Sequence[ast.Subscript]) -> bool:
    """Tell whether a round joins ``x[:, :i]`` and ``x[:, i + 1 :]``."""
    below = above = False
    for pick in picks:
        for item in list_indexes(pick.slice):
            match item:
                case ast.Slice(None, ast.Name(name), None):
                    below |= name in taken.own
                case ast.Slice(ast.BinOp(ast.Name(name), ast.Add(), ast.Constant(1)), None, None):
                    above |= name in taken.own
    return below and above


def _is_picked(code: ast.Subscript, taken: Round) -> bool:
    """Tell whether an index is a mask of the round: ``x[i][mask[i]]``, ``x[i, x[i] > 0]``."""
    for item in list_indexes(code.slice):
        value = look_up(item, taken.bound)
        base = base_of(value)
        named = isinstance(base, ast.Name | ast.Attribute) and _PICKS.search(last_name(base))
        looked_up = value is not item or isinstance(item, ast.Subscript)
        if list_names(item) & taken.of_round and (
            isinstance(value, ast.Compare) or (named and looked_up)
        ):
            return True
    return False
