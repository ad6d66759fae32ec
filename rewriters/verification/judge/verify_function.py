"""Verify one site: the user's function before and after the patch, in this process.

Runs in the child only; ``parent.verify`` is the way in.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.coverage import LinesToCover, find_blocks, find_names_read
from npufix.rewriters.verification.calls.device import is_real
from npufix.rewriters.verification.calls.leaves import tell_apart
from npufix.rewriters.verification.calls.values import (
    SPECIAL,
    Tensor,
    Value,
    list_dimensions,
    list_kinds,
    replace_tensors,
)
from npufix.rewriters.verification.inputs.arguments import is_integral
from npufix.rewriters.verification.inputs.cases.generate import list_edges
from npufix.rewriters.verification.inputs.cases.trials import Trials, with_specs
from npufix.rewriters.verification.inputs.declared_search import search_as_declared
from npufix.rewriters.verification.inputs.load import LoadError, list_own_files
from npufix.rewriters.verification.inputs.sorts_and_looks import keeps_both
from npufix.rewriters.verification.inputs.source.assumed_shapes import AssumptionError
from npufix.rewriters.verification.inputs.source.declarations import read_declarations
from npufix.rewriters.verification.inputs.source.path_conditions import list_always_called
from npufix.rewriters.verification.inputs.source.slicing import (
    find_names_behind,
    find_names_beside,
    list_operators,
)
from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Target
from npufix.rewriters.verification.inputs.tracing import trace_call, trace_cases
from npufix.rewriters.verification.judge.checks.conversions import (
    find_rounded_buffers,
    require_own_types,
)
from npufix.rewriters.verification.judge.checks.elsewhere import find_device_mismatch
from npufix.rewriters.verification.judge.checks.probe import arguments_keep, operands_keep
from npufix.rewriters.verification.judge.checks.refusals import (
    compare_refusals,
    find_running_lines,
)
from npufix.rewriters.verification.judge.checks.requirements import require_all, require_reached
from npufix.rewriters.verification.judge.checks.timing import measure_times
from npufix.rewriters.verification.judge.compare_versions import (
    NO_MEMORY,
    compare_versions,
    draws_numbers,
)
from npufix.rewriters.verification.judge.difference import Difference, Seen
from npufix.rewriters.verification.judge.enough import leave_out_unrepeated
from npufix.rewriters.verification.judge.evidence import Proof
from npufix.rewriters.verification.judge.observe_case import (
    CaseRun,
    list_waits,
    observe_original,
    observe_version,
)
from npufix.rewriters.verification.judge.plausibility import Purpose, find_purpose, set_aside
from npufix.rewriters.verification.judge.programs.counterexample import (
    Program,
    Versions,
    write_program,
)
from npufix.rewriters.verification.judge.randomness import tell_draws_apart
from npufix.rewriters.verification.judge.shrink import Counterexample, Shrinker
from npufix.rewriters.verification.judge.versions import find_failing_import, load_version
from npufix.rewriters.verification.sandbox.messages import Answer
from npufix.rewriters.verification.sandbox.remote import run_everywhere, runs_with_target
from npufix.rewriters.verification.verdict import (
    BackendLimitError,
    NotVerifiedError,
    RefutedError,
    Status,
    Synchronisations,
    Verdict,
)

if TYPE_CHECKING:
    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.calls.observe import CallRecord
    from npufix.rewriters.verification.inputs.source.declarations import Declarations
    from npufix.rewriters.verification.judge.compare_versions import Keeps


_SECOND = "create_graph"
_ENOUGH = 4096
"""Elements whose variance over many runs is known well enough; of one element it is not."""
_FEW = 48
_CALLS_TO_COUNT = 3
_MOST_LOST = 3
_NO_TIME = r"does not return within|no result within"

_OTHERS_AFTERWARDS = "it draws more or fewer random numbers: those drawn after the call are others"


def verify_function(job: Job, ground: str = "reference") -> Answer:
    """Return the verdict on ``job``; without a function to call, on importing its file."""
    verdict = _verdict(Proof(job, ground)) if job.qualname else _imports(Proof(job, ground))
    exhausted = re.search(f"{NO_MEMORY}|{_NO_TIME}", verdict.reason) is not None
    lasting = verdict.status is not Status.NOT_VERIFIED or not exhausted
    of_device = is_real() and verdict.limit
    files = sorted({file for found in run_everywhere(list_own_files) for file in found})
    return Answer(verdict, tuple(files), lasting and not of_device)


def _imports(run: Proof) -> Verdict:
    """Return whether the patched file can be imported as far as the original can."""
    raised = find_failing_import(run.job)
    return run.verdict(Status.REFUTED if raised else Status.EQUIVALENT, raised)


def _verdict(run: Proof) -> Verdict:
    try:
        return _verify(run)
    except (NotVerifiedError, LoadError, AssumptionError) as error:
        verdict = run.verdict(Status.NOT_VERIFIED, str(error))
        return replace(verdict, limit=isinstance(error, BackendLimitError))
    except RefutedError as error:
        if error.why_no_script:
            run.notes.append(f"no program shows it: {error.why_no_script}")
        verdict = run.verdict(Status.REFUTED, str(error), counterexample=str(error))
        return replace(verdict, script=error.script)


def _verify(run: Proof) -> Verdict:
    job = run.job
    run.special_purpose = find_purpose(job)
    run.asks_second = _SECOND in job.original or _SECOND in job.patched
    before, after = (list_operators(t, job.qualname) for t in (job.original, job.patched))
    run.second = run.asks_second or before != after
    original = _load(run, job.original, "original")
    keeps: Keeps = _anything
    if job.vouched and job.probes:
        texts = [_load(run, text, "probe").on_host() for text in job.probes]
        keeps = partial(operands_keep, tuple(texts), job.vouched)
    elif job.vouched and job.by_hand:
        keeps = partial(arguments_keep, original.on_host(), job.vouched)
    declared = read_declarations(job.original, job.qualname, job.assumed)
    # what a text asks for is what code raises without
    refusable = partial(keeps_both, keeps, declared.without_texts())
    assignments, keeps = _find_assignments(run, original, keeps, declared)
    try:
        patched = _load(run, job.patched, "patched")
    except LoadError as error:
        words = f"the original loads, the patched text does not: {error}"
        program = _of_the_first(run, original, assignments, words)
        raise RefutedError(words, *program) from None
    compared = compare_versions(run, original, patched, assignments, keeps)
    _decide(run, original, patched, compared)
    shown = compared + compare_refusals(run, original, patched, assignments, refusable)
    mismatch = None if job.vouched else find_device_mismatch(original, patched, compared)
    if mismatch is not None and mismatch.is_indexed:
        run.only_on_host = f"{mismatch.difference.text}, for {mismatch.difference.case}"
    elif mismatch is not None:
        shown.append(mismatch.one)
        run.judge.differences.append(mismatch.difference)
    run.judge.differences, aside = set_aside(job, run.judge.differences, compared)
    run.notes += aside
    leave_out_unrepeated(run, original, shown)
    require_own_types(run.judge.differences, compared)
    if run.judge.differences:
        raise _refute(run, original, patched, shown, keeps)
    if run.judge.undecided:
        raise NotVerifiedError(
            f"there was no time to tell from rounding what differs: {run.judge.undecided}"
        )
    require_all(run, original, patched, compared, assignments)
    run.rounded = ", ".join(find_rounded_buffers(original, patched, compared))
    if job.portable:
        _check_portable(run, original, compared)
    run.synchronisations = count_synchronisations(original, patched, compared)
    run.times = measure_times(original, patched, compared, job.recorded)
    return run.verdict(Status.EQUIVALENT, measures=run.judge.measures(run.changed))


def count_synchronisations(
    original: Target, patched: Target, compared: list[CaseRun]
) -> Synchronisations | None:
    """Return where the host would wait, in the call of a few in which it waits most often."""
    most: Synchronisations | None = None
    plain = [one for one in compared if not one.case.steps and one.case.earlier is None]
    for one in plain[:_CALLS_TO_COUNT]:
        before, after = list_waits(original, one), list_waits(patched, one)
        if before is None or after is None:
            continue
        if most is None or len(before) > len(most.original):
            most = Synchronisations(before, after)
    return most


def _find_assignments(
    run: Proof, original: Target, keeps: Keeps, declared: Declarations
) -> tuple[list[Assignment], Keeps]:
    """Return arguments under which the original runs every changed line, but those that raise.

    And what tells whether a call is within what is said of the arguments.
    """
    job = run.job
    running = find_running_lines(job.original, job.lines_original)
    alike = find_blocks(job.patched, job.lines_patched)
    wanted = LinesToCover(job.original, original.loaded.filename, running, alike)
    versions = ((job.original, job.lines_original), (job.patched, job.lines_patched))
    read = list[str]()
    for text, lines in versions:
        read += sorted(find_names_read(text, lines))
    for find in (find_names_behind, find_names_beside):
        for text, lines in versions:
            read += sorted(find(text, lines))
    called = list_always_called(wanted.tree, job.qualname)
    for name in (n for n in original.loaded.missing if n.partition(" of ")[0] in called):
        # No argument helps: seconds of guessing would only come to the same.
        raise NotVerifiedError(
            f"the original does not run without {name}, which cannot be imported"
        )
    found, keeps = search_as_declared(original, wanted, job, declared, read, keeps)
    if not found.assignments:
        raise NotVerifiedError(found.reason)
    run.uncalled = found.uncalled
    for name in found.uncalled:
        run.notes.append(f"no call of {name} was found, which writes what this reads")
    recipes = [a.recipe for a in found.assignments]
    run.without_init = any(r is not None and r.attributes is not None for r in recipes)
    late = dict.fromkeys(f"self.{n}" for r in recipes if r is not None for n, _ in r.late)
    if late:
        run.notes.append(f"__init__ does not set {', '.join(late)}: stand-ins do")
    if wanted.unreached(found.reached):
        # ``if not rows:`` -- only what is compared counts in the end, and that may reach them too.
        run.at_edges = wanted, found.reached
        if not job.by_hand:  # nobody asks what else is wrong with a patch that is not offered
            edges = list_edges(original, tuple(found.assignments), job)
            edges = [case for case in edges if run.counts(case)]
            require_reached(wanted, trace_cases(original, edges, wanted, found.reached))
    more = _with_defaults(original, found.assignments)
    more += _with_other_kinds(original, found.assignments)
    more += _with_shares(original, [*found.assignments, *more], keeps)
    return _put_telling_first(original, [*found.assignments, *more]), keeps


@runs_with_target
def _with_defaults(original: Target, assignments: list[Assignment]) -> list[Assignment]:
    """Return the first arguments with one of them left out: lines may have left their branch."""
    found = []
    first, known = assignments[0], [str(a) for a in assignments]
    defaults = {p.name: p.default for p in original.parameters() if p.has_default}
    for name, default in defaults.items():
        spec = first.specs.get(name)
        if not isinstance(spec, Value) or not spec.given:
            continue
        specs = {**first.specs, name: Value(default, given=False)}
        other = replace(first, specs=specs)
        if str(other) not in known and trace_call(original.on_host(), CallCase(other)) is not None:
            found.append(other)
    return found


@runs_with_target
def _with_other_kinds(original: Target, assignments: list[Assignment]) -> list[Assignment]:
    """Return calls of further objects with the kinds of numbers that the first one has taken.

    The logarithm of any floats is NaN here and there, which tells nothing; of shares it is not.
    """
    found: list[Assignment] = []
    first = [a for a in assignments if a.recipe == assignments[0].recipe]
    others = {str(a.recipe): a.recipe for a in assignments if a.recipe != assignments[0].recipe}
    for recipe in others.values():
        own = (a for a in assignments if a.recipe == recipe)
        known = {kind for a in own for kind in list_kinds(a.specs.values())}
        unlike = (a for a in first if not known.issuperset(list_kinds(a.specs.values())))
        made = next((replace(a, recipe=recipe) for a in unlike), None)
        if made is not None and trace_call(original.on_host(), CallCase(made)) is not None:
            found.append(made)
    return found


@runs_with_target
def _with_shares(original: Target, assignments: list[Assignment], keeps: Keeps) -> list[Assignment]:
    """Return calls with shares in place of floats, where any floats make nothing but NaN.

    A sampler with ``sigmas.log()`` in every step does, for the first number below zero.
    """
    trials = Trials(original.on_host())
    found: list[Assignment] = []
    for one in [a for a in assignments if _is_lost(trials, a)][:_MOST_LOST]:
        floats = [n for n, s in one.specs.items() if "float" in list_kinds([s])]
        for names in (*([name] for name in floats), floats):
            shares = {n: replace_tensors(one.specs[n], _as_share) for n in names}
            made = with_specs(one, **shares)
            if keeps(CallCase(made)) and trials.accepts(made) and not _is_lost(trials, made):
                found.append(made)
                break
    return found


def _as_share(tensor: Tensor) -> Tensor:
    return replace(tensor, kind="unit") if tensor.kind == "float" else tensor


def _is_lost(trials: Trials, one: Assignment) -> bool:
    """Say whether a call makes nothing but NaN."""
    seen = (trials.run(CallCase(one)) or {}).items()
    results = [v for n, v in seen if n.startswith("result") and isinstance(v, torch.Tensor)]
    return any(v.numel() for v in results) and all(bool(v.isnan().all()) for v in results)


@runs_with_target
def _put_telling_first(original: Target, assignments: list[Assignment]) -> list[Assignment]:
    """Return assignments in another order, if the first makes nothing but NaN and others do not.

    What else an object is made with is compared with the first of its calls alone.
    """
    trials = Trials(original.on_host())
    if not _is_lost(trials, assignments[0]):
        return assignments
    return sorted(assignments, key=lambda one: (_is_lost(trials, one), is_integral(one.specs)))


def _load(run: Proof, text: str, tag: str) -> Target:
    target = load_version(run.job, text, tag)
    run.missing.update(target.loaded.missing)
    return target


def _anything(_case: CallCase, _dtype: torch.dtype = torch.float32) -> bool:
    return True


def _decide(run: Proof, original: Target, patched: Target, compared: list[CaseRun]) -> None:
    """Judge all cases; where only the drawn numbers differ, by their mean and variance."""

    def refutes(*places: Seen) -> bool:
        kept, _ = set_aside(run.job, run.judge.differences, compared)
        return any(d.seen in places and d.size for d in kept)

    every = Seen.RESULT, Seen.EFFECT, Seen.GRADIENT
    run.judge.decide(hopeless=refutes(Seen.RESULT), refutes=lambda: refutes(*every))
    run.special.decide()
    run.judge.cases += run.special.cases
    special = sorted(run.special.differences, key=lambda d: d.rank)
    if run.special_purpose is Purpose.HIDES:  # what the original keeps out must stay out
        run.judge.differences += [d for d in special if d.leaks]
        run.judge.undecided = run.judge.undecided or run.special.undecided
        special = [d for d in special if not d.leaks]
    run.notes += [f"for NaN and Inf: {d.text}, for {d.case}" for d in special[:1]]
    run.beyond.decide()
    aside = sorted(run.beyond.differences, key=lambda d: d.rank)[:1]
    run.notes += [f"where the original makes NaN: {d.text}, for {d.case}" for d in aside]
    for call in sorted(run.judge.kinks | run.drawn.kinks)[:1]:  # at the 0 of a ReLU
        run.notes.append(f"where the original has no derivative, that of the patch differs: {call}")
    structural = bool(run.drawn.differences)
    run.drawn.decide()
    if not (run.draws_as_many or run.drawn.differences):
        run.notes.append(_OTHERS_AFTERWARDS)
    if run.judge.differences or structural or not run.drawn.differences:
        run.judge.take(run.drawn)
        return
    drawing = [c for c in compared if draws_numbers(run, original, c)]
    one = max(drawing, key=lambda c: (c.dtype == torch.float32, min(c.case.size, _ENOUGH)))
    # among few rows, inputs and labels that are shuffled alike go together more than by chance
    few = min(drawing, key=lambda c: (c.dtype != torch.float32, abs(c.case.size - _FEW)))
    for each in (one, *([few] if few is not one else [])):
        words = tell_draws_apart(
            partial(observe_version, original, each), partial(observe_version, patched, each)
        )
        if words:  # two numbers of a single draw say nothing of that
            run.judge.take(run.drawn)
            run.judge.differences = [Difference(words, each.label, each.case.size)]
            run.other_numbers = True
            return
    if not run.judge.cases:
        raise NotVerifiedError("it draws other random numbers, and no mode was found without them")
    run.other_numbers = True


def _refute(
    run: Proof, original: Target, patched: Target, compared: list[CaseRun], keeps: Keeps
) -> RefutedError:
    """Return the smallest counterexample that can be found, in words and as a program."""
    calls = {c.label: c for c in reversed(compared)}

    def far_fetched(difference: Difference) -> tuple[bool, bool]:
        """Say whether whole numbers are passed for what is a float, and whether there are none."""
        specs = calls[difference.case].case.assignment.specs
        return is_integral(specs), 0 in list_dimensions(specs)

    def special(difference: Difference) -> tuple[bool, bool]:
        """Say whether it is not seen, and whether it is seen for NaN and Inf alone."""
        return not difference.visible, calls[difference.case].case.flavour in SPECIAL

    smallest = min(run.judge.differences, key=lambda d: (far_fetched(d), special(d), d.rank))
    one = calls[smallest.case]
    minimiser = Shrinker(
        original,
        patched,
        keeps,
        inference=run.job.inference,
        reference=bool(run.kernels),
        judge=run.judge,
    )
    shown = Counterexample(one, smallest)
    # Of other numbers, every smaller call is another, which says nothing of what is wrong.
    shown = shown if run.other_numbers else minimiser.smallest(shown)
    words = f"{shown.difference.text}, for {shown.one.label}"
    versions = Versions(run.job, original, run.job.patched, patched.loaded)
    return RefutedError(words, *write_program(versions, shown, words))


def _of_the_first(
    run: Proof, original: Target, assignments: list[Assignment], words: str
) -> Program:
    """Return a program for a patched text that does not even load."""
    one = observe_original(
        original, CallCase(assignments[0]), torch.float32, inference=run.job.inference
    )
    if one is None:
        return Program("", "the original does not run on the first arguments")
    shown = Counterexample(one, Difference(words, one.label, one.case.size))
    return write_program(Versions(run.job, original, run.job.patched, None), shown, words)


def _count_as_written(run: Proof, portable: Target) -> None:
    """Count the launches of the text that is written, with its guard, on the device."""
    one, found = run.launched_for, run.launches
    if one is None or found is None or not portable.on_npu:
        return
    seen = observe_version(portable, one)
    if seen.error:
        raise RefutedError(f"the text that is written raises {seen.error}, for {one.label}")
    run.launches = replace(
        found, patched=seen.launched.forward, patched_backward=seen.launched.backward
    )


def _check_portable(run: Proof, original: Target, compared: list[CaseRun]) -> None:
    """Require that the guarded text is, on CPU, the original bit for bit."""
    try:
        portable = _load(run, run.job.portable, "portable")
    except LoadError as error:
        raise RefutedError(f"the portable text does not load: {error}") from None
    assert original.name == portable.name  # noqa: S101 - same qualified name
    _count_as_written(run, portable)
    for one in compared:
        seen = observe_version(portable.on_host(), one)
        before = observe_version(original.on_host(), one) if original.on_npu else one.original
        text = _compare_bitwise(before, seen)
        if text:
            words = f"the portable text is not the original on CPU: {text}, for {one.case}"
            shown = Counterexample(one, Difference(text, one.label, one.case.size))
            versions = Versions(run.job, original, run.job.portable, portable.loaded)
            raise RefutedError(words, *write_program(versions, shown, words))


def _compare_bitwise(left: CallRecord, right: CallRecord) -> str:
    """Return what keeps two observations from being the same bit for bit; empty if nothing."""
    if right.error:
        return f"it raises {right.error}"
    if left.plain != right.plain or left.aliases != right.aliases:
        return "results, attributes or shared memory differ"
    for name in left.tensors.keys() | right.tensors.keys():
        before, after = left.tensors.get(name), right.tensors.get(name)
        if text := tell_apart(name, before, after):
            return text
        if (
            before is not None
            and after is not None
            and not torch.equal(_bits(before), _bits(after))
        ):
            return f"{name} differs"
    return ""


def _bits(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    # NaN is never equal to itself and 0.0 equals -0.0: compare where they stand.
    nan = value.isnan()
    number = torch.where(nan, 0.0, value.double())
    return torch.stack([nan.double(), number.signbit().double(), number])
