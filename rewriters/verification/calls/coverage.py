"""Which lines of a user's module a call has run."""

from __future__ import annotations

import ast
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType

    from _typeshed import TraceFunction


@contextmanager
def trace_lines(filename: str) -> Iterator[set[int]]:
    """Collect the lines that run in code objects of ``filename``."""
    lines: set[int] = set()

    def trace_line(frame: FrameType, event: str, _argument: object) -> TraceFunction:
        if event == "line":
            lines.add(frame.f_lineno)
        return trace_line

    def trace_call(frame: FrameType, _event: str, _argument: object) -> TraceFunction | None:
        return trace_line if frame.f_code.co_filename == filename else None

    previous = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield lines
    finally:
        sys.settrace(previous)


class LinesToCover:
    """The lines of a text that must run, each with the lines that prove that it did."""

    MADE_FROM = ("text", "filename", "lines")

    def __init__(self, text: str, filename: str, lines: Iterable[int]) -> None:
        """Prepare the proof of each line.

        A line that has code of its own must run itself. One that has none (the inner line of
        a call that the compiler attributes to its first line) is proven by its statement.
        """
        self.text, self.filename, self.lines = text, filename, tuple(lines)
        self.tree = tree = ast.parse(text)
        own = _lines_with_code(compile(text, filename, "exec", dont_inherit=True))
        wanted = dict.fromkeys(self.lines)
        # Where a test has changed, both ways must be taken.
        wanted |= dict.fromkeys(way for line in list(wanted) for way in _ways(tree, line))
        self._proofs = {
            line: frozenset({line}) if line in own else _statement(tree, line) for line in wanted
        }

    def reached(self, ran: set[int]) -> set[int]:
        """Return the wanted lines that have run."""
        return {line for line, proof in self._proofs.items() if proof & ran}

    def unreached(self, ran: set[int]) -> list[int]:
        """Return the wanted lines that have not run."""
        return sorted(self._proofs.keys() - self.reached(ran))


def find_names_read(text: str, lines: Iterable[int]) -> set[str]:
    """Return the variables that lines of a text read; none if it is no Python."""
    try:
        tree, wanted = ast.parse(text), set(lines)
    except (SyntaxError, ValueError):
        return set()
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.lineno in wanted}


def _lines_with_code(code: CodeType) -> set[int]:
    lines = {line for _, _, line in code.co_lines() if line is not None}
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            lines |= _lines_with_code(constant)
    return lines


def _ways(tree: ast.Module, line: int) -> Iterator[int]:
    """Yield the first lines of what the test on a line chooses from, if it does not just raise."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.lineno <= line <= (
            node.test.end_lineno or node.lineno
        ):
            never = None  # Under ``if False:`` nothing ever runs.
            if isinstance(node.test, ast.Constant):
                never = node.orelse if node.test.value else node.body
            for block in (node.body, node.orelse):
                if block and block is not never and not isinstance(block[-1], ast.Raise):
                    yield block[0].lineno


def _statement(tree: ast.Module, line: int) -> frozenset[int]:
    smallest = frozenset({line})
    size = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if line in span and (size is None or len(span) < size):
            smallest, size = frozenset(span), len(span)
    return smallest
