"""Verify one site: the user's function before and after the patch, in this process.

Runs in the child only; ``parent.verify`` is the way in.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verdict import Status, Verdict
from npufix.rewriters.verification import npu_operators
from npufix.rewriters.verification.attempt import attempt
from npufix.rewriters.verification.called import called
from npufix.rewriters.verification.compare import Difference, bitwise
from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    ShapeRefusedError,
)
from npufix.rewriters.verification.load import Loaded, LoadError, load
from npufix.rewriters.verification.observe import (
    CALL_S,
    Gradients,
    Observation,
    Prepared,
    observe,
)
from npufix.rewriters.verification.probe import Probe
from npufix.rewriters.verification.randomness import drop_alike, is_random
from npufix.rewriters.verification.reach import Wanted
from npufix.rewriters.verification.run import NotVerifiedError, Refusal, RefutedError, Run
from npufix.rewriters.verification.search import cases, is_mixed, run_traced, search
from npufix.rewriters.verification.target import Assignment, Case, Target
from npufix.rewriters.verification.values import ROUNDINGS, Value, kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.rewriters.verification.job import Job

    _Keeps = Callable[..., bool]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_COMPARE_S = 15.0
"""For all cases of a job; the first ones are the most telling."""
_ENOUGH_DIFFERENCES = 12
_NO_CPU_KERNEL = r"not implemented for '(Half|BFloat16)'|not supported.*(Half|BFloat16)"
_FUSED_ATTENTION = "scaled_dot_product_attention"
_NO_REAL_LAYER = r"AttributeError: 'StandIn"
_NO_MEMORY = r"MemoryError|can't allocate memory|OutOfMemory"


def verify_site(job: Job) -> Verdict:
    """Return the verdict on ``job``."""
    run = Run(job)
    try:
        return _verify(run)
    except (NotVerifiedError, LoadError) as error:
        return run.verdict(Status.NOT_VERIFIED, str(error))
    except RefutedError as error:
        return run.verdict(Status.REFUTED, str(error), counterexample=str(error))


def _verify(run: Run) -> Verdict:
    job = run.job
    npu_operators.install(job.torch_npu_version)
    original = _target(run, job.original, "original")
    wanted = Wanted(job.original, original.loaded.filename, job.lines_original)
    keeps: _Keeps = _anything
    if job.vouched and job.probe:
        keeps = Probe(_target(run, job.probe, "probe"), job.vouched).keeps
    found = search(original, wanted, job.recorded, floating=job.floating, keeps=keeps)
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
    compared = _compare(run, original, patched, found.assignments, keeps)
    _decide(run, original, patched, compared)
    _refute(run, patched, compared, found.assignments)
    if job.portable:
        _check_portable(run, original, compared)
    return run.verdict(Status.EQUIVALENT, measures=run.judge.measures(run.changed))


def _target(run: Run, text: str, tag: str) -> Target:
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


def _anything(_case: Case, _dtype: torch.dtype = torch.float32) -> bool:
    return True


def _compare(
    run: Run, original: Target, patched: Target, assignments: list[Assignment], keeps: _Keeps
) -> list[_Compared]:
    deadline = time.process_time() + _COMPARE_S
    compared: list[_Compared] = []
    job_text = "".join(_lines_patched(run.job))
    for case in cases(assignments, mixed=is_mixed(run.job.recorded)):
        if time.process_time() > deadline or len(run.judge.differences) > _ENOUGH_DIFFERENCES:
            break
        for dtype in _dtypes(case, original):
            if case.flavour == "NaN and Inf" and _FUSED_ATTENTION in job_text:
                continue  # which of them come out is decided by the device's kernel
            one = _run_original(run, original, case, dtype)
            if one is None or not keeps(case, dtype):
                continue
            called.clear()
            after = _observed(patched, one)
            run.kernels |= called
            if _cannot_run(run, case, after):
                continue
            reference = _oracle(original, case, dtype, one.gradients)
            run.changed |= one.original.changed | after.changed
            name = str(dtype).removeprefix("torch.")
            before, then = (_comparable(case, run, seen) for seen in (one.original, after))
            judge = run.drawn if _draws(run, original, one) else run.judge
            again = _rounded(original, one)
            judge.add(f"{case} in {name}", case.size, before, then, reference, rounded=again)
            compared.append(one)
    if compared and not any(one.original.tells_something for one in compared):
        raise NotVerifiedError("the call returns nothing and changes nothing to compare")
    if not compared and run.refused:
        first = run.refused[0]
        text = f"the original runs, the patched code raises {first.error}, for {first.case}"
        raise RefutedError(text)
    if not compared:
        raise NotVerifiedError(run.skipped or "the original raises in every dtype")
    return compared


def _draws(run: Run, original: Target, one: _Compared) -> bool:
    """Say whether the original draws random numbers in this case: in training, with dropout."""
    plain = tuple(str(s) for s in one.case.assignment.specs.values() if isinstance(s, Value))
    key = (one.case.assignment.recipe, one.case.training, plain)
    if key not in run.drawing:
        seed = one.case.seed
        run.drawing[key] = is_random(one.original, lambda s: _observed(original, one, s), seed)
    return run.drawing[key]


def _decide(run: Run, original: Target, patched: Target, compared: list[_Compared]) -> None:
    """Judge all cases; where only the drawn numbers differ, by their mean and variance."""
    run.judge.decide()
    structural = bool(run.drawn.differences)
    run.drawn.decide()
    if run.judge.differences or structural or not run.drawn.differences:
        run.judge.take(run.drawn)
        return
    one = next(c for c in compared if _draws(run, original, c))
    if not drop_alike(
        lambda seed: _observed(original, one, seed), lambda seed: _observed(patched, one, seed)
    ):
        run.judge.take(run.drawn)
        return
    if not run.judge.cases:
        raise NotVerifiedError("it draws other random numbers, and no mode was found without them")
    run.other_numbers = True


def _observed(target: Target, one: _Compared, seed: int | None = None) -> Observation:
    """Run another version through the same case; making its object may fail as well."""
    prepared = attempt(lambda: target.prepare(one.case, one.dtype), CALL_S)
    if not isinstance(prepared.value, Prepared):
        return Observation(error=prepared.error, kind=prepared.kind, stage="call")
    return observe(prepared.value, one.gradients, one.case.seed if seed is None else seed)


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


def _run_original(run: Run, target: Target, case: Case, dtype: torch.dtype) -> _Compared | None:
    """Run with gradients if the code allows it, else with copies of leaves, else without."""
    modes: tuple[Gradients, ...] = ("none",) if run.job.inference else ("leaf", "copy", "none")
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


def _rounded(original: Target, one: _Compared) -> Callable[[], list[Observation]]:
    def run() -> list[Observation]:
        seen = (_oracle(original, one.case, one.dtype, one.gradients, r) for r in ROUNDINGS)
        return [found for found in seen if found is not None]

    return run


def _oracle(
    target: Target,
    case: Case,
    dtype: torch.dtype,
    gradients: Gradients,
    rounding: int | None = None,
) -> Observation | None:
    def prepare() -> Prepared:
        return target.prepare(case, dtype, double=True, rounding=rounding)

    prepared = attempt(prepare, CALL_S)
    if not isinstance(prepared.value, Prepared):
        return None
    seen = observe(prepared.value, gradients, case.seed, oracle_of=dtype)
    return None if seen.error else seen


def _cannot_run(run: Run, case: Case, after: Observation) -> bool:
    """Say whether the failure of the patched run tells nothing against the patch."""
    if after.kind == NoReferenceKernelError.__name__:
        raise NotVerifiedError(after.error.partition(": ")[2])
    if after.error and re.search(f"{_NO_CPU_KERNEL}|{_NO_MEMORY}|{_NO_REAL_LAYER}", after.error):
        run.skipped = f"the patched code cannot run here: {after.error}"
        return True
    if after.kind == ShapeRefusedError.__name__ or (after.error and run.job.vouched):
        # Eager code takes shapes that nobody meant, like an x of width one by broadcasting; that
        # the operator refuses them aloud is no wrong result, unless it refuses all of them.
        run.refused.append(Refusal(str(case), after.error))
        return True
    return False


def _comparable(case: Case, run: Run, seen: Observation) -> Observation:
    # Which NaN a gradient formula makes of an Inf is decided by the device's kernel; a
    # reference kernel is no evidence for it.
    if case.flavour != "NaN and Inf" or not run.kernels:
        return seen
    kept = {n: t for n, t in seen.tensors.items() if not n.startswith("gradient of ")}
    return replace(seen, tensors=kept)


def _refute(
    run: Run, patched: Target, compared: list[_Compared], assignments: list[Assignment]
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
    return any("torch_npu." in line for line in _lines_patched(job))


def _lines_patched(job: Job) -> list[str]:
    lines = job.patched.splitlines()
    return [lines[n - 1] for n in job.lines_patched if n <= len(lines)]


def _words(differences: list[Difference]) -> str:
    smallest = min(differences, key=lambda d: d.rank)
    return f"{smallest.text}, for {smallest.case}"


def _check_portable(run: Run, original: Target, compared: list[_Compared]) -> None:
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
