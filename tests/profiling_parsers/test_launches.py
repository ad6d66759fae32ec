"""From the kernels of a dump, over the events of its trace, to operators and launches."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from small_dump import START, cann_launch, launch, microseconds, small_trace, write_dump

from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.signals import empty

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from npufix.profiling_parsers.profile import Profile


def read(root: Path, **files: str | None) -> Profile:
    return read_profile(write_dump(root / "host_1_ascend_pt", **files))


def read_events(root: Path, events: list[dict[str, Any]]) -> Profile:
    return read(root, trace_view=json.dumps(events))


@given(st.integers(1, 10**15), st.permutations(range(len(small_trace()))))
@settings(max_examples=40)
def test_times_relative_to_the_start_are_aligned(
    tmp_path_factory: pytest.TempPathFactory, begin: int, order: list[int]
) -> None:
    events = [small_trace()[place] for place in order]
    for event in events:
        if "ts" in event:
            nanoseconds = int(event["ts"].replace(".", "")) - START + begin
            event["ts"] = nanoseconds // 1000 + nanoseconds % 1000 / 1000
    profile = read_events(tmp_path_factory.mktemp("relative"), events)
    assert profile.problems == ()
    assert profile.kernels["basis"].tolist() == ["call-stack", "forward", ""]
    # A float64 of more than 2**43 microseconds has no room for each nanosecond.
    assert abs(profile.host_ops["start_ns"].iloc[0] - START - 1_000) <= 100


def test_the_order_of_the_events_says_nothing(tmp_path: Path, dump: Path) -> None:
    expected = read_profile(dump)
    events = small_trace()
    for turn in range(len(events)):
        profile = read_events(tmp_path / str(turn), events[turn:][::-1] + events[:turn])
        assert profile.kernels.equals(expected.kernels)
        assert profile.host_ops.equals(expected.host_ops)
        assert profile.stacks == expected.stacks


def test_times_that_went_through_a_float_still_join(tmp_path: Path) -> None:
    events = small_trace()
    for event in events:
        if "ts" in event:
            event["ts"] = float(event["ts"]) + 0.125  # one digit too many for exactness
    assert read_events(tmp_path, events).kernels["basis"].tolist() == ["call-stack", "forward", ""]


def test_a_float_keeps_its_digits(tmp_path: Path) -> None:
    text = re.sub(r'"ts": "([0-9.]+)"', r'"ts": \1', json.dumps(small_trace()))
    profile = read(tmp_path, trace_view=text)
    assert profile.host_ops["start_ns"].tolist()[:2] == [START + 1_000, START + 2_000]
    assert profile.problems == ()


def test_a_collective_whose_times_are_a_rounding_apart(tmp_path: Path) -> None:
    collective = launch("hcom_allReduce_1", 300_001, 10, 2_000)
    profile = read_events(tmp_path, [*small_trace(), *collective])
    assert profile.kernels["basis"].tolist() == ["call-stack", "forward", "call-stack"]


def test_a_packed_trace_is_the_same(tmp_path: Path, dump: Path) -> None:
    plain = read_profile(dump)
    root = write_dump(tmp_path / "packed", trace_view=None)
    packed = root / "ASCEND_PROFILER_OUTPUT" / "trace_view.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(small_trace()).encode()))
    profile = read_profile(root)
    assert profile.problems == ()
    assert profile.kernels.equals(plain.kernels)


def test_when_a_kernel_was_launched(tmp_path: Path) -> None:
    assert read(tmp_path / "torch").kernels["launch_ns"].tolist() == [
        START + 2_000,
        START + 103_000,
        -1,
    ]
    again = cann_launch("7", 900_000, 800_000)  # ids come again
    events = [*small_trace(), *again, *cann_launch("7", 60_000, 30_000)]
    profile = read_events(tmp_path / "cann", events)
    assert profile.kernels["launch_ns"].tolist() == [START + 30_000, START + 103_000, -1]


def test_connections_beyond_int64_are_told_apart(tmp_path: Path) -> None:
    flows = [str(40004068119343529983 + (step << 32)) for step in (0, 1)]
    events = [*cann_launch(flows[0], 60_000, 30_000), *cann_launch(flows[1], 170_000, 150_000)]
    profile = read_events(tmp_path, [*small_trace(), *events])
    assert profile.kernels["launch_ns"].tolist() == [START + 30_000, START + 150_000, -1]


def test_the_signals_of_the_trace(tmp_path: Path) -> None:
    place = {"pid": (1 << 10) | (16 << 5) | 3, "tid": 0}
    events = [
        *small_trace(),
        {"ph": "X", "name": "GC", "cat": "GC", "pid": 1056, "tid": 1, "dur": 12.5}
        | {"ts": microseconds(START + 9_000), "args": {}},
        *(
            {"ph": "C", "name": "AI Core Freq", **place, "args": {"MHz": mhz}}
            | {"ts": microseconds(START + start)}
            for start, mhz in ((5_000, 800), (1_000, 1850.5))
        ),
        {"ph": "C", "name": "HBM 0/Read", **place, "ts": "1.000", "args": {"Read(MB/s)": 0.0}},
        *(
            {"ph": "X", "name": f"AscendCL@{name}", "pid": 1_057, "tid": 12, "dur": spent}
            | {"ts": microseconds(START + start), "args": {"Mode": "ACL_OP", "level": "acl"}}
            for name, start, spent in (("opCompile", 2_000, 700), ("aclnnMul", 5_000, 499.9))
        ),
    ]
    signals = read_events(tmp_path, events).signals
    assert signals.gc.to_dict("records") == [{"start_ns": START + 9_000, "duration_ns": 12_500}]
    assert signals.frequency.to_dict("records") == [
        {"device": 3, "start_ns": START + 1_000, "mhz": 1850.5},
        {"device": 3, "start_ns": START + 5_000, "mhz": 800.0},
    ]
    assert signals.long_calls.to_dict("records") == [
        {"level": "acl", "name": "opCompile", "start_ns": START + 2_000, "duration_ns": 700_000}
    ]
    for name in ("gc", "frequency", "long_calls"):
        assert list(map(str, getattr(signals, name).dtypes)) == list(map(str, empty(name).dtypes))
