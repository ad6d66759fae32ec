"""From launching operators to lines and modules, with Python functions around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st
from small_dump import (
    host_op,
    launch,
    python_call,
    small_trace,
    without_stacks,
    write_dump,
)
from test_launches import read_events

from npufix.profiling_parsers.attribution.nesting import find_enclosing, find_nearest
from npufix.profiling_parsers.attribution.operators import attribute_launches
from npufix.profiling_parsers.profile import CallSite
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.tables.time_index import TimeIndex, pair_in_order

if TYPE_CHECKING:
    from pathlib import Path

CALLS = [
    python_call("train.py(5): main", 10, -500, 400),
    python_call("nn.Module: Net_0", 10, 0, 90),
    python_call("<built-in method forward of Net object at 0x7f00>", 10, 100, 80),
    python_call("net/model.py(9): forward", 10, 200, 70),
    python_call("nn.Module: Linear_0", 10, 300, 65),
    python_call("torch/nn/linear.py(4): forward", 10, 400, 60),
    python_call("net/model.py(30): other", 12, 0, 900),
]
FUNCTIONS = (
    CallSite("torch/nn/linear.py", 4, "forward"),
    CallSite("net/model.py", 9, "forward"),
    CallSite("train.py", 5, "main"),
)


def test_functions_and_modules_around_an_operator(tmp_path: Path) -> None:
    profile = read_events(tmp_path, [*without_stacks(small_trace()), *CALLS])
    assert profile.kernels["basis"].tolist() == ["function", "forward-function", ""]
    assert [profile.stacks[stack] for stack in profile.kernels["stack"][:2]] == [FUNCTIONS] * 2
    assert profile.kernels["stack"].iloc[2] == -1
    assert [profile.modules[module] for module in profile.kernels["module"][:2]] == [
        "Net_0/Linear_0",
        "Net_0/Linear_0",
    ]
    assert profile.kernels["module"].iloc[2] == -1
    node = int(profile.kernels["node"].iloc[0])
    assert node >= 0
    assert profile.kernels["node"].tolist() == [node, -2 - node, -1]
    forward = profile.host_ops.iloc[profile.kernels["host_op"].iloc[0]]
    assert (profile.stacks[forward["stack"]], forward["basis"]) == (FUNCTIONS, "function")
    backward = profile.host_ops.iloc[profile.kernels["host_op"].iloc[1]]
    assert (backward["stack"], backward["basis"]) == (-1, "")


def test_where_operators_have_stacks_functions_add_the_modules_only(tmp_path: Path) -> None:
    for name, events in {"a": [*CALLS, *small_trace()], "b": [*small_trace(), *CALLS]}.items():
        profile = read_events(tmp_path / name, events)
        assert profile.kernels["basis"].tolist() == ["call-stack", "forward", ""]
        assert len(profile.stacks) == 1
        assert profile.modules == ("Net_0/Linear_0",)
        assert profile.kernels["module"].tolist() == [0, 0, -1]


def test_a_function_that_ended_or_is_of_another_thread_is_not_around(tmp_path: Path) -> None:
    calls = [
        python_call("a.py(1): f", 10, 0, 0.9),
        python_call("nn.Module: A_0", 10, 0, 0.9),
        python_call("b.py(1): f", 12, 0, 900),
    ]
    profile = read_events(tmp_path, [*without_stacks(small_trace()), *calls])
    assert profile.kernels["basis"].tolist() == ["", "", ""]
    assert profile.stacks == ()
    assert profile.modules == ()


def test_backward_on_the_calling_thread_leads_to_the_forward_line(tmp_path: Path) -> None:
    """Not to the line of ``loss.backward()``, which holds for all of them."""
    started = "/home/me/train.py(9): main"
    of_engine = [
        event | {"args": event["args"] | {"Call stack": started}}
        if event.get("tid") == 11 and event.get("cat") == "cpu_op"
        else event
        for event in small_trace()
    ]
    profile = read_events(tmp_path, of_engine)
    assert profile.kernels["basis"].tolist() == ["call-stack", "forward", ""]
    assert profile.stacks[profile.kernels["stack"].iloc[1]][0].path == "/home/me/model.py"
    alone = [event for event in of_engine if event.get("tid") != 10]
    profile = read_events(tmp_path / "alone", alone)
    assert profile.kernels["basis"].tolist() == ["", "call-stack", ""]


def test_a_backward_written_in_python_keeps_its_own_line(tmp_path: Path) -> None:
    events = small_trace()
    own = "/home/me/function.py(3): backward"
    events[5]["args"]["Call stack"] = own  # the aten::mul inside MulBackward0
    profile = read_events(tmp_path, events)
    assert profile.kernels["basis"].tolist() == ["call-stack", "call-stack", ""]
    assert profile.stacks[profile.kernels["stack"].iloc[1]][0].path == "/home/me/function.py"


def test_an_operator_of_no_length_is_inside_the_function_it_starts_with(tmp_path: Path) -> None:
    events = [
        python_call("a.py(1): f", 10, 2_000, 0),
        host_op("aclnnMul", 10, 2_000, 0),
        *launch("aclnnMul_Mul", 60_000, 10, 2_000),
    ]
    profile = read_events(tmp_path, events)
    assert profile.stacks[profile.kernels["stack"].iloc[0]] == (CallSite("a.py", 1, "f"),)


def test_without_calls_there_are_no_modules(tmp_path: Path) -> None:
    profile = read_profile(write_dump(tmp_path / "a_ascend_pt"))
    assert profile.modules == ()
    assert (profile.kernels["module"] == -1).all()


@st.composite
def nested_calls(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Return calls (name, start, end) that nest, as a profiler records them."""
    calls: list[tuple[str, int, int]] = []

    def fill(start: int, end: int, depth: int) -> None:
        at = start
        while depth < 5 and end - at > 4 and draw(st.booleans()):
            first = draw(st.integers(at, end - 3))
            last = draw(st.integers(first + 2, end))
            name = draw(
                st.sampled_from(["a.py(1): f", "b.py(2): g", "nn.Module: N_0", "<built-in x>"])
            )
            calls.append((name, first, last))
            fill(first, last, depth + 1)
            at = last

    fill(0, 200, 0)
    return calls


