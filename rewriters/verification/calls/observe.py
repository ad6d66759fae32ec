"""Run one call and write down everything that it did.

``judge.programs.replay`` says ``observe``, ``find_leaves`` and ``seed_everything`` again for
programs that run without npufix: what changes here changes there.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
import torch.fx.experimental.symbolic_shapes  # gradients want it: once for all forks

from npufix.rewriters.verification.calls.device import (
    LaunchedKernels,
    copy_to_host,
    forget_launches,
    list_launched,
    scale_timeout,
    wait_for,
)
from npufix.rewriters.verification.calls.leaves import find_leaves, list_shared
from npufix.rewriters.verification.calls.noise import round_otherwise
from npufix.rewriters.verification.calls.oracle import compute_in_float64
from npufix.rewriters.verification.calls.surroundings import (
    Surroundings,
    read_generators,
    read_settings,
    restore_settings,
    seed_everything,
    tell_draws,
)
from npufix.rewriters.verification.calls.synchronisations import CountOperators, CountReads
from npufix.rewriters.verification.calls.training import draw_cotangent, train, use_result
from npufix.rewriters.verification.calls.values import map_items
from npufix.rewriters.verification.sandbox.try_call import Outcome, RaisedError, try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Gradients: TypeAlias = Literal["leaf", "copy", "none"]
"""Inputs are leaves; or copies of leaves, for code that writes into them; or want no gradient."""
CALL_S = 3.0


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is ready to run, with tensors that nobody else holds."""

    call: Callable[[Mapping[str, object]], object]
    arguments: Mapping[str, object]
    state: Callable[[], Mapping[str, object]] = dict
    """The tensors and plain attributes of ``self`` (or of a module among the arguments), named
    as in code: ``self.weight``; empty for a function."""
    registered: Callable[[], tuple[str, ...]] = tuple
    """What ``state_dict`` and ``parameters`` of that object hold, by name."""
    constants: frozenset[str] = frozenset()
    """Arguments that nobody asks a gradient of."""
    on_npu: bool = False
    """Whether its tensors are on the virtual device."""
    around: Surroundings | None = None
    """The data of the module that the code is in."""
    earlier: Mapping[str, object] | None = None
    """The arguments of a call that comes first, on the same object."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a call computes, if not as it is written."""

    oracle_of: torch.dtype | None = None
    """In float64 instead of this dtype."""
    noise: int | None = None
    """With other roundings, drawn by this seed."""
    waits: list[str] | None = None
    """Where to take down what the host would wait for."""

    def entered(self) -> ExitStack:
        """Return the context that computes so."""
        stack = ExitStack()
        if self.oracle_of is not None:
            stack.enter_context(compute_in_float64(self.oracle_of))
        if self.noise is not None:
            stack.enter_context(round_otherwise(self.noise))
        if self.waits is not None:
            stack.enter_context(CountOperators(self.waits))
            stack.enter_context(CountReads(self.waits))
        return stack


AS_WRITTEN = Way()


