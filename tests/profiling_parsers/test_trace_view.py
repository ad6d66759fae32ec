from __future__ import annotations

import gc
import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_dump import START, small_trace

from npufix.profiling_parsers.trace.json_stream import EventStream
from npufix.profiling_parsers.trace.rows import EventTable, Keys
from npufix.profiling_parsers.trace.unpacked import UnpackedFile
from npufix.profiling_parsers.trace.view import Trace, read_trace

KERNELS = {"aclnnMul_Mul": 0, "aclnnMulGrad_Mul": 1}
NASTY = [
    "}, {",
    '}, {"ph": "X"',
    '"}, {"',
    "]",
    "[{",
    "\\",
    '\\"',
    "\n}, {\n",
    "],",
    "目录",
    "\x00\u2028",
]


def stream(text: bytes, chunk_bytes: int = 1 << 20) -> tuple[list[Any], EventStream]:
    events = EventStream(io.BytesIO(text), chunk_bytes)
    return [event.name for chunk in events for event in chunk], events


def read(text: str | bytes) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace_view.json"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_trace(path, KERNELS)


@pytest.mark.parametrize(
    "text", ['[{"name":"a"}, ]x] {"name":"b"}]', '{"traceEvents":[{"name":"a"}]x}']
)
def test_a_bracket_in_what_is_damaged_does_not_end_a_trace(text: str) -> None:
    names, events = stream(text.encode())
    assert names == ["a"]
    assert events.cut is not None
    assert stream(b'{"traceEvents":[{"name":"a"}], "x": [1]}')[1].cut is None
    assert stream(b'[{"name":"a"}]\n')[1].cut is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(NASTY),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
nasty_events = st.lists(
    st.fixed_dictionaries(
        {"ph": st.just("X"), "name": st.text() | st.sampled_from(NASTY), "args": json_values}
    ),
    max_size=8,
)
layouts = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])
wrappers = st.sampled_from(["%s", '{"a": {"b": [1]}, "traceEvents": %s, "z": [{"q": "]"}]}'])


@given(nasty_events, layouts, wrappers, st.integers(1, 200))
def test_events_survive_any_chunk_border(
    events: list[dict[str, Any]], layout: dict[str, Any], wrapper: str, chunk_bytes: int
) -> None:
    text = wrapper.replace("%s", json.dumps(events, **layout)).encode("utf-8", "surrogatepass")
    names, events_read = stream(text, chunk_bytes)
    assert names == [event["name"] for event in events]
    assert events_read.cut is None
    assert events_read.malformed == 0


@given(nasty_events, layouts, st.integers(1, 200), st.data())
def test_a_cut_at_any_byte_keeps_the_events_before(
    events: list[dict[str, Any]], layout: dict[str, Any], chunk_bytes: int, data: st.DataObject
) -> None:
    parts = [json.dumps(event, **layout).encode() for event in events]
    text = b"[" + b", ".join(parts) + b"]"
    cut = data.draw(st.integers(0, len(text) - 1))
    ends = [len(b"[" + b", ".join(parts[: i + 1])) for i in range(len(parts))]
    names, events_read = stream(text[:cut], chunk_bytes)
    assert names == [e["name"] for e, end in zip(events, ends, strict=True) if end <= cut]
    assert events_read.cut is not None
    assert events_read.cut <= cut
    assert events_read.malformed == 0


@given(st.binary(max_size=60), st.integers(0, 10_000))
def test_damage_never_raises_and_keeps_what_stands_before(damage: bytes, place: int) -> None:
    text = json.dumps(small_trace()).encode()
    place %= len(text)
    trace = read(text[:place] + damage + text[place + len(damage) :])
    whole = text[:place].count(b'"cat": "cpu_op"')  # the last of them may be the damaged one
    assert len(trace.operators) >= whole - 1


@pytest.mark.parametrize(
    "text", ["", "null", "{}", '{"traceEvents": 3}', "\0\0", "<html>", "PK\3\4"]
)
def test_what_is_no_trace_is_cut_at_once(text: str) -> None:
    trace = read(text)
    assert trace.cut is not None
    assert trace.operators.empty


@pytest.mark.parametrize("text", ["[]", " [ ] ", '{"traceEvents": []}', "\ufeff[]"])
def test_an_empty_trace_is_complete(text: str) -> None:
    trace = read(text)
    assert trace.cut is None
    assert trace.operators.empty


def test_a_quote_never_closed_ends_the_trace_before_memory_does() -> None:
    text = b'[{"name": "a"}, {"name": "' + b"x" * (20 << 20)
    file = io.BytesIO(text)
    events = EventStream(file)
    assert [event.name for chunk in events for event in chunk] == ["a"]
    assert file.tell() < len(text)
    assert events.cut is not None
    assert events.cut <= len(b'[{"name": "a"}, ')


def test_an_indented_trace_is_read_in_chunks() -> None:
    events = [{"ph": "X", "name": str(number), "args": {"a": [{}, {}]}} for number in range(50)]
    stream_of_chunks = EventStream(io.BytesIO(json.dumps(events, indent=4).encode()), 500)
    chunks = [[event.name for event in chunk] for chunk in stream_of_chunks]
    assert max(map(len, chunks)) < 10
    assert [name for chunk in chunks for name in chunk] == [event["name"] for event in events]


def test_events_that_are_no_objects_or_no_json_are_counted() -> None:
    names, events = stream(
        b'[{"name": "a"}, 3, null, {"name": nan}, [{"name": "c"}], {"name": "b"}]'
    )
    assert names == ["a", "b"]
    assert events.malformed == 2  # the list and nan; a bare value is nothing that could be lost
    assert events.cut is None


