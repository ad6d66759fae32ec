"""Verify one site: the user's function before and after the patch, in this process.

Runs in the child only; ``parent.verify`` is the way in.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verdict import Measure, Status, Verdict
from npufix.rewriters.verification import npu_operators
from npufix.rewriters.verification.attempt import attempt
from npufix.rewriters.verification.compare import Difference, Judge, bitwise
from npufix.rewriters.verification.load import Loaded, LoadError, load
from npufix.rewriters.verification.observe import (
    CALL_S,
    Gradients,
    Observation,
    Prepared,
    observe,
)
from npufix.rewriters.verification.reach import Wanted
from npufix.rewriters.verification.search import cases, is_mixed, run_traced, search
from npufix.rewriters.verification.target import Assignment, Case, Target
from npufix.rewriters.verification.values import kinds

if TYPE_CHECKING:
    from npufix.rewriters.verification.job import Job

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_COMPARE_S = 15.0
"""For all cases of a job; the first ones are the most telling."""
_ENOUGH_DIFFERENCES = 12
_NO_CPU_KERNEL = r"not implemented for '(Half|BFloat16)'|not supported.*(Half|BFloat16)"
_NO_MEMORY = r"MemoryError|can't allocate memory|OutOfMemory"


class NotVerifiedError(Exception):
    """There is no verdict; the message says why."""


class RefutedError(Exception):
    """The two are different before any case was compared."""


@dataclass(slots=True)
class _Run:
    """What has happened so far in the verification of one job."""

    job: Job
    missing: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    judge: Judge = field(default_factory=Judge)
    changed: set[str] = field(default_factory=set)
    skipped: str = ""
    without_init: bool = False
    refused: list[str] = field(default_factory=list)
    """Cases of shapes that an operator does not take and the original stretches."""

    def verdict(
        self,
        status: Status,
        reason: str = "",
        counterexample: str = "",
        measures: tuple[Measure, ...] = (),
    ) -> Verdict:
        ground = f"torch {torch.__version__.partition('+')[0]}, CPU"
        if self.kernels:
            ground += f" + reference kernels: {', '.join(sorted(self.kernels))}"
        if self.judge.without_oracle:
            ground += "; no float64 run for some results: compared with the original itself"
        if self.refused:
            ground += f"; not for {self.refused[0]}, which the operator refuses"
        if self.without_init:
            ground += "; on an object with stand-in attributes, its __init__ does not run here"
        if self.missing:
            ground += f"; without the imports {', '.join(sorted(self.missing))}"
        count = self.judge.cases
        return Verdict(status, ground, self.job.qualname, reason, count, measures, counterexample)


def verify_site(job: Job) -> Verdict:
    """Return the verdict on ``job``."""
    run = _Run(job)
    try:
        return _verify(run)
    except (NotVerifiedError, LoadError) as error:
        return run.verdict(Status.NOT_VERIFIED, str(error))
    except RefutedError as error:
        return run.verdict(Status.REFUTED, str(error), counterexample=str(error))


def _verify(run: _Run) -> Verdict:
    job = run.job
    npu_operators.install(job.torch_npu_version)
    original = _target(run, job.original, "original")
    wanted = Wanted(job.original, original.loaded.filename, job.lines_original)
    found = search(original, wanted, job.recorded, floating=job.floating)
    if not found.assignments:
        raise NotVerifiedError(found.reason)
    recipes = [a.recipe for a in found.assignments]
    run.without_init = any(r is not None and r.attributes is not None for r in recipes)
    unreached = wanted.unreached(found.reached)
    if unreached:
        lines = ", ".join(map(str, unreached))
        raise NotVerifiedError(f"no arguments were found that reach line {lines} of the original")
    try:
        patched = _target(run, job.patched, "patched")
    except LoadError as error:
        raise RefutedError(f"the original loads, the patched text does not: {error}") from None
    compared = _compare(run, original, patched, found.assignments)
    run.judge.decide()
    _refute(run, patched, compared, found.assignments)
    if job.portable:
        _check_portable(run, original, compared)
    return run.verdict(Status.EQUIVALENT, measures=run.judge.measures(run.changed))


def _target(run: _Run, text: str, tag: str) -> Target:
    loaded: Loaded = load(text, run.job.path, run.job.root, run.job.qualname, tag)
    run.missing.update(loaded.missing)
    return Target(loaded, run.job.qualname)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A case that the original ran through, and how."""

    case: Case
    dtype: torch.dtype
    gradients: Gradients
    original: Observation


def _compare(
    run: _Run, original: Target, patched: Target, assignments: list[Assignment]
) -> list[_Compared]:
    deadline = time.monotonic() + _COMPARE_S
    compared: list[_Compared] = []
    for case in cases(assignments, mixed=is_mixed(run.job.recorded)):
        if time.monotonic() > deadline or len(run.judge.differences) > _ENOUGH_DIFFERENCES:
            break
        for dtype in _dtypes(case, original):
            one = _run_original(original, case, dtype)
            if one is None:
                continue
            npu_operators.called.clear()
            after = _observed(patched, one)
            run.kernels |= npu_operators.called
            if _cannot_run(run, case, after):
                continue
            reference = _oracle(original, case, dtype, one.gradients)
            run.changed |= one.original.changed | after.changed
            name = str(dtype).removeprefix("torch.")
            before, then = (_comparable(case, run, seen) for seen in (one.original, after))
            run.judge.add(f"{case} in {name}", case.size, before, then, reference)
            compared.append(one)
    if compared and not any(one.original.tells_something for one in compared):
        raise NotVerifiedError("the call returns nothing and changes nothing to compare")
    if not compared:
        raise NotVerifiedError(run.skipped or "the original raises in every dtype")
    return compared


