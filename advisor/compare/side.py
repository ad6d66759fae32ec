"""One of two runs, read from whatever it was given as: a dump, a report or a baseline."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pandas as pd

from npufix.advisor.compare.cells import cells_of, host_calls
from npufix.advisor.diagnose.diagnosis import Options, diagnose
from npufix.advisor.diagnose.step_rows import step_times
from npufix.advisor.gate import baselines
from npufix.advisor.gate.measuring import measure_diagnosis, measure_report
from npufix.profiling_parsers.profile import DumpError
from npufix.reports import comparison, report
from npufix.rewriters.write.user_error import UserError
from npufix.rules.shared.labels import Labels

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.measurement import Measurement

_HEAD_BYTES = 4096
_MOST_BYTES = 64 << 20
_TYPE_COLUMNS = ("type", "core", "total_ns", "calls")
_SHAPE_COLUMNS = ("type", "core", "shapes", "total_ns", "calls")
_LINE_COLUMNS = ("path", "line", "function", "type", "total_ns", "calls")
_ALL = 0.999
"""Share of the compute time that a list of operators must have to be all of them."""
_KERNEL_FILES = re.compile(r"kernel_details|op_summary|task_time|trace|\.db$|\.json\.gz$")
"""Where these are broken, kernels may be missing."""


class InputError(UserError):
    """A file that is nothing to compare: ``message`` and ``remedy``."""


@dataclass(frozen=True)
class CostTable:
    """Sums per step; what is not in a complete table takes no time, else it is not known."""

    rows: pd.DataFrame
    complete: bool
    missing_ns: float = math.inf
    """What takes more than this on the other side and is not in this table was not there."""


@dataclass(frozen=True)
class ForecastFinding:
    """A finding, and the kernels (index labels) that it would change."""

    finding: report.Finding
    kernels: NDArray[np.int64]


@dataclass(frozen=True)
class ComparedRun:
    """A run, reduced to what a comparison needs."""

    shown: comparison.Side
    measurement: Measurement
    split: report.StepSplit | None
    """Means over the steady steps: these add up."""
    compute_ns: float | None
    """Device time of the compute kernels per step."""
    types: CostTable
    shapes: CostTable
    lines: CostTable
    """By line and Type; of a report by line alone, ``type`` naming several."""
    findings: list[report.Finding]
    knows_findings: bool
    """Whether a source was searched, so that what is not found is not there."""
    cells: pd.DataFrame | None = None
    """See ``cells_of``; only of a dump."""
    host_calls: pd.Series[float] | None = None
    found: list[ForecastFinding] = field(default_factory=list)
    tree: SourceTree | None = None
    warnings: tuple[str, ...] = ()

    @property
    def by_core(self) -> bool:
        """Tell whether a Type may be listed on one of its cores only."""
        return self.shown.kind == "report"


def read_run(path: Path, tree: SourceTree | None, options: Options) -> ComparedRun:
    """Read a dump, a report or a baseline.

    Raises:
        DumpError: it is a dump that cannot be read, or nothing at all.
        RankError: there is no dump of the wanted rank.
        InputError: it is a file of this program, but neither a report nor a baseline.
        BaselineError: it is a broken baseline.

    """
    kind = _kind(path)
    if kind == "baseline":
        return _of_baseline(path)
    if kind == "report":
        return _of_report(path)
    try:
        result = diagnose(path, tree, options)
    except DumpError as error:
        if path.suffix != ".json":
            raise
        remedy = f"{error.remedy}; a report of npufix diagnose --json or a baseline will do too"
        raise DumpError(error.message, remedy) from error
    return run_of_dump(path, result, tree)


class _Head(msgspec.Struct):
    """What tells the files of this program from those of a profiler."""

    tool: str = ""
    hot_operators: msgspec.Raw = msgspec.Raw()
    hot_ops: msgspec.Raw = msgspec.Raw()


def _kind(path: Path) -> str:
    if path.suffix != ".json" or not path.is_file():
        return "dump"
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            text = head + file.read() if path.stat().st_size <= _MOST_BYTES else head
    except OSError:
        return "dump"  # says what is wrong
    try:
        known = msgspec.json.decode(text, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _kind_of_broken(head)
    if not known.tool.startswith("npufix"):
        return "dump"
    if known.hot_ops or known.hot_operators:
        return "baseline" if known.hot_ops else "report"
    raise InputError(
        f"{path}: a file of {known.tool}, but neither a report of diagnose nor a baseline",
        "give a dump, the JSON of npufix diagnose, or a baseline of npufix baseline update",
    )


def _kind_of_broken(head: bytes) -> str:
    """Return what a file begins as; its reader says what is wrong with it."""
    if b'"tool": "npufix' not in head:
        return "dump"
    return "baseline" if b'"run_count"' in head else "report"


def run_of_dump(path: Path, result: Diagnosis, tree: SourceTree | None) -> ComparedRun:
    """Reduce a diagnosed dump to what a comparison needs."""
    seen = measure_diagnosis(result, path)
    made, evidence = result.report, result.evidence
    if evidence is None:  # pragma: no cover - a dump always has it
        raise TypeError("a diagnosis of a dump without its evidence")
    devices = 1 if evidence.split.empty else max(1, int(evidence.split["device"].nunique()))
    cells = cells_of(evidence, devices)
    computes = cells[~cells["communication"]]
    complete = not any(p.damaged and _KERNEL_FILES.search(p.where) for p in made.problems)
    return ComparedRun(
        shown=msgspec.structs.replace(
            _side("dump", path, made, evidence.steps, devices), recorded=step_times(result)
        ),
        measurement=seen.measurement,
        split=made.split,
        compute_ns=float(computes["total_ns"].sum()),
        types=CostTable(_sum_cells(cells, ["communication", "type", "core"]), complete),
        shapes=CostTable(_sum_cells(computes, ["type", "core", "shapes"]), complete),
        lines=_lines_of_dump(computes, made, complete=complete),
        findings=made.findings,
        knows_findings=tree is not None,
        cells=cells,
        host_calls=host_calls(evidence, devices),
        found=[
            ForecastFinding(item.finding, Labels(item.kernels).array)
            for item in result.found
        ],
        tree=tree,
        warnings=result.warnings,
    )  # fmt: skip


def _lines_of_dump(computes: pd.DataFrame, made: report.Report, *, complete: bool) -> CostTable:
    placed = computes[computes["path"] != ""]
    if len(placed) or not made.hot_lines:
        keys = ["path", "line", "function", "type"]
        return CostTable(_sum_cells(placed, keys), complete and len(placed) > 0)
    return _hot_lines(made)


def _sum_cells(cells: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    return cells.groupby(keys, sort=True, as_index=False)[["total_ns", "calls"]].sum()


def _of_report(path: Path) -> ComparedRun:
    try:
        made = report.from_json(path.read_bytes())
    except report.ReportError as error:
        remedy = "write it anew with npufix diagnose DUMP --json"
        raise InputError(f"{path}: {error}", remedy) from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "name a file that can be read") from error
    numbers = measure_report(made)
    steps = made.split.recorded_steps if made.split else 1
    types = pd.DataFrame(
        [(o.type, o.core, float(o.mean_ns) * o.calls / steps, o.calls / steps)
         for o in made.hot_operators], columns=pd.Index(_TYPE_COLUMNS),
    ).assign(communication=False)  # fmt: skip
    shapes = pd.DataFrame(
        [(s.type, s.core, s.shapes, float(s.mean_ns) * s.calls / steps, s.calls / steps)
         for s in made.hot_shapes], columns=pd.Index(_SHAPE_COLUMNS),
    )  # fmt: skip
    listed = sum(o.total_ns for o in made.hot_operators)
    complete = listed >= _ALL * made.compute_ns
    return ComparedRun(
        shown=_side("report", path, made, made.split.steps if made.split else 1, 1),
        measurement=numbers,
        split=made.split,
        compute_ns=made.compute_ns / steps,
        types=CostTable(types, complete),
        shapes=CostTable(shapes, complete=False),
        lines=_hot_lines(made),
        findings=made.findings,
        knows_findings=bool(made.source),
    )  # fmt: skip


def _hot_lines(made: report.Report) -> CostTable:
    steps = made.split.recorded_steps if made.split else 1
    rows = pd.DataFrame(
        [(h.path, h.line, h.function, ", ".join(h.types), h.total_ns / steps, h.calls / steps)
         for h in made.hot_lines], columns=pd.Index(_LINE_COLUMNS),
    )  # fmt: skip
    return CostTable(rows, complete=False)


def _of_baseline(path: Path) -> ComparedRun:
    baseline = baselines.read(path)
    numbers = baselines.typical(baseline, str(path))
    shapes = pd.DataFrame(
        [(o.type, o.core, o.shapes, o.total_ns, o.calls) for o in numbers.operators],
        columns=pd.Index(_SHAPE_COLUMNS),
    )
    # A full list keeps the hottest: what is not in it took no more than the least of them.
    complete = len(shapes) < baselines.HOT_OPERATORS
    missing_ns = 2 * float(shapes["total_ns"].min()) if len(shapes) else math.inf
    values = {name: metric.value for name, metric in numbers.metrics.items()}
    split = None
    if "free-time" in values:
        parts = ("compute", "exposed-communication", "free-time")
        computing, exposed, free = (round(values.get(name, 0.0)) for name in parts)
        length = round(values.get("step-time", computing + exposed + free))
        split = report.StepSplit(1, length, computing, exposed, free)
    findings = [
        report.Finding(
            rule=f.rule, name=f.name, summary="", path=f.path, line=f.line, function="", code="",
            replacement="", safety="", conditions=[], problem="", fingerprint=f.fingerprint,
            kernels=[], calls=0, device_ns=0, share=0.0, saving=None,
        )
        for f in numbers.findings
    ]  # fmt: skip
    nothing = pd.DataFrame(columns=pd.Index([*_TYPE_COLUMNS, "communication"]))
    return ComparedRun(
        shown=comparison.Side("baseline", str(path), "", numbers.format, numbers.environment,
                              baseline.run_count, "step"),
        measurement=numbers,
        split=split,
        compute_ns=None,
        types=CostTable(nothing, complete=False),
        shapes=CostTable(shapes, complete, missing_ns),
        lines=CostTable(pd.DataFrame(columns=pd.Index(_LINE_COLUMNS)), complete=False),
        findings=findings,
        knows_findings=bool(findings),
    )  # fmt: skip


def _side(
    kind: str, origin: Path, made: report.Report, steps: int, devices: int
) -> comparison.Side:
    return comparison.Side(
        kind=kind,
        origin=str(origin),
        source=made.source,
        format=made.format,
        environment=made.environment,
        steps=steps,
        unit=made.split.unit if made.split else "step",
        devices=devices,
        partial=[problem for problem in made.problems if problem.damaged],
        problems=[problem for problem in made.problems if not problem.damaged],
        ranks=made.ranks,
    )