@dataclass(slots=True)
class CallRecord:
    """What a call returned, changed and propagated."""

    tensors: dict[str, torch.Tensor | None] = field(default_factory=dict)
    plain: dict[str, object] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    """Results that are Python's numbers of floating point, and tensors here."""
    changed: set[str] = field(default_factory=set)
    """Arguments and attributes that no longer hold what they held before."""
    idle: set[str] = field(default_factory=set)
    """Attributes that are neither registered nor changed: their names are the code's own affair."""
    aliases: dict[str, frozenset[str]] = field(default_factory=dict)
    """For each result, what it shares memory with: arguments, attributes, results."""
    replaced: set[str] = field(default_factory=set)
    """Parameters and buffers that are other tensors than before: who else holds one has the old."""
    trains: bool = False
    """Whether a gradient reaches a parameter."""
    weighted: bool = False
    """Whether its object has parameters, which are of one dtype."""
    drawn: int | None = None
    """Tells how many random numbers it has drawn, see ``tell_draws``; 0 where that is none."""
    left_at: Mapping[str, int] = field(default_factory=dict)
    """The generators that it has drawn from, ``torch``, ``random``, ``numpy``, and their states."""
    around: dict[str, object] = field(default_factory=dict)
    """The data of its module after the call, ``LOG['loss'][0]``; ``changed`` names what it was
    that the call has made it."""
    known: frozenset[str] = frozenset()
    """The names that are data in its module."""
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of the results that are not contiguous."""
    without_second: str = ""
    """Why the gradients have none themselves, where those were asked for."""
    error: str = ""
    kind: str = ""
    stage: Literal["", "call", "backward"] = ""
    launched: LaunchedKernels = field(default_factory=LaunchedKernels)
    """The kernels, where a device has recorded them."""

    @property
    def tells_something(self) -> bool:
        """Whether there is a result or an effect that a wrong patch could change: not if empty."""
        values = (*self.tensors.items(), *self.plain.items())
        held = (n for n, v in values if v is not None and 0 not in getattr(v, "shape", ()))
        results = [n for n in held if n.startswith("result")]
        return bool(results or self.changed)

    @property
    def flows(self) -> bool:
        """Whether a gradient is there that is not zero."""
        return any(n.startswith("gradient of ") and self.moves(n) for n in self.tensors)

    def moves(self, name: str) -> bool:
        """Say whether a tensor is there, and is not zero."""
        return (value := self.tensors.get(name)) is not None and bool(value.count_nonzero())

    @property
    def flows_twice(self) -> bool:
        """Whether the gradients have a gradient themselves that is not zero."""
        named = self.tensors.items()
        return any(t is not None for n, t in named if n.startswith("gradient of the gradients"))

    def as_number(self, name: str, other: CallRecord) -> torch.Tensor | None:
        """Return a value, in float32 where the other has a number: ``x.item()`` has no dtype."""
        value = self.tensors.get(name)
        real = name in other.numbers and value is not None and value.is_floating_point()
        return value.float() if real and value is not None else value

    def note_training(
        self,
        prepared: PreparedCall,
        passed: Mapping[str, object],
        weights: Mapping[str, torch.Tensor],
        steps: int,
        way: Way,
    ) -> None:
        """Take optimiser steps, and note what they come to."""
        with way.entered():
            outcome = try_call(
                lambda: train(prepared.call, passed, weights, steps), scale_timeout(CALL_S)
            )
        self.error, self.kind = outcome.error, outcome.kind
        self.stage = "call" if outcome.error else ""
        self.tensors |= dict(outcome.value or {})  # type: ignore[call-overload] # ``train`` returns a dict of tensors

    def or_raise(self) -> CallRecord:
        """Return it, or raise what the call has raised."""
        if self.error:
            raise RuntimeError(self.error)
        return self


def observe(  # noqa: PLR0913 - a call, and how to run it
    prepared: PreparedCall,
    gradients: Gradients,
    seed: int,
    *,
    way: Way = AS_WRITTEN,
    seconds: float = CALL_S,
    steps: int = 0,
    second: bool = False,
) -> CallRecord:
    """Run the call, forward and backward.

    ``steps`` optimiser steps follow, on the same arguments; with ``second``, the gradients are
    propagated as well.
    """
    roots = {
        name: value
        for key, argument in prepared.arguments.items()
        for name, value in find_leaves(argument, key)
        if isinstance(value, torch.Tensor)
    }
    if gradients != "none":
        for name, root in roots.items():
            if root.is_floating_point() and name not in prepared.constants:
                root.requires_grad_()
    passed: Mapping[str, object] = prepared.arguments
    if gradients == "copy":
        copies = {id(value): copy_argument(value) for value in passed.values()}
        passed = {key: copies[id(value)] for key, value in passed.items()}
    most = scale_timeout(seconds)
    if first := _call_earlier(prepared, gradients, seed, way, most):
        return first
    inside = dict(prepared.state())
    weights = {
        name: value
        for name, value in inside.items()
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    }
    live = _list_held(passed, inside)
    before, held = _snapshot(live), {name: _memory(value) for name, value in live.items()}
    around = _read_around(prepared)
    seed_everything(seed)
    forget_launches()
    with way.entered(), torch.set_grad_enabled(gradients != "none"):
        settings, generators = read_settings(), read_generators(on_npu=prepared.on_npu)
        outcome = try_call(lambda: wait_for(use_result(prepared.call(passed))), most)
        left = read_settings()
        restore_settings(settings)
    seen = CallRecord(error=outcome.error, kind=outcome.kind, stage="call", weighted=bool(weights))
    seen.launched = LaunchedKernels(list_launched() if prepared.on_npu else ())
    seen.left_at = _find_moved(generators, on_npu=prepared.on_npu)
    _note_around(seen, {**around, **settings}, {**_read_around(prepared), **left}, prepared)
    if outcome.error:
        return seen
    seen.stage = ""
    seen.drawn = tell_draws(seed) if "torch" in seen.left_at else 0
    results = dict(find_leaves(outcome.value, "result"))
    _note_values(seen, results)
    seen.plain |= list_shared(outcome.value, passed)
    seen.aliases = _aliases(results, {**dict(_tensors(passed)), **inside})
    _note_effects(seen, prepared, passed, inside, before, held)
    seen.changed |= {n for n, weight in weights.items() if not weight.requires_grad}
    if gradients != "none":
        wanted = {n: r for n, r in roots.items() if r.requires_grad} | weights
        with way.entered():
            _propagate(seen, results, wanted, second=second)
        seen.trains = any(seen.tensors.get(f"gradient of {name}") is not None for name in weights)
        if steps and not seen.error:
            seen.note_training(prepared, passed, weights, steps, way)
    return seen


def _call_earlier(
    prepared: PreparedCall, gradients: Gradients, seed: int, way: Way, seconds: float
) -> CallRecord | None:
    """Make the call that comes first, if any; return what it raises."""
    earlier = prepared.earlier
    if earlier is None:
        return None
    seed_everything(seed)
    with way.entered(), torch.set_grad_enabled(gradients != "none"):
        first = try_call(lambda: prepared.call(earlier), seconds)
    if not first.error or first.kind == RaisedError.__name__:  # the next call shows what it leaves
        return None
    return CallRecord(error=first.error, kind=first.kind, stage="call")


def _note_effects(  # noqa: PLR0913, PLR0917 - what was there before
    seen: CallRecord,
    prepared: PreparedCall,
    passed: Mapping[str, object],
    inside: Mapping[str, object],
    before: Mapping[str, object],
    held: Mapping[str, int | None],
) -> None:
    """Note what the call has done to its arguments and its object."""
    after_state = dict(prepared.state())
    live = _list_held(passed, after_state)
    after = _snapshot(live)
    # an optimiser will write into weights, also those of the object's own model
    weights = {n: v for n, v in inside.items() if isinstance(v, torch.nn.Parameter)}
    seen.aliases |= _find_kept(after_state, {**dict(_tensors(passed)), **weights}, held)
    seen.changed |= {name for name, value in after.items() if not _same(before.get(name), value)}
    seen.changed |= inside.keys() - after_state.keys()  # what is None is no longer there
    for name, value in after.items():
        left = f"{name} after the call"
        if isinstance(value, torch.Tensor):
            seen.tensors[left] = value
            # A later gradient flows back, whether an argument is kept or a part of it.
            if live[name].requires_grad:  # type: ignore[attr-defined] # its copy is a tensor
                seen.plain[f"requires_grad of {left}"] = True
            if live[name].layout != torch.strided:  # type: ignore[attr-defined] # its copy is dense
                seen.plain[f"layout of {left}"] = str(live[name].layout)  # type: ignore[attr-defined] # same
        elif isinstance(value, float):  # ``self.total``, with the rounding of its terms
            seen.tensors[left] = torch.tensor(value, dtype=torch.float32)
            seen.numbers.add(left)
            seen.plain[left] = "a number"  # a tensor is none, for who formats it
        else:
            seen.plain[left] = value
    registered = prepared.registered()
    seen.plain["parameters and buffers"] = registered
    own = {name.removesuffix(" (saved)") for name in registered}
    own |= {n for n in live.keys() & held.keys() if n.endswith(".grad") or n in weights}
    seen.replaced = {n for n in own if _memory(live.get(n)) != held.get(n)}
    come_and_gone = tuple(sorted(after_state.keys() ^ inside.keys()))
    seen.plain["attributes that the call makes or removes"] = come_and_gone
    seen.idle = (inside.keys() & after_state.keys()) - set(registered) - seen.changed


def _read_around(prepared: PreparedCall) -> dict[str, object]:
    return _snapshot({} if prepared.around is None else prepared.around.read())


def _note_around(
    seen: CallRecord,
    before: Mapping[str, object],
    after: dict[str, object],
    prepared: PreparedCall,
) -> None:
    every = before.keys() | after.keys()
    gone = object()
    seen.changed |= {n for n in every if not _same(before.get(n, gone), after.get(n, gone))}
    seen.around = after
    seen.known = (frozenset() if prepared.around is None else prepared.around.roots) | {
        *read_settings()
    }


def _find_moved(before: Mapping[str, object], *, on_npu: bool) -> dict[str, int]:
    after = read_generators(on_npu=on_npu)
    moved = {n: after[n] for n, state in before.items() if not _same(state, after[n])}
    return {
        n: hash(s.numpy().tobytes() if isinstance(s, torch.Tensor) else s) for n, s in moved.items()
    }


def _tensors(passed: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for key, argument in passed.items():
        yield from find_leaves(argument, key)


def copy_argument(value: object) -> object:
    """Return an argument with copies of its tensors, for code that writes into them."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return map_items(value, copy_argument)


