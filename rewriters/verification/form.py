"""Verify a rule: its pattern against its replacement, over the inputs that the rule offers."""

from __future__ import annotations

import importlib
import math
import random
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from npufix.rewriters.verdict import Status, Verdict
from npufix.rewriters.verification import npu_operators
from npufix.rewriters.verification.compare import Judge
from npufix.rewriters.verification.observe import Gradients, Observation, Prepared, leaves, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npufix.rules.substitution import Form

T = TypeVar("T")

_ROUNDS = 24


class SeededDraw:
    """A ``Draw`` that takes its choices from a seed."""

    def __init__(self, seed: int) -> None:
        """Start the sequence of choices."""
        self._choices = random.Random(seed)  # noqa: S311 — test data, not a secret
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
    return function


def verify_form(form: Form, seed: int = 0, rounds: int = _ROUNDS) -> Verdict:
    """Run both functions of ``form`` on ``rounds`` drawn inputs and compare all they do."""
    pattern, replacement = bind_torch(form.pattern), bind_torch(form.replacement)
    inputs = bind_torch(form.inputs)
    judge, kernels, changed, raised = Judge(), set[str](), set[str](), ""
    for number in range(seed, seed + rounds):
        # Drawn anew for each run, so that none sees what another one wrote.
        first = _ready(pattern, inputs(SeededDraw(number)))
        original, mode = _observed(pattern, inputs, first, number)
        if original.error:
            raised = original.error
            continue
        npu_operators.called.clear()
        after = observe(_ready(replacement, inputs(SeededDraw(number))), mode, number)
        kernels |= npu_operators.called
        wide = {name: _doubled(value) for name, value in inputs(SeededDraw(number)).items()}
        low = _lowest(first.arguments)
        reference = observe(_ready(pattern, wide), mode, number, oracle_of=low)
        changed |= original.changed
        judge.add(_words(first.arguments), _size(first.arguments), original, after, reference)
    judge.decide()
    ground = f"torch {torch.__version__.partition('+')[0]}, CPU"
    if kernels:
        ground += f" + reference kernels: {', '.join(sorted(kernels))}"
    scope = f"{form.pattern.__module__}.{form.pattern.__qualname__}"
    count = judge.cases
    if not count:
        return Verdict(Status.NOT_VERIFIED, ground, scope, f"the pattern raises {raised}")
    measures = judge.measures(changed)
    if judge.differences:
        smallest = min(judge.differences, key=lambda d: d.rank)
        text = f"{smallest.text}, for {smallest.case}"
        return Verdict(Status.REFUTED, ground, scope, text, count, measures, text)
    return Verdict(Status.EQUIVALENT, ground, scope, cases=count, measures=measures)


def _observed(
    pattern: Callable[..., Any],
    inputs: Callable[..., Mapping[str, Any]],
    first: Prepared,
    number: int,
) -> tuple[Observation, Gradients]:
    seen = observe(first, "leaf", number)
    if not seen.error:
        return seen, "leaf"
    modes: tuple[Gradients, ...] = ("copy", "none")
    for mode in modes:
        seen = observe(_ready(pattern, inputs(SeededDraw(number))), mode, number)
        if not seen.error:
            return seen, mode
    return seen, "none"


def _ready(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Prepared:
    return Prepared(lambda passed: function(**passed), arguments)


def _tensors(arguments: Mapping[str, object]) -> list[torch.Tensor]:
    found = (v for name, a in arguments.items() for _, v in leaves(a, name))
    return [value for value in found if isinstance(value, torch.Tensor)]


def _lowest(arguments: Mapping[str, object]) -> torch.dtype:
    floats = [t.dtype for t in _tensors(arguments) if t.is_floating_point()]
    return min(floats, key=lambda d: torch.finfo(d).bits, default=torch.float32)


def _size(arguments: Mapping[str, object]) -> int:
    return sum(tensor.numel() for tensor in _tensors(arguments))


def _words(arguments: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name}={str(v.dtype).removeprefix('torch.')}{list(v.shape)}"
        if isinstance(v, torch.Tensor)
        else f"{name}={v!r}"
        for name, v in arguments.items()
    )


def _doubled(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value
