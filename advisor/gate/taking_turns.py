"""Base and head compared in turn: by commands that make dumps, or dumps that were made so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.gate import baselines
from npufix.advisor.gate.gating import Asked
from npufix.advisor.gate.reading import RunError, check_together, read_runs
from npufix.advisor.gate.recording import in_turn, turns
from npufix.reports.report import Problem

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from npufix.advisor.diagnose.diagnosis import Options
    from npufix.advisor.gate.measuring import MeasuredRun
    from npufix.advisor.gate.recording import Recorder
    from npufix.advisor.project.gate_settings import GateSettings
    from npufix.advisor.project.source_tree import SourceTree


@dataclass(frozen=True, slots=True)
class Reading:
    """How dumps are read; ``given``: what they do not record."""

    options: Options
    tree: SourceTree | None = None
    """Of head."""
    base_tree: SourceTree | None = None
    given: Sequence[str] = ()
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Sides:
    """The runs of base and of head, in the order of pairs if there are pairs."""

    base: list[MeasuredRun]
    head: list[MeasuredRun]
    paired: bool

    def asked(self, settings: GateSettings, path: Path, today: dt.date) -> Asked:
        """Return what the gate is to compare the runs of head with; ``path``: what base is."""
        base = [each.measurement for each in self.base]
        notes = []
        if not self.paired:
            what = "base and head were not taken in turn, so they are compared as two groups"
            remedy = "run them in turn: base, head, head, base, and so on, as many of each"
            notes = [Problem(str(path), what, remedy)]
        baseline = baselines.merge_baseline(base)
        return Asked(settings, path, baseline, today, base, self.paired, notes)


def record_sides(
    recorders: tuple[Recorder, Recorder], into: Path, pairs: range, reading: Reading, *, kept: bool
) -> Sides:
    """Run the commands of base and head in turn, and read what each of them makes, at once.

    ``kept``: the dumps stay, so that they can be named.

    Raises:
        RecordingError: a command makes no dump.
        RunError: a dump is a copy of another one.
        DumpError: there is nothing to measure in one of them.

    """
    runs: tuple[list[MeasuredRun], list[MeasuredRun]] = [], []
    for pair, is_head in turns(pairs):
        recorder = recorders[is_head]
        reading.say(f"Run {pair + 1} of {pairs.stop}: {recorder.name}")
        output = into / recorder.name / str(pair + 1)
        recorder.record(output)
        (run,) = read_runs(
            [output],
            reading.tree if is_head else reading.base_tree,
            reading.options,
            given=reading.given,
        )
        name = str(output) if kept else f"{recorder.name} run {pair + 1}"
        runs[is_head].append(_name_run(run, name))
        check_together([each.measurement for side in runs for each in side])
    return Sides(*runs, paired=True)


def read_sides(base: Path, head: Path, reading: Reading) -> Sides:
    """Read two folders of dumps.

    Raises:
        RunError: a folder holds no dump, or a dump is a copy of another one.
        DumpError: there is nothing to measure in one of them.

    """
    old = read_runs(_dumps(base), reading.base_tree, reading.options, reading.say, reading.given)
    new = read_runs(_dumps(head), reading.tree, reading.options, reading.say, reading.given)
    check_together([each.measurement for each in (*old, *new)])
    pairs = in_turn([each.measurement for each in old], [each.measurement for each in new])
    if not pairs:
        return Sides(old, new, paired=False)
    sides = ({each.measurement.origin: each for each in side} for side in (old, new))
    befores, nows = sides
    return Sides(
        [befores[one.origin] for one, _ in pairs],
        [nows[other.origin] for _, other in pairs],
        paired=True,
    )


def _dumps(folder: Path) -> list[Path]:
    """Return the dumps in a folder: each folder in it, or each file if it has none."""
    if folder.name.endswith("_ascend_pt"):
        return [folder]
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    found = [path for path in inside if path.is_dir()] or [p for p in inside if p.suffix != ".log"]
    if not found:
        raise RunError(f"{folder} holds no dump", "name the folder that the dumps are in")
    return found


def _name_run(run: MeasuredRun, origin: str) -> MeasuredRun:
    return replace(run, measurement=msgspec.structs.replace(run.measurement, origin=origin))
