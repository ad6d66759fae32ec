"""The loops of a function over rows: what each becomes, or why it stays."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.batches import BATCHED, PREFIXES, say_of_batch
from npufix.rewriters.edit.loops.advice.independent import OF_CALLS, say_of_rounds
from npufix.rewriters.edit.loops.advice.objects import goes_over_no_rows
from npufix.rewriters.edit.loops.advice.pairings import say_of_pairs
from npufix.rewriters.edit.loops.advice.ragged import (
    MERGED,
    RECURRENCES,
    UNPADDED,
    calls_for_each_row,
    say_how,
    takes_padding_off,
)
from npufix.rewriters.edit.loops.advice.rows import ROWS, say_by_hand
from npufix.rewriters.edit.loops.choosing import BRANCH, never_fails, pick, read_truth
from npufix.rewriters.edit.loops.expressions import RANDOM, UNKNOWN_CALL, UNKNOWN_CODE, WRITTEN_READ
from npufix.rewriters.edit.loops.filling import Pieces, read_pieces
from npufix.rewriters.edit.loops.given.facts import Facts
from npufix.rewriters.edit.loops.given.reading import (
    FilledList,
    Loop,
    loops_in,
    may_hold_loops,
    spell_out,
)
from npufix.rewriters.edit.loops.given.values import (
    LENGTHS,
    NO_TENSOR,
    OF_A_LIST,
    SHARED,
    UNKNOWN_RANK,
    CannotBatchError,
    Domain,
)
from npufix.rewriters.edit.loops.indexing import OF_HOST, OTHER_ROUND
from npufix.rewriters.edit.loops.rows.domains import NO_DOMAIN, STEPS, index_written, read_domain
from npufix.rewriters.edit.loops.rows.joining import add_up, grow, join, join_rounds, rows_of
from npufix.rewriters.edit.loops.rows.nearest import read_elements
from npufix.rewriters.edit.loops.rows.on_host import calls_with_rows, fills_host, is_of_host_alone
from npufix.rewriters.edit.loops.rows.order import EFFECT, RECURRENCE
from npufix.rewriters.edit.loops.rows.ranges import read_ranges
from npufix.rewriters.edit.loops.rows.windows import read_windows
from npufix.rewriters.edit.loops.statements import Body
from npufix.rewriters.edit.loops.submodules import DROPOUT, MODULES, STATISTICS
from npufix.rewriters.edit.loops.together import UNKNOWN_DIMENSION
from npufix.rewriters.edit.loops.writing import Join, write
from npufix.rewriters.edit.rewrite import NotRewritableError
from npufix.rewriters.facts.occasions import is_aside, is_done_once, is_hot, occasion
from npufix.rewriters.facts.steps.functions import takes_tensors
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.facts.steps.weights import OF_STEPS, WEIGHTS, changes_weights, takes_lists
from npufix.rewriters.graph.dataflow import FunctionFlow, UnsupportedCodeError
from npufix.rewriters.graph.modules.syntax import list_names, list_stored_names, nodes_of, walk
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.rewriters.edit.site import Rewrite
    from npufix.rewriters.graph.nodes import Evaluation

READ_AFTERWARDS = "what the last round leaves in a name is read afterwards"
_MAKES_ONCE = re.compile(r"_*(init|reset|build|create|make|register|setup)(_|$)\w*")  # once
_SPARES_MEMORY = re.compile(r"(?i)(^|_)(slic(ed|ing)|chunk(ed|wise)|til(ed|ing))(_|$)")
_MAKES_OF_BATCH = re.compile(r"_*(add|build|create|get|make|prepare)_")  # ``make_targets(x)``
_MOST_STATEMENTS = 60
# What no writing would change; of others it is worth saying that they are slow.
_NO_ROWS = frozenset(
    {UNKNOWN_CALL, EFFECT, RECURRENCE, OTHER_ROUND, WRITTEN_READ, SHARED, MODULES, STATISTICS,
     DROPOUT, RANDOM, NO_DOMAIN, NO_TENSOR, STEPS, OF_A_LIST, OF_HOST, READ_AFTERWARDS,
     UNKNOWN_CODE, LENGTHS}
)  # fmt: skip
_ROWS_TOO = frozenset({EFFECT, UNKNOWN_RANK, UNKNOWN_DIMENSION})
"""What is worth saying of those where it is plain that rows of a tensor are taken."""


@dataclass(frozen=True)
class FoundLoop:
    """A loop over rows."""

    code: ast.expr | ast.stmt
    lines: frozenset[int]
    conditions: tuple[str, ...] = ()
    """What is not proven about it."""
    rewrite: Rewrite | None = None
    problem: str = ""


def find_loops(
    source: str,
    flow: FunctionFlow,
    *,
    with_text: bool = True,
    all_of_them: bool = False,
    may_look: Callable[[], bool] = lambda: True,
) -> Iterator[FoundLoop]:
    """Yield the loops over rows of a function; those inside one that can be written are part of it.

    With ``all_of_them`` also those that take rows of something that may be no tensor. ``may_look``
    is asked before each: for every loop the whole function is read again.
    """
    if not may_hold_loops(flow.function):
        return
    if _MAKES_ONCE.match(flow.function.name) and not all_of_them and not _is_called(flow):
        return
    function, comprehensions = spell_out(flow.function, flow.names)
    wide = flow
    if comprehensions:
        scope = None if flow.scope is None else replace(flow.scope, function=function)
        try:
            wide = read_function(function, flow.names, flow.cls, scope=scope)
        except UnsupportedCodeError:
            return
    taken: list[tuple[int, int]] = []
    told: list[tuple[int, int]] = []
    for loop in (*loops_in(flow.function.body, flow.names), *comprehensions):
        inside = list(_inside(wide, loop))
        no_rows = is_of_host_alone(wide, loop, inside) or takes_lists(flow.function, loop.items)
        if no_rows or _is_within(loop, taken) or _stays(source, loop):
            continue
        if not may_look():
            return
        found = _find(source, flow, wide, loop, with_text=with_text)
        if found is not None and found.rewrite is None:
            # what is said of the loop around it says more
            said = None if _is_within(loop, told) else _say_why(flow, wide, loop, found)
            found = said or (found if all_of_them and found.problem != NO_DOMAIN else None)
        if found is not None:
            (taken if found.rewrite else told).append(_lines_of(loop))
            yield found
    yield from _find_comprehensions(flow, [*taken, *told])


def _lines_of(loop: Loop) -> tuple[int, int]:
    return loop.first.lineno, loop.statement.end_lineno or loop.statement.lineno


def _is_within(loop: Loop, others: Sequence[tuple[int, int]]) -> bool:
    first, last = _lines_of(loop)
    return any(a <= first and last <= b for a, b in others)


def _stays(source: str, loop: Loop) -> bool:
    """Tell whether nobody writes a loop anew: a large one, of few rounds, or one for memory."""
    large = sum(isinstance(n, ast.stmt) for n in walk(*loop.body)) > _MOST_STATEMENTS
    return large or goes_over_no_rows(source, loop)


def _find_comprehensions(
    flow: FunctionFlow, taken: Sequence[tuple[int, int]]
) -> Iterator[FoundLoop]:
    """Yield comprehensions that no loop is made of, with what to write instead."""
    nodes = list(nodes_of(flow.function))
    lists = [node for node in nodes if isinstance(node, ast.ListComp)]
    found = [(code, UNPADDED) for code in lists if takes_padding_off(code)]
    called = [code for code in lists if calls_for_each_row(code)]
    if called and _is_in_steps(flow):  # what is joined at once is read as a loop
        joined = {id(c) for node in nodes if isinstance(node, ast.Call) for c in node.args}
        found += [(code, MERGED) for code in called if id(code) not in joined]
    for code, advice in found:
        if not any(first <= code.lineno <= last for first, last in taken):
            lines = frozenset(range(code.lineno, (code.end_lineno or code.lineno) + 1))
            yield FoundLoop(code, lines, problem=advice)


def _say_why(
    flow: FunctionFlow, wide: FunctionFlow, loop: Loop, found: FoundLoop
) -> FoundLoop | None:
    """Return a loop that stays with what is worth telling of it, ``None`` if nothing is."""
    inside = list(_inside(wide, loop))
    facts = Facts(wide, inside)
    of_host = fills_host(wide, inside) and not calls_with_rows(facts, loop)
    if of_host or _SPARES_MEMORY.search(flow.function.name):
        return None
    if changes_weights(loop.statement) and OF_STEPS.search(flow.function.name):
        return replace(found, code=loop.first, problem=WEIGHTS)
    advice = say_how(loop) if _is_in_steps(flow) else ""
    if advice == RECURRENCES and not _computes_tensors(wide, loop):
        advice = ""
    if not advice and _is_in_steps(flow):
        advice = say_of_pairs(facts, loop) or say_by_hand(wide, facts, loop)
        if advice in {"", ROWS}:
            of_batch = say_of_batch(wide, facts, loop)
            advice = of_batch if not advice or of_batch == PREFIXES else advice
        if advice in {"", BATCHED, PREFIXES}:
            of_rounds = say_of_rounds(wide, facts, loop)
            advice = of_rounds if not advice or of_rounds in OF_CALLS else advice
    if advice:
        return replace(found, code=loop.first, problem=advice)
    told = found.problem not in _NO_ROWS and _is_about_rows(wide, loop)
    told = told or (found.problem in _ROWS_TOO and _takes_rows(wide, loop))
    told = told and (flow.scope is None or not is_done_once(flow.scope))
    return found if told and _only_computes(loop) else None


def _computes_tensors(flow: FunctionFlow, loop: Loop) -> bool:
    """Tell whether nothing that a loop reads is known to be no tensor, as arrays of NumPy are."""
    facts = Facts(flow, list(_inside(flow, loop)))
    rows = [n.value for n in walk(*loop.body) if isinstance(n, ast.Subscript)]
    names = (flow.names.dotted(n) or "" for n in nodes_of(flow.function) if isinstance(n, ast.Name))
    of_arrays = any(name.split(".")[0] == "numpy" for name in names)
    return not of_arrays and not any(facts.is_tensor(row) is False for row in rows)


def _is_in_steps(flow: FunctionFlow) -> bool:
    """Tell whether a function runs in each step, or is handed tensors, whoever calls it."""
    scope = flow.scope
    if scope is None or is_hot(scope, flow.names.tree):
        return scope is not None
    begins_once = is_done_once(scope) and not _MAKES_OF_BATCH.match(scope.function.name)
    of_batch = takes_tensors(scope.function) and not is_aside(scope.qualname) and not begins_once
    return of_batch and occasion(flow) is Occasion.STEP


def _is_called(flow: FunctionFlow) -> bool:
    """Tell whether a function that makes something does so in each step: ``make_pad_mask``."""
    named = re.search(r"_mask|mask_", flow.function.name) is not None
    return named or _is_in_steps(flow)


def _find(
    source: str, flow: FunctionFlow, wide: FunctionFlow, loop: Loop, *, with_text: bool
) -> FoundLoop | None:
    inside = list(_inside(wide, loop))
    if not inside:
        return None
    facts = Facts(wide, inside)
    found = _try(source, flow, loop, facts, with_text=with_text)
    if found is not None and found.problem in {UNKNOWN_RANK, UNKNOWN_DIMENSION}:
        facts.assume_ranks()
        again = _try(source, flow, loop, facts, with_text=with_text)
        found = again if again is not None and again.rewrite is not None else found
    if found is not None and found.rewrite is None:
        return _of_ranges(source, flow, loop, Facts(wide, inside), with_text=with_text) or found
    return found


def _try(
    source: str, flow: FunctionFlow, loop: Loop, facts: Facts, *, with_text: bool
) -> FoundLoop | None:
    lines = frozenset(range(loop.first.lineno, (loop.statement.end_lineno or 0) + 1))
    code: ast.expr | ast.stmt = loop.joined or loop.statement
    try:
        pieces = read_pieces(loop, facts) or read_elements(loop, facts)
        if pieces is not None:
            return _of_pieces(source, flow, loop, facts, pieces, with_text=with_text)
        domain, code_of_round = index_written(
            read_domain(loop.target, loop.items, facts), loop.body
        )
        body = Body(domain, facts, code_of_round)
        body.of.is_joined = loop.joined is not None or bool(loop.lists)
        statements = body.run(code_of_round)
        new = None
        if loop.picked and loop.test is not None:
            _require_indexes(flow, loop, body)
            statements += pick(body, loop.picked, loop.test)
        if loop.is_statement and not statements and not loop.lists and not loop.total:
            return None
        if loop.joined is not None and loop.made is not None:
            new = join_rounds(loop.joined, loop.made, body.of)
            body.require_apart()
            statements += body.of.aligner.statements
            taken = [v for name, v in domain.names.items() if name in body.of.taken]
            if any(_may_be_listed(v.code, facts) for v in taken):
                body.of.conditions["is-tensor"] = None
        if loop.total and loop.made is not None:
            statements += _totalled(loop, loop.made, body)
        joins: list[Join] = []
        for one in loop.lists:
            _require_filled_once(flow, one)
            value = rows_of(one.made, body.of)
            statements += [*body.of.aligner.statements]
            body.of.aligner.statements.clear()
            if not isinstance(value.code, ast.Name):
                statements.append(
                    ast.Assign([ast.Name(one.name, ast.Store())], value.code, lineno=0)
                )
                value = replace(value, code=ast.Name(one.name, ast.Load()))
            joins.append(Join(one, join(one.call, value)))
        body.require_apart()
        _require_unread(flow, loop, [*body.totals])
        body.show_assumed()
        rewrite = write(source, flow, loop, body, statements, new, joins, with_text=with_text)
    except (CannotBatchError, NotRewritableError) as error:
        return FoundLoop(code, lines, problem=str(error))
    return FoundLoop(code, lines, tuple(body.of.conditions), rewrite)


def _totalled(loop: Loop, made: ast.expr, body: Body) -> list[ast.stmt]:
    """Return what adds to a name, or joins to it, what all rounds make."""
    if loop.begins or loop.grown is not None:
        return grow(loop.total, loop.grown, made, body.of, begins=loop.begins)
    chosen = None
    if loop.test is not None:
        values = [made, *(s.value for s in loop.body if isinstance(s, ast.Assign))]
        if not all(map(never_fails, values)) or len(values) != len(loop.body) + 1:
            raise CannotBatchError(BRANCH)
        chosen = read_truth(body.of, loop.test)
    return add_up(loop.total, made, body.of, in_place=loop.is_in_place, chosen=chosen)


def _of_ranges(
    source: str, flow: FunctionFlow, loop: Loop, facts: Facts, *, with_text: bool
) -> FoundLoop | None:
    """Return a loop that only writes ranges, or copies windows, ``None`` if it is another one."""
    windows = read_windows(loop, facts)
    found = read_ranges(loop, facts) if windows is None else (windows, None)
    if found is None:
        return None
    whole = loop if found[1] is None else replace(loop, begun=found[1])
    try:
        return _of_pieces(source, flow, whole, facts, found[0], with_text=with_text)
    except (CannotBatchError, NotRewritableError):
        return None


def _of_pieces(  # noqa: PLR0913 - what is written, and where
    source: str, flow: FunctionFlow, loop: Loop, facts: Facts, pieces: Pieces, *, with_text: bool
) -> FoundLoop:
    node = facts.node(loop.items) or flow.graph.constant(0)
    body = Body(Domain(0, loop.items, node), facts, ())
    body.of.shown.update(pieces.shown)
    _require_unread(flow, loop, [*pieces.binds])
    rewrite = write(source, flow, loop, body, pieces.statements, None, with_text=with_text)
    lines = frozenset(range(loop.first.lineno, (loop.statement.end_lineno or 0) + 1))
    return FoundLoop(loop.statement, lines, pieces.conditions, rewrite)


def _require_filled_once(flow: FunctionFlow, one: FilledList) -> None:
    """Refuse a list that anybody uses besides: it is made, filled and joined."""
    names = [n for n in nodes_of(flow.function) if isinstance(n, ast.Name) and n.id == one.name]
    uses = names
    if one.is_bound_again:
        own = {id(n) for n in ast.walk(one.call)}
        last = one.statement.end_lineno or 0
        anew = {  # ``else: xs = y`` neither reads nor changes the list
            id(target)
            for node in nodes_of(flow.function)
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        uses = [
            n
            for n in names
            if id(n) in own
            or n.lineno < one.statement.lineno
            or (n.lineno > last and not isinstance(n.ctx, ast.Load) and id(n) not in anew)
        ]
    known = 2 if one.empty is None else 3  # made, filled, joined
    if len(uses) != known or one.name in flow.captured:
        raise CannotBatchError(READ_AFTERWARDS)


def _require_indexes(flow: FunctionFlow, loop: Loop, body: Body) -> None:
    """Refuse a list of numbers with which anybody does more than to take rows, or to count them."""
    every = [n for n in nodes_of(flow.function) if isinstance(n, ast.Name) and n.id == loop.picked]
    known = 2  # the empty list, and where it is appended to
    for node in nodes_of(flow.function):
        match node:
            case ast.Subscript(base, ast.Name(name), ast.Load()) if name == loop.picked:
                known += 1
                if body.facts.is_tensor(base) is not True:
                    body.of.conditions["is-tensor"] = None  # an array takes no indexes of a device
            case ast.Call(ast.Name("len"), [ast.Name(name)]):
                known += name == loop.picked
    if known != len(every) or loop.picked in flow.captured:
        raise CannotBatchError(EFFECT)


def _may_be_listed(code: ast.expr, facts: Facts) -> bool:
    """Tell whether elements that are joined come out of an argument.

    That is often a list of tensors, whatever its annotation says.
    """
    node = facts.node(code)
    return node is not None and node.op == Op.PARAM


def _inside(flow: FunctionFlow, loop: Loop) -> Iterator[Evaluation]:
    """Yield what is computed in the rounds of a loop."""
    made = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    parts: Sequence[ast.AST] = [*loop.body, *made, *([loop.test] if loop.test else [])]
    own = {id(node) for part in parts for node in walk(part)}
    for evaluation in flow.evaluations:
        if id(evaluation.code) in own:
            yield evaluation


def _require_unread(flow: FunctionFlow, loop: Loop, totals: Sequence[str] = ()) -> None:
    """Refuse where somebody reads a name that only the last round has bound."""
    if loop.joined is not None and not loop.removed:
        return
    statement = loop.first
    bound = list_stored_names(statement) - {loop.total, *totals, *(f.name for f in loop.lists)}
    own = {id(n) for n in walk(statement)}
    again = {
        id(inner)
        for other in nodes_of(flow.function)
        if isinstance(other, (ast.For, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp))
        and other is not statement
        and not any(part is statement for part in walk(other))
        for inner in walk(other)
        if isinstance(inner, ast.Name) and inner.id in _targets(other)
    }
    around = [
        other
        for other in nodes_of(flow.function)
        if isinstance(other, (ast.For, ast.While))
        and other is not statement
        and any(part is statement for part in walk(other))
    ]
    for name in flow.name_nodes:
        if name.id not in bound or id(name) in own or id(name) in again:
            continue
        if isinstance(name.ctx, ast.Store):
            continue
        if name.lineno >= statement.lineno or around or name.id in flow.captured:
            raise CannotBatchError(READ_AFTERWARDS)


def _targets(code: ast.AST) -> set[str]:
    if isinstance(code, ast.For):
        return {n.id for n in ast.walk(code.target) if isinstance(n, ast.Name)}
    generators = getattr(code, "generators", ())
    return {n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}


def _only_computes(loop: Loop) -> bool:
    """Tell whether a person can write a loop anew: it binds, fills, and chooses, and no more."""
    plain = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For)
    inside = [node for part in loop.body for node in walk(part) if isinstance(node, ast.stmt)]
    filled = {one.name for one in loop.lists}
    return all(isinstance(node, plain) or _fills(node, filled) for node in inside)


def _fills(code: ast.stmt, lists: set[str]) -> bool:
    match code:
        case ast.Expr(ast.Constant()) | ast.Pass():
            return True
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"))):
            return name in lists
    return False


def _takes_rows(flow: FunctionFlow, loop: Loop) -> bool:
    """Tell whether a loop joins, adds up or fills rows that only a tensor has: ``x[i, :n]``."""
    inside = list(_inside(flow, loop))
    named = (flow.names.dotted(n) or "" for n in nodes_of(flow.function) if isinstance(n, ast.Name))
    if flow.cls is None and not any(name.startswith("torch") for name in named):
        return False  # ``zeros[i, j]`` may be of an array
    codes: list[ast.AST] = [e.code for e in inside]
    if loop.is_statement and not loop.lists and not loop.total:
        facts = Facts(flow, inside)  # ``d[(i, j)] = n`` may be a dictionary
        codes = [c.targets[0] for c in codes if isinstance(c, ast.Assign)]
        codes = [c for c in codes if isinstance(c, ast.Subscript) and facts.is_tensor(c.value)]
    return any(isinstance(c, ast.Subscript) and _is_of_several(c, loop) for c in codes)


def _is_of_several(code: ast.Subscript, loop: Loop) -> bool:
    """Tell whether an index names a row by the counter, and more: no list has such."""
    match code.slice:
        case ast.Tuple([ast.Name(row), *_]):
            return row in list_names(loop.target)
    return False


def _is_about_rows(flow: FunctionFlow, loop: Loop) -> bool:
    """Tell whether a loop that stays writes rows of a tensor one by one, or joins them."""
    inside = list(_inside(flow, loop))
    facts = Facts(flow, inside)
    items = {id(n) for n in ast.walk(loop.items)}
    given = [e.node for e in flow.evaluations if id(e.code) in items]
    if any(v.op == Op.LIST and len(v.args) == 1 and v.args[0].op != Op.STAR for v in given):
        return False  # ``for i, n in enumerate([x.size(1)])``
    names = list_names(loop.target)
    for evaluation in inside:
        code: ast.AST = evaluation.code
        if loop.is_statement and not loop.lists:  # what is only read may be read for the host
            match code:
                case ast.Assign([ast.Subscript() as target]) | ast.AugAssign(
                    ast.Subscript() as target
                ):
                    code = target
                case _:
                    continue
        match code:
            case ast.Subscript(ast.Name() | ast.Attribute() as base, index):
                used = {n.id for n in ast.walk(index) if isinstance(n, ast.Name)}
                if used & names and facts.is_tensor(base):
                    return True
    return False
