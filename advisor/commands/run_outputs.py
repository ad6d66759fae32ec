"""What the formats ask about a run beyond its report: charts, steps, tracks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.data.tables import StepRow
    from npufix.reports.html.details import Details
    from npufix.reports.report import Finding, Report


@dataclass(frozen=True, slots=True)
class DiagnosedRun:
    """A run as ``reports.formats.Run`` wants it; each part loads only what it needs."""

    diagnosis: Diagnosis
    tree: SourceTree | None

    @property
    def is_recorded(self) -> bool:
        """Whether there is a dump, not a source alone."""
        return self.diagnosis.evidence is not None

    def page_details(self, report: Report) -> Details:
        """Return what the charts are drawn from; ``report`` may be one with verdicts."""
        from npufix.advisor.diagnose.page_details import page_details

        return page_details(self.diagnosis, report, self.tree)

    def step_rows(self) -> list[StepRow]:
        """Return all recorded steps."""
        from npufix.advisor.diagnose.step_rows import step_rows

        return step_rows(self.diagnosis)

    def stack_times(self) -> list[tuple[tuple[str, ...], int]]:
        """Return the nanoseconds of all kernels by call stack, outermost frame first."""
        from npufix.advisor.diagnose.stack_times import stack_times

        return stack_times(self.diagnosis)

    def write_tracks(
        self, findings: list[Finding], file: IO[bytes], *, packed: bool, whole: bool
    ) -> None:
        """Write the findings over the recorded trace or, without ``whole``, alone."""
        from npufix.advisor.diagnose.trace_tracks import write_tracks

        write_tracks(self.diagnosis, findings, packed=packed, whole=whole, file=file)
