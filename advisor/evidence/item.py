"""A finding with what it is measured by: one way to make one, and one order to show them in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from npufix.reports import report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet
    from typing import TypeVar

    from npufix.advisor.evidence.change import Change
    from npufix.reports.prediction import Prediction
    from npufix.rules.diagnostic import Place
    from npufix.rules.registry import Rule

    T = TypeVar("T", bound="Item")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Item:
    """A finding; ``kernels`` are index labels of the profile's."""

    finding: report.Finding
    kernels: AbstractSet[int] = frozenset()
    is_idle: bool = False
    """What it costs is time in which the device waits."""
    of_job: bool = False
    """It compares the ranks of a job."""
    is_communication: bool = False
    """Its kernels, or what the ranks wait for, are collectives."""
    is_work: bool = False
    """The work that the program is there for: behind all that is beside it."""
    is_symptom: bool = False
    """It says that the device waits, not for what."""
    is_divided: bool = False
    """None of its idle time is that of another such finding (``Observation``)."""
    change: Change | None = None
    """What would become of the run; ``None`` where that cannot be said."""
    idle_ns: int = 0
    """How much of what it costs the device waits for launches of its kernels."""
    outliers_ns: int = 0
    """By how much the average of all steps is longer than of those that are replayed: what is
    gained where there are no longer ones."""
    goes: float = 0.0
    """Of a job: the share of its collectives that goes with their launches."""
    likely_ns: int | None = None
    """What is expected of the saving of a job; ``None`` its middle, or all of "at most"."""
    lost_ns: int = 0
    """Of a job: what collectives take longer for it, hidden or not; 0: no more than it saves."""
    is_together: bool = False
    """Of a job, and replayed with what changes of this rank: it is the one that all wait for."""
    unknown: str = ""
    """Why nothing can be said of what it saves."""
    seldom: int = 0
    """Where nothing was measured, what the source says: 0 that each step runs it, 1 that one may,
    2 that none does."""
    yields: int = 0
    """Left out where findings that yield less explain most of its kernels (``Diagnostic``)."""

    @property
    def is_own_change(self) -> bool:
        """Whether something of this rank changes, and not only how soon its host or others are."""
        return self.change is not None and not self.of_job and not self.change.hurries


def make_finding(  # noqa: PLR0913 - what a finding may hold
    rule: Rule,
    place: tuple[str, int, str],
    *,
    device_ns: int,
    step_ns: int,
    saving: report.Saving | None,
    fingerprint: str = "",
    code: str = "",
    replacement: str = "",
    safety: str = "advice",
    conditions: Sequence[report.Condition] = (),
    problem: str = "",
    kernels: Iterable[str] = (),
    calls: int = 0,
    kind: str = "code",
    what: str = "",
    advice: str = "",
    evidence: Sequence[report.Fact] = (),
    places: Sequence[Place] = (),
) -> report.Finding:
    """Return what a rule has found at a place: path, line and function; times are per step."""
    path, line, function = place
    return report.Finding(
        rule=rule.id, name=rule.name, summary=rule.summary,
        path=path, line=line, function=function, code=code, replacement=replacement,
        safety=safety, conditions=list(conditions), problem=problem, fingerprint=fingerprint,
        kernels=sorted(kernels), calls=calls, device_ns=device_ns,
        share=device_ns / step_ns if step_ns else 0.0, saving=saving,
        kind=kind, what=what, advice=advice, evidence=list(evidence), places=list(places),
    )  # fmt: skip


_TOLD = 0.01
"""Share of the step from which what a job loses comes first."""
_MATTERS = 0.05
"""Share of the step from which a finding is worth the first sentence."""
_SEEN = 0.001
"""Share of the step from which a table shows a finding about the run."""
_LITTLE = 0.05
"""Share of its time that a finding must be able to save to count with all of it."""
_YIELDS = 1
"""``Diagnostic.yields`` of what says only which Type is hot, or how work is done."""
_ONLY_HOT = 0.5
"""What is known of is that it is hot counts with so much of its time: 10 % of a step in a loss of
which nothing tells what can go come behind 9 % in which the device waits for a batch."""
_USUAL, _CONCERN = 0.1, 0.2
"""Shares of the step that communication which nothing hides usually has, no more than hot, too; and
from which it is of concern. In between it counts with a share between: 9.9 % and 10.1 % are one."""
_LOADING = "loading"
"""``Prediction.limit`` of a step that waits for its batches."""
_EXPLAINS, _EXPLAINS_JOB = 0.5, 0.25
"""Share of a symptom's time from which a cause explains it; a stage that is 26 ms longer makes the
others of a pipeline wait in each micro-batch, 85 ms in all."""


def rank_items(found: Iterable[T]) -> list[T]:
    """Return the findings, those first that are about the largest share of the step.

    What one rank, link or stage costs a whole job comes before what a rank is busy with; of that,
    what is certain to be gained counts first: several of them are sides of one cause. That the
    device waits for late launches (30 ms) comes behind what the host did meanwhile (28 ms), and
    that a group moves data for long behind its slow link.
    """
    found = list(found)
    order = _order(found)
    return [found[at] for at in order]


