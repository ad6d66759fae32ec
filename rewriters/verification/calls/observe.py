"""Run one call and write down everything that it did.

``judge.replay`` says ``observe``, ``leaves`` and ``seed_everything`` again for programs that run
without npufix: what changes here changes there.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import torch.fx.experimental.symbolic_shapes  # gradients want it: once for all forks

from npufix.rewriters.verification.calls.device import (
    LaunchedKernels,
    copy_to_host,
    forget_launches,
    list_launched,
    scale_timeout,
    seed_device,
    wait_for,
)
from npufix.rewriters.verification.calls.oracle import compute_in_float64
from npufix.rewriters.verification.calls.training import draw_cotangent, train, use_result
from npufix.rewriters.verification.calls.values import map_items
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterator

Gradients: TypeAlias = Literal["leaf", "copy", "none"]
"""Inputs are leaves; or copies of leaves, for code that writes into them; or want no gradient."""
CALL_S = 3.0
_DEPTH = 6


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


@dataclass(slots=True)
class CallRecord:
    """What a call returned, changed and propagated."""

    tensors: dict[str, torch.Tensor | None] = field(default_factory=dict)
    plain: dict[str, object] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    """Arguments and attributes that no longer hold what they held before."""
    idle: set[str] = field(default_factory=set)
    """Attributes that are neither registered nor changed: under which names code keeps its
    numbers is its own affair."""
    aliases: dict[str, frozenset[str]] = field(default_factory=dict)
    """For each result, the arguments, attributes and results that it shares memory with."""
    replaced: set[str] = field(default_factory=set)
    """Parameters and buffers that are other tensors than before: who else holds one has the old."""
    trains: bool = False
    """Whether a gradient reaches a parameter."""
    drawn: int = 0
    """Tells how many random numbers it has drawn, and of what kind."""
    error: str = ""
    kind: str = ""
    stage: Literal["", "call", "backward"] = ""
    launched: LaunchedKernels = field(default_factory=LaunchedKernels)
    """The kernels, where a device has recorded them."""

    @property
    def tells_something(self) -> bool:
        """Whether there is a result or an effect that a wrong patch could change."""
        values = (*self.tensors.items(), *self.plain.items())
        results = [n for n, v in values if n.startswith("result") and v is not None]
        return bool(results or self.changed)

    def note_training(
        self,
        prepared: PreparedCall,
        passed: Mapping[str, object],
        weights: Mapping[str, torch.Tensor],
        steps: int,
        oracle_of: torch.dtype | None,
    ) -> None:
        """Take optimiser steps, and note what they come to."""
        with nullcontext() if oracle_of is None else compute_in_float64(oracle_of):
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


def leaves(value: object, name: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield tensors and plain values of a nested result, each with a readable name."""
    if isinstance(value, torch.Tensor | bool | int | str | bytes) or value is None:
        yield name, value
    elif isinstance(value, float):
        yield name, torch.tensor(value, dtype=torch.float32)
    elif isinstance(value, torch.dtype | torch.device):
        yield name, str(value)
    elif type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        yield f"type of {name}", type(value).__name__
        yield name, torch.as_tensor(value)
    else:
        yield f"type of {name}", type(value).__name__
        for inner, item in _items(value, name) if depth < _DEPTH else ():
            yield from leaves(item, inner, depth + 1)


