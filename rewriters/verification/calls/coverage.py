"""Which lines of a user's module a call has run, and how its tests turned out."""

from __future__ import annotations

import ast
import dis
import itertools
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from npufix.rewriters.graph.modules.syntax import names_bound_in, parse_once, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from types import CodeType, FrameType

    from _typeshed import TraceFunction


@dataclass(frozen=True, slots=True)
class Branch:
    """How a test turned out: that of ``if mask is not None:`` without ``else`` leaves no line."""

    line: int
    column: int
    holds: bool
    of_jump: bool = False
    """Whether it is what the byte code says, and not the test as written: of ``x is not None`` the
    jump may hold where x is None."""


_Comprehension: TypeAlias = "ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp"
Place: TypeAlias = int | Branch
"""A line, or a way that a test on it can take."""
_OF_DEVICE = re.compile(r"(?i)device|cuda|(?<![a-z])npu(?!t)|ascend|is_available")  # no "input"
"""What is answered in one way by each device."""
_ANSWERED = re.compile(r"bool\([01]\)")
"""What has been answered as on an NPU."""
_PRINTS = re.compile(r"^print$|(?i:^(\w+\.)*_?log(ger|ging)?\.(debug|info|warning|error)$)")
_NO_COLUMNS = sys.version_info < (3, 11)
_GOES_THROUGH = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_INLINED = sys.version_info >= (3, 12)
"""Whether comprehensions have no code of their own."""
_LONGEST = 60
_MAKING = frozenset({"__init__", "__new__", "__post_init__", "reset_parameters"})


@contextmanager
def trace_lines(filename: str) -> Iterator[set[Place]]:
    """Collect the lines that run in code objects of ``filename``, and the ways of their tests."""
    ran: set[Place] = set()

    def trace_call(frame: FrameType, _event: str, _argument: object) -> TraceFunction | None:
        if frame.f_code.co_filename != filename:
            return None
        jumps = _find_jumps(frame.f_code)
        frame.f_trace_opcodes = bool(jumps)  # dear, and only tests need it
        pending: _Jump | None = None

        def trace_line(frame: FrameType, event: str, _argument: object) -> TraceFunction:
            nonlocal pending
            if event == "line":
                ran.add(frame.f_lineno)
            elif event == "opcode":
                if pending is not None and frame.f_lasti != pending.at:
                    jumped = frame.f_lasti not in pending.next
                    holds = jumped is pending.if_true
                    ran.add(Branch(pending.line, pending.column, holds, of_jump=True))
                pending = jumps.get(frame.f_lasti)
            elif event == "exception":
                pending = None
            return trace_line

        return trace_line

    with tracing(trace_call):
        yield ran


@contextmanager
def tracing(trace_call: TraceFunction) -> Iterator[None]:
    """Let Python report what it runs, until this ends."""
    previous = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield
    finally:
        sys.settrace(previous)


@contextmanager
def watching(filename: str, line: int, look: Callable[[FrameType], object]) -> Iterator[None]:
    """Let somebody look at each frame of a file that comes to a line, before it runs."""

    def trace_call(frame: FrameType, _event: str, _argument: object) -> TraceFunction | None:
        return trace_line if frame.f_code.co_filename == filename else None

    def trace_line(frame: FrameType, event: str, _argument: object) -> TraceFunction:
        if event == "line" and frame.f_lineno == line:
            look(frame)
        return trace_line

    with tracing(trace_call):
        yield


@dataclass(frozen=True, slots=True)
class _Jump:
    """A conditional jump of the byte code."""

    line: int
    column: int
    """Where what it tests begins; Python 3.10 does not tell columns: 0."""
    if_true: bool
    """Whether it jumps if that holds."""
    of_none: bool
    """Whether what holds is that it is None."""
    at: int
    next: range
    """Offsets of what runs if it does not jump."""


