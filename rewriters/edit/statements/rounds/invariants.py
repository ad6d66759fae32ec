"""Values that every round of a loop computes anew though nothing they read changes."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.naming import word_for
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.rounds.written import (
    changes,
    list_given,
    read_whole,
    reads_size_that_changes,
)
from npufix.rewriters.edit.statements.surroundings import (
    LEAVES,
    LOOPS,
    METADATA,
    is_pure,
    list_parameters,
    saves_little,
)
from npufix.rewriters.facts.host_tensors import is_made_on_host
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import (
    list_indexes,
    names_bound_in,
    walk,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_CHEAP = operators.VIEWS | METADATA | LEAVES | {"numel", "getitem", "expand", "from_numpy", "to"}
_OWN = frozenset({"clone", "deepcopy"})
_SOMETIMES = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)
"""What computes a part of it in some rounds only, or more than once."""
_STATE = frozenset({ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Raise})


@dataclass(frozen=True, slots=True)
class _Step:
    """A statement in a loop that computes the same in every round."""

    code: ast.Assign
    names: frozenset[str]
    under: tuple[tuple[ast.expr, bool], ...] = ()
    """The tests around it inside the loop, each with its outcome."""
    is_work: bool = False
    """Whether it launches something."""


@dataclass(slots=True)
class _Loop:
    here: Surroundings
    code: ast.For | ast.AsyncFor | ast.While
    bound: set[str]
    """What the loop binds, but for what was found to be the same in every round."""
    steps: list[_Step] = field(default_factory=list)


def find_invariants(here: Surroundings) -> Iterator[Proposal]:
    """Yield what can be computed once before a loop."""
    for node in here.nodes:
        if isinstance(node, LOOPS) and not isinstance(node, ast.AsyncFor):
            loop = _Loop(here, node, names_bound_in(node))
            _collect(loop, node.body, ())
            work = [step for step in loop.steps if step.is_work]
            operands = _list_operands(loop)
            if work or (operands and not saves_little(node, operands)):
                yield _proposal(loop, work, operands)


def _collect(
    loop: _Loop, body: Sequence[ast.stmt], under: tuple[tuple[ast.expr, bool], ...]
) -> None:
    """Find the invariant statements of a block, each after those that it depends on."""
    for statement in body:
        match statement:
            case ast.Assign([ast.Name() | ast.Tuple()]) if _is_invariant(loop, statement, under):
                node = loop.here.value(statement.value)
                names = frozenset(names_bound_in(statement))
                loop.steps.append(_Step(statement, names, under, _is_work(loop.here, node)))
                loop.bound -= names
            case ast.If(test, then, other) if not under and _is_free(loop, test):
                _collect(loop, then, ((test, True),))
                _collect(loop, other, ((test, False),))
            case _ if any(type(n) in _STATE for n in walk(statement)):
                return  # what follows may never run


def _is_invariant(loop: _Loop, code: ast.Assign, under: tuple[tuple[ast.expr, bool], ...]) -> bool:
    here = loop.here
    names = [n.id for n in walk(code.targets[0]) if isinstance(n, ast.Name)]
    if len(targets := {*names}) != len(names):
        return False
    read = read_whole(code.value)
    node = here.value(code.value)
    if (
        read & loop.bound
        or not _is_known_before(loop, code.value)
        or reads_size_that_changes(loop.code, code.value)
        or node is None
        or node.op in _OWN  # each round is to have one that it may write into
        or here.whole_lines(code) is None
    ):
        return False
    if any(_binds(loop, code, name, under) for name in targets):
        return False
    return is_pure(here, node) and not changes(loop.here, loop.code, read | targets)


def _list_operands(loop: _Loop) -> list[ast.expr]:
    """Return what is the same in every round inside of expressions: ``x - torch.ones(n)``.

    Of a result that an operator takes as an operand nothing else shares the memory.
    """
    found: list[ast.expr] = []
    moved = {id(step.code) for step in loop.steps}
    for statement in loop.code.body:
        if id(statement) in moved:
            continue
        if any(type(n) in _STATE for n in walk(statement)):
            break  # what follows may never run
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)):
            stack: list[tuple[ast.AST, bool]] = [(statement, False)]
            while stack:
                code, is_operand = stack.pop()
                if is_operand and isinstance(code, ast.expr) and _is_same(loop, code):
                    found.append(code)
                elif not isinstance(code, _SOMETIMES):
                    takes = _takes_operands(loop.here, code)
                    stack += [(inner, takes) for inner in ast.iter_child_nodes(code)]
                    if isinstance(code, ast.Subscript):  # what is picked is a copy
                        stack += [(index, True) for index in list_indexes(code.slice)]
    return found


def _takes_operands(here: Surroundings, code: ast.AST) -> bool:
    """Tell whether code computes something new of what stands in it."""
    if isinstance(code, ast.Call):
        node = here.value(code)
        return node is not None and node.op in operators.ELEMENTWISE & operators.NEW
    return isinstance(code, (ast.BinOp, ast.Compare))


def _is_same(loop: _Loop, code: ast.expr) -> bool:
    """Tell whether an operand takes work, and is the same in every round."""
    here, node = loop.here, loop.here.value(code)
    if not isinstance(code, (ast.Call, ast.BinOp)) or node is None:
        return False
    named = [n for n in walk(code) if isinstance(n, ast.Name) and here.is_tensor(n) is not False]
    read = read_whole(code)
    sometimes = {name for step in loop.steps if step.under for name in step.names}
    return (
        not read & (loop.bound | sometimes)
        and _is_known_before(loop, code)
        and not reads_size_that_changes(loop.code, code)
        and is_pure(here, node)
        and _is_work(here, node)
        and any(_launches(here, part) for part in walk(code) if isinstance(part, ast.expr))
        and not changes(loop.here, loop.code, read & {n.id for n in named})
    )


def _name_operands(here: Surroundings, operands: Sequence[ast.expr]) -> dict[str, _Step]:
    """Return what gives a name to each operand, by its code."""
    named: dict[str, _Step] = {}
    taken = {*here.flow.taken, *dir(builtins)}
    for code in operands:
        word = word_for(here.flow.names.imports, code)
        name = next(w for w in (word, *(f"{word}_{n}" for n in range(9))) if w not in taken)
        if ast.unparse(code) not in named:
            taken.add(name)
            made = ast.Assign([ast.Name(name, ast.Store())], code)
            named[ast.unparse(code)] = _Step(made, frozenset({name}), is_work=True)
    return named


def _span_of_operand(here: Surroundings, code: ast.expr) -> Span:
    """Return where an operand is, with the parentheses that only it needs."""
    first, start, last, end = here.span(code)
    before, after = here.lines[first - 1][:start], here.lines[last - 1][end:]
    alone = re.search(r"(?<![\w)\]])\($", before) and after.startswith(")")
    return (first, start - 1, last, end + 1) if alone else (first, start, last, end)


def _is_known_before(loop: _Loop, code: ast.expr) -> bool:
    """Tell whether each name that a value reads is bound before the loop begins."""
    inside = {n.id for n in walk(code) if isinstance(n, ast.Name)} & loop.bound
    before = list_parameters(loop.here)
    for node in loop.here.nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            before |= {node.id} if node.lineno < loop.code.lineno else set()
    return inside <= before


def _binds(
    loop: _Loop, code: ast.Assign, name: str, under: tuple[tuple[ast.expr, bool], ...]
) -> bool:
    """Tell whether a name is something else at some time: bound elsewhere, or read before."""
    here = loop.here
    for node in here.nodes:
        if not isinstance(node, ast.Name) or node.id != name:
            continue
        if any(outer is code for outer in here.around(node)):
            continue
        inside = any(outer is loop.code for outer in here.around(node))
        # Behind the loop it may be read: without a round it would have no value at all.
        reads_of_next_round = inside and node.lineno < code.lineno
        if isinstance(node.ctx, ast.Load) and not reads_of_next_round:
            continue
        if not inside and _is_over_before(loop, node):
            continue
        if not (inside and under and _in_other_arm(loop, node, under)):
            return True
    return name in here.flow.captured or name in list_parameters(here)


def _is_over_before(loop: _Loop, bound: ast.Name) -> bool:
    """Tell whether what a name was before the loop is read only there, as in another branch."""
    here, last = loop.here, loop.code.end_lineno or loop.code.lineno
    reads = (n for n in here.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    behind = any(n.id == bound.id and n.lineno > last for n in reads)
    return bound.lineno < loop.code.lineno and not behind and here.loop_of(loop.code) is None


def _in_other_arm(loop: _Loop, node: ast.AST, under: tuple[tuple[ast.expr, bool], ...]) -> bool:
    """Tell whether code is in the other arm of the test that a statement is under."""
    test, outcome = under[0]
    inner = node
    for outer in loop.here.around(node):
        if isinstance(outer, ast.If) and outer.test is test:
            return inner in (outer.orelse if outcome else outer.body)
        inner = outer
    return False


def _is_work(here: Surroundings, node: Node | None) -> bool:
    """Tell whether computing a value launches something on the device."""
    if node is None:
        return False
    at = next(e for e in here.flow.evaluations if e.node is node)
    if node.op in {Op.SHAPE, Op.SIZE, Op.RANK, "numel", "stride"}:
        return False  # ``x.shape[0]``, whatever computed ``x``
    if {part.op for part in node.walk()} & {"tensor"} and _is_written_out(node):
        return False  # ``torch.log(torch.tensor(10.0))``: one number, of the host
    made = (part for part in node.walk() if part.op in operators.FACTORIES - {"tensor"})
    stays = here.flow.function.name != "forward" and not any(map(_moves, node.walk()))
    if stays and any(map(is_made_on_host, made)):
        return False  # on the host, and what is computed with it
    parts = [part for part in node.walk() if part.op.removesuffix("(*)") not in _CHEAP]
    parts += [p for p in node.walk() if p.op == Op.CAST]
    return any(here.facts(at, x=part).is_tensor("x") for part in parts)


def _moves(node: Node) -> bool:
    """Tell whether a value is copied to a device: ``x.to(y.device)``."""
    return node.op == "to" and any("device" in str(arg.value) for arg in node.args[1:])


def _launches(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether an expression itself is more than a view, whatever is computed before it."""
    node = here.value(code)
    if node is None or isinstance(code, ast.Name) or node.op.removesuffix("(*)") in _CHEAP:
        return node is not None and node.op == Op.CAST
    return here.facts(here.evaluations[id(code)], x=node).is_tensor("x") is True


