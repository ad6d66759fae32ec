"""How long both versions take on a real device, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from npufix.rewriters.verification.calls.device import is_real, synchronise
from npufix.rewriters.verification.calls.leaves import find_leaves
from npufix.rewriters.verification.calls.observe import copy_argument
from npufix.rewriters.verification.calls.training import draw_cotangent
from npufix.rewriters.verification.calls.values import Several, Tensor, Value
from npufix.rewriters.verification.inputs.base_shapes import shrink_recorded_shape
from npufix.rewriters.verification.inputs.target import Assignment
from npufix.rewriters.verification.sandbox.try_call import try_call
from npufix.rewriters.verification.verdict import Times, Timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rewriters.verification.calls.values import Spec
    from npufix.rewriters.verification.inputs.target import Target
    from npufix.rewriters.verification.judge.observe_case import CaseRun

_WARM_UP = 5
_REPETITIONS = 20
_SECONDS = 60.0
_LOW = frozenset({"c10::BFloat16", "c10::Half"})
_MOST_RECORDED = 3

_Run: TypeAlias = Callable[[], object]


def measure_times(
    original: Target,
    patched: Target,
    compared: Sequence[CaseRun],
    recorded: Sequence[RecordedCall],
) -> Times | None:
    """Return the times of the largest case that both versions run; None without a real device."""
    if not (is_real() and original.on_npu and compared):
        return None
    for one in _candidates(compared, recorded):
        outcome = try_call(lambda c=one: _measure(original, patched, c), _SECONDS)  # type: ignore[misc] # a default binds it
        if isinstance(outcome.value, Times):
            return outcome.value
    return None


def _candidates(compared: Sequence[CaseRun], recorded: Sequence[RecordedCall]) -> Iterator[CaseRun]:
    """Yield the cases of the recorded sizes, then the largest of those that were compared."""
    plain = [c for c in compared if c.case.flavour == "ordinary" and c.case.training] or compared
    low = any(_LOW & set(op.types) for op in recorded)
    wanted = torch.bfloat16 if low else torch.float32
    shapes = {d for op in recorded for d in op.dims if d and all(size > 0 for size in d)}
    by_size = sorted(shapes, key=lambda d: -torch.Size(d).numel())
    for shape in by_size[:_MOST_RECORDED]:
        sizes = dict(zip(shrink_recorded_shape(shape), shape, strict=True))
        for one in plain:
            if one.dtype == wanted and _has_shape(one, shrink_recorded_shape(shape)):
                yield replace(one, case=replace(one.case, assignment=_enlarge(one, sizes)))
                break
    yield from sorted(plain, key=lambda c: (-c.case.size, c.dtype != wanted))[:_MOST_RECORDED]


def _has_shape(one: CaseRun, shape: tuple[int, ...]) -> bool:
    specs = one.case.assignment.specs.values()
    return any(isinstance(spec, Tensor) and spec.shape == shape for spec in specs)


def _enlarge(one: CaseRun, sizes: Mapping[int, int]) -> Assignment:
    """Return the arguments, and the object, in the recorded sizes."""

    def larger(spec: Spec) -> Spec:
        if isinstance(spec, Tensor):
            return replace(spec, shape=tuple(sizes.get(size, size) for size in spec.shape))
        if isinstance(spec, Several):
            found = (larger(item) for item in spec.items)
            kept = tuple(item for item in found if isinstance(item, Tensor | Value))
            return replace(spec, items=kept)
        if isinstance(spec, Value) and type(spec.value) is int:
            return Value(sizes.get(spec.value, spec.value))
        return spec

    given = one.case.assignment
    recipe = given.recipe
    if recipe is not None:
        made = tuple((name, larger(spec)) for name, spec in recipe.arguments)
        recipe = replace(recipe, arguments=made)
    return Assignment(recipe, {name: larger(spec) for name, spec in given.specs.items()})


def _measure(original: Target, patched: Target, one: CaseRun) -> Times:
    versions = [_run_of(original, one), _run_of(patched, one)]
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(_WARM_UP):
        for run in versions:
            run()
    # In turn, so that a clock that slows down slows both.
    for _ in range(_REPETITIONS):
        for run, found in zip(versions, spent, strict=True):
            found.append(_microseconds(run))
    backward = one.gradients != "none"
    first, second = map(_timing, spent)
    return Times(first, second, _REPETITIONS, one.label, with_backward=backward)


def _microseconds(run: _Run) -> float:
    npu: Any = torch.npu  # type: ignore[attr-defined] # torch_npu adds it
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    synchronise()
    start.record()
    run()
    end.record()
    synchronise()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds * 1000


def _timing(spent: Sequence[float]) -> Timing:
    low, _, high = statistics.quantiles(spent, n=4)
    return Timing(statistics.median(spent), low, high)


def _run_of(target: Target, one: CaseRun) -> _Run:
    """Return the call, with the gradients where the code has some."""
    prepared = target.prepare(one.case, one.dtype)
    roots = [
        value
        for key, argument in prepared.arguments.items()
        for name, value in find_leaves(argument, key)
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and name not in prepared.constants
    ]
    weights = [v for v in prepared.state().values() if isinstance(v, torch.Tensor)]
    wanted = [*roots, *(w for w in weights if w.requires_grad and w.is_leaf)]
    train = one.gradients != "none"
    if train:
        for root in roots:
            root.requires_grad_()

    def run() -> None:
        passed = prepared.arguments
        if one.gradients == "copy":
            passed = {key: copy_argument(value) for key, value in passed.items()}
        with torch.set_grad_enabled(train):
            result = prepared.call(passed)
        outputs = [
            (value, upstream_of(value, name))
            for name, value in find_leaves(result, "result")
            if isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point()
        ]
        if outputs and wanted:
            values, upstream = zip(*outputs, strict=True)
            torch.autograd.grad(values, wanted, upstream, allow_unused=True)

    cotangents: dict[str, torch.Tensor] = {}

    def upstream_of(value: torch.Tensor, name: str) -> torch.Tensor:
        if name not in cotangents:  # made on the host, which takes longer than the call
            cotangents[name] = draw_cotangent(value, name)
        return cotangents[name]

    return run
