"""What must hold before two versions that do not differ are called equivalent."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from npufix.rewriters.graph.modules.syntax import parse_once, walk
from npufix.rewriters.verification.calls.coverage import LinesToCover, Place, find_blocks
from npufix.rewriters.verification.calls.device import is_real
from npufix.rewriters.verification.calls.values import Tensor, Value, list_dimensions, resize
from npufix.rewriters.verification.inputs.source.declarations import read_declarations
from npufix.rewriters.verification.inputs.source.path_conditions import (
    find_impossible,
    find_proven_dims,
)
from npufix.rewriters.verification.inputs.source.shapes import ANY
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Target
from npufix.rewriters.verification.inputs.tracing import trace_call, trace_cases
from npufix.rewriters.verification.judge.checks.makings import require_made
from npufix.rewriters.verification.judge.checks.refusals import (
    find_refused_ways,
    find_refusing_lines,
    find_running_lines,
)
from npufix.rewriters.verification.judge.checks.work import list_repeated
from npufix.rewriters.verification.judge.compare_versions import find_patched_lines
from npufix.rewriters.verification.judge.evidence import RefusedCase
from npufix.rewriters.verification.judge.observe_case import observe_original
from npufix.rewriters.verification.judge.plausibility import Purpose
from npufix.rewriters.verification.verdict import (
    BackendLimitError,
    NotVerifiedError,
    RefutedError,
)

_LOOKS_AROUND = (
    r"^sys\.(modules|_\w+|gettrace|getprofile|settrace|argv)$|^(gc|inspect|ctypes|traceback|threading)\.\w+$"
    r"|^os\.(environ|getenv|get\w*id)$|^(exec|eval|__import__|globals)$|\bnpufix\b|^/proc/"
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.judge.evidence import Proof
    from npufix.rewriters.verification.judge.observe_case import CaseRun


def require_all(
    run: Proof,
    original: Target,
    patched: Target,
    compared: Sequence[CaseRun],
    assignments: Sequence[Assignment],
) -> None:
    """Require that everything that matters has been compared.

    Raises:
        NotVerifiedError: it has not; the message begins with what was left out.
        BackendLimitError: another ground may compare it.

    """
    _require_numbers(compared)
    _require_refused(run)
    require_made(run, original, patched, assignments)
    _require_earlier_calls(run)
    _require_hooks(run.job)
    _require_looking_at_arguments(run.job)
    for one, why in run.not_taken:
        if _fits_one_number(original, one, compared):
            run.refused.append(RefusedCase(one, why))
            continue
        raise NotVerifiedError(
            f"the changed code does not take {one.case}, which the original does: {why}; "
            "with other numbers of dimensions the two agree"
        )
    # By mean and variance one call is compared, which may be another than that at the edge.
    compared_here = compared if not run.other_numbers else ()
    cases = [replace(c.case, dtypes=(c.dtype,)) for c in compared_here if run.counts(c.case)]
    if run.at_edges is not None:
        wanted, ran = run.at_edges
        left_out = _find_impossible(run.job, run.job.original, compared)
        left_out |= find_refused_ways(run.job.original, run.refused_lines)
        require_reached(wanted, trace_cases(original, cases, wanted, ran) | left_out)
    _require_reached(run, patched, cases, assignments, compared)
    _require_numbers_of_lines(run, original, patched, compared)
    _require_no_more_work(run, original, patched, compared)
    missing = run.list_missing()
    if missing:
        words = "; ".join(f"{what}: {why}" for what, why in missing)
        raise BackendLimitError(f"{words}; equal in {run.judge.cases} runs otherwise")


def _require_numbers(compared: Sequence[CaseRun]) -> None:
    """Require that some call makes or changes something that is not NaN, which equals any other."""
    told = [t for one in compared for t in _list_told(one)]
    plain = any(n.startswith("result") for one in compared for n in one.original.plain)
    if told and not plain and all(bool(t.isnan().all()) for t in told):
        raise NotVerifiedError("every call that was found makes nothing but NaN")


def _list_told(one: CaseRun) -> list[torch.Tensor]:
    """Return what a call of the original makes or changes."""
    changed = one.original.changed
    return [
        t
        for n, t in one.original.tensors.items()
        if t is not None
        and t.numel()
        and (n.startswith("result") or n.removesuffix(" after the call") in changed)
    ]


def _require_numbers_of_lines(
    run: Proof, original: Target, patched: Target, compared: Sequence[CaseRun]
) -> None:
    """Require that no changed line runs in calls alone that make nothing but NaN.

    ``sigmas`` of one step show nothing of what a sampler does with the one before, and where the
    logarithm of the second is NaN all that follows is.
    """
    lost: dict[str, CallCase] = {}
    telling: dict[str, CallCase] = {}
    for one in compared:
        told, made = _list_told(one), one.original.tensors
        nan = bool(told) and all(bool(t.isnan().all()) for t in told)
        empty = not told and any(n.startswith("result") for n in made)  # equals any other as well
        if not empty:
            kept = lost if nan else telling
            kept[f"{one.case.assignment} {one.case.training}"] = one.case
    if not lost or run.special_purpose is Purpose.TREATS:
        return
    job = run.job
    for target, text, lines in (
        (original, job.original, job.lines_original),
        (patched, job.patched, job.lines_patched),
    ):
        wanted = LinesToCover(text, target.loaded.filename, find_running_lines(text, lines))
        ran = trace_cases(target, [*telling.values()], wanted, set())
        left = wanted.unreached(ran)
        beyond = wanted.unreached(trace_cases(target, [*lost.values()], wanted, ran))
        only = [p for p in left if p not in beyond and isinstance(p, int)]
        if only:
            raise NotVerifiedError(
                f"every call that reaches line {wanted.name(only)} makes nothing but NaN"
            )


def _fits_one_number(original: Target, one: CaseRun, compared: Sequence[CaseRun]) -> bool:
    """Say whether the original takes so many dimensions of few sizes alone, by broadcasting.

    ``t[:, None] * freqs[None]`` takes ``t`` of three dimensions where the last is one, or ``dim=2``
    makes one of ``freqs``; what it is written for runs whatever these are.
    """

    def list_refused(case: CallCase) -> list[bool]:
        specs = case.assignment.specs
        given = {n: s.value for n, s in specs.items() if isinstance(s, Value) and s.given}
        whole = [(n, v) for n, v in given.items() if type(v) is int]
        others = [{**specs, n: Value(v + more)} for n, v in whole for more in (4, 6)]
        every = {**specs, **{n: Value(v + 6) for n, v in whole}}
        for old in sorted({*list_dimensions(specs)} - {0}, reverse=True):
            others.append(resize(specs, old, old + 4))
            every = resize(every, old, old + 4)
        others.append(every)
        made = [replace(case, assignment=replace(case.assignment, specs=s)) for s in others]
        modes: tuple[Literal["none"]] = ("none",)
        seen = (observe_original(original, m, one.dtype, inference=True, modes=modes) for m in made)
        return [found is None for found in seen]

    names = one.case.assignment.specs.keys()
    usual = next((c.case for c in compared if c.case.assignment.specs.keys() == names), None)
    return usual is not None and any(list_refused(one.case)) and not any(list_refused(usual))


def _require_refused(run: Proof) -> None:
    """Require that the lines of the change which only run to raise have run."""
    job = run.job
    for text, lines, ran, which in (
        (job.original, job.lines_original, run.refused_lines, "original"),
        (job.patched, job.lines_patched, run.refused_lines_patched, "patched text"),
    ):
        refusing = find_refusing_lines(text, lines)
        left = [n for n in LinesToCover(text, which, refusing).unreached(ran) if n in refusing]
        if left:
            numbers = ", ".join(map(str, left))
            raise NotVerifiedError(
                f"no arguments were found under which line {numbers} of the {which} raises"
            )


def _require_earlier_calls(run: Proof) -> None:
    """Require that what earlier calls build up was built up, if the code is one's own change.

    ``self.rows`` of a replay memory whose ``push`` could not be called was compared empty alone.
    """
    for name, left in run.uncalled.items() if run.job.by_hand else ():
        if left:
            raise NotVerifiedError(
                f"no call of {name} was found, which changes self.{left[0]} that this reads"
            )


def _require_hooks(job: Job) -> None:
    """Require that no module is called past its hooks: ``self.inner.forward(x)``.

    Those of quantisation, FSDP, offloading and recordings are registered by others.

    Raises:
        RefutedError: one is that was not.

    """
    before, after = (
        Counter(ast.unparse(n.func) for n in walk(parse_once(text)) if isinstance(n, ast.Call))
        for text in (job.original, job.patched)
    )
    for name in after - before:
        module = name.removesuffix(".forward")
        if name != module and before[module] > after[module]:
            raise RefutedError(
                f"{name}(...) in place of {module}(...) skips the hooks registered on {module}",
                why_no_script="it shows as soon as a hook is registered",
            )


def _require_looking_at_arguments(job: Job) -> None:
    """Require that new code does not ask where it runs, as then it may do something else there."""
    before, after = (
        {
            ast.unparse(node) if not isinstance(node, ast.Constant) else str(node.value)
            for node in walk(parse_once(text))
            if isinstance(node, ast.Name | ast.Attribute | ast.Constant) and node.lineno in lines
        }
        for text, lines in (
            (job.original, job.lines_original),
            (job.patched, job.lines_patched),
        )
    )
    looks = sorted(name for name in after - before if re.search(_LOOKS_AROUND, name))
    if looks and job.by_hand:
        raise NotVerifiedError(
            f"the changed code asks where it runs ({looks[0]}): elsewhere it may do something else"
        )


def _require_no_more_work(
    run: Proof, original: Target, patched: Target, compared: Sequence[CaseRun]
) -> None:
    """Require that no module or function of the user is called once more than before."""
    ordinary = next((c for c in compared if c.case.flavour == "ordinary"), compared[0])
    repeated = list_repeated(original, patched, ordinary.case)
    if not repeated:
        return
    words = f"the same, but more work: it calls {', '.join(repeated)}"
    if not run.job.by_hand:
        raise NotVerifiedError(words)
    run.notes.append(words)


def require_reached(wanted: LinesToCover, ran: set[Place]) -> None:
    """Require that every changed line of the original has run."""
    unreached = wanted.unreached(ran)
    if unreached:
        lines = wanted.name(unreached)
        raise NotVerifiedError(f"no arguments were found that reach line {lines} of the original")


def _require_reached(
    run: Proof,
    patched: Target,
    cases: Sequence[CallCase],
    assignments: Sequence[Assignment],
    compared: Sequence[CaseRun],
) -> None:
    """Require that every line of the new code has run; ``cases``: what was compared."""
    job = run.job
    running = find_running_lines(job.patched, job.lines_patched)
    alike = find_blocks(job.original, job.lines_original)
    wanted = LinesToCover(job.patched, patched.loaded.filename, running, alike)
    ran: set[Place] = set()
    for assignment in assignments:
        for training in (True, False) if patched.has_modes else (True,):
            ran |= trace_call(patched, CallCase(assignment, training=training)) or set()
        if wanted.unreached(ran):
            ran |= trace_call(patched, CallCase(assignment), times=2) or set()
        if not wanted.unreached(ran):
            break
    ran = trace_cases(patched, cases, wanted, ran)
    left_out = _find_impossible(job, job.patched, compared)
    left_out |= find_refused_ways(job.patched, run.refused_lines_patched)
    unreached = wanted.unreached(ran | left_out)
    refusing = find_refusing_lines(job.patched, job.lines_patched)
    run.tried.note_lines(wanted.reached(ran) | (refusing & run.refused_lines_patched))
    if unreached:
        lines = wanted.name(unreached)
        raise NotVerifiedError(f"line {lines} of the patched text was never reached")
    launched = run.launches is not None and run.launches.patched
    if not (run.kernels or launched or is_real()) and _calls_torch_npu(run.job):
        raise NotVerifiedError("the patched lines call torch_npu, but no call was reached")


def _find_impossible(job: Job, text: str, compared: Sequence[CaseRun]) -> set[Place]:
    """Return the lines and ways that no call reaches within what the original says of its calls.

    ``x.dim() == 3`` always holds where ``b, t, d = x.shape`` is at the top of the original, and
    ``isinstance(x, Tensor)`` where ``x: Tensor`` is all that is said. What a comparison has seen
    otherwise is not as it is said.
    """
    old, new = (find_function(parse_once(t), job.qualname) for t in (job.original, text))
    if old is None or new is None:
        return set()
    declared = read_declarations(job.original, job.qualname, job.assumed)
    seen = [c.case.assignment.specs for c in compared]
    dims: dict[str, frozenset[int]] = {}
    rebound = {n.id for n in walk(new) if isinstance(n, ast.Name) and type(n.ctx) is ast.Store}
    for name, proven in find_proven_dims(old).items():
        shapes = declared.of(name).shapes
        said = frozenset(map(len, shapes)) if not any(ANY in s for s in shapes) else frozenset()
        specs = [one[name] for one in seen if name in one]
        counts = {len(s.shape) for s in specs if isinstance(s, Tensor)}
        known = proven or said
        if name not in rebound and all(isinstance(s, Tensor) for s in specs):
            dims[name] = known if counts <= known else frozenset()
    return find_impossible(new, dims)


def _calls_torch_npu(job: Job) -> bool:
    return any("torch_npu." in line for line in find_patched_lines(job))
