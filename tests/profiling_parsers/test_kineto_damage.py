from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_kineto import FOOTER, HEADER, new_events, old_events, trace, write_new, write_trace

from npufix.profiling_parsers.kineto.file import is_kineto
from npufix.profiling_parsers.kineto.reader import read_kineto
from npufix.profiling_parsers.profile import DumpError, Profile

NEW = trace(new_events(), HEADER, FOOTER).encode()
OLD = trace(old_events(), {}, {}).encode()
# Without the time: every process that collects the tests has to come to the same data.
PACKED = gzip.compress(NEW, mtime=0)


def read(data: bytes) -> Profile | None:
    """Return the profile, None if it was refused with a message and a remedy."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pt.trace.json"
        path.write_bytes(data)
        assert is_kineto(path) in (True, False)
        try:
            return read_kineto(path)
        except DumpError as refused:
            said = refused
    assert str(path) in said.message
    assert said.remedy
    return None


def is_told(profile: Profile) -> bool:
    return any(problem.damaged for problem in profile.problems)


@given(st.sampled_from([NEW, OLD, PACKED, gzip.compress(OLD, mtime=0)]), st.data())
@settings(max_examples=50)
def test_a_cut_at_any_byte_is_told(whole: bytes, data: st.DataObject) -> None:
    profile = read(whole[: data.draw(st.integers(0, len(whole) - 1))])
    if profile is not None and not is_told(profile):
        assert len(profile.kernels) in (3, 5)  # it was cut after the last event


@given(st.sampled_from([NEW, OLD]), st.binary(min_size=1, max_size=30), st.integers(0, 1 << 20))
@settings(max_examples=50)
def test_any_bytes_anywhere_never_raise_more(whole: bytes, damage: bytes, place: int) -> None:
    place %= len(whole)
    read(whole[:place] + damage + whole[place + len(damage) :])


@given(st.binary(min_size=1, max_size=3), st.integers(10, 1 << 20))
@settings(max_examples=50)
def test_damage_of_a_packed_file_is_told(damage: bytes, place: int) -> None:
    place %= len(PACKED)
    damaged = PACKED[:place] + damage + PACKED[place + len(damage) :]
    profile = read(damaged)
    if profile is not None and not is_told(profile):
        try:
            assert gzip.decompress(damaged) == NEW  # nothing but the header was hit
        except (EOFError, OSError):
            pytest.fail("damage was not told")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
keys = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args"])
arguments = st.sampled_from(
    ["External id", "correlation", "device", "Input Dims", "Input type", "Sequence number"]
)


@given(st.integers(0, 30), keys, arguments, json_values)
@settings(max_examples=50)
def test_any_value_may_stand_anywhere(number: int, key: str, argument: str, value: object) -> None:
    events = new_events()
    event = events[number % len(events)]
    event[key] = value
    if isinstance(event.get("args"), dict):
        event["args"] = event["args"] | {argument: value}
    header = HEADER | {"distributedInfo": value, "deviceProperties": [value]}
    read(trace(events, header, FOOTER | {argument: value}).encode())


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "byte 0"),
        (b"no json", "byte 0"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "no kernels and no operators"),
        (NEW[: NEW.index(b'"kernel"')], "before the first kernel"),
        (PACKED[:40], "unpacked byte"),
    ],
    ids=["nothing", "no JSON", "no kernels", "cut before a kernel", "cut while packed"],
)
def test_what_says_nothing_is_refused(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(DumpError, match=what) as refused:
        read_kineto(path)
    assert "export_chrome_trace" in refused.value.remedy


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="No such file"):
        read_kineto(tmp_path / "x.json")


def test_the_kernels_before_the_cut_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(NEW[: NEW.index(b"nccl:all_reduce")])
    profile = read_kineto(path)
    assert len(profile.kernels) == 3
    assert "breaks off" in profile.problems[0].what
    assert profile.problems[0].damaged


def test_a_kernel_without_a_duration_is_told_not_taken_as_nothing(tmp_path: Path) -> None:
    events = new_events()
    kernel = next(event for event in events if event.get("cat") == "kernel")
    for duration in (-5, None, "long", 1e300):
        kernel["dur"] = duration
        profile = read_kineto(write_new(tmp_path / "x.json", events))
        assert len(profile.kernels) == 4
        assert "1 events are malformed" in profile.problems[0].what


def test_a_wrong_sum_of_a_packed_file_is_told(tmp_path: Path) -> None:
    path = write_new(tmp_path / "x.json.gz")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # of the checksum
    path.write_bytes(data)
    profile = read_kineto(path)
    assert len(profile.kernels) == 5
    assert profile.problems[0].damaged


def test_nesting_deeper_than_any_stack_is_told(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    text = json.dumps({"traceEvents": new_events()}).replace("[128]", deep, 1)
    profile = read_kineto(write_trace(tmp_path / "x.json", text))
    assert len(profile.kernels) == 5
    assert "1 events are malformed" in profile.problems[0].what