def _list_held(passed: Mapping[str, object], inside: Mapping[str, object]) -> dict[str, object]:
    """Return all that a call is given, with the gradients that are there already."""
    found = dict((*_tensors(passed), *inside.items()))
    for name, value in list(found.items()):
        # What clips gradients or steps along them finds them here.
        if isinstance(value, torch.Tensor) and value.is_leaf and value.grad is not None:
            found[f"{name}.grad"] = value.grad
    return found


def _snapshot(found: Mapping[str, object]) -> dict[str, object]:
    return {n: copy_to_host(v) if isinstance(v, torch.Tensor) else v for n, v in found.items()}


def _same(before: object, after: object) -> bool:
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        if before.shape != after.shape or before.dtype != after.dtype:
            return False
        return torch.equal(before, after) or bool(
            ((before == after) | (before.isnan() & after.isnan())).all()
        )
    return type(before) is type(after) and before == after


def _note_values(seen: CallRecord, results: Mapping[str, object]) -> None:
    for name, value in results.items():
        if isinstance(value, torch.Tensor):
            seen.tensors[name] = copy_to_host(value)
            seen.numbers |= {name} if hasattr(value, "of_python") else set()
            seen.plain[f"requires_grad of {name}"] = value.requires_grad
            if value.layout == torch.strided and not value.is_contiguous():
                seen.strides[name] = value.stride()
        else:
            seen.plain[name] = value