def test_the_small_trace() -> None:
    trace = read(json.dumps(small_trace()))
    first = trace.operators.iloc[0]
    assert first["name"] == "aten::mul"
    assert first["start_ns"] == START + 1_000
    assert first["duration_ns"] == 50_000
    assert first["sequence"] == 7
    assert first["input_dims"] == "4,128;128;"
    assert first["input_types"] == "float;float"
    assert trace.stacks[first["stack"]].startswith("/home/me/model.py(12)")
    assert trace.device["kernel"].tolist() == [0, 1]
    assert trace.flow_starts["flow"].tolist() == trace.flow_ends["flow"].tolist()
    assert trace.flow_ends["start_ns"].tolist() == trace.device["start_ns"].tolist()


def test_numbers_may_be_texts_and_texts_numbers() -> None:
    def respelled(value: object) -> object:
        return int(value) if isinstance(value, str) and value.isdigit() else str(value)

    plain = read(json.dumps(small_trace()))
    events = [
        event | {key: respelled(event[key]) for key in ("pid", "tid", "id", "dur") if key in event}
        for event in small_trace()
    ]
    other = read(json.dumps(events))
    assert other.operators.equals(plain.operators)
    assert other.flow_starts.equals(plain.flow_starts)
    assert other.device.equals(plain.device)


def test_a_time_that_is_none_is_counted() -> None:
    events = small_trace()
    events[1]["ts"] = None
    events[2]["ts"] = "soon"
    events[3]["dur"] = "long"
    events[4]["args"] = [1]
    events[5]["dur"] = -3.5
    trace = read(json.dumps(events))
    assert trace.malformed == 5


@given(st.integers(0, 400), st.binary(max_size=4))
def test_a_packed_text_is_read_up_to_where_it_is_damaged(place: int, damage: bytes) -> None:
    text = json.dumps(small_trace()).encode()
    packed = gzip.compress(text)
    place = 2 + place % (len(packed) - 2)  # what it is packed with stands in the first two
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace_view.json"
        path.write_bytes(packed[:place])
        with UnpackedFile(path) as file:
            assert text.startswith(file.read())
        path.write_bytes(packed[:place] + damage + packed[place + len(damage) :])
        with UnpackedFile(path) as file:
            file.read()  # whatever it is, it ends


def test_a_packed_text_cut_late_loses_only_its_end() -> None:
    text = json.dumps([{"name": str(number)} for number in range(50_000)]).encode()
    packed = gzip.compress(text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace_view.json"
        path.write_bytes(packed[:-9])  # the end of the last block, and the checksum
        with UnpackedFile(path) as file:
            read_text = file.read()
            assert file.tell() == len(read_text)
            assert file.packed
            assert file.damage == "the gzip file is cut off"
        assert len(read_text) > len(text) - 100
        path.write_bytes(packed + gzip.compress(b" more"))
        with UnpackedFile(path) as file:
            assert file.read() == text + b" more"
            assert file.damage is None
        path.write_bytes(packed + b"\0" * 100_000)  # filled up
        with UnpackedFile(path) as file:
            assert file.read() == text
            assert file.damage is None
        path.write_bytes(packed[:-6] + b"\0\0\0\0\0\0")  # only the checksum is wrong
        with UnpackedFile(path) as file:
            assert file.read() in (text, text[:-1])
            assert file.damage is not None
            assert "cannot be read further" in file.damage


keys = st.integers(-1, 10**40).flatmap(
    lambda number: st.sampled_from([number, str(number), f"0{number}" if number >= 0 else number])
)


@given(st.lists(keys | st.none() | st.text(max_size=3) | st.floats() | st.lists(st.none())))
def test_keys_are_the_same_together_and_alone(values: list[Any]) -> None:
    together, alone = Keys(), Keys()
    of_all = together.of(values).tolist()
    assert of_all == [alone.key(value) for value in values]
    for value, key in zip(values, of_all, strict=True):
        if str(value).isdecimal() and int(value) < 1 << 62:
            assert key == int(value)
        assert (key == -1) == (str(value) == "-1")


@given(st.lists(st.integers(0, 9 * 10**18 // 1000), min_size=1, max_size=6))
def test_connections_are_told_apart_by_their_last_62_bits(heads: list[int]) -> None:
    values = [str((1 << 62) + (head << 32)) for head in heads]
    found = Keys().of(values).tolist()
    expected = [int(value) % (1 << 62) for value in values]
    for one, key in zip(expected, found, strict=True):
        assert [each == key for each in found] == [each == one for each in expected]


columns = st.lists(st.integers(-(2**40), 2**40) | st.integers(-5, 5), max_size=9)


@given(st.lists(columns, max_size=5))
def test_a_table_holds_what_was_added_in_order_of_time(chunks: list[list[int]]) -> None:
    table = EventTable("a", "time", small=("a",))
    for chunk in chunks:
        table.add(np.array(chunk, np.int64), np.arange(len(chunk))[::-1] + len(chunk))
    rows = [
        (length * 2 - 1 - place, value)
        for chunk in chunks
        for length in [len(chunk)]
        for place, value in enumerate(chunk)
    ]
    frame = table.frame()
    assert list(zip(frame["time"], frame["a"], strict=True)) == sorted(rows, key=lambda row: row[0])


def test_arguments_that_are_damaged_are_counted_and_cost_only_themselves() -> None:
    text = json.dumps(small_trace()).replace('"Input Dims": "4,128', '"Input Dims": "\\ud8004,128')
    trace = read(text)
    assert trace.operators["input_dims"].tolist()[0] in ("", "\ud8004,128;128;")
    assert trace.stacks[trace.operators["stack"].iloc[0]].startswith("/home/me/model.py(12)")


def test_the_garbage_collector_is_left_as_it_was() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            read(json.dumps(small_trace()))
            assert gc.isenabled() == enabled
        finally:
            gc.enable()
