"""Calls with other plain numbers: in another order, of the other sign, one."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.verification.calls.values import Tensor, Value
from npufix.rewriters.verification.inputs.source.parameters import WIDTH
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.inputs.target import Assignment, CallCase
from npufix.rewriters.verification.inputs.trials import with_specs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.job import Job

_ORDERED = (2.0, 0.5)
_OF_SIGNS = frozenset({"abs", "max", "min", "fabs", "copysign"})
"""What is called with a number that may be negative."""


def with_orders(assignments: Sequence[Assignment]) -> Iterator[CallCase]:
    """Yield calls in which of two floats each is once the larger one: ``sigma, sigma_next``."""
    seen: set[tuple[str, str]] = set()
    for one in assignments:
        given = ((n, s.value) for n, s in one.specs.items() if isinstance(s, Value) and s.given)
        floats = [name for name, value in given if type(value) is float]
        for pair in itertools.combinations(floats, 2):
            if pair not in seen:
                seen.add(pair)
                for numbers in (_ORDERED, _ORDERED[::-1]):
                    yield CallCase(
                        with_specs(one, **dict(zip(pair, map(Value, numbers), strict=True)))
                    )


def with_signs(assignments: Sequence[Assignment], job: Job) -> Iterator[CallCase]:
    """Yield zero and negative numbers where code asks: ``abs(shift)``, ``max(0, offset)``."""
    asked = _find_signed(job)
    for one in assignments:
        for name in sorted(asked & one.specs.keys()):
            spec = one.specs[name]
            value = getattr(spec, "value", None)
            if isinstance(spec, Tensor) and spec.kind == "int":
                below = replace(spec, low=-WIDTH, high=0)
                yield CallCase(with_specs(one, **{name: below}))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                for number in (-value, type(value)(0)):
                    yield CallCase(with_specs(one, **{name: Value(number)}))


def with_one(assignment: Assignment) -> Iterator[tuple[None, Assignment]]:
    """Make one whole number one."""
    whole = {n: s for n, s in assignment.specs.items() if isinstance(s, Value)}
    for name, spec in whole.items():
        if type(spec.value) is int and spec.value > 1:
            yield None, with_specs(assignment, **{name: Value(1)})


def _find_signed(job: Job) -> set[str]:
    """Return the names whose size or sign one of both versions takes, beside nothing but numbers.

    ``max(k, len(x))`` says how large, ``max(k, 0)`` and ``abs(k)`` that it may be below zero.
    """
    found = set[str]()
    for text in (job.original, job.patched):
        function = find_function(ast.parse(text), job.qualname)
        for node in walk(function) if function is not None else ():
            if isinstance(node, ast.Call) and _name(node.func) in _OF_SIGNS:
                names = [a.id for a in node.args if isinstance(a, ast.Name)]
                others = [a for a in node.args if not isinstance(a, ast.Name)]
                if all(isinstance(a, ast.Constant) and a.value == 0 for a in others):
                    found.update(names)
    return found


def _name(code: ast.expr) -> str:
    return code.id if isinstance(code, ast.Name) else getattr(code, "attr", "")