@lru_cache(maxsize=256)
def _find_jumps(code: CodeType) -> dict[int, _Jump]:
    """Return the tests of a code object by the offsets of their jumps."""
    found: dict[int, _Jump] = {}
    line, place, prefixes = 0, (0, 0), list[int]()
    instructions = list(dis.get_instructions(code))
    for one, after in itertools.pairwise(instructions):
        line = one.starts_line if type(one.starts_line) is int else line
        if one.opname == "EXTENDED_ARG":
            prefixes.append(one.offset)
            continue
        if "JUMP" in one.opname and "_IF_" in one.opname and "EXC" not in one.opname:
            if_true = re.search("IF_(TRUE|NONE)", one.opname) is not None
            reached = range(one.offset + 1, after.offset + 1)
            jump = _Jump(*place, if_true, one.opname.endswith("NONE"), one.offset, reached)
            found |= dict.fromkeys((*prefixes, one.offset), jump)
        elif one.opname == "FOR_ITER" and (code.co_name in _GOES_THROUGH or _INLINED):
            known = getattr(one, "positions", None)
            place = (known.lineno or line, known.col_offset or 0) if known else (line, 0)
            reached = range(one.offset + 1, after.offset + 1)
            jump = _Jump(*place, if_true=False, of_none=False, at=one.offset, next=reached)
            found |= dict.fromkeys((*prefixes, one.offset), jump)
        elif one.opname not in {"COPY", "TO_BOOL", "CACHE"}:
            known = getattr(one, "positions", None)
            place = (known.lineno or line, known.col_offset or 0) if known else (line, 0)
        prefixes = []
    return found


class LinesToCover:
    """What of a text must run: lines, each with those that prove it, and both ways of tests."""

    MADE_FROM = ("text", "filename", "lines", "alike")

    def __init__(
        self, text: str, filename: str, lines: Iterable[int], alike: Iterable[str] = ()
    ) -> None:
        """Prepare the proof of each line.

        A line that has code of its own must run itself. One that has none (the inner line of
        a call that the compiler attributes to its first line) is proven by its statement.
        Of a test that has changed, or that decides over a part of what has, both ways must be
        taken; ``alike``: what ``find_blocks`` says of the lines of the other version.
        """
        self.text, self.filename, self.lines, self.alike = text, filename, tuple(lines), (*alike,)
        self.tree = tree = parse_once(text)
        codes = _list_codes(compile(text, filename, "exec", dont_inherit=True))
        self._codes = codes
        own = {line for code in codes for _, _, line in code.co_lines() if line is not None}
        self._proofs: dict[Place, frozenset[Place]] = {
            line: frozenset({line}) if line in own else _statement(tree, line)
            for line in self.lines
        }
        self._tests: dict[Place, str] = {}
        jumps = [jump for code in codes for jump in _find_jumps(code).values()]
        spread = _spread(tree, set(self.lines))
        for test, outcomes in _list_decisions(tree, spread, set(self.alike)):
            for holds in outcomes:
                self._want(test, jumps, holds=holds)
        for node in _list_comprehensions(tree, spread):
            if ast.unparse(node) not in self.alike:
                self._want_item(node, jumps)

    def _want_item(self, node: _Comprehension, jumps: Sequence[_Jump]) -> None:
        """Want that what goes through something has found an item there: ``[f(x) for x in xs]``."""
        first = node.generators[0]
        places = {(n.lineno, n.col_offset) for n in (node, first.iter)}
        here = {(j.line, j.column) for j in jumps} & (
            {(line, 0) for line, _ in places} if _NO_COLUMNS else places
        )
        branch = Branch(node.lineno, node.col_offset, holds=True)
        if here and branch not in self._proofs:
            self._proofs[branch] = frozenset(Branch(*at, holds=True, of_jump=True) for at in here)
            self._tests[branch] = f"for {ast.unparse(first.target)} in {ast.unparse(first.iter)}"

    def of_bindings(self) -> LinesToCover:
        """Return the tests above that decide where what the lines read comes from.

        ``if ids is not None: x = embed(ids)``: without ids, x is what the caller has passed.
        """
        found = LinesToCover(self.text, self.filename, ())
        jumps = [j for code in self._codes for j in _find_jumps(code).values()]
        for test, outcomes in _list_bindings(self.tree, _spread(self.tree, {*self.lines})):
            for holds in outcomes:
                found._want(test, jumps, holds=holds)
        return found

    def _want(self, test: ast.expr, jumps: Sequence[_Jump], *, holds: bool) -> None:
        """Want an outcome of a test, and each part of it that can bring it about."""
        if _OF_DEVICE.search(ast.unparse(test)):
            return
        for part, each in ((test, holds), *_list_parts(test, holds=holds)):
            proof = frozenset(_prove(part, jumps, holds=each))
            if proof and not _ANSWERED.fullmatch(
                ast.unparse(part)
            ):  # of ``if True:`` there is none
                branch = Branch(part.lineno, part.col_offset, each)
                known = self._proofs.get(branch, proof)
                self._proofs[branch] = min(known, proof, key=len)
                self._tests[branch] = ast.unparse(part)

    def reached(self, ran: Collection[Place]) -> set[Place]:
        """Return what is wanted and has run; ``ran`` may hold what was returned before."""
        proofs = self._proofs.items()
        return {place for place, proof in proofs if place in ran or not proof.isdisjoint(ran)}

    def unreached(self, ran: Collection[Place]) -> list[Place]:
        """Return what is wanted and has not run, in its order."""
        left = self._proofs.keys() - self.reached(ran)
        return sorted(
            left, key=lambda p: (p.line, p.column, p.holds) if isinstance(p, Branch) else (p,)
        )

    def name(self, places: Iterable[Place]) -> str:
        """Return places in few words: ``12, 14 (mask is not None: False)``."""
        texts = (
            f"{p.line} ({self._tests[p][:_LONGEST]}: {p.holds})"
            if isinstance(p, Branch)
            else str(p)
            for p in places
        )
        return ", ".join(texts)