def _is_written_out(node: Node) -> bool:
    """Tell whether a value is computed from numbers in the code alone, on no device by name."""
    parts = list(node.walk())
    leaves = {part.op for part in parts if not part.args}
    named = any("device" in part.value for part in parts if isinstance(part.value, tuple))
    return leaves <= {Op.CONST, Op.DTYPE} and not named


def _is_free(loop: _Loop, test: ast.expr) -> bool:
    """Tell whether a test costs nothing and has the same outcome in every round."""
    parts = list(walk(test))
    names = {n.id for n in parts if isinstance(n, ast.Name)}
    plain = not any(isinstance(n, (ast.Call, ast.Await, ast.NamedExpr)) for n in parts)
    return plain and not names & loop.bound and not _is_work(loop.here, loop.here.value(test))


def _proposal(loop: _Loop, work: Sequence[_Step], operands: Sequence[ast.expr]) -> Proposal:
    """Return the loop with what is always the same before it."""
    here = loop.here
    named = _name_operands(here, operands)
    steps = _list_needed(loop, (*work, *named.values()))
    indent = here.indent(loop.code)
    unit = here.indent(loop.code.body[0]).removeprefix(indent)
    parts: list[str] = []
    moved = {id(step.code) for step in steps}
    blocks = _blocks(loop, steps)
    emptied = [outer for outer in map(_if_around(here), blocks) if _is_emptied(outer, moved)]
    for outer in dict.fromkeys(emptied):
        moved.add(id(outer))
        blocks = [b for b in blocks if _if_around(here)(b) is not outer]
        above = here.parents[id(outer)]
        whole = next(
            b for name in ("body", "orelse") if outer in (b := getattr(above, name, None) or [])
        )
        blocks += [] if any(whole is other for other in blocks) else [whole]
    changes = [change for block in blocks for change in _without(here, block, moved)]
    for number, step in enumerate(steps):
        text, before = here.text(step.code), here.indent(step.code)
        if not step.under:
            parts.append(_move(text, before, indent))
            continue
        test, outcome = step.under[0]
        if not number or steps[number - 1].under != step.under:
            said = here.text(test) if outcome else _negate(here, test)
            before_it = steps[number - 1].under if number else ()
            other = bool(before_it) and before_it[0] == (test, not outcome)
            parts.append(f"{indent}else:\n" if other else f"{indent}if {said}:\n")
        parts.append(_move(text, before, indent + unit))
    for text, step in named.items():
        parts.append(f"{indent}{min(step.names)} = {text}\n")
    for code in operands:
        name = min(named[ast.unparse(code)].names)
        changes.append(Change(_span_of_operand(here, code), name))
    at = (loop.code.lineno, 0, loop.code.lineno, 0)
    text = "".join(parts)
    return Proposal(
        work[0].code if work else operands[0],
        changes=(Change(at, text), *changes),
        shown=textwrap.dedent(text + here.lines[loop.code.lineno - 1]).strip(),
        proven=frozenset(_proofs(loop, (*steps, *named.values()))),
    )