def _items(value: object, name: str) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [(f"{name}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, type | torch.nn.Module) or callable(value):
        return []
    if isinstance(value, torch.optim.Optimizer):
        return [(f"{name}.param_groups", value.param_groups)]
    return [(f"{name}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()]


def seed_everything(seed: int) -> None:
    """Give original and patched code the same random numbers."""
    # torch.manual_seed also queues a traceback for every absent accelerator, and keeps it.
    torch.default_generator.manual_seed(seed)
    seed_device(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def observe(  # noqa: PLR0913 - a call, and how to run it
    prepared: PreparedCall,
    gradients: Gradients,
    seed: int,
    *,
    oracle_of: torch.dtype | None = None,
    seconds: float = CALL_S,
    steps: int = 0,
) -> CallRecord:
    """Run the call, forward and backward; with ``oracle_of``, in float64 instead of that dtype.

    ``steps`` optimiser steps follow, on the same arguments.
    """
    roots = {
        name: value
        for key, argument in prepared.arguments.items()
        for name, value in leaves(argument, key)
        if isinstance(value, torch.Tensor)
    }
    if gradients != "none":
        for name, root in roots.items():
            if root.is_floating_point() and name not in prepared.constants:
                root.requires_grad_()
    passed: Mapping[str, object] = prepared.arguments
    if gradients == "copy":
        passed = {key: copy_argument(value) for key, value in passed.items()}
    inside = dict(prepared.state())
    weights = {
        name: value
        for name, value in inside.items()
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    }
    before = _snapshot(passed, inside)
    held = {name: _memory(value) for name, value in inside.items()}
    seed_everything(seed)
    forget_launches()
    mode = nullcontext() if oracle_of is None else compute_in_float64(oracle_of)
    most = scale_timeout(seconds)
    with mode, torch.set_grad_enabled(gradients != "none"):
        outcome = try_call(lambda: wait_for(use_result(prepared.call(passed))), most)
    seen = CallRecord(error=outcome.error, kind=outcome.kind, stage="call")
    seen.launched = LaunchedKernels(list_launched() if prepared.on_npu else ())
    if outcome.error:
        return seen
    seen.stage = ""
    seen.drawn = hash(torch.get_rng_state().numpy().tobytes())
    results = dict(leaves(outcome.value, "result"))
    _note_values(seen, results)
    after_state = dict(prepared.state())
    after = _snapshot(passed, after_state)
    seen.changed = {name for name, value in after.items() if not _same(before.get(name), value)}
    for name, value in after.items():
        (seen.tensors if isinstance(value, torch.Tensor) else seen.plain)[
            f"{name} after the call"
        ] = value  # type: ignore[assignment] # by its kind
    registered = prepared.registered()
    seen.plain["parameters and buffers"] = registered
    own = {name.removesuffix(" (saved)") for name in registered}
    seen.replaced = {n for n in own if _memory(after_state.get(n)) != held.get(n)}
    come_and_gone = tuple(sorted(after_state.keys() ^ inside.keys()))
    seen.plain["attributes that the call makes or removes"] = come_and_gone
    seen.idle = (inside.keys() & after_state.keys()) - set(registered) - seen.changed
    seen.aliases = _aliases(results, {**dict(_tensors(passed)), **inside})
    if gradients != "none":
        wanted = {n: r for n, r in roots.items() if r.requires_grad} | weights
        _propagate(seen, results, wanted)
        seen.trains = any(seen.tensors.get(f"gradient of {name}") is not None for name in weights)
        if steps and not seen.error:
            seen.note_training(prepared, passed, weights, steps, oracle_of)
    return seen


def _tensors(passed: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for key, argument in passed.items():
        yield from leaves(argument, key)


def copy_argument(value: object) -> object:
    """Return an argument with copies of its tensors, for code that writes into them."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return map_items(value, copy_argument)


def _snapshot(passed: Mapping[str, object], inside: Mapping[str, object]) -> dict[str, object]:
    found = dict((*_tensors(passed), *inside.items()))
    for name, value in list(found.items()):
        # What clips gradients or steps along them finds them here.
        if isinstance(value, torch.Tensor) and value.is_leaf and value.grad is not None:
            found[f"{name}.grad"] = value.grad
    return {
        name: copy_to_host(value) if isinstance(value, torch.Tensor) else value
        for name, value in found.items()
    }


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
            seen.plain[f"requires_grad of {name}"] = value.requires_grad
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
            other for other, at in memory.items() if other != name and at == memory[name]
        )
        for name in results
        if memory[name] is not None
    }


def _propagate(
    seen: CallRecord, results: Mapping[str, object], wanted: Mapping[str, torch.Tensor]
) -> None:
    outputs = [
        (value, draw_cotangent(value, name))
        for name, value in results.items()
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point()
    ]
    found: tuple[torch.Tensor | None, ...] = (None,) * len(wanted)
    if outputs and wanted:
        values, cotangents = zip(*outputs, strict=True)
        before = len(list_launched())
        outcome = try_call(
            lambda: wait_for(
                torch.autograd.grad(values, list(wanted.values()), cotangents, allow_unused=True)
            ),
            scale_timeout(CALL_S),
        )
        if outcome.error:
            seen.error, seen.kind, seen.stage = outcome.error, outcome.kind, "backward"
            return
        found = outcome.value  # type: ignore[assignment] # of ``autograd.grad``
        if seen.launched.forward:
            seen.launched = seen.launched._replace(backward=list_launched(before))
    for name, gradient in zip(wanted, found, strict=True):
        seen.tensors[f"gradient of {name}"] = None if gradient is None else copy_to_host(gradient)