def find_blocks(text: str, lines: Iterable[int]) -> set[str]:
    """Return the tests that decide over all of these lines, each with the way that leads there.

    And the comprehensions on them; nothing, if it is no Python.
    """
    try:
        tree, wanted = parse_once(text), set(lines)
    except (SyntaxError, ValueError):
        return set()
    within = {ast.unparse(node) for node in _list_comprehensions(tree, _spread(tree, wanted))}
    return within | {
        f"{ast.unparse(node.test)}: {holds}"
        for node in walk(tree)
        if isinstance(node, ast.If)
        for holds, block in ((True, node.body), (False, node.orelse))
        if wanted <= _span(block)
    }


def find_making(text: str, other: str, owner: str) -> set[int]:
    """Return the lines that make an object of a class, of it and its bases, and which are new.

    New is what the other version of the text has not: in its place or elsewhere.
    """
    try:
        trees = [parse_once(t) for t in (text, other)]
    except (SyntaxError, ValueError):
        return set()
    mine, theirs = (_list_making(tree, owner.rpartition(".")[2]) for tree in trees)
    known = {says for says, _ in theirs}
    return {line for says, line in mine if says not in known}


def _list_making(tree: ast.Module, owner: str) -> list[tuple[str, int]]:
    """Return the statements that make an object, as text without their blocks, with their lines."""
    classes = {n.name: n for n in walk(tree) if isinstance(n, ast.ClassDef)}
    queue, found = [owner], list[tuple[str, int]]()
    for name in queue:  # grows
        cls = classes.pop(name, None)
        if cls is None:
            continue
        queue += [ast.unparse(base).rpartition(".")[2] for base in cls.bases]
        methods = [n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name in _MAKING]
        for node in walk(*(s for method in methods for s in method.body)):
            if isinstance(node, ast.stmt):
                parts = [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt)]
                whole = "; ".join(map(ast.unparse, parts))
                found.append((f"{type(node).__name__} {whole}", node.lineno))
    return found


def find_names_read(text: str, lines: Iterable[int]) -> set[str]:
    """Return the variables that lines of a text read; none if it is no Python."""
    try:
        tree, wanted = parse_once(text), set(lines)
    except (SyntaxError, ValueError):
        return set()
    return {n.id for n in walk(tree) if isinstance(n, ast.Name) and n.lineno in wanted}


def is_printed(text: str, lines: Iterable[int]) -> bool:
    """Say whether what lines compute is printed: ``total += loss`` above ``print(total / n)``."""
    tree, wanted = parse_once(text), set(lines)
    functions = [n for n in walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = [f for f in functions if wanted & _span([f])]
    nodes = [n for f in inside for n in ast.walk(f)]
    printing = [n for n in nodes if isinstance(n, ast.Call) and _PRINTS.search(ast.unparse(n.func))]
    if not printing:
        return False
    made: set[str] = set()
    stores = [n for n in nodes if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign)]
    for node in (*stores, *stores):  # a loop may hand on what stands below
        if wanted & _span([node]) or made & _names(node, ast.Load):
            made |= _names(node, ast.Store)
    return any(wanted & _span([call]) or made & _names(call, ast.Load) for call in printing)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    held = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in held if isinstance(n.ctx, context)}


def _list_codes(code: CodeType) -> list[CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, type(code))]
    return [code, *(each for one in inner for each in _list_codes(one))]