def _if_around(here: Surroundings) -> Callable[[Sequence[ast.stmt]], ast.AST]:
    return lambda block: here.parents[id(block[0])]


def _is_emptied(outer: ast.AST, moved: set[int]) -> bool:
    """Tell whether nothing is left of an ``if`` whose statements are taken out."""
    return isinstance(outer, ast.If) and all(id(s) in moved for s in (*outer.body, *outer.orelse))


def _blocks(loop: _Loop, steps: Sequence[_Step]) -> list[list[ast.stmt]]:
    """Return the blocks of the loop that statements are taken out of."""
    found: list[list[ast.stmt]] = []
    for step in steps:
        outer = loop.here.parents[id(step.code)]
        blocks = (getattr(outer, name, None) or [] for name in ("body", "orelse"))
        block = next(block for block in blocks if step.code in block)
        found += [] if any(block is other for other in found) else [block]
    return found


def _without(here: Surroundings, block: Sequence[ast.stmt], moved: set[int]) -> Iterator[Change]:
    """Yield the changes that take statements out of a block."""
    left = [statement for statement in block if id(statement) not in moved]
    outer = here.parents[id(block[0])]
    if not left and isinstance(outer, ast.If) and block is outer.orelse:
        head = outer.body[-1].end_lineno or 0  # ``else:`` goes as well
        yield Change((head + 1, 0, *_end(here, block[-1])), "")
        return
    for number, statement in enumerate(block):
        if id(statement) not in moved:
            continue
        last, end = _end(here, statement)
        if number + 1 < len(block) and id(block[number + 1]) not in moved and not number:
            last = block[1].lineno - 1 if _is_blank(here, last, block[1].lineno) else last
            end = len(here.lines[last - 1])
        rest = f"{here.indent(statement)}pass\n" if not left and not number else ""
        yield Change((statement.lineno, 0, last, end), rest)