def _memory(value: object) -> int | None:
    if not isinstance(value, torch.Tensor) or not value.numel() or value.layout != torch.strided:
        return None
    return value.untyped_storage().data_ptr()


def _aliases(
    results: Mapping[str, object], others: Mapping[str, object]
) -> dict[str, frozenset[str]]:
    everything = {**others, **results}
    memory = {name: _memory(value) for name, value in everything.items()}
    return {
        name: frozenset(
            other
            for other, at in memory.items()
            if other != name and at == memory[name] and _overlap(value, everything[other])
        )
        for name, value in results.items()
        if memory[name] is not None
    }


def _find_kept(
    state: Mapping[str, object], given: Mapping[str, object], held: Mapping[str, int | None]
) -> dict[str, frozenset[str]]:
    """Return what the object now keeps of what it was given: it changes when that is written."""
    new = {n: v for n, v in state.items() if _memory(v) not in {None, held.get(n)}}
    kept = {n: names & given.keys() for n, names in _aliases(new, given).items()}
    return {f"{name} after the call": names for name, names in kept.items() if names}


def _overlap(one: Any, other: Any) -> bool:  # noqa: ANN401 - tensors
    """Say whether two views of one storage have a byte in common; two halves of it have none."""
    marks = torch.zeros(one.untyped_storage().nbytes(), dtype=torch.bool, device="cpu")

    def bytes_of(view: torch.Tensor) -> torch.Tensor:
        size = view.element_size()
        strides = (*(size * step for step in view.stride()), 1)
        return marks.as_strided((*view.shape, size), strides, size * view.storage_offset())

    bytes_of(one).fill_(True)  # noqa: FBT003 - what every byte becomes
    return bool(bytes_of(other).any())


def _propagate(
    seen: CallRecord,
    results: Mapping[str, object],
    wanted: Mapping[str, torch.Tensor],
    *,
    second: bool,
) -> None:
    outputs = [
        (value, draw_cotangent(value, name))
        for name, value in results.items()
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point()
    ]
    found: tuple[torch.Tensor | None, ...] = (None,) * len(wanted)
    if outputs and wanted:
        before = len(list_launched())
        outcome = _gradients(outputs, wanted, create_graph=second)
        if outcome.error:
            seen.error, seen.kind, seen.stage = outcome.error, outcome.kind, "backward"
            return
        found = outcome.value  # type: ignore[assignment] # of ``autograd.grad``
        if seen.launched.forward:
            seen.launched = seen.launched._replace(backward=list_launched(before))
    for name, gradient in zip(wanted, found, strict=True):
        seen.tensors[f"gradient of {name}"] = None if gradient is None else copy_to_host(gradient)
        if gradient is not None and gradient.layout != torch.strided:
            seen.plain[f"layout of the gradient of {name}"] = str(gradient.layout)
    if not second:
        return
    again = [
        (gradient, draw_cotangent(gradient, f"gradient of {name}"))
        for name, gradient in zip(wanted, found, strict=True)
        if gradient is not None and gradient.requires_grad
    ]
    further: tuple[torch.Tensor | None, ...] = (None,) * len(wanted)
    if again:
        outcome = _gradients(again, wanted, create_graph=False)
        seen.without_second = outcome.error
        further = further if outcome.error else outcome.value  # type: ignore[assignment] # same
    for name, gradient in zip(wanted, further, strict=True):
        # One that is not there and one that is zero both say that nothing flows.
        there = None if gradient is None or not gradient.count_nonzero() else copy_to_host(gradient)
        seen.tensors[f"gradient of the gradients by {name}"] = there


def _gradients(
    outputs: list[tuple[torch.Tensor, torch.Tensor]],
    wanted: Mapping[str, torch.Tensor],
    *,
    create_graph: bool,
) -> Outcome:
    values, cotangents = zip(*outputs, strict=True)
    return try_call(
        lambda: wait_for(
            torch.autograd.grad(
                values,
                list(wanted.values()),
                cotangents,
                allow_unused=True,
                create_graph=create_graph,
            )
        ),
        scale_timeout(CALL_S),
    )
