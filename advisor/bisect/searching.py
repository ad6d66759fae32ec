"""The search: commits held against the good one, each by the gate, runs in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.gate import baselines, changes
from npufix.advisor.gate.gating import gate
from npufix.advisor.gate.reading import check_together
from npufix.advisor.gate.recording import Recorder, RecordingError
from npufix.advisor.gate.taking_turns import Sides, record_sides
from npufix.reports.bisect_report import BisectReport, BisectStep
from npufix.reports.report import tool
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from npufix.advisor.bisect.checkouts import Checkout, Repository
    from npufix.advisor.gate.taking_turns import Reading
    from npufix.advisor.project.gate_settings import GateSettings
    from npufix.reports.bisect_report import BisectCommit
    from npufix.reports.gate_report import Change, GatedMetric

GOOD, BAD, SKIPPED = "good", "bad", "skipped"
_OPERATORS = 5


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """What is searched, and how."""

    repository: Repository
    good: BisectCommit
    candidates: Sequence[BisectCommit]
    """After the good one, the oldest first; the last is the bad one."""
    command: str
    below: Path
    """Where the command runs, below the top of the repository."""
    metric: str
    pairs: int
    most_pairs: int
    limit_s: float
    settings: GateSettings
    today: dt.date


@dataclass(slots=True)
class Search:
    """A search that is under way."""

    asked: BisectRequest
    reading: Reading
    work: Path
    """Empty, for the copies and the dumps."""
    steps: dict[str, BisectStep] = field(default_factory=dict)
    sides: dict[str, Sides] = field(default_factory=dict)

    def run(self) -> BisectReport:
        """Return the first commit that is worse than the good one, or those that it is one of.

        Raises:
            BisectError: git fails.
            RecordingError: the command makes no dump of the good or of the bad commit.

        """
        every = self.asked.candidates
        copies = (
            self.asked.repository.copy(self.work / "base-tree"),
            self.asked.repository.copy(self.work / "head-tree"),
        )
        copies[0].show(self.asked.good.id)
        last = self._examine(every[-1], copies, must_run=True)
        if last.verdict != BAD:
            return self._report([], f"{self.asked.metric} of {every[-1].short}: {last.reason}")
        low, high = -1, len(every) - 1  # the newest that is good, the oldest that is bad
        while True:
            open_ones = [n for n in range(low + 1, high) if every[n].id not in self.steps]
            if not open_ones:
                break
            # The one nearest to the middle that is not skipped.
            number = min(open_ones, key=lambda n: abs(n - (low + high) / 2))
            step = self._examine(every[number], copies)
            low, high = (
                (number, high) if step.verdict == GOOD
                else (low, number) if step.verdict == BAD
                else (low, high)
            )  # fmt: skip
        return self._report(every[low + 1 : high + 1], "", every[low] if low >= 0 else None)

    def _examine(
        self, commit: BisectCommit, copies: tuple[Checkout, Checkout], *, must_run: bool = False
    ) -> BisectStep:
        """Decide about one commit; where nobody can tell after all runs, it is skipped."""
        asked = self.asked
        copies[1].show(commit.id)
        recorders = (
            Recorder("good", asked.command, copies[0].folder / asked.below, asked.limit_s),
            Recorder(commit.short, asked.command, copies[1].folder / asked.below, asked.limit_s),
        )
        sides = Sides([], [], paired=True)
        verdict, reason, metric = SKIPPED, "", None
        while len(sides.head) < asked.most_pairs:
            done = len(sides.head)
            pairs = range(done, min(done + asked.pairs, asked.most_pairs))
            into = self.work / "dumps" / commit.id
            try:
                more = record_sides(recorders, into, pairs, self.reading, kept=False)
            except RecordingError as error:
                if must_run or error.message.startswith("good: "):
                    raise
                reason = error.message
                break
            sides = Sides([*sides.base, *more.base], [*sides.head, *more.head], paired=True)
            check_together([each.measurement for each in (*sides.base, *sides.head)])
            made = gate(
                sides.head, sides.asked(asked.settings, Path("the good commit"), asked.today)
            )
            metric = next((m for m in made.metrics if m.name == asked.metric), None)
            if metric is None or metric.before is None:
                reason = made.reasons[0] if made.reasons else f"{asked.metric} is not recorded"
                break
            reason = metric.reason
            if metric.verdict in {"regression", "ok", "improvement"}:
                verdict = BAD if metric.verdict == "regression" else GOOD
                break
        self.sides[commit.id] = sides
        return self._keep(commit, verdict, reason, metric)

    def _keep(
        self, commit: BisectCommit, verdict: str, reason: str, metric: GatedMetric | None
    ) -> BisectStep:
        step = BisectStep(
            commit, verdict, reason, metric.change if metric else None,
            len(metric.current) if metric else 0,
        )  # fmt: skip
        self.steps[commit.id] = step
        self.reading.say(f"{commit.short} is {verdict}: {reason}")
        return step

    def _report(
        self, found: Sequence[BisectCommit], unknown: str, before: BisectCommit | None = None
    ) -> BisectReport:
        """Return what was found: one commit, several, or none."""
        asked = self.asked
        before = before or asked.good
        if not found:
            undecided = self.steps[asked.candidates[-1].id].verdict == SKIPPED
            said = unknown if undecided else f"nothing is slower: {unknown}"
            return BisectReport(
                tool(), said, 3, asked.good, [], list(self.steps.values()), metric=asked.metric
            )
        last = found[-1]
        if len(found) == 1:
            said = f"{last.short} is the first that is slower: {last.subject}"
        else:
            said = f"the first that is slower is one of {format_count(len(found), 'commit')}"
        return BisectReport(
            tool(), said, 0 if len(found) == 1 else 3, asked.good, list(found),
            list(self.steps.values()), asked.repository.change(before.id, last.id),
            self._list_grown(before, last), asked.metric,
        )  # fmt: skip

    def _list_grown(self, before: BisectCommit, after: BisectCommit) -> list[Change]:
        """Return the hot operators that grew, from the last good commit to the first bad one."""
        known = self.sides.get(before.id)
        old = known.head if known else self.sides[after.id].base
        baseline = baselines.merge_baseline([each.measurement for each in old])
        found = changes.changes(baseline, [each.measurement for each in self.sides[after.id].head])
        return [part for part in found if part.after_ns > part.before_ns][:_OPERATORS]