@given(nested_calls(), st.lists(st.integers(0, 199), min_size=1, max_size=20), st.randoms())
def test_the_functions_around_are_those_that_hold_the_start(
    calls: list[tuple[str, int, int]], starts: list[int], random: Any
) -> None:
    operators = pd.DataFrame({"start_ns": sorted(set(starts))}).assign(
        name=pd.Categorical(["op"] * len(set(starts))),
        pid=1,
        tid=2,
        duration_ns=0,
        sequence=-1,
        stack=-1,
        input_dims="",
        input_types="",
    )
    recorded = random.sample(calls, len(calls))
    frame = pd.DataFrame(recorded, columns=["name", "start_ns", "end_ns"])
    frame = frame.assign(
        pid=1,
        tid=2,
        duration_ns=(frame["end_ns"] - frame["start_ns"]).astype("int64"),
        start_ns=frame["start_ns"].astype("int64"),
        name=frame["name"].astype("category"),
    )
    rows = np.arange(len(operators))
    found = attribute_launches(operators, (), rows, frame)
    for row, start in enumerate(operators["start_ns"]):
        around = [call for call in calls if call[1] <= start < call[2]]
        around.sort(key=lambda call: (call[1], -call[2]))
        names = [name for name, _, _ in around]
        files = [name[0] for name in reversed(names) if "(" in name]
        stack = found.stacks[found.stack[row]] if found.stack[row] >= 0 else ()
        modules = [name[len("nn.Module: ") :] for name in names if name.startswith("nn.")]
        module = found.modules[found.module[row]] if found.module[row] >= 0 else ""
        assert [site.path[0] for site in stack] == files
        assert module == "/".join(modules)
    assert len(set(found.stacks)) == len(found.stacks)


intervals = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=25
)


@given(intervals)
def test_what_is_directly_around_holds_the_start_and_started_before(
    recorded: list[tuple[int, int, int]],
) -> None:
    frame = pd.DataFrame(recorded, columns=["tid", "start_ns", "duration_ns"]).assign(pid=7)
    parents = find_enclosing(frame)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            (tid, start, _), (other, first, length) = recorded[row], recorded[parent]
            assert (tid, first) <= (other, start)
            assert first <= start < first + max(length, 1)
    depth = find_nearest(np.where(parents < 0, np.arange(len(parents)), -1), parents)
    assert (depth >= 0).all()  # no circles: each one leads outwards to one with nothing around it


rows = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 40)), max_size=20)


@given(rows, rows, st.integers(0, 5))
def test_the_row_at_a_time(
    offered: list[tuple[int, int]], wanted: list[tuple[int, int]], within: int
) -> None:
    def columns(pairs: list[tuple[int, int]]) -> list[Any]:
        return list(np.array(pairs, np.int64).reshape(-1, 2).T)

    index = TimeIndex(*columns(offered))
    near, last = index.nearest(*columns(wanted), within), index.last(*columns(wanted))
    for (group, time), row, before in zip(wanted, near.tolist(), last.tolist(), strict=True):
        apart = [abs(at - time) if each == group else 99 for each, at in offered]
        if min(apart, default=99) > within:
            assert row == -1
        else:
            assert apart[row] == min(apart)
            assert offered.index(offered[row]) == row
        earlier = [at for each, at in offered if each == group and at <= time]
        if earlier:
            assert offered[before] == (group, max(earlier))
        else:
            assert before == -1


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_the_nth_of_an_id_belongs_to_the_nth(wanted: list[int], offered: list[int]) -> None:
    paired = pair_in_order(np.array(wanted, np.int64), np.array(offered, np.int64))
    for place, (value, row) in enumerate(zip(wanted, paired.tolist(), strict=True)):
        places = [at for at, other in enumerate(offered) if other == value]
        nth = wanted[:place].count(value)
        assert row == (places[nth] if nth < len(places) else -1)