def _span(nodes: Sequence[ast.AST]) -> set[int]:
    return {
        line
        for node in nodes
        if isinstance(node, ast.stmt | ast.expr)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _spread(tree: ast.Module, lines: set[int]) -> set[int]:
    """Return lines with all others of the statements that begin there, blocks left out.

    A statement that has changed is told by its first line; its test may stand on the next.
    """
    found = set(lines)
    for node in walk(tree):
        if isinstance(node, ast.stmt) and node.lineno in lines:
            body = getattr(node, "body", None)
            end = node.end_lineno or node.lineno
            found.update(range(node.lineno, body[0].lineno if body else end + 1))
    return found


def _list_decisions(
    tree: ast.Module, lines: set[int], alike: set[str]
) -> Iterator[tuple[ast.expr, list[bool]]]:
    """Yield the tests on the lines or above some of them, and their outcomes that do not raise."""
    tests = (
        n.test for n in walk(tree) if isinstance(n, ast.If | ast.IfExp | ast.While | ast.Assert)
    )
    within = {part for test in tests for part in walk(test)}
    bodies = (getattr(n, "body", None) for n in walk(tree))
    held = [body for body in bodies if isinstance(body, list)]
    after = {id(a): b for body in held for a, b in itertools.pairwise(body)}
    for node in walk(tree):
        if isinstance(node, ast.If):
            blocks = {True: node.body, False: node.orelse}
            running = [h for h, b in blocks.items() if not _raises(b, after.get(id(node)))]
            apart = any(
                lines & (inside := _span(block))
                and not (lines <= inside and f"{ast.unparse(node.test)}: {holds}" in alike)
                for holds, block in blocks.items()
            )
            if apart or lines & _span([node.test]):
                yield node.test, running
        elif isinstance(node, ast.IfExp | ast.While) and lines & _span([node.test]):
            yield node.test, [True, False]
        elif isinstance(node, ast.BoolOp | ast.comprehension) and node not in within:
            parts = node.values[:-1] if isinstance(node, ast.BoolOp) else node.ifs
            yield from ((part, [True, False]) for part in parts if lines & _span([part]))


def _list_comprehensions(tree: ast.Module, lines: set[int]) -> Iterator[_Comprehension]:
    """Yield what goes through something on the lines, and runs no line of its own if that is empty.

    ``total = sum(f(x) for x in xs)``
    """
    kinds = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    yield from (n for n in walk(tree) if isinstance(n, kinds) and lines & _span([n]))


def _list_bindings(tree: ast.Module, lines: set[int]) -> Iterator[tuple[ast.expr, list[bool]]]:
    """Yield the tests that end before the lines and bind what these read in one of their ways."""
    read = {n.id for n in walk(tree) if isinstance(n, ast.Name) and n.lineno in lines}
    for function in walk(tree) if lines else ():
        if isinstance(function, ast.FunctionDef) and lines <= _span([function]):
            for node in walk(*function.body):
                if isinstance(node, ast.If) and (node.end_lineno or 0) < min(lines):
                    blocks = {True: node.body, False: node.orelse}
                    if read & names_bound_in(node):
                        yield node.test, [h for h, b in blocks.items() if not _raises(b, None)]


def _raises(block: Sequence[ast.stmt], after: ast.stmt | None) -> bool:
    """Say whether a block ends in a ``raise``, or in front of one."""
    last = block[-1] if block else None
    leaves = isinstance(last, ast.Return | ast.Continue | ast.Break)
    return isinstance(last, ast.Raise) or (isinstance(after, ast.Raise) and not leaves)


def _list_parts(test: ast.expr, *, holds: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Yield each part of ``a and b`` with what decides the whole, if it has parts."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _list_parts(test.operand, holds=not holds)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield part, holds
            yield from _list_parts(part, holds=holds)


def _prove(test: ast.expr, jumps: Sequence[_Jump], *, holds: bool) -> Iterator[Branch]:
    """Yield the ways of single jumps each of which says that a test had this outcome."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _prove(test.operand, jumps, holds=not holds)
    elif isinstance(test, ast.BoolOp):
        # ``a and b`` holds once ``b`` does, and does not if either does not
        decided_by_last = isinstance(test.op, ast.And) is holds
        for part in test.values[-1:] if decided_by_last else test.values:
            yield from _prove(part, jumps, holds=holds)
    else:
        absent = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)
        first = test.left if isinstance(test, ast.Compare) else test
        for jump in jumps:
            place = jump.line, jump.column
            if place == (first.lineno, first.col_offset) or (
                _NO_COLUMNS and jump.line in _span([test])
            ):
                yield Branch(*place, holds is not (jump.of_none and absent), of_jump=True)


def _statement(tree: ast.Module, line: int) -> frozenset[Place]:
    smallest: frozenset[Place] = frozenset({line})
    size = None
    for node in walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if line in span and (size is None or len(span) < size):
            smallest, size = frozenset(span), len(span)
    return smallest
