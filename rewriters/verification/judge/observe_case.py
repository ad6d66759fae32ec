"""One call, made of the original and of the patched code, and of the original in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.device import computing, device_failure, patience
from npufix.rewriters.verification.calls.observe import (
    CALL_S,
    Gradients,
    Observation,
    Prepared,
    observe,
)
from npufix.rewriters.verification.calls.values import LARGE, ROUNDINGS, kinds
from npufix.rewriters.verification.judge.allowances import Further
from npufix.rewriters.verification.sandbox.try_call import attempt
from npufix.rewriters.verification.verdict import GroundLimitError

if TYPE_CHECKING:
    from npufix.rewriters.verification.inputs.target import Case, Target

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Compared:
    """A case that the original ran through, and how."""

    case: Case
    dtype: torch.dtype
    gradients: Gradients
    original: Observation

    @property
    def label(self) -> str:
        """Describe the call in words."""
        return f"{self.case} in {str(self.dtype).removeprefix('torch.')}"


def dtypes(case: Case, target: Target) -> tuple[torch.dtype, ...]:
    """Return the dtypes worth running a case in."""
    present = kinds(case.assignment.specs.values())
    recipe = case.assignment.recipe
    if present & {"float", "unit", "box"}:
        return _DTYPES
    if recipe is not None and target.owner is not None:
        made = target.instance(recipe, torch.float32)
        if isinstance(made, torch.nn.Module) and any(True for _ in made.parameters()):
            return _DTYPES
    return _DTYPES[:1]


def run_original(
    target: Target, case: Case, dtype: torch.dtype, *, inference: bool
) -> Compared | None:
    """Run with gradients if the code allows it, else with copies of leaves, else without."""
    modes: tuple[Gradients, ...] = ("none",) if inference else ("leaf", "copy", "none")
    modes = modes[:1] if case.steps else modes
    for mode in modes:
        seen = _seen(target, case, dtype, mode, case.seed)
        if not seen.error:
            return Compared(case, dtype, mode, seen)
        if seen.stage != "backward" and mode == "leaf" and "leaf" not in seen.error:
            return None
    return None


def observed(target: Target, one: Compared, seed: int | None = None) -> Observation:
    """Run another version through the same case; making its object may fail as well."""
    seed = one.case.seed if seed is None else seed
    return _seen(target, one.case, one.dtype, one.gradients, seed)


def why_not_on_the_device(target: Target, case: Case, dtype: torch.dtype) -> Observation | None:
    """Return how the original fails on the device in a case that runs on the host."""
    if not target.on_npu or run_original(target.on_host(), case, dtype, inference=True) is None:
        return None
    seen = _seen(target, case, dtype, "none", case.seed)
    return seen if seen.error else _seen(target, case, dtype, "leaf", case.seed)


def _seen(
    target: Target, case: Case, dtype: torch.dtype, gradients: Gradients, seed: int
) -> Observation:
    """Run one call where the target runs."""
    with computing(on_npu=target.on_npu):
        prepared = attempt(lambda: target.prepare(case, dtype), patience(CALL_S))
        if isinstance(prepared.value, Prepared):
            seen = observe(prepared.value, gradients, seed, steps=case.steps)
        else:
            seen = Observation(error=prepared.error, kind=prepared.kind)
    failed = device_failure(seen.error) if target.on_npu else ""
    if failed:
        raise GroundLimitError(failed)
    return seen


def in_float64(
    target: Target,
    case: Case,
    dtype: torch.dtype,
    gradients: Gradients,
    rounding: int | None = None,
) -> Observation | None:
    """Run the original as if it computed in float64; None if it cannot."""

    def prepare() -> Prepared:
        return target.prepare(case, dtype, double=True, rounding=rounding)

    prepared = attempt(prepare, CALL_S)
    if not isinstance(prepared.value, Prepared):
        return None
    seen = observe(prepared.value, gradients, case.seed, oracle_of=dtype, steps=case.steps)
    return None if seen.error else seen


def further_runs(original: Target, patched: Target, one: Compared) -> Further:
    """Return what a judge may ask for if the numbers of a case are off."""
    case, dtype, gradients = one.case, one.dtype, one.gradients

    def rounded() -> list[Observation]:
        seen = (in_float64(original, case, dtype, gradients, r) for r in ROUNDINGS)
        return [found for found in seen if found is not None]

    def large() -> Observation | None:
        if case.flavour != "NaN and Inf":
            return None
        return in_float64(original, replace(case, flavour=LARGE), dtype, gradients)

    exact = lru_cache(lambda: in_float64(patched, case, dtype, gradients))
    return Further(rounded, exact, lru_cache(large))


def comparable(case: Case, seen: Observation, *, reference: bool) -> Observation:
    """Return what a comparison may look at; ``reference``: whether reference kernels ran."""
    # Which NaN a gradient formula makes of an Inf is decided by the device's kernel; a
    # reference kernel is no evidence for it.
    if case.flavour != "NaN and Inf" or not reference:
        return seen
    return without_gradients(seen)


def without_gradients(seen: Observation) -> Observation:
    """Return what was seen but for the gradients."""
    kept = {n: t for n, t in seen.tensors.items() if not n.startswith("gradient of ")}
    return replace(seen, tensors=kept)
