"""One call, made of the original and of the patched code, and of the original in float64."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.device import (
    compute_on_device,
    device_failure,
    scale_timeout,
)
from npufix.rewriters.verification.calls.noise import SEEDS
from npufix.rewriters.verification.calls.nudges import NUDGES, ROUNDINGS
from npufix.rewriters.verification.calls.observe import (
    CALL_S,
    CallRecord,
    Gradients,
    PreparedCall,
    Way,
    observe,
)
from npufix.rewriters.verification.calls.values import FAR, LARGE, SPECIAL, Tensor, list_kinds
from npufix.rewriters.verification.judge.allowances import Further, Kept, Spread
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call
from npufix.rewriters.verification.verdict import BackendLimitError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from npufix.rewriters.verification.inputs.target import CallCase, Target

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_be_deterministic = torch._C._set_deterministic_algorithms  # noqa: SLF001 - torch's own imports inductor
"""Sets what ``torch.use_deterministic_algorithms`` does, without three seconds of a compiler."""
_NO_DERIVATIVE = r"the derivative for|is not differentiable with respect to argument"
"""How torch says that it has none by one of the arguments."""
_STIRRED = 16
_NOISY_S = 20.0
"""Every operator takes some times longer there."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """A case that the original ran through, and how."""

    case: CallCase
    dtype: torch.dtype
    gradients: Gradients
    original: CallRecord
    why_without: str = ""
    """Why gradients are not compared, though the results have some."""
    second: bool = False
    """Whether the gradients are propagated as well."""
    device: str = ""
    """Where its tensors are, if not where the code is verified."""

    @property
    def alone(self) -> CaseRun:
        """The call without what the original has made of it, which is nobody's else to know."""
        return replace(self, original=CallRecord())

    @property
    def label(self) -> str:
        """Describe the call in words."""
        made = ", on tensors that are no leaves" if self.gradients == "copy" else ""
        made += f", on the device {self.device}" if self.device else ""
        return f"{self.case} in {name_dtype(self.dtype)}{made}"


