"""One call, made of the original and of the patched code, and of the original in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.device import (
    compute_on_device,
    device_failure,
    scale_timeout,
)
from npufix.rewriters.verification.calls.observe import (
    CALL_S,
    CallRecord,
    Gradients,
    PreparedCall,
    observe,
)
from npufix.rewriters.verification.calls.values import LARGE, ROUNDINGS, list_kinds
from npufix.rewriters.verification.judge.allowances import Further
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call
from npufix.rewriters.verification.verdict import BackendLimitError

if TYPE_CHECKING:
    from npufix.rewriters.verification.inputs.target import CallCase, Target

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class CaseRun:
    """A case that the original ran through, and how."""

    case: CallCase
    dtype: torch.dtype
    gradients: Gradients
    original: CallRecord

    @property
    def label(self) -> str:
        """Describe the call in words."""
        return f"{self.case} in {str(self.dtype).removeprefix('torch.')}"


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


def observe_original(
    target: Target, case: CallCase, dtype: torch.dtype, *, inference: bool
) -> CaseRun | None:
    """Run with gradients if the code allows it, else with copies of leaves, else without."""
    modes: tuple[Gradients, ...] = ("none",) if inference else ("leaf", "copy", "none")
    modes = modes[:1] if case.steps else modes
    for mode in modes:
        seen = _observe(target, case, dtype, mode, case.seed)
        if not seen.error:
            return CaseRun(case, dtype, mode, seen)
        if seen.stage != "backward" and mode == "leaf" and "leaf" not in seen.error:
            return None
    return None


def observe_version(target: Target, one: CaseRun, seed: int | None = None) -> CallRecord:
    """Run another version through the same case; making its object may fail as well."""
    seed = one.case.seed if seed is None else seed
    return _observe(target, one.case, one.dtype, one.gradients, seed)


def observe_failure_on_device(
    target: Target, case: CallCase, dtype: torch.dtype
) -> CallRecord | None:
    """Return how the original fails on the device in a case that runs on the host."""
    if not target.on_npu or observe_original(target.on_host(), case, dtype, inference=True) is None:
        return None
    seen = _observe(target, case, dtype, "none", case.seed)
    return seen if seen.error else _observe(target, case, dtype, "leaf", case.seed)


@runs_with_target
def _observe(
    target: Target, case: CallCase, dtype: torch.dtype, gradients: Gradients, seed: int
) -> CallRecord:
    """Run one call where the target runs."""
    with compute_on_device(on_npu=target.on_npu):
        prepared = try_call(lambda: target.prepare(case, dtype), scale_timeout(CALL_S))
        if isinstance(prepared.value, PreparedCall):
            seen = observe(prepared.value, gradients, seed, steps=case.steps)
        else:
            seen = CallRecord(error=prepared.error, kind=prepared.kind)
    failed = device_failure(seen.error) if target.on_npu else ""
    if failed:
        raise BackendLimitError(failed)
    return seen


@runs_with_target
def observe_in_float64(
    target: Target,
    case: CallCase,
    dtype: torch.dtype,
    gradients: Gradients,
    rounding: int | None = None,
) -> CallRecord | None:
    """Run the original as if it computed in float64; None if it cannot."""

    def prepare() -> PreparedCall:
        return target.prepare(case, dtype, double=True, rounding=rounding)

    prepared = try_call(prepare, CALL_S)
    if not isinstance(prepared.value, PreparedCall):
        return None
    seen = observe(prepared.value, gradients, case.seed, oracle_of=dtype, steps=case.steps)
    return None if seen.error else seen


def offer_further_runs(original: Target, patched: Target, one: CaseRun) -> Further:
    """Return what a judge may ask for if the numbers of a case are off."""
    case, dtype, gradients = one.case, one.dtype, one.gradients

    def rounded() -> list[CallRecord]:
        seen = (observe_in_float64(original, case, dtype, gradients, r) for r in ROUNDINGS)
        return [found for found in seen if found is not None]

    def large() -> CallRecord | None:
        if case.flavour != "NaN and Inf":
            return None
        return observe_in_float64(original, replace(case, flavour=LARGE), dtype, gradients)

    exact = lru_cache(lambda: observe_in_float64(patched, case, dtype, gradients))
    return Further(rounded, exact, lru_cache(large))


def drop_incomparable(case: CallCase, seen: CallRecord, *, reference: bool) -> CallRecord:
    """Return what a comparison may look at; ``reference``: whether reference kernels ran."""
    # Which NaN a gradient formula makes of an Inf is decided by the device's kernel; a
    # reference kernel is no evidence for it.
    if case.flavour != "NaN and Inf" or not reference:
        return seen
    return drop_gradients(seen)


def drop_gradients(seen: CallRecord) -> CallRecord:
    """Return what was seen but for the gradients."""
    kept = {n: t for n, t in seen.tensors.items() if not n.startswith("gradient of ")}
    return replace(seen, tensors=kept)
