"""The text and the db export of one run are one profile, and that profile is the truth."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from benchmarks.generator.dump import write_dump
from benchmarks.generator.run import simulate
from benchmarks.generator.truth import kernel_truths
from hypothesis import given
from logical_runs import SETTINGS, kernel_rows, runs, totals

from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from benchmarks.generator.parameters import Parameters
    from benchmarks.generator.run import Run, Split

    from npufix.profiling_parsers.profile import Profile

_TIMES = [
    "computing_ns",
    "communication_exposed_ns",
    "overlapped_ns",
    "communication_ns",
    "free_ns",
]


def read(own: Parameters, export: str) -> Profile:
    with tempfile.TemporaryDirectory() as folder:
        return read_profile(write_dump(own, Path(folder), export))


def sorted_rows(profile: Profile) -> pd.DataFrame:
    rows = kernel_rows(profile).sort_values(["start_ns", "name"])
    return rows.reset_index(drop=True)


@given(runs)
@SETTINGS
def test_text_and_db_are_one_profile(own: Parameters) -> None:
    text, database = read(own, "text"), read(own, "db")
    assert totals(text) == totals(database)
    pd.testing.assert_frame_equal(sorted_rows(text), sorted_rows(database))
    for column in ("input_shapes", "input_dtypes", "output_shapes"):
        shapes = [p.kernels[["start_ns", "name", column]].astype(str) for p in (text, database)]
        if own.level:
            assert sorted(map(tuple, shapes[0].to_numpy())) == sorted(
                map(tuple, shapes[1].to_numpy())
            )
    split = ["step", *_TIMES, "bubble_ns"]
    pd.testing.assert_frame_equal(text.steps[split], database.steps[split])
    if own.schedule:
        assert text.kernels["step"].tolist() == database.kernels["step"].tolist()


@given(runs)
@SETTINGS
def test_text_is_the_truth(own: Parameters) -> None:
    check_truth(own, read(own, "text"))


@given(runs)
@SETTINGS
def test_database_is_the_truth(own: Parameters) -> None:
    check_truth(own, read(own, "db"))


def check_truth(own: Parameters, profile: Profile) -> None:
    run = simulate(own)
    truths = sorted(kernel_truths(run), key=lambda t: (t.start_ns, t.name))
    rows = sorted_rows(profile)
    assert not [p for p in profile.problems if p.damaged]
    # At Level0 the dump says neither Type nor core.
    for column in ("start_ns", "duration_ns", "name", *(["type", "core"] if own.level else [])):
        assert rows[column].tolist() == [getattr(t, column) for t in truths], column
    assert rows["communication"].tolist() == [t.name.startswith("hcom") for t in truths]
    if own.stacks:
        assert rows["frame"].tolist() == [t.frame for t in truths]
        assert rows["basis"].tolist() == [t.basis for t in truths]
    elif not own.modules:
        assert set(rows["frame"]) == {""}
    if own.modules:
        assert rows["module"].tolist() == [t.module for t in truths]
    found = profile.steps[[*_TIMES, "preparing_ns"]].to_numpy().tolist()
    assert found == [step_times(run, split) for split in run.splits]


def step_times(run: Run, split: Split) -> list[int]:
    """Return the times of a step from its mark to its end on the host."""
    known = [split.computing, split.exposed, split.overlapped, split.communication]
    if split.step is None:
        # Nothing marks a step: it begins with its first kernel.
        return [*known, split.free, 0]
    starts = [s.start_ns for s in run.splits if s.step == split.step and s.start_ns]
    if not starts:
        return [*known, 0, 0]
    step = run.steps[split.step - run.parameters.first_step]
    free = step.end_ns - step.start_ns - split.computing - split.exposed
    # A device that runs nothing in a step waits for the first kernel of the others.
    return [*known, free, (split.start_ns or min(starts)) - step.start_ns]