def rank_replayed(found: Sequence[T], replayed: Sequence[Item]) -> list[T]:
    """Return the findings in the order of what they are about, as the replay of each knows better.

    A read that leaves the device idle for 0.5 ms may cost the lead that 1.8 ms of late launches
    want: it is about these. A pause that has a name is not its doing. While batches come too late,
    what else takes 33 ms of a step gains nothing.
    """
    gains = [item.finding.predicted if item.is_own_change else None for item in replayed]
    known = list(found)
    if found and found[0].change is not None and found[0].change.hurries:
        known = [_with_lead(*both) for both in zip(found, gains, strict=True)]
    weighed = [_while_loading(*both) for both in zip(known, gains, strict=True)]
    return [known[at] for at in _order(weighed)]


def _with_lead(item: T, gain: Prediction | None) -> T:
    finding = item.finding
    if gain is None or not item.is_idle or gain.saved_low_ns <= finding.device_ns > 0:
        return item
    share = finding.share * gain.saved_low_ns / finding.device_ns if finding.device_ns else 0.0
    own = msgspec.structs.replace(finding, device_ns=gain.saved_low_ns, share=share)
    return replace(item, finding=own)


def _while_loading(item: T, gain: Prediction | None) -> T:
    if gain is None or item.is_idle or gain.limit != _LOADING:
        return item
    most = min(item.finding.device_ns, max(0, gain.saved_high_ns))
    return replace(item, finding=msgspec.structs.replace(item.finding, device_ns=most))


def _order(found: Sequence[Item]) -> list[int]:
    causes = [item for item in found if not (item.is_symptom or item.is_work)]
    idle = [item for item in causes if item.is_idle and not item.of_job]
    of_launches = max((item.idle_ns for item in causes), default=0)
    idle_ns = max(_largest_ns(idle), of_launches)
    # 25 ms in a function of the user are not the 14 ms in which garbage was collected.
    shared_ns = max(_largest_ns(item for item in idle if not item.is_divided), of_launches)
    job_ns = _largest_ns(item for item in causes if item.of_job)
    named_ns = _largest_ns(i for i in causes if i.is_communication and not i.of_job)

    def key(at: int) -> tuple[object, ...]:
        item = found[at]
        # That a group takes 99 ms is what the two collectives that stand still for 95 ms cost.
        symptom = item.is_symptom and item.is_communication
        least = _EXPLAINS * item.finding.device_ns
        if symptom and item.of_job and named_ns >= least > 0:
            return _rank(replace(item, of_job=False), named_ns)
        same_ns = shared_ns if item.is_divided else idle_ns
        return _rank(item, job_ns if item.of_job else named_ns if symptom else same_ns)

    return sorted(range(len(found)), key=key)


def _largest_ns(items: Iterable[Item]) -> int:
    return max((item.finding.device_ns for item in items), default=0)


def is_work_or_small(item: Item) -> bool:
    """Tell whether a finding leaves nothing to be mended: the work itself, or next to no time."""
    return item.is_work or item.finding.share < _MATTERS


def expected_ns(finding: report.Finding) -> float:
    """Return the middle of what a finding is expected to save."""
    return (finding.saving.low_ns + finding.saving.high_ns) / 2 if finding.saving else 0.0


def _weigh_unknown(item: Item) -> float:
    """Return with how much of its time a finding counts of which nothing tells what can go."""
    if item.yields >= _YIELDS:
        return _ONLY_HOT
    if not (item.is_symptom and item.is_communication):
        return 1.0
    beyond = (item.finding.share - _USUAL) / (_CONCERN - _USUAL)
    return _ONLY_HOT + (1 - _ONLY_HOT) * min(1.0, max(0.0, beyond))


def _rank(
    item: Item, cause_ns: int
) -> tuple[bool, bool, bool, float, float, bool, float, int, str, int, str]:
    finding = item.finding
    own_ns = finding.device_ns
    least = _EXPLAINS_JOB if item.of_job else _EXPLAINS
    is_explained = item.is_symptom and cause_ns >= least * own_ns
    about_ns = min(own_ns, cause_ns) if is_explained else own_ns
    if finding.saving and not item.of_job:  # three products of 3.6 ms that 0.06 ms can be saved of
        about_ns = min(about_ns, round(finding.saving.high_ns / _LITTLE))
    if finding.saving is None:
        about_ns = round(_weigh_unknown(item) * about_ns)
    of_job = item.of_job and finding.share >= _TOLD
    certain = finding.saving.low_ns if of_job and finding.saving else 0
    # What no table shows comes last, so that those that it shows are numbered one by one.
    is_unseen = (
        finding.kind == "run" and finding.share < _SEEN and not (own_ns and not finding.share)
    )
    return (
        is_unseen, item.is_work, not of_job, -certain, -about_ns, is_explained,
        -expected_ns(finding), item.seldom, finding.path, finding.line, finding.rule,
    )  # fmt: skip
