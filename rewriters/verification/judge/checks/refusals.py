"""Calls that the original refuses: the changed code has to refuse them in the same way.

Calls that run are changed in one place: a size that no longer fits, another number of dimensions,
a number or a name that nobody expects. Where the original then raises on purpose (``raise``,
``assert``, a key that is missing), the changed code must raise as well, and the same. An error
from within torch says nothing: nobody relies on it.
"""

from __future__ import annotations

import ast
import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import parse_once, walk
from npufix.rewriters.verification.calls.coverage import Branch, Place, trace_lines
from npufix.rewriters.verification.calls.device import compute_on_device
from npufix.rewriters.verification.calls.observe import CALL_S, CallRecord
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.calls.values import (
    MadeArgument,
    Several,
    Spec,
    Tensor,
    Value,
    list_dimensions,
)
from npufix.rewriters.verification.inputs.cases.boundaries import list_refused_at_boundaries
from npufix.rewriters.verification.inputs.objects.offers import pass_through
from npufix.rewriters.verification.inputs.source.path_conditions import solve_path_condition
from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Target
from npufix.rewriters.verification.judge.difference import Difference, Seen
from npufix.rewriters.verification.judge.observe_case import CaseRun
from npufix.rewriters.verification.sandbox.limits import ExpiredError
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import PassedError, try_call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from npufix.rewriters.verification.judge.compare_versions import Keeps
    from npufix.rewriters.verification.judge.evidence import Proof

_SECONDS = 4.0
_MOST = 160
_MOST_BASES = 3
_NOBODY = "npufix_unknown"
_STOPPED = frozenset({ExpiredError.__name__, "MemoryError", "ImportError"})


@dataclass(frozen=True, slots=True)
class _Refusal:
    kinds: tuple[str, ...]
    """Names of the class of what was raised, and of the classes that it comes from."""
    text: str
    where: str
    lines: frozenset[Place]


def find_refusing_lines(text: str, lines: Sequence[int]) -> set[int]:
    """Return those of the lines that only run to raise."""
    wanted, found = set(lines), set[int]()
    for node in walk(parse_once(text)):
        blocks = [getattr(node, name, None) for name in ("body", "orelse")]
        for block in (b for b in blocks if isinstance(b, list) and b):
            last = block[-1]
            kinds = ast.If | ast.FunctionDef | ast.ExceptHandler
            if isinstance(last, ast.Raise) and isinstance(node, kinds):
                first = node if isinstance(node, ast.ExceptHandler) else last
                first = block[0] if isinstance(node, ast.If) else first
                found |= set(range(first.lineno, (last.end_lineno or last.lineno) + 1))
    return wanted & found


def find_refused_ways(text: str, refused: Collection[Place]) -> set[Place]:
    """Return the ways of tests that only lead to a ``raise``, of what refused calls have run.

    Of the last ``elif reduction == "none":`` above a ``raise``, that it does not hold.
    """
    lines = {
        line
        for node in walk(parse_once(text))
        for block in (getattr(node, name, None) for name in ("body", "orelse"))
        if isinstance(block, list)
        for one, after in itertools.zip_longest(block, block[1:])
        if isinstance(one, ast.If)
        for test in _list_refusing_tests(one, after)
        for line in range(test.lineno, (test.end_lineno or test.lineno) + 1)
    }
    return {p for p in refused if isinstance(p, Branch) and p.line in lines}


def _list_refusing_tests(node: ast.If, after: ast.stmt | None) -> Iterator[ast.expr]:
    """Yield the tests of an ``if`` with its ``elif`` one way of which raises at once."""
    other = node.orelse[0] if node.orelse else after
    if isinstance(node.body[0], ast.Raise) or isinstance(other, ast.Raise):
        yield node.test
    if isinstance(other, ast.If) and other is not after:
        yield from _list_refusing_tests(other, after)


def find_running_lines(text: str, lines: Sequence[int]) -> list[int]:
    """Return the others of the lines."""
    refusing = find_refusing_lines(text, lines)
    return [line for line in lines if line not in refusing]