def name_dtype(dtype: torch.dtype) -> str:
    """Return ``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


@runs_with_target
def choose_dtypes(case: CallCase, target: Target) -> tuple[torch.dtype, ...]:
    """Return the dtypes worth running a case in."""
    if case.dtypes:
        return case.dtypes
    present = list_kinds(case.assignment.specs.values())
    recipe = case.assignment.recipe
    if present & {"float", "unit", "box"}:
        return _DTYPES
    if recipe is not None and target.owner is not None:
        made = target.instance(recipe, torch.float32)
        if isinstance(made, torch.nn.Module) and any(True for _ in made.parameters()):
            return _DTYPES
    return _DTYPES[:1]


def observe_original(  # noqa: PLR0913 - a call, and how to run it
    target: Target,
    case: CallCase,
    dtype: torch.dtype,
    *,
    inference: bool,
    second: bool = False,
    modes: tuple[Gradients, ...] = ("leaf", "copy", "none"),
) -> CaseRun | None:
    """Run with gradients if the code allows it, else with copies of leaves, else without."""
    inference = inference or case.without_gradients
    modes = ("none",) if inference else modes
    modes = modes[:1] if case.steps else modes
    why = ""
    for mode in modes:
        seen = _observe(target, case, dtype, mode, second=second)
        if not seen.error:
            why = why if mode == "none" and not inference else ""
            return CaseRun(case, dtype, mode, seen, why, second)
        if seen.stage == "backward":
            why = seen.error
        elif len(modes) > 1 and re.search(_NO_DERIVATIVE, seen.error):
            for other in _with_constants(case):
                one = observe_original(
                    target, other, dtype, inference=False, second=second, modes=("leaf",)
                )
                if one is not None:
                    return one
            why = seen.error
        elif mode == "leaf" and "leaf" not in seen.error:
            return None
    return None


def _with_constants(case: CallCase) -> Iterator[CallCase]:
    """Yield the same call with one tensor that takes no gradient: the weights of classes."""
    for name, spec in case.assignment.specs.items():
        if isinstance(spec, Tensor) and not spec.is_constant:
            specs = {**case.assignment.specs, name: replace(spec, constant=True)}
            yield replace(case, assignment=replace(case.assignment, specs=specs))


def observe_version(target: Target, one: CaseRun, seed: int | None = None) -> CallRecord:
    """Run another version through the same case; making its object may fail as well."""
    case, how = one.case, one.gradients
    return _observe(target, case, one.dtype, how, seed, second=one.second)


@runs_with_target
def observe_again(target: Target, one: CaseRun, what: str, held: float) -> CallRecord:
    """Run a version once more, where memory that nobody has written to holds another number.

    That is memory of the size of a tensor, which operators take for themselves, and, if it is to
    hold NaN, all of ``torch.empty``, which torch fills with that in its deterministic mode.
    """
    like = one.original.tensors.get(what)
    if like is not None and like.is_floating_point():
        stirred = [torch.full_like(like, held) for _ in range(_STIRRED)]
        del stirred
    before = torch.are_deterministic_algorithms_enabled()
    _be_deterministic(before or math.isnan(held), warn_only=True)
    try:
        return _observe(target, one.case, one.dtype, one.gradients, second=one.second)
    finally:
        _be_deterministic(before, warn_only=False)


def observe_failure_on_device(
    target: Target, case: CallCase, dtype: torch.dtype
) -> CallRecord | None:
    """Return how the original fails on the device in a case that runs on the host."""
    if not target.on_npu or observe_original(target.on_host(), case, dtype, inference=True) is None:
        return None
    seen = _observe(target, case, dtype, "none")
    return seen if seen.error else _observe(target, case, dtype, "leaf")


@runs_with_target
def _observe(  # noqa: PLR0913 - a call, and how to run it
    target: Target,
    case: CallCase,
    dtype: torch.dtype,
    gradients: Gradients,
    seed: int | None = None,
    *,
    second: bool = False,
) -> CallRecord:
    """Run one call where the target runs."""
    seed = case.seed if seed is None else seed
    with compute_on_device(on_npu=target.on_npu):
        prepared = try_call(lambda: target.prepare(case, dtype), scale_timeout(CALL_S))
        if isinstance(prepared.value, PreparedCall):
            seen = observe(prepared.value, gradients, seed, steps=case.steps, second=second)
        else:
            seen = CallRecord(error=prepared.error, kind=prepared.kind)
    failed = device_failure(seen.error) if target.on_npu else ""
    if failed:
        raise BackendLimitError(failed)
    return seen


def observe_in_float64(target: Target, one: CaseRun) -> CallRecord | None:
    """Run a version as if it computed in float64; None if it cannot."""
    return _observe_on_host(target, one.alone, Way(oracle_of=one.dtype))


def observe_with_noise(target: Target, one: CaseRun, seed: int) -> CallRecord | None:
    """Run a version with other roundings; None if it cannot."""
    return _observe_on_host(target, one.alone, Way(noise=seed))


def list_waits(target: Target, one: CaseRun) -> tuple[str, ...] | None:
    """Return what the host would wait for in a call; None if it cannot be made like this."""
    return _list_waits(target, replace(one.alone, gradients="none", second=False))


@runs_with_target
def _list_waits(target: Target, one: CaseRun) -> tuple[str, ...] | None:
    found: list[str] = []
    seen = _observe_on_host(target, one, Way(waits=found))
    return None if seen is None else tuple(found)


@runs_with_target
def _observe_on_host(target: Target, one: CaseRun, way: Way) -> CallRecord | None:
    case, double, host = one.case, way.oracle_of is not None, target.on_host()
    prepared = try_call(lambda: host.prepare(case, one.dtype, double=double), CALL_S)
    if not isinstance(prepared.value, PreparedCall):
        return None
    seen = observe(
        prepared.value,
        one.gradients,
        case.seed,
        way=way,
        steps=case.steps,
        second=one.second,
        seconds=CALL_S if double else _NOISY_S,
    )
    return None if seen.error else seen


def offer_further_runs(original: Target, patched: Target, one: CaseRun) -> Further:
    """Return what a judge may ask for if the numbers of a case are off."""

    def noisy() -> Spread | None:
        plain = one.original
        if original.on_npu:
            there = _observe_on_host(original, one.alone, Way())
            if there is None:
                return None
            plain = there
        seen = (observe_with_noise(original, one, seed) for seed in SEEDS)
        again = lru_cache(lambda: _observe_on_host(original, one.alone, Way()))
        return Spread(plain, Kept(found for found in seen if found is not None), again)

    def large() -> CallRecord | None:
        if one.case.flavour != "NaN and Inf":
            return None
        twin = replace(one, case=replace(one.case, flavour=LARGE))
        return observe_in_float64(original, twin)

    def near(ways: range = NUDGES) -> Kept[CallRecord]:
        beside = (replace(one, case=replace(one.case, nudged=way)) for way in ways)
        seen = (observe_in_float64(original, two) for two in beside)
        return Kept(found for found in seen if found is not None)

    exact = lru_cache(lambda: observe_in_float64(patched, one))
    moved = lru_cache(lambda: near(ROUNDINGS))
    return Further(lru_cache(noisy), exact, lru_cache(large), lru_cache(near), moved)


def drop_incomparable(case: CallCase, seen: CallRecord, *, reference: bool) -> CallRecord:
    """Return what a comparison may look at; ``reference``: whether reference kernels ran."""
    # Which NaN a gradient formula makes of an Inf is decided by the device's kernel; a
    # reference kernel is no evidence for it.
    if case.flavour not in SPECIAL or not (reference or case.flavour in {"NaN", "Inf"}):
        return seen
    return drop_gradients(seen)


def drop_far_gradients(
    case: CallCase, before: CallRecord, then: CallRecord
) -> tuple[CallRecord, CallRecord]:
    """Return two calls without the gradients by numbers far from zero, which are mostly noise.

    But for those that the patched code loses: of ``exp(sink - scores.amax())`` they are NaN.
    """
    if case.flavour not in FAR:
        return before, then
    pairs = [(n, t, then.tensors.get(n)) for n, t in before.tensors.items() if t is not None]
    lost = {n for n, t, o in pairs if o is not None and t.isfinite().all() > o.isfinite().all()}
    return drop_gradients(before, lost), drop_gradients(then, lost)


def gives_nan(one: CaseRun) -> bool:
    """Say whether the original makes NaN of numbers that are none."""
    named = one.original.tensors.items()
    results = (t for n, t in named if n.startswith("result") and t is not None)
    nan = any(bool(t.isnan().any()) for t in results)
    return nan and one.case.flavour not in SPECIAL


def drop_gradients(seen: CallRecord, but: Collection[str] = ()) -> CallRecord:
    """Return what was seen but for the gradients, those of these names apart."""
    every = seen.tensors.items()
    kept = {n: t for n, t in every if n in but or not n.startswith("gradient of ")}
    return replace(seen, tensors=kept)