def _observed(target: Target, one: _Compared) -> Observation:
    """Run another version through the same case; making its object may fail as well."""
    prepared = attempt(lambda: target.prepare(one.case, one.dtype), CALL_S)
    if not isinstance(prepared.value, Prepared):
        return Observation(error=prepared.error, kind=prepared.kind, stage="call")
    return observe(prepared.value, one.gradients, one.case.seed)


def _dtypes(case: Case, target: Target) -> tuple[torch.dtype, ...]:
    present = kinds(case.assignment.specs.values())
    recipe = case.assignment.recipe
    if present & {"float", "unit"}:
        return _DTYPES
    if recipe is not None and target.owner is not None:
        made = target.instance(recipe, torch.float32)
        if isinstance(made, torch.nn.Module) and any(True for _ in made.parameters()):
            return _DTYPES
    return _DTYPES[:1]


def _run_original(target: Target, case: Case, dtype: torch.dtype) -> _Compared | None:
    """Run with gradients if the code allows it, else with copies of leaves, else without."""
    modes: tuple[Gradients, ...] = ("leaf", "copy", "none")
    for mode in modes:
        prepared = attempt(lambda: target.prepare(case, dtype), CALL_S)
        if not isinstance(prepared.value, Prepared):
            return None
        seen = observe(prepared.value, mode, case.seed)
        if not seen.error:
            return _Compared(case, dtype, mode, seen)
        if seen.stage == "call" and mode == "leaf" and "leaf" not in seen.error:
            return None
    return None


def _oracle(
    target: Target, case: Case, dtype: torch.dtype, gradients: Gradients
) -> Observation | None:
    prepared = attempt(lambda: target.prepare(case, dtype, double=True), CALL_S)
    if not isinstance(prepared.value, Prepared):
        return None
    seen = observe(prepared.value, gradients, case.seed, oracle_of=dtype)
    return None if seen.error else seen


def _cannot_run(run: _Run, case: Case, after: Observation) -> bool:
    """Say whether the failure of the patched run tells nothing against the patch."""
    if after.kind == npu_operators.NoReferenceKernelError.__name__:
        raise NotVerifiedError(after.error.partition(": ")[2])
    if after.error and re.search(f"{_NO_CPU_KERNEL}|{_NO_MEMORY}", after.error):
        run.skipped = f"the patched code cannot run here: {after.error}"
        return True
    if after.kind == npu_operators.ShapeRefusedError.__name__ and case.broadcasts:
        # ``weight * x`` takes an x of width one by accident of broadcasting; that the operator
        # refuses it aloud is no wrong result.
        run.skipped = after.error
        run.refused.append(str(case))
        return True
    return False


def _comparable(case: Case, run: _Run, seen: Observation) -> Observation:
    # Which NaN a gradient formula makes of an Inf is decided by the device's kernel; a
    # reference kernel is no evidence for it.
    if case.flavour != "NaN and Inf" or not run.kernels:
        return seen
    kept = {n: t for n, t in seen.tensors.items() if not n.startswith("gradient of ")}
    return replace(seen, tensors=kept)


def _refute(
    run: _Run, patched: Target, compared: list[_Compared], assignments: list[Assignment]
) -> None:
    if run.judge.differences:
        raise RefutedError(_words(run.judge.differences))
    wanted = Wanted(run.job.patched, patched.loaded.filename, run.job.lines_patched)
    ran: set[int] = set()
    for assignment in assignments:
        ran |= run_traced(patched, Case(assignment)) or set()
        if not wanted.unreached(ran):
            break
    unreached = wanted.unreached(ran)
    if unreached:
        lines = ", ".join(map(str, unreached))
        raise NotVerifiedError(f"line {lines} of the patched text was never reached")
    if not run.kernels and _calls_torch_npu(run.job):
        raise NotVerifiedError("the patched lines call torch_npu, but no call was reached")
    assert compared  # noqa: S101 — ``_compare`` raises otherwise


def _calls_torch_npu(job: Job) -> bool:
    lines = job.patched.splitlines()
    return any("torch_npu." in lines[n - 1] for n in job.lines_patched if n <= len(lines))


def _words(differences: list[Difference]) -> str:
    smallest = min(differences, key=lambda d: d.rank)
    return f"{smallest.text}, for {smallest.case}"


def _check_portable(run: _Run, original: Target, compared: list[_Compared]) -> None:
    """Require that the guarded text is, on CPU, the original bit for bit."""
    try:
        portable = _target(run, run.job.portable, "portable")
    except LoadError as error:
        raise RefutedError(f"the portable text does not load: {error}") from None
    assert original.name == portable.name  # noqa: S101 — same qualified name
    for one in compared:
        seen = _observed(portable, one)
        text = bitwise(one.original, seen)
        if text:
            raise RefutedError(
                f"the portable text is not the original on CPU: {text}, for {one.case}"
            )