def compare_refusals(
    run: Proof, original: Target, patched: Target, assignments: Sequence[Assignment], keeps: Keeps
) -> list[CaseRun]:
    """Call both with what the original refuses; return the calls that tell them apart."""
    deadline, told = time.process_time() + _SECONDS, list[CaseRun]()
    tree = parse_once(run.job.original)
    raising = _raising_lines(tree)
    asks_more = bool(find_refusing_lines(run.job.patched, run.job.lines_patched))
    at_boundaries = list_refused_at_boundaries(original, assignments[:_MOST_BASES], run.job)
    variants = itertools.chain(at_boundaries, _variants(tree, raising, assignments))
    for number, assignment in enumerate(variants):
        if time.process_time() > deadline or number >= _MOST or len(told) > 1:
            break
        case = CallCase(assignment)
        # of no elements, what a device divides by their number ends the process
        empty = original.on_npu and 0 in list_dimensions(assignment.specs)
        before = _refusal(original.on_host() if empty else original, case)
        if not before.kinds or not keeps(case, torch.float32):
            continue
        if not _is_meant(before, original, raising):
            if asks_more:  # ``if not len(x): raise``, where a sum of nothing was refused
                run.refused_lines_patched |= _refusal(patched, case).lines
            continue
        after = _refusal(patched, case)
        run.refused_lines |= before.lines
        run.refused_lines_patched |= after.lines
        if _STOPPED & set(after.kinds):
            continue
        if before.kinds[0] in after.kinds:  # classes of two versions are two
            run.tried.errors[f"{before.kinds[0]} for {assignment}"] = None
            continue
        does = f"raises {after.text}" if after.kinds else "returns"
        text = f"the original raises {before.text}, the patched code {does}"
        seen = CallRecord(error=before.text, kind=before.kinds[0], stage="call")
        one = CaseRun(case, torch.float32, "none", seen)
        told.append(one)
        run.judge.differences.append(
            Difference(text, one.label, max(1, case.size), seen=Seen.ERROR)
        )
    return told


@runs_with_target
def _refusal(target: Target, case: CallCase) -> _Refusal:
    caught: list[BaseException] = []
    with compute_on_device(on_npu=target.on_npu), trace_lines(target.loaded.filename) as lines:

        def call() -> None:
            prepared = target.prepare(case, torch.float32)
            seed_everything(case.seed)
            try:
                prepared.call(prepared.arguments)
            except BaseException as error:
                caught.append(error)
                raise

        outcome = try_call(call, CALL_S)
    kinds = tuple(kind.__name__ for error in caught for kind in type(error).__mro__)
    return _Refusal(kinds, outcome.error, outcome.where, frozenset(lines))


def _is_meant(refusal: _Refusal, target: Target, raising: set[int]) -> bool:
    """Say whether the code itself raises, not something that it calls."""
    if PassedError.__name__ in refusal.kinds:
        return True  # or lets through what is no concern of its
    file, _, line = refusal.where.rpartition(":")
    if file != target.loaded.filename:
        return False
    return int(line) in raising or "KeyError" in refusal.kinds


def _raising_lines(tree: ast.Module) -> set[int]:
    return {
        line
        for node in walk(tree)
        if isinstance(node, ast.Raise | ast.Assert)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _variants(
    tree: ast.Module, raising: set[int], assignments: Sequence[Assignment]
) -> Iterator[Assignment]:
    seen: set[str] = set()
    bases = list(assignments[:_MOST_BASES])
    for made in (_list_asked_for, _change_once):
        for base in bases:
            for specs in made(tree, raising, base):
                variant = replace(base, specs=specs)
                if str(variant) not in seen:
                    seen.add(str(variant))
                    yield variant


def _list_asked_for(
    tree: ast.Module, raising: set[int], base: Assignment
) -> Iterator[dict[str, Spec]]:
    """Yield what the tests above a ``raise`` ask for."""
    for line in sorted(raising):
        values = solve_path_condition(tree, line)
        forced: dict[str, Spec] = {n: Value(v) for n, v in values.items() if n in base.specs}
        if forced:
            yield {**base.specs, **forced}


def _change_once(
    _tree: ast.Module, _raising: set[int], base: Assignment
) -> Iterator[dict[str, Spec]]:
    """Yield the arguments with one of them changed, in one respect."""
    for name, spec in base.specs.items():
        for other in _others(spec):
            yield {**base.specs, name: other}


def _others(spec: Spec) -> Iterator[Spec]:
    if isinstance(spec, Tensor):
        yield from _other_tensors(spec)
        yield Value(None)
    elif isinstance(spec, MadeArgument):
        yield from pass_through(spec)
    elif isinstance(spec, Several):
        yield from map(spec.without, spec.keys)
    elif isinstance(spec, Value):
        value = spec.value
        if isinstance(value, bool):
            yield Value(not value)
        elif isinstance(value, int):
            yield from map(Value, (0, -1, value + 1, 7))
        elif isinstance(value, float):
            yield from map(Value, (-1.0, 0.0, 2.0))
        elif isinstance(value, str):
            yield Value(_NOBODY)
        if value is not None:
            yield Value(None)
        else:
            yield from map(Value, (_NOBODY, -1))


def _other_tensors(spec: Tensor) -> Iterator[Tensor]:
    shape = spec.shape
    for at, size in enumerate(shape):
        for other in (size + 1, 0):
            yield replace(spec, shape=(*shape[:at], other, *shape[at + 1 :]))
    yield replace(spec, shape=(*shape, 2))
    yield replace(spec, shape=(2, *shape))
    yield replace(spec, shape=shape[1:])
    yield replace(spec, shape=tuple(0 for _ in shape))
    if spec.kind == "float":
        yield replace(spec, kind="int")
