"""Verify a rule: its pattern against its replacement, over the inputs that the rule offers."""

from __future__ import annotations

import copy
import importlib
import math
import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from npufix.rewriters.match.matching import list_unmentioned, pattern_of
from npufix.rewriters.verification.calls.leaves import find_leaves
from npufix.rewriters.verification.calls.noise import SEEDS
from npufix.rewriters.verification.calls.observe import (
    CallRecord,
    Gradients,
    PreparedCall,
    Way,
    observe,
)
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.inputs.objects.state import cast_floats, read_state
from npufix.rewriters.verification.judge.allowances import Further, Kept, Spread
from npufix.rewriters.verification.judge.judge import Judge
from npufix.rewriters.verification.kernels.common import collect_kernels
from npufix.rewriters.verification.reference import npu_operators
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rules.substitution import Spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rules.substitution import Form

T = TypeVar("T")

_ROUNDS = 24
_RULE_S = 60.0
"""A rule is no stranger's code, and its first call may import half of torch."""
_SLIP_S = 5.0
"""``n -= 1`` that is left out of a loop over n has it go on for good; usual are milliseconds."""


class SeededDraw:
    """A ``Draw`` that takes its choices from a seed."""

    def __init__(self, seed: int) -> None:
        """Start the sequence of choices."""
        self._choices = random.Random(seed)  # noqa: S311 - test data, not a secret
        self._source = torch.Generator().manual_seed(seed)

    def integer(self, low: int, high: int) -> int:
        """Return an int in [low, high]."""
        return self._choices.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of ``options``."""
        return self._choices.choice(options)

    def floats(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of ordinary values, now and then with zeros or tiny rows."""
        drawn = torch.randn(shape, generator=self._source, dtype=torch.float64)
        style = self._choices.randrange(4)
        if style == 0:
            drawn = drawn * 1e-4
        elif style == 1:
            drawn = drawn * self.booleans(*shape)
        return drawn.to(dtype)

    def wild(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that also holds NaN, infinities and signed zeros."""
        drawn = torch.randn(shape, generator=self._source, dtype=torch.float64)
        which = torch.randint(0, 12, shape, generator=self._source)
        for at, special in enumerate((math.nan, math.inf, -math.inf, -0.0)):
            drawn = torch.where(which == at, special, drawn)
        return drawn.to(dtype)

    def integers(self, *shape: int, low: int, high: int) -> torch.Tensor:
        """Return an int64 tensor with entries in [low, high], duplicates included."""
        return torch.randint(low, high + 1, shape, generator=self._source)

    def booleans(self, *shape: int) -> torch.Tensor:
        """Return a bool tensor."""
        return torch.randint(0, 2, shape, generator=self._source).bool()


def bind_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a rule's function the modules that its file imports for type checkers only."""
    scope = function.__globals__
    scope.setdefault("torch", torch)
    scope.setdefault("F", importlib.import_module("torch.nn.functional"))
    scope.setdefault("nn", torch.nn)
    # Always anew: the schemas of the version in question.
    scope["torch_npu"] = npu_operators.install()
    scope["mindspeed"] = sys.modules["mindspeed"]
    scope["mx_driving"] = sys.modules["mx_driving"]
    return function


def verify_rule(
    form: Form,
    seed: int = 0,
    rounds: int = _ROUNDS,
    known: Originals | None = None,
    *,
    is_slip: bool = False,
) -> Verdict:
    """Run both functions of ``form`` on ``rounds`` drawn inputs and compare all they do.

    Where the pattern offers several spellings, each round takes the next one. Several replacements
    of one pattern are verified with what is ``known`` of it. What shows in a slip without any
    tolerance, a wrong shape, ends the rounds.
    """
    pattern, replacement = bind_torch(form.pattern), bind_torch(form.replacement)
    inputs = bind_torch(form.inputs)
    inference = any(condition.excludes_gradients for condition in form.conditions)
    originals, most_s = known or Originals(), _SLIP_S if is_slip else _RULE_S
    judge, kernels, changed, raised = Judge(), set[str](), set[str](), ""
    for number in range(seed, seed + rounds):
        if is_slip and judge.differences:
            break
        seen = originals.of(form, number, number - seed)
        original, oracle = seen.record, seen.oracle
        if original.error:
            raised = original.error
            continue
        has_defaults = bool(pattern.__defaults__)
        defaults = list_unmentioned(pattern_of(pattern), number - seed) if has_defaults else {}
        with collect_kernels() as ran:
            ready = _ready(_with(replacement, defaults), _draw(inputs, number), _buffers(pattern))
            after = observe(ready, oracle.mode, number, seconds=most_s)
        after.strides.clear()  # a part of a function: whether they are seen, the function shows
        kernels |= ran
        changed |= original.changed
        exact, further = lambda o=oracle: o.record, Further(oracle.spread)
        judge.add(seen.words, seen.size, original, after, exact, further=further)
    judge.decide()
    ground = f"torch {torch.__version__.partition('+')[0]}, CPU"
    if kernels:
        ground += f" + reference kernels: {', '.join(sorted(kernels))}"
    if inference:
        ground += "; without gradients"
    scope = f"{form.pattern.__module__}.{form.pattern.__qualname__}"
    count = judge.cases
    if not count:
        return Verdict(Status.NOT_VERIFIED, ground, scope, f"the pattern raises {raised}")
    measures = judge.measures(changed)
    if judge.differences:
        smallest = min(judge.differences, key=lambda d: d.rank)
        text = f"{smallest.text}, for {smallest.case}"
        return Verdict(Status.REFUTED, ground, scope, text, count, measures, text)
    if judge.undecided:
        text = f"there was no time to tell from rounding what differs: {judge.undecided}"
        return Verdict(Status.NOT_VERIFIED, ground, scope, text, count, measures)
    return Verdict(Status.EQUIVALENT, ground, scope, cases=count, measures=measures)


@dataclass(frozen=True)
class _Original:
    """What a pattern does with one drawn input."""

    record: CallRecord
    oracle: _Oracle
    words: str
    size: int


class Originals:
    """What patterns do, kept for the next replacement that is verified."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._known: dict[tuple[object, ...], _Original] = {}

    def of(self, form: Form, number: int, spelling: int) -> _Original:
        """Return what the pattern of a form does in a round."""
        inference = any(condition.excludes_gradients for condition in form.conditions)
        modes: tuple[Gradients, ...] = ("none",) if inference else ("leaf", "copy", "none")
        key = (form.pattern, form.inputs, modes, number, spelling)
        if key not in self._known:
            pattern, inputs = bind_torch(form.pattern), bind_torch(form.inputs)
            with _spelling(spelling):
                record, mode = _observed(pattern, inputs, modes, number)
            drawn = {} if record.error else _draw(inputs, number)
            oracle = _Oracle(pattern, inputs, mode, number, spelling)
            size = sum(tensor.numel() for tensor in _tensors(drawn))
            self._known[key] = _Original(record, oracle, _words(drawn), size)
        return self._known[key]


@dataclass(frozen=True)
class _Oracle:
    """The pattern in float64."""

    pattern: Callable[..., Any]
    inputs: Callable[..., Mapping[str, Any]]
    mode: Gradients
    number: int
    spelling: int

    @cached_property
    def record(self) -> CallRecord:
        """Return what it does."""
        drawn = _draw(self.inputs, self.number)
        low = _lowest(drawn)
        return self._observed({n: _double(v) for n, v in drawn.items()}, Way(oracle_of=low))

    def spread(self) -> Spread:
        """Return how far it is off when it is rounded otherwise."""
        return self._spread

    @cached_property
    def _spread(self) -> Spread:
        def run(way: Way) -> CallRecord:
            return self._observed(_draw(self.inputs, self.number), way)

        return Spread(run(Way()), Kept(run(Way(noise=seed)) for seed in SEEDS))

    def _observed(self, drawn: Mapping[str, Any], way: Way) -> CallRecord:
        with _spelling(self.spelling):
            ready = _ready(self.pattern, drawn, _buffers(self.pattern))
            return observe(ready, self.mode, self.number, way=way, seconds=_RULE_S)


@contextmanager
def _spelling(chosen: int) -> Iterator[None]:
    Spelling.chosen = chosen
    try:
        yield
    finally:
        Spelling.chosen = 0


def _observed(
    pattern: Callable[..., Any],
    inputs: Callable[..., Mapping[str, Any]],
    modes: Sequence[Gradients],
    number: int,
) -> tuple[CallRecord, Gradients]:
    for mode in modes:
        # Drawn anew for each run, so that none sees what another one wrote.
        ready = _ready(pattern, _draw(inputs, number), _buffers(pattern))
        seen = observe(ready, mode, number, seconds=_RULE_S)
        if not seen.error:
            break
    return seen, mode


def _draw(inputs: Callable[..., Mapping[str, Any]], number: int) -> dict[str, Any]:
    seed_everything(number)  # the modules among the arguments take their weights from there
    drawn = inputs(SeededDraw(number))
    return {n: copy.deepcopy(v) if isinstance(v, torch.nn.Module) else v for n, v in drawn.items()}


def _with(function: Callable[..., Any], defaults: Mapping[str, object]) -> Callable[..., Any]:
    """Return ``function`` with the defaults of what one spelling of the pattern does without."""
    return lambda **passed: function(**{**passed, **defaults})


def _buffers(pattern: Callable[..., Any]) -> frozenset[str]:
    """Return the operands that take no gradient."""
    return frozenset(n for n, kind in pattern.__annotations__.items() if kind == "Buffer")


def _ready(
    function: Callable[..., Any], arguments: Mapping[str, Any], constants: frozenset[str]
) -> PreparedCall:
    def state() -> dict[str, object]:
        return {
            inner: value
            for name, argument in arguments.items()
            if isinstance(argument, torch.nn.Module)
            for inner, value in read_state(argument, name).items()
        }

    call = lambda passed: function(**passed)  # noqa: E731 - fits the line
    return PreparedCall(call, arguments, state, constants=constants)


def _tensors(arguments: Mapping[str, object]) -> list[torch.Tensor]:
    found = (v for name, a in arguments.items() for _, v in find_leaves(a, name))
    return [value for value in found if isinstance(value, torch.Tensor)]


def _lowest(arguments: Mapping[str, object]) -> torch.dtype:
    floats = [t.dtype for t in _tensors(arguments) if t.is_floating_point()]
    return min(floats, key=lambda d: torch.finfo(d).bits, default=torch.float32)


def _words(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_word(value)}" for name, value in arguments.items())


def _word(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_word, value))}]"
    if isinstance(value, torch.optim.Optimizer):
        return type(value).__name__
    return str(getattr(value, "__name__", "")) or repr(value)


def _double(value: object) -> object:
    if isinstance(value, torch.nn.Module):
        cast_floats(value, torch.float64)
        return value
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    if isinstance(value, list):
        return [_double(item) for item in value]
    if type(value) is tuple:
        return tuple(_double(item) for item in value)
    return value
