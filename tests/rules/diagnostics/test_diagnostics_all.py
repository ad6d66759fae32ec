"""What every diagnostic promises."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from recordings import MS, START, US, recording

from npufix.rules import diagnostics
from npufix.rules.registry import all_diagnostics, all_rules, documentation
from npufix.rules.shared.recording.observing import idle_time

if TYPE_CHECKING:
    from npufix.rules.diagnostic import Diagnostic, Recording

RULES = all_diagnostics()
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


def test_every_file_is_found() -> None:
    folder = Path(str(diagnostics.__file__)).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    found = {rule.check.__module__.rsplit(".", 1)[1] for rule in RULES}
    assert found == files
    assert [rule.id for rule in RULES] == sorted(rule.id for rule in RULES)


def test_no_two_rules_share_an_id_or_a_name() -> None:
    rules = (*all_rules(), *RULES)
    assert len({rule.id for rule in rules}) == len({rule.name for rule in rules}) == len(rules)


@each_rule
def test_a_rule_is_documented(rule: Diagnostic) -> None:
    text = documentation(rule)
    for heading in ("What", "Why it is slow on the NPU", "Evidence", "Use instead", "Safety",
                    "References"):  # fmt: skip
        assert f"\n{heading}: " in text, heading
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)+", rule.name)
    hundreds = {"settings": "[345]", "affinity": "2", "fusion": "1"}
    assert re.fullmatch(rf"NPU{hundreds[rule.table]}\d\d", rule.id)
    *_, folder, module = rule.check.__module__.split(".")
    assert (folder, module) == ("diagnostics", rule.name.replace("-", "_"))


@each_rule
def test_an_empty_recording_says_nothing(rule: Diagnostic) -> None:
    assert list(rule.check(recording())) == []
    assert list(rule.check(recording(step_ns=0))) == []


def test_idle_time_ends_where_steps_are_missing() -> None:
    rows = [
        {"step": step, "start_ns": at * MS, "duration_ns": MS}
        for step, at in ((1, 0), (1, 2), (2, 5), (7, 50), (7, 52))
    ]
    idle = idle_time(recording(rows))
    starts = (idle.start_ns - START) // MS
    assert list(zip(starts, idle.next_kernel, strict=True)) == [(1, 1), (3, 2), (51, 4)]
    assert idle.total_ns == 4 * MS


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


OPS = (
    "aten::_local_scalar_dense", "aten::copy_", "acl_memcpy_host_to_device", "ProfilerStep#1",
    "enumerate(DataLoader)#X.__next__", "aten::nonzero",
)  # fmt: skip
TYPES = (
    "Add", "Cast", "TransData", "NonZero", "Sort", "MatMulV3", "ReduceSum", "ConcatD", "Cos",
    "Transpose", "FlashAttentionScore", "BroadcastTo", "StridedSlice", "Relu",
)  # fmt: skip
APIS = ("launch", "aclrtSynchronizeStream", "aclopCompileAndExecute", "aclrtMalloc", "Add_Tiling")
TIME = st.integers(0, 90 * MS)


@st.composite
def anything(draw: st.DrawFn) -> Recording:
    kernel_rows = [
        {
            "start_ns": draw(TIME), "duration_ns": draw(TIME), "launch_ns": draw(TIME) - 1,
            "type": draw(st.sampled_from(TYPES)),
            "core": draw(st.sampled_from(["AI_CPU", "AI_VECTOR_CORE"])),
            "name": draw(st.sampled_from(["Conv2D1", "hcom_1", "x"])),
            "communication": draw(st.booleans()), "step": draw(st.integers(1, 3)),
            "input_shapes": draw(st.sampled_from(["", "4,8;;2", "a,b", "9" * 30])),
            "input_dtypes": draw(st.sampled_from(["", "FLOAT;;INT64", "DT_BF16", "BOOL"])),
            "path": draw(st.sampled_from(["", "a.py", "b.py"])),
        }
        for _ in range(draw(st.integers(0, 20)))
    ]  # fmt: skip
    host_rows = [
        {"name": draw(st.sampled_from(OPS)), "start_ns": draw(TIME), "duration_ns": draw(TIME)}
        for _ in range(draw(st.integers(0, 12)))
    ]
    host_rows.sort(key=lambda row: row["start_ns"])
    apis = [
        {"level": "acl", "name": draw(st.sampled_from(APIS)), "count": draw(st.integers(0, 99)),
         "total_ns": draw(TIME), "max_ns": 1}
        for _ in range(draw(st.integers(0, 4)))
    ]  # fmt: skip
    links = [
        {"name": "hcom_1", "transport": draw(st.sampled_from(["SDMA", "RDMA"])),
         "size_bytes": draw(st.integers(-1, 10**9)), "transit_ns": draw(TIME) - 1,
         "gb_per_s": draw(st.floats(0, 30))}
        for _ in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    collectives = [
        {"name": "hcom_1", "elapse_ns": 100 * draw(TIME), "transit_ns": draw(TIME) - 1,
         "wait_ns": draw(TIME) - 1}
        for _ in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    split = draw(st.tuples(TIME, TIME, TIME))
    step = {"computing_ns": split[0], "communication_exposed_ns": split[1], "free_ns": split[2],
            "communication_ns": split[1]}  # fmt: skip
    made = recording(
        kernel_rows, host_rows, step=draw(st.sampled_from([None, step])),
        step_ns=draw(st.integers(1, 300)) * MS, step_count=draw(st.integers(1, 3)), apis=apis,
        transports=links, collectives=collectives,
        gc=[{"start_ns": START + draw(TIME), "duration_ns": draw(TIME)}],
        frequency=[{"device": 0, "start_ns": START + draw(TIME), "mhz": draw(st.floats(0, 1800))}
                   for _ in range(2)],
    )  # fmt: skip
    return replace(made, recorded_steps=draw(st.integers(0, 5)))


# All diagnostics look at each example, which is dear; each one's own tests say what it finds.
@hypothesis_settings(max_examples=25)
@given(anything())
def test_nothing_costs_more_than_the_step_or_saves_more_than_it_costs(made: Recording) -> None:
    for rule in RULES:
        found = list(rule.check(made))
        for seen in found:
            assert 0 <= seen.cost_ns <= made.step_ns
            low, high = seen.saving_ns or (0, 0)
            assert 0 <= low <= high <= seen.cost_ns
            assert seen.basis
            assert re.search(r"\d", seen.what)
            assert seen.kernels <= set(made.kernels.index)
            costs = [place.cost_ns for place in seen.places]
            assert costs == sorted(costs, reverse=True)
            assert all(0 <= cost <= made.step_ns for cost in costs)
