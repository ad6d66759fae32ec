"""The parent's side: spread jobs over child processes, and remember what they found."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.rewriters.verification.sandbox.messages import Reply
from npufix.rewriters.verification.verdict import NOTHING_RUNS, Status, Tried, Verdict
from npufix.rewriters.verification.virtual_npu import VirtualNpuError, find_wheels, prepare
from npufix.rewriters.verification.workers.backends import Backend
from npufix.rewriters.verification.workers.fragment import narrow
from npufix.rewriters.verification.workers.machine import survey
from npufix.rewriters.verification.workers.pool import Limits, answer, keep_children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.workers.cache import VerdictCache

_NO_TORCH = "torch is not installed; pip install npufix[verify]"
_MEMORY = 4 << 30
_LONGEST = 8192
"""Of a text in a verdict, in characters."""
_MOST_MEASURES = 1000
_MOST_TEXTS = 200
_TIMEOUT_S, _ON_DEVICE_S = 60.0, 300.0


def _say_nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Settings:
    """How jobs are verified."""

    ground: Backend = Backend.REFERENCE
    chip: str = "A2"
    """What a virtual NPU pretends to be, and whose limits the reference kernels keep."""
    stubs: str = ""
    """The folder of its libraries; empty: they are made ready when they are needed."""
    fallback: Backend | None = None
    """Where to verify what ``ground`` cannot run, for reasons of its own."""
    cache: VerdictCache | None = None
    progress: Callable[[int, int], None] = _say_nothing
    """Called with the number of finished jobs and that of all."""
    decided: Callable[[Job, Verdict, int], None] = _say_nothing
    """Called with each job as soon as there is its verdict, and with the number of all jobs."""
    children: int = 0
    """At most so many at a time; 0: as many as there are processors."""

    @property
    def kind(self) -> str:
        """The chip that is pretended; on a real one, the version of CANN."""
        if self.ground is Backend.NPU:
            return f"CANN {survey().cann_version}"
        return self.chip if self.ground in {Backend.VIRTUAL_NPU, Backend.REFERENCE} else ""


def verify(
    jobs: Sequence[Job],
    settings: Settings | None = None,
    *,
    timeout_s: float | None = None,
    memory_bytes: int = _MEMORY,
) -> list[Verdict]:
    """Return the verdicts on ``jobs`` in their order, each found within ``timeout_s``.

    That is processor time: how busy the machine is does not matter. Without one it is a minute, on
    a real device five: it loads every kernel at its first use.
    A crash, a hang or a lack of memory in one of them is its verdict; the others go on.
    """
    settings = settings or Settings()
    if not jobs:
        return []
    if importlib.util.find_spec("torch") is None:
        return [_refuse(job, _NO_TORCH) for job in jobs]
    limits = Limits(timeout_s or _TIMEOUT_S, memory_bytes)
    device = limits._replace(timeout_s=timeout_s or _ON_DEVICE_S)
    real = settings.ground is Backend.NPU

    narrowed: dict[int, Job] = {}

    def tell(place: int, verdict: Verdict) -> None:
        if _may_be_narrowed(jobs[place], verdict) and (job := narrow(jobs[place])) is not None:
            narrowed[place] = job
        elif not verdict.limit or settings.fallback is None:
            settings.decided(jobs[place], verdict, len(jobs))

    limits = device if real else limits
    with keep_children():
        found = _verify(jobs, settings, limits, tell)
        _ask_of_fragments(jobs, narrowed, found, settings, limits)
        if settings.ground is not Backend.REFERENCE:
            _ask_elsewhere(jobs, found, settings, limits)
    return found


def _may_be_narrowed(job: Job, verdict: Verdict) -> bool:
    lost = (verdict.on == Backend.NONE.value and not verdict.ended) or verdict.limit
    return job.alone and verdict.status is Status.NOT_VERIFIED and not lost


def _ask_of_fragments(
    jobs: Sequence[Job],
    narrowed: dict[int, Job],
    found: list[Verdict],
    settings: Settings,
    limits: Limits,
) -> None:
    """Verify the changed statements alone where the functions around them could not be.

    What differs there may be what no caller does: then it is still not known.
    """
    again = replace(settings, progress=_say_nothing)
    for last in (False, True):
        places = list(narrowed)
        defined = {p: job for p in places if not last and (job := narrow(jobs[p], defined=True))}

        def tell(number: int, verdict: Verdict) -> None:
            place = places[number]  # noqa: B023 - called in this round
            whole = found[place]
            why = f"{jobs[place].qualname} does not run here as a whole: {whole.reason}"
            if verdict.status is Status.EQUIVALENT:
                scope = f"the changed statements of {jobs[place].qualname}"
                known = ", ".join(narrowed[place].known if narrowed[place].probes else ())  # noqa: B023
                around = [f"taken from the code around them: {known}"] if known else []
                notes = (*verdict.notes, *around, why)
                found[place] = replace(verdict, scope=scope, notes=notes)
            elif place in defined:  # noqa: B023 - called in this round
                return
            settings.decided(jobs[place], found[place], len(jobs))
            defined.pop(place, None)  # noqa: B023 - called in this round

        if places:
            _verify([narrowed[place] for place in places], again, limits, tell)
        narrowed = defined


def _verify(
    jobs: Sequence[Job], settings: Settings, limits: Limits, tell: Callable[[int, Verdict], None]
) -> list[Verdict]:
    """Return the verdicts of one ground; ``tell`` each, with the place of its job, at once."""
    found: dict[int, Verdict] = {}
    if settings.cache is not None:
        where = (settings.ground, settings.kind)
        known = ((i, settings.cache.get(job, *where)) for i, job in enumerate(jobs))
        found = {i: verdict for i, verdict in known if verdict is not None}
    for place, verdict in found.items():
        tell(place, verdict)
    settings.progress(len(found), len(jobs))
    firsts: dict[object, int] = {}  # of several changes in a function, the one that is run first
    for i in (i for i in range(len(jobs)) if i not in found):
        firsts.setdefault(_name_function(jobs[i]), i)
    for places in ([*firsts.values()], range(len(jobs))):
        left = []
        for i in (i for i in places if i not in found):
            other = found.get(firsts[_name_function(jobs[i])])
            if other is None or not other.reason.startswith(NOTHING_RUNS):
                left.append(i)
                continue
            found[i] = other
            tell(i, other)
        for reply in _replies(jobs, left, settings, limits) if left else ():
            found[reply.number] = _verdict(jobs[reply.number], reply, settings)
            tell(reply.number, found[reply.number])
            settings.progress(len(found), len(jobs))
    return [found[i] for i in range(len(jobs))]


def _name_function(job: Job) -> object:
    """Return what tells whether the original runs: most of a verdict, where it does not."""
    return job.path, job.original, job.qualname, job.floating, job.assumed


def _replies(
    jobs: Sequence[Job], left: Sequence[int], settings: Settings, limits: Limits
) -> Iterator[Reply]:
    """Yield what became of each job that is left."""
    stubs = settings.stubs
    if left and settings.ground is Backend.VIRTUAL_NPU and not stubs:
        try:
            stubs = str(prepare(find_wheels()))
        except VirtualNpuError as error:
            yield from (Reply(number, lost=str(error)) for number in left)
            return
    if left:
        ground, most = settings.ground.value, settings.children
        yield from answer(ground, settings.kind, stubs, limits, most, jobs, left)


def _verdict(job: Job, reply: Reply, settings: Settings) -> Verdict:
    if reply.answer is None:
        # What ends a process on a device may be the device's doing. That it takes too long is the
        # code's: it would on any ground, and where it ran must not depend on how busy this is.
        limit = settings.ground is not Backend.REFERENCE and not reply.late
        return replace(_refuse(job, reply.lost, limit=limit), ended=reply.ended)
    answer = replace(reply.answer, verdict=_bound(reply.answer.verdict))
    if settings.cache is not None:
        settings.cache.put(job, settings.ground, answer, settings.kind)
    return answer.verdict


def _bound(verdict: Verdict) -> Verdict:
    """Return a verdict that can be shown, whatever the code that runs beside the verifier says."""
    return replace(
        verdict,
        ground=_cut(verdict.ground),
        scope=_cut(verdict.scope),
        reason=_cut(verdict.reason),
        counterexample=_cut(verdict.counterexample),
        on=_cut(verdict.on),
        measures=verdict.measures[:_MOST_MEASURES],
        notes=_few(verdict.notes),
        tried=_bound_tried(verdict.tried),
    )


def _bound_tried(found: Tried) -> Tried:
    return Tried(
        _few(found.arguments),
        found.more,
        _few(found.dtypes),
        _few(found.values),
        _few(found.modes),
        _few(found.errors),
        found.lines[:_MOST_TEXTS],
    )


def _few(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(_cut, texts[:_MOST_TEXTS]))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _ask_elsewhere(
    jobs: Sequence[Job], found: list[Verdict], settings: Settings, limits: Limits
) -> None:
    """Have the reference kernels say what the device could not.

    It cannot run what has a limit there; and a program that shows a refutation must run where
    there is no torch_npu, so it is tried there.
    """
    left = [
        place
        for place, verdict in enumerate(found)
        if (verdict.limit and settings.fallback is not None)
        or (verdict.status is Status.REFUTED and not verdict.script)
    ]
    other = replace(settings, ground=settings.fallback or Backend.REFERENCE, progress=_say_nothing)

    def tell(number: int, verdict: Verdict) -> None:
        if found[left[number]].limit:  # else it is told already
            settings.decided(jobs[left[number]], verdict, len(jobs))

    verdicts = _verify([jobs[place] for place in left], other, limits, tell) if left else []
    for place, verdict in zip(left, verdicts, strict=True):
        first = found[place]
        if first.limit:
            ground = f"{verdict.ground}; not on {settings.ground.value}: {first.reason}"
            found[place] = replace(verdict, ground=ground)
        elif verdict.status is Status.REFUTED:
            found[place] = replace(first, script=verdict.script)


def _refuse(job: Job, reason: str, *, limit: bool = False) -> Verdict:
    return Verdict(
        Status.NOT_VERIFIED,
        ground="nothing ran",
        scope=job.qualname,
        reason=reason,
        on=Backend.NONE.value,
        limit=limit,
    )
