"""Calls in which two arguments are one tensor: ``combine(out=x, x=x)``.

Who writes into one of them and reads the other afterwards reads what it has written. Only where one
is called a result, and the original does the same with a copy, is that a call that anybody makes:
nobody passes a parameter as its own gradient. Code that asks ``reference is inputs`` is called so.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import Tensor
from npufix.rewriters.verification.inputs.source.usage import read_source
from npufix.rewriters.verification.inputs.target import CallCase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.cases.trials import Trials
    from npufix.rewriters.verification.inputs.target import Assignment

_WRITES = re.compile(r"[a-z]_\(|\] *[-+*/]?= |[-+*/]= |\bout=")
_RESULT = re.compile(r"(^|_)(out|outputs?|dst|dest|destination|results?|into|target_buffer)(_|$)")
_ASKED = re.compile(r"\b(\w+) is (?:not )?(\w+)\b")
_MOST = 3


def list_shared(trials: Trials, one: Assignment, job: Job) -> Iterator[CallCase]:
    """Yield calls that pass one tensor for two arguments.

    Any, where code writes into none: of a draft that says what the model says, nothing is left.
    """
    texts = [read_source(text, job.qualname) for text in (job.original, job.patched)]
    tensors = [(n, s) for n, s in one.specs.items() if isinstance(s, Tensor)]
    every = [(n, other) for (n, s), (other, t) in itertools.permutations(tensors, 2) if s == t]
    pairs = [pair for pair in every if any(map(_RESULT.search, pair))]
    if not any(map(_WRITES.search, texts)):
        real = {n for n, s in tensors if s.kind in {"float", "unit", "box"}}
        pairs = [(n, other) for n, other in every if n < other and {n, other} <= real]
    asked = [pair for text in texts for pair in _ASKED.findall(text) if pair in every]
    yield from (CallCase(one, shared=pair) for pair in dict.fromkeys(asked))
    for pair in pairs[:_MOST]:
        if pair not in asked and _is_safe(trials, one, *pair):
            yield CallCase(one, shared=pair)


def _is_safe(trials: Trials, one: Assignment, first: str, second: str) -> bool:
    """Say whether the original makes the same of one tensor as of two that are equal."""
    seen: list[Mapping[str, object]] = []
    for copies in (False, True):
        passed: dict[str, object] = {}

        def share(given: Mapping[str, object], *, copies: bool = copies) -> Mapping[str, object]:
            value = given[first]
            copied = value.clone() if copies and isinstance(value, torch.Tensor) else value
            passed.update(given, **{second: copied})  # noqa: B023 - it is called at once
            return passed  # noqa: B023 - same

        found = trials.run(CallCase(one), share)
        if found is None:
            return False
        seen.append({**found, first: passed[first]})
    before, after = seen
    return before.keys() == after.keys() and all(_same(before[n], after[n]) for n in before)


def _same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and torch.equal(left, right)
    return type(left) is type(right) and left == right
