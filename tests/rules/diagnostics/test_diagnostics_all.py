"""What every diagnostic promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.rules_test.recordings import (
    MS,
    START,
    US,
    recording,
)
from npufix.rules import diagnostics
from npufix.rules.registry import all_diagnostics
from npufix.rules.shared.recording.observing import idle_time

RULES = all_diagnostics()


def test_every_file_is_found() -> None:
    folder = Path(str(diagnostics.__file__)).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    found = {rule.check.__module__.rsplit(".", 1)[1] for rule in RULES}
    assert found == files
    assert [rule.id for rule in RULES] == sorted(rule.id for rule in RULES)


def test_idle_time_ends_where_steps_are_missing() -> None:
    rows = [
        {"step": step, "start_ns": at * MS, "duration_ns": MS}
        for step, at in ((1, 0), (1, 2), (2, 5), (7, 50), (7, 52))
    ]
    idle = idle_time(recording(rows))
    starts = (idle.start_ns - START) // MS
    assert list(zip(starts, idle.next_kernel, strict=True)) == [(1, 1), (3, 2), (51, 4)]
    assert idle.total_ns == 4 * MS


def test_steps_that_reach_into_each_other_leave_no_idle_time_between() -> None:
    rows = [
        {"step": step, "start_ns": at * MS, "duration_ns": 2 * MS}
        for step, at in ((1, 0), (2, 1), (1, 2), (2, 3), (1, 4), (2, 6))
    ]
    marks = [
        {"name": f"ProfilerStep#{step}", "start_ns": at * MS, "duration_ns": 4 * MS}
        for step, at in ((1, 0), (2, 4))
    ]
    assert idle_time(recording(rows, marks), to_marks=True).total_ns == 0


def test_idle_time_is_that_of_one_device() -> None:
    rows = [
        {"device": 0, "start_ns": 0, "duration_ns": US},
        {"device": 1, "start_ns": 0, "duration_ns": 3 * MS},
        {"device": 0, "start_ns": MS, "duration_ns": US},
        {"device": 1, "start_ns": 5 * MS, "duration_ns": MS},
    ]
    assert list(idle_time(recording(rows)).next_kernel) == [3]


KERNEL = st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(1, 3), st.booleans())


@given(st.lists(KERNEL, max_size=12), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))))
def test_idle_time_is_what_no_kernel_covers(
    spans: list[tuple[int, int, int, bool]], asked: list[tuple[int, int]]
) -> None:
    rows = [
        {"start_ns": start, "duration_ns": length, "communication": communicates}
        for start, length, _, communicates in spans
    ]
    busy = {t for start, length, *_ in spans for t in range(start, start + length)}
    first = min((start for start, *_ in spans), default=0)
    last = max((start for start, *_ in spans), default=0)
    free = {t for t in range(first, last) if t not in busy}
    idle = idle_time(recording(rows))
    assert idle.total_ns == len(free)
    starts = np.array([START + start for start, _ in asked], np.int64)
    ends = starts + np.array([length for _, length in asked], np.int64)
    expected = [len(free & set(range(s, s + n))) for s, n in asked]
    assert idle.covered(starts, ends).tolist() == expected
