"""From a change that somebody made to a verdict on every function that it touches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.advisor.patch.verdicts import report_verdict
from npufix.advisor.verify.assumptions import Assumptions
from npufix.advisor.verify.changed_functions import Touched, callers, find_touched
from npufix.advisor.verify.device_branches import as_on_npu, branches
from npufix.advisor.verify.diff_reading import DiffError
from npufix.advisor.verify.imported_files import leads_to_another
from npufix.reports.report import tool
from npufix.reports.verification import ChangedFunction, Verification
from npufix.rewriters.edit.job import OtherFile, spell_path
from npufix.rewriters.verification import Job, Settings, verify
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.workers.backends import Backend
from npufix.rewriters.verification.workers.machine import find_installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.verify.changes import ChangedFile, Changes
    from npufix.advisor.verify.recorded_inputs import ChangeRecording
    from npufix.rewriters.verification import RecordedCall

_MOST_CALLERS = 3
_WORST_FIRST = (Status.REFUTED, Status.NOT_VERIFIED, Status.EQUIVALENT)


@dataclass(frozen=True, slots=True)
class Checked:
    """A function that a change touches, with its verdict."""

    name: str
    """Of the file."""
    line: int
    function: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Given:
    """What the user knows of the program."""

    allow: frozenset[str] = frozenset()
    """Conditions that the user vouches for."""
    recording: ChangeRecording | None = None
    """Of the program, before the change or after it."""
    assume: tuple[str, ...] = ()
    """What callers pass: ``q: float[b, h, t, d]``."""
    function: str = ""
    """The only one of interest; "" for every function that the change touches."""


@dataclass(frozen=True, slots=True, eq=False)
class _Subject:
    """A changed file, with what is known of it."""

    file: ChangedFile
    others: tuple[OtherFile, ...]
    """Files of the same change that it may import."""
    assumptions: Assumptions
    recording: ChangeRecording | None
    assume: tuple[str, ...]

    def recorded(self, qualname: str) -> tuple[RecordedCall, ...]:
        """Return what the dump recorded in a function."""
        return self.recording.of(self.file, qualname) if self.recording else ()

    @property
    def torch_npu(self) -> str:
        """The version of the program."""
        return (self.recording.torch_npu if self.recording else "") or find_installed("torch-npu")


@dataclass(frozen=True, slots=True)
class _Question:
    about: _Subject
    touched: Touched
    called: str = ""
    """The function to call instead, which calls it."""

    @property
    def file(self) -> ChangedFile:
        return self.about.file

    @property
    def jobs(self) -> list[Job]:
        """What has to be verified: as on the CPU, and as on an NPU if the code asks for one."""
        file = self.file
        before, after = self.touched.lines_original, self.touched.lines_changed
        npu_before, npu_after = as_on_npu(file.original), as_on_npu(file.changed)
        if (npu_before, npu_after) == (file.original, file.changed):
            return [self._job(file.original, file.changed, before, after)]
        old, new = branches(file.original), branches(file.changed)
        return [
            self._job(
                npu_before,
                npu_after,
                *_leave_out(before, old.others | old.tests, after, new.others | new.tests),
            ),
            self._job(
                file.original,
                file.changed,
                *_leave_out(before, old.npu | old.tests, after, new.npu | new.tests),
                on_host=True,
            ),
        ]

    def _job(
        self,
        original: str,
        changed: str,
        before: tuple[int, ...],
        after: tuple[int, ...],
        *,
        on_host: bool = False,
    ) -> Job:
        lines = changed.split("\n")
        text = "\n".join(lines[n - 1] for n in after if n <= len(lines))
        qualname = self.called or self.touched.qualname
        assumed = self.about.assumptions.of(self.touched.qualname)
        return Job(
            path=spell_path(self.file.path),
            root=spell_path(self.file.root),
            original=original,
            patched=changed,
            qualname=qualname,
            lines_original=before,
            lines_patched=after,
            recorded=self.about.recorded(qualname),
            # Operators of torch_npu take no integers, whatever the eager code would do with them.
            floating="npu_" in text,
            torch_npu_version=self.about.torch_npu,
            probes=assumed.probes,
            vouched=assumed.names,
            known=assumed.known,
            others=self.about.others,
            inference=assumed.inference,
            by_hand=True,
            on_host=on_host,
            assumed=self.about.assume,
            alone=assumed.alone,
        )


def _leave_out(
    before: Sequence[int], less: set[int], after: Sequence[int], minus: set[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(n for n in before if n not in less), tuple(n for n in after if n not in minus)


def check(changes: Changes, settings: Settings, given: Given | None = None) -> list[Checked]:
    """Return a verdict on every function that a change touches.

    Raises:
        DiffError: the only file is no Python, before or after.

    """
    given = given or Given()
    asked: list[_Question] = []
    unread = list(changes.unread)
    for file in changes.files:
        try:
            functions = _find_touched(file)
        except DiffError as error:
            if len(changes.files) == 1 and not unread:
                raise
            unread.append((file.name, error.message))
            continue
        recording = given.recording
        granted = {f: names for (path, f), names in changes.granted.items() if path == file.name}
        proofs = recording.proofs(file) if recording else None
        assumptions = Assumptions(file, given.allow, proofs, granted)
        about = _Subject(file, _others(file, changes), assumptions, recording, given.assume)
        wanted = (one for one in functions if given.function in {"", one.qualname})
        asked += [_Question(about, one) for one in wanted]
    verdicts = _verdicts([q for q in asked if not q.touched.reason], settings)
    # What cannot be called with invented arguments may be reached through what calls it.
    through = [
        _Question(q.about, q.touched.entered, caller)
        for q, verdict in verdicts.items()
        if verdict.status is Status.NOT_VERIFIED and verdict.on != Backend.NONE.value
        for caller in callers(q.file.original, q.file.changed, q.touched.qualname)[:_MOST_CALLERS]
    ]
    answers = _verdicts(through, settings)
    for question in asked:
        found = [v for q, v in answers.items() if _is_about(q, question)]
        told = [v for v in found if v.status is not Status.NOT_VERIFIED]
        if told:
            verdicts[question] = min(told, key=lambda v: _WORST_FIRST.index(v.status))
    unread += [(file.name, "it is deleted") for file in changes.deleted]
    return [_check(q, verdicts.get(q)) for q in asked] + [_unread(*one) for one in unread]


def report_changes(changes: Changes, checked: Sequence[Checked]) -> Verification:
    """Return the verdicts on a change as they are shown."""
    functions = [
        ChangedFunction(c.name, c.line, c.function, report_verdict(c.verdict)) for c in checked
    ]
    found = {function.verdict.status for function in functions}
    status = next((s for s in ("refuted", "not verified") if s in found), "equivalent")
    return Verification(
        tool(), changes.against, status, functions, [file.name for file in changes.new]
    )


def _others(file: ChangedFile, changes: Changes) -> tuple[OtherFile, ...]:
    """Return the files of a change, if what one of them imports leads to another of them."""
    every = (*changes.files, *changes.new, *changes.deleted)
    texts = {f.path: (f.original, f.changed) for f in every}
    if not leads_to_another(file.path, texts, file.root):
        return ()
    return tuple(
        OtherFile(
            spell_path(f.path),
            None if f in changes.new else f.original,
            None if f in changes.deleted else f.changed,
        )
        for f in every
    )


def _is_about(through: _Question, question: _Question) -> bool:
    same = through.touched.qualname == question.touched.qualname
    return same and through.file is question.file


def _find_touched(file: ChangedFile) -> list[Touched]:
    try:
        return find_touched(file.original, file.changed)
    except RecursionError as error:
        raise DiffError(
            f"{file.name} is nested too deeply to be compared", "split its longest expression"
        ) from error
    except (SyntaxError, ValueError) as error:
        raise DiffError(
            f"{file.name} is no Python, before the change or after: {error}",
            "give a change between two files that run",
        ) from error


def _verdicts(questions: Sequence[_Question], settings: Settings) -> dict[_Question, Verdict]:
    jobs = [(question, job) for question in questions for job in question.jobs]
    every: dict[_Question, list[Verdict]] = {}
    verdicts = verify([job for _, job in jobs], settings)
    for (question, _), verdict in zip(jobs, verdicts, strict=True):
        every.setdefault(question, []).append(verdict)
    return {question: _join_verdicts(several) for question, several in every.items()}


def _join_verdicts(several: Sequence[Verdict]) -> Verdict:
    """Return the verdict on code that runs as on an NPU and as on the CPU."""
    worst = min(several, key=lambda v: _WORST_FIRST.index(v.status))
    if len(several) == 1:
        return worst
    if worst.status is not Status.EQUIVALENT:
        where = "as on an NPU" if worst is several[0] else "on other devices"
        return dataclasses.replace(worst, reason=f"{where}: {worst.reason}")
    cases = sum(verdict.cases for verdict in several)
    return dataclasses.replace(
        several[0], cases=cases, ground=f"{several[0].ground}; on other devices as well"
    )


def _check(question: _Question, verdict: Verdict | None) -> Checked:
    one = question.touched
    verdict = verdict or _make_not_verified(one.qualname, one.reason)
    return Checked(question.file.name, one.line, one.qualname, verdict)


def _unread(name: str, why: str) -> Checked:
    return Checked(name, 1, "the whole file", _make_not_verified("", why))


def _make_not_verified(scope: str, reason: str) -> Verdict:
    return Verdict(Status.NOT_VERIFIED, "nothing ran", scope, reason, on=Backend.NONE.value)
