"""Run original and patched code in every case, and hand what they did to the judge."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.device import LIMITS
from npufix.rewriters.verification.calls.values import (
    SPECIAL,
    Tensor,
    Value,
    list_dimensions,
    list_kinds,
    list_tensors,
)
from npufix.rewriters.verification.inputs.arguments import is_integral
from npufix.rewriters.verification.inputs.cases.generate import generate_cases
from npufix.rewriters.verification.inputs.source.slicing import find_changed
from npufix.rewriters.verification.judge.call_again import call_again
from npufix.rewriters.verification.judge.difference import Difference
from npufix.rewriters.verification.judge.enough import is_enough, list_runs
from npufix.rewriters.verification.judge.evidence import Proof, RefusedCase
from npufix.rewriters.verification.judge.halves import is_overflow_in_half
from npufix.rewriters.verification.judge.observe_case import (
    CaseRun,
    drop_far_gradients,
    drop_gradients,
    drop_incomparable,
    gives_nan,
    name_dtype,
    observe_failure_on_device,
    observe_in_float64,
    observe_original,
    observe_version,
    offer_further_runs,
)
from npufix.rewriters.verification.judge.plausibility import WRITES_INTO_LEAF
from npufix.rewriters.verification.judge.programs.counterexample import Versions, write_program
from npufix.rewriters.verification.judge.randomness import draws_by_others, is_random
from npufix.rewriters.verification.judge.shrink import Counterexample
from npufix.rewriters.verification.kernels.common import ShapeRefusedError, collect_kernels
from npufix.rewriters.verification.sandbox.limits import ExpiredError
from npufix.rewriters.verification.sandbox.remote import spent_s
from npufix.rewriters.verification.verdict import (
    BackendLimitError,
    Launches,
    NotVerifiedError,
    RefutedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.calls.observe import CallRecord
    from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Target

    Keeps = Callable[..., bool]

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_COMPARE_S = 15.0
"""For all cases of a job; the first ones are the most telling."""
_SETS_STATES = re.compile(r"\b(manual_seed|set_rng_state|setstate|fork_rng|random\.seed)\b")
_STEPS = 3
_LARGE = 1024
"""Elements of the arguments of a call."""
_NO_CPU_KERNEL = (  # the histogram of integers: the tokens of each expert
    r"not implemented for '(Half|BFloat16)'|not supported.*(Half|BFloat16)|\bhistogram_cpu\b. not"
)
_REFUSED_BY_WHEEL = r"ERR\d{5} (OPS|PTA)"
"""How the checks of torch_npu mark what they say."""
_FUSED_ATTENTION = "scaled_dot_product_attention"
_NO_REAL_LAYER = r"AttributeError: 'StandIn"
_NO_VIEW = r"view size is not compatible"
"""A matter of strides, not of shapes."""
_WANTS_FLOATS = (
    r"(?i)expected scalar type|(found|output|support) dtype|not implemented for '(Long|Int)"
)
_WANTS_DIMENSIONS = (
    r"must be (a )?\d-?D\b|at least \d dimensional|have (at least )?\d dimensions"
    r"|[Dd]imension out of range|number of (subscripts|dimensions)"
    r"|too many indices|(not enough|too many) values to unpack|tuple index out of range"
    r"|(expected|got) \d-?D\b|same number of dimensions"
)
_SELECTED = r"^$|must match|broadcast"
"""What is said of flags that are spread over the wrong axis, if anything is."""
_SCORES = r"(?i)score|logit|att(e)?n|sim(ilarit|$)|(^|_)(prob|energ)"
_SELECTS_ROWS = re.compile(r"\w\[[^\]:,]+\] *=(?!=)")
NO_MEMORY = r"MemoryError|can't allocate memory|OutOfMemory"


def compare_versions(
    run: Proof, original: Target, patched: Target, assignments: list[Assignment], keeps: Keeps
) -> list[CaseRun]:
    """Run both in all cases that tell code apart, for as long as there is time.

    Raises:
        RefutedError: the patched code runs in none of them.
        NotVerifiedError: there is nothing to compare.

    """
    deadline = spent_s() + _COMPARE_S
    compared: list[CaseRun] = []
    flat: list[tuple[CaseRun, CallRecord]] = []
    job_text = "".join(find_patched_lines(run.job))
    every = generate_cases(assignments, original, run.job, keeps)
    every = _with_training(every, run, original, compared)
    for case, dtypes in list_runs(every, original, lambda: is_enough(run, original, compared, 0)):
        run.out_of_time = spent_s() > deadline
        if run.out_of_time or is_enough(run, original, compared):
            break
        for dtype in dtypes:
            if _FUSED_ATTENTION in job_text and _is_left_to_the_kernel(case, original):
                continue
            inference = run.job.inference or any(case.shared)
            one = observe_original(original, case, dtype, inference=inference, second=run.second)
            if one is None:
                _note_absent(run, original, case, dtype)
            if one is None or not keeps(case, dtype):
                continue
            with collect_kernels() as ran:
                after = observe_version(patched, one)
            run.kernels |= ran
            run.forgive_without_second(one, after)
            if _is_beyond(run, one, compared):
                run.beyond.add(one.label, case.size, one.original, after, lambda: None)
                continue
            _note_launches(run, one, after)
            if _tells_nothing(run, one, after, compared, assignments, flat):
                continue
            again = call_again(run, original, one, after, compared)
            beside = (
                *_beside_leaves(original, one, after),
                *(each for each in again if keeps(each.case, each.dtype)),
            )
            for each in (one, *beside):
                seen = after if each is one else observe_version(patched, each)
                _compare(run, original, patched, each, seen, compared)
    _sort_out(run, flat, compared)
    _require_some(run, original, patched, compared)
    return compared


def _is_beyond(run: Proof, one: CaseRun, compared: Sequence[CaseRun]) -> bool:
    """Say whether sizes are none that the code is for: it makes NaN of ordinary numbers there.

    What the changed code makes of them is said, and refutes nothing. Of causal attention, with
    fewer keys than queries: the first queries see no key at all. Nor plain values: of ``p=1``, what
    divides by ``1 - p`` makes NaN of zeros as well.
    """
    if not compared or not gives_nan(one):
        return False
    values = _spell_plain(one)
    if one.case.flavour != "ordinary":
        return values in run.senseless
    selects = list_kinds(one.case.assignment.specs.values()) & {"bool", "binary", "int"}
    found = not selects and not any(map(gives_nan, compared))
    if found and values and values not in map(_spell_plain, compared):  # else sizes make it
        run.senseless.add(values)
    return found


def _spell_plain(one: CaseRun) -> str:
    """Return the plain values of a call, and what its object is made with; "" without any."""
    specs = one.case.assignment.specs.items()
    plain = {n: str(s) for n, s in specs if isinstance(s, Value) and s.given}
    return f"{plain} {one.case.assignment.recipe} {one.case.training}" if plain else ""


def _compare(  # noqa: PLR0913, PLR0917 - all that is known of a call
    run: Proof,
    original: Target,
    patched: Target,
    one: CaseRun,
    after: CallRecord,
    compared: list[CaseRun],
) -> None:
    """Hand one call of both versions to the judge that it concerns."""
    case = one.case
    run.changed |= one.original.changed | after.changed
    fused = bool(run.kernels)
    before, then = (drop_incomparable(case, s, reference=fused) for s in (one.original, after))
    before, then = drop_far_gradients(case, before, then)
    if _sets_states(run):
        before, then = _with_states(before), _with_states(then)
    if _is_broadcast(one, compared):  # of one element, the gradient may be mere rounding
        before, then = drop_gradients(before), drop_gradients(then)
    # What draws the same numbers and makes something else of them is something else.
    alone = one.original.drawn is None  # of a single number, that says nothing of two functions
    same = one.original.drawn == after.drawn and not (alone and draws_by_others(run.job))
    free = fused or original.on_npu
    run.draws_as_many &= free or one.original.drawn == after.drawn
    same = same and not free
    judge = run.drawn if not same and draws_numbers(run, original, one) else run.judge
    if not run.counts(case) and judge is run.drawn:
        return
    judge = judge if run.counts(case) else run.special
    reference = partial(observe_in_float64, original, one)
    further = offer_further_runs(original, patched, one)
    judge.add(one.label, case.size, before, then, reference, further=further, any_numbers=free)
    run.note_gradients(original, one)
    compared.append(one)


def _sets_states(run: Proof) -> bool:
    return _SETS_STATES.search(run.job.original + run.job.patched) is not None


def _with_states(seen: CallRecord) -> CallRecord:
    """Return what was seen with where it has left the generators: who puts a seed back."""
    states = {f"state of {name} after the call": at for name, at in seen.left_at.items()}
    return replace(seen, plain={**seen.plain, **states})


def _beside_leaves(original: Target, one: CaseRun, after: CallRecord) -> Iterator[CaseRun]:
    """Yield the same call on tensors that are no leaves, if only those keep the patch from running.

    What it writes into, the caller sees.
    """
    if one.gradients == "leaf" and WRITES_INTO_LEAF in after.error:
        again = observe_original(
            original, one.case, one.dtype, inference=False, modes=("copy",), second=one.second
        )
        if again is not None:
            yield again


def _sort_out(run: Proof, flat: list[tuple[CaseRun, CallRecord]], compared: list[CaseRun]) -> None:
    """Tell what is refused for the number of its dimensions from what the changed code must take.

    ``(hidden * mask[..., None]).sum(1)`` is meant for a batch of sequences, and takes less.
    """
    known = [_ranks(c) for c in compared]
    for one, after in flat:
        ranks = _ranks(one)
        other = [] if ranks in known else [r for r in known if r.keys() == ranks.keys()]
        if run.job.recorded or not other:
            judge = run.judge if run.counts(one.case) else run.special
            judge.add(one.label, one.case.size, one.original, after, lambda: None)
            compared.append(one)
        elif any(all(n <= more[name] for name, n in ranks.items()) for more in other) and not (
            _spreads_a_mask(run, one, after) and not _is_masked_by_number(one)
        ):
            run.refused.append(RefusedCase(one, after.error))
        else:
            run.not_taken.append(RefusedCase(one, after.error or "its result is larger"))


def _ranks(one: CaseRun) -> dict[str, int]:
    specs = one.case.assignment.specs.items()
    return {name: len(s.shape) for name, s in specs if isinstance(s, Tensor)}


def _with_training(
    every: Iterable[CallCase], run: Proof, original: Target, compared: list[CaseRun]
) -> Iterator[CallCase]:
    """Yield the cases and, once one has given gradients to parameters, that with steps after it."""
    trained = False
    for case in every:
        yield case
        for one in () if trained else compared:
            plain = one.case.training and one.case.flavour == "ordinary" and one.gradients == "leaf"
            if plain and one.original.trains and not draws_numbers(run, original, one):
                trained = True
                yield replace(one.case, steps=_STEPS)
                break


def _tells_nothing(  # noqa: PLR0913, PLR0917 - all that is known of a call
    run: Proof,
    one: CaseRun,
    after: CallRecord,
    compared: list[CaseRun],
    assignments: list[Assignment],
    flat: list[tuple[CaseRun, CallRecord]],
) -> bool:
    """Say whether a failure of the patched code is none, or cannot be judged before the end."""
    if _cannot_run(run, one, after) or (
        after.error and _is_unmeant(one, after, compared, assignments)
    ):
        return True
    if (
        not after.error
        and _has_other_integers(one, after)
        and is_integral(one.case.assignment.specs)
        and any(not is_integral(a.specs) for a in assignments)
    ):
        run.other_integers = run.other_integers or one.label
        return True
    if is_overflow_in_half(run.job, one, after):
        run.without_half = after.error
        return True
    flat_mask = _SELECTED if _spreads_a_mask(run, one, after) else _WANTS_DIMENSIONS
    if run.job.by_hand and re.search(flat_mask, after.error):
        flat.append((one, after))
        return True
    return False


def _spreads_a_mask(run: Proof, one: CaseRun, after: CallRecord) -> bool:
    """Say whether flags of fewer dimensions, that select rows, are now spread over the last axis.

    ``x[mask] = v`` takes a flag for each row, ``x.masked_fill(mask, v)`` one for each number.
    """
    tensors = [s for s in one.case.assignment.specs.values() if isinstance(s, Tensor)]
    flags = [len(s.shape) for s in tensors if s.kind in {"bool", "binary", "int"}]
    most = max((len(s.shape) for s in tensors), default=0)
    before, then = (any(side) for side in find_changed(_SELECTS_ROWS, run.job))
    if not flags or min(flags) >= most or not before or then:
        return False
    named = one.original.tensors.items()
    sizes = [
        (t.numel(), o.numel())
        for n, t in named
        if t is not None and (o := after.tensors.get(n)) is not None
    ]
    return bool(after.error) or any(many > few for few, many in sizes)


def _is_masked_by_number(one: CaseRun) -> bool:
    """Say whether tensors are scores by name: each has a flag, where each row of states has."""
    named = one.case.assignment.specs.items()
    return any(re.search(_SCORES, n) for n, s in named if isinstance(s, Tensor))


def _has_other_integers(one: CaseRun, after: CallRecord) -> bool:
    """Say whether all that tells two calls apart is the width of the same whole numbers.

    ``(x * one_hot(y).to(x.dtype)).sum(1)`` makes int64 of int32, ``x.gather(1, y)`` does not.
    """
    before, then = one.original.tensors, after.tensors
    pairs = [(t, then.get(name)) for name, t in before.items() if t is not None]
    return (
        before.keys() == then.keys()
        and any(o is not None and t.dtype != o.dtype for t, o in pairs)
        and all(
            o is not None
            and (t.dtype == o.dtype or not {t.dtype, o.dtype} - _INTEGERS)
            and t.shape == o.shape
            and torch.equal(t.to(o.dtype), o)
            for t, o in pairs
        )
    )


def _is_unmeant(
    one: CaseRun,
    after: CallRecord,
    compared: list[CaseRun],
    assignments: list[Assignment],
) -> bool:
    """Say whether a call only happens to work: that other code refuses it aloud is no mistake.

    Numbers of a type that nothing asks for, or a width of one that weights broadcast.
    """
    specs = one.case.assignment.specs
    if is_integral(specs):
        return any(not is_integral(a.specs) for a in assignments)
    if "int" in list_kinds(specs.values()) and re.search(_WANTS_FLOATS, after.error):
        return any("int" not in list_kinds(a.specs.values()) for a in assignments)
    return _is_broadcast(one, compared)


def _is_broadcast(one: CaseRun, compared: list[CaseRun]) -> bool:
    """Say whether a size has become one that weights broadcast to what it was."""
    known = [c for c in compared if c.case.was is None]
    shapes, was = _result_shapes(one), one.case.was
    return (
        was is not None
        and was not in list_dimensions(one.case.assignment.specs)
        and any(was in shape for shape in shapes)
        and any(_result_shapes(c) == shapes for c in known)
    )


def _result_shapes(one: CaseRun) -> list[tuple[int, ...]]:
    """Return those of results, and of what is written to: ``self.queue[:, places] = keys.T``."""
    named, written = one.original.tensors.items(), one.original.changed
    made = ((n.removesuffix(" after the call"), t) for n, t in named if t is not None)
    return [tuple(t.shape) for n, t in made if n.startswith("result") or n in written]


def _require_some(run: Proof, original: Target, patched: Target, compared: list[CaseRun]) -> None:
    tells = any(one.original.tells_something for one in compared) or bool(run.judge.differences)
    tells = tells or (_sets_states(run) and any(one.original.left_at for one in compared))
    if compared and not tells:
        raise NotVerifiedError("the call returns nothing and changes nothing to compare")
    ordinary = (one.case for one in compared if one.case.flavour == "ordinary")
    told = any(case.size and list_kinds(case.assignment.specs.values()) for case in ordinary)
    if compared and run.skipped and not told:  # it could be made to run where nothing shows
        raise NotVerifiedError(run.skipped)
    first = _wholly_refused(run, compared)
    if first is not None:
        text = f"the original runs, the patched code raises {first.error}, for {first.one.case}"
        shown = Counterexample(first.one, Difference(text, first.one.label, first.one.case.size))
        versions = Versions(run.job, original, run.job.patched, patched.loaded)
        raise RefutedError(text, *write_program(versions, shown, text))
    if not compared:
        if run.absent:
            raise BackendLimitError(f"the device does not run the original: {run.absent}")
        raise NotVerifiedError(run.skipped or "the original raises in every dtype")


def _is_narrow(one: CaseRun) -> bool:
    specs = one.case.assignment.specs.values()
    return all(tensor.shape[-1:] == (1,) for spec in specs for tensor in list_tensors(spec))


def _wholly_refused(run: Proof, compared: list[CaseRun]) -> RefusedCase | None:
    """Return a refusal that is no matter of shapes: of every case, or of every case in a dtype.

    Or of all but those of width one, for which one number is as good as one for each element.
    """
    if all(map(_is_narrow, compared)):
        return next((r for r in run.refused if not compared or not _is_narrow(r.one)), None)
    ran = {one.dtype for one in compared}
    by_wheel = (r for r in run.refused if re.search(_REFUSED_BY_WHEEL, r.error))
    other = (r for r in by_wheel if r.one.dtype not in ran and not run.job.vouched)
    return next(other, None)


def _is_left_to_the_kernel(case: CallCase, original: Target) -> bool:
    """Say whether attention on these inputs is decided by the device, or ends the process there."""
    # torch_npu divides by the size.
    empty = original.on_npu and 0 in list_dimensions(case.assignment.specs)
    return case.flavour in SPECIAL or empty


def _note_absent(run: Proof, original: Target, case: CallCase, dtype: torch.dtype) -> None:
    """Remember the first case of each dtype that runs on the host and not on the device."""
    if dtype in run.unable or not original.on_npu:
        return
    seen = observe_failure_on_device(original, case, dtype)
    if seen is not None and seen.error:
        run.absent = run.absent or f"{case} in {name_dtype(dtype)}, {seen.error}"
        if not re.search(_REFUSED_BY_WHEEL, seen.error):  # then no device runs it either
            run.unable[dtype] = f"the device does not run the original: {seen.error}"


def _note_launches(run: Proof, one: CaseRun, after: CallRecord) -> None:
    """Keep the launches of the most telling call: in training, where casts cost something."""
    before = one.original.launched
    if after.error or not before.forward:
        return
    first, low = run.launches is None, one.dtype == torch.bfloat16
    if first or (low and not run.launches_in_low):
        run.launches_in_low = low
        then = after.launched
        run.launched_for = one
        run.launches = Launches(before.forward, then.forward, before.backward, then.backward)


def draws_numbers(run: Proof, original: Target, one: CaseRun) -> bool:
    """Say whether the original draws random numbers in this case: in training, with dropout."""
    plain = tuple(str(s) for s in one.case.assignment.specs.values() if isinstance(s, Value))
    key = (one.case.assignment.recipe, one.case.training, plain)
    if key in run.drawing:
        return True
    if not one.original.left_at:
        return False
    if is_random(one.original, lambda s: observe_version(original, one, s), one.case.seed):
        run.drawing.add(key)  # of zeros nothing is seen, of other numbers with them it is
    return key in run.drawing


def _cannot_run(run: Proof, one: CaseRun, after: CallRecord) -> bool:
    """Say whether the failure of the patched run tells nothing against the patch."""
    if after.kind in LIMITS:
        raise BackendLimitError(after.error.partition(": ")[2])
    if after.kind == ExpiredError.__name__ and one.case.size > _LARGE:
        # how long much takes is a matter of the machine; a loop without an end shows in small calls
        run.skipped = run.skipped or f"the changed code takes too long for {one.case}"
        return True
    if after.error and re.search(f"{_NO_CPU_KERNEL}|{NO_MEMORY}|{_NO_REAL_LAYER}", after.error):
        run.skipped = f"the patched code cannot run here: {after.error}"
        run.unable.setdefault(one.dtype, run.skipped)
        return True
    of_wheel = re.search(_REFUSED_BY_WHEEL, after.error) and not re.search(_NO_VIEW, after.error)
    # Kernels are not asked what they make of nothing.
    empty = 0 in list_dimensions(one.case.assignment.specs)
    empty = empty and any("torch_npu." in line for line in find_patched_lines(run.job))
    refused = after.kind == ShapeRefusedError.__name__ or of_wheel or (after.error and empty)
    vouched = run.job.vouched and not run.job.by_hand
    if refused or (after.error and vouched):
        # Eager code takes shapes that nobody meant, like an x of width one by broadcasting; that
        # the operator refuses them aloud is no wrong result, unless it refuses all of them.
        run.refused.append(RefusedCase(one, after.error))
        return True
    return False


def find_patched_lines(job: Job) -> list[str]:
    """Return the lines of the new code."""
    lines = job.patched.splitlines()
    return [lines[n - 1] for n in job.lines_patched if n <= len(lines)]