def _end(here: Surroundings, statement: ast.stmt) -> tuple[int, int]:
    last = statement.end_lineno or statement.lineno
    return last, len(here.lines[last - 1])


def _is_blank(here: Surroundings, last: int, following: int) -> bool:
    return not "".join(here.lines[last : following - 1]).strip()


def _list_needed(loop: _Loop, work: Sequence[_Step]) -> list[_Step]:
    """Return the steps that do work, and those that they read, in their order."""
    wanted = list(work)
    for step in wanted:  # grows
        read = {n.id for n in walk(step.code.value) if isinstance(n, ast.Name)}
        wanted += [s for s in loop.steps if s.names & read and s not in wanted]
    return [step for step in loop.steps if step in wanted]


def _move(text: str, before: str, after: str) -> str:
    first, *rest = text.splitlines(keepends=True)
    rest = [after + line.removeprefix(before) if line.strip() else line for line in rest]
    return f"{after}{first}{''.join(rest)}\n"


def _negate(here: Surroundings, test: ast.expr) -> str:
    match test:
        case ast.Compare(left, [ast.Is()], [right]):
            return f"{here.text(left)} is not {here.text(right)}"
        case ast.Compare(left, [ast.IsNot()], [right]):
            return f"{here.text(left)} is {here.text(right)}"
        case ast.UnaryOp(ast.Not(), inner):
            return here.text(inner)
        case ast.Name() | ast.Attribute() | ast.Call():
            return f"not {here.text(test)}"
    return f"not ({here.text(test)})"


def _proofs(loop: _Loop, steps: Sequence[_Step]) -> Iterator[str]:
    """Yield the conditions that hold: what nobody in the loop can write into or reshape."""
    here = loop.here
    names = {name for step in steps if step.is_work for name in step.names}
    names = names.union(*(read_whole(step.code.value) for step in steps))
    if not any(read_whole(argument) & names for argument in list_given(here, walk(loop.code))):
        yield "not-written-to"
    read = {n.id for s in steps for n in walk(s.code.value) if isinstance(n, ast.Name)}
    if not read & loop.bound:
        yield "same-shapes"
