"""Traces in which anything stands anywhere, through a whole diagnosis."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import MANY
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.profiling_parsers.small_dump import (
    START,
    host_op,
    microseconds,
    python_call,
    small_trace,
    write_dump,
)
from tests.profiling_parsers.small_kineto import FOOTER, HEADER, new_events, old_events, trace

from npufix.advisor.diagnose.diagnosis import diagnose
from npufix.profiling_parsers.profile import DumpError
from npufix.reports.report import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

Event = dict[str, Any]
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def ascend_events() -> list[Event]:
    """Return the small trace with a step, a loader, a module, a collection and the clock."""
    at = microseconds(START)
    return [
        *small_trace(),
        host_op("ProfilerStep#50", 10, -5_000, 500),
        host_op(_LOADER, 10, -4_000, 900),
        host_op("Optimizer.step#SGD.step", 11, 150_000, 50),
        python_call("nn.Module: Linear_0", 10, 0, 500),
        {"ph": "X", "cat": "GC", "name": "GC", "pid": 1, "tid": 1, "ts": at, "dur": 5.0},
        {"ph": "C", "name": "AI Core Freq", "pid": 9, "ts": at, "args": {"MHz": 1800}},
    ]


def write_old(root: Path, events: list[Any]) -> Path:
    path = root / "x.pt.trace.json"
    path.write_text(trace(events, {"schemaVersion": 1}, {}), encoding="utf-8")
    return path


def write_new(root: Path, events: list[Any]) -> Path:
    path = root / "x.pt.trace.json"
    path.write_text(trace(events, HEADER, FOOTER), encoding="utf-8")
    return path


def write_ascend(root: Path, events: list[Any]) -> Path:
    return write_dump(root / "x_ascend_pt", trace_view=json.dumps(events))


def write_ascend_alone(root: Path, events: list[Any]) -> Path:
    kernels = dict.fromkeys(("kernel_details", "op_statistic", "step_trace_time"))
    return write_dump(root / "x_ascend_pt", trace_view=json.dumps(events), **kernels)


KINDS: dict[str, tuple[Callable[[], list[Event]], Callable[[Path, list[Any]], Path]]] = {
    "old Kineto": (old_events, write_old),
    "new Kineto": (new_events, write_new),
    "Ascend": (ascend_events, write_ascend),
    "Ascend without tables": (ascend_events, write_ascend_alone),
}
_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args")
_ARGUMENTS = (
    "External id", "external id", "correlation", "device", "stream", "Input Dims", "Input type",
    "Sequence number", "Call stack", "Module Hierarchy", "Fwd thread id", "Python id", "name",
    "labels", "MHz", "Task Type", "count", "data_type",
)  # fmt: skip
_TEXTS = ("", "X", "M", "cpu_op", "Kernel", "7", "-3.5", "nan", "ProfilerStep#5", _LOADER)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(_TEXTS)
    | st.text(st.characters(codec="utf-8"), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_ARGUMENTS), inner, max_size=2)
    ),
    max_leaves=4,
)
places = st.integers(0, 1 << 16)
damages = st.one_of(
    st.tuples(st.just("event"), places, values),
    st.tuples(st.just("drop"), places, st.sampled_from(_KEYS)),
    st.tuples(st.sampled_from(_KEYS), places, values),
    st.tuples(st.sampled_from(_ARGUMENTS), places, values),
)


def damage(events: list[Any], how: str, place: int, value: Any) -> None:
    at = place % len(events)
    event = events[at]
    if how == "event" or not isinstance(event, dict):
        events[at] = value
    elif how == "drop":
        event.pop(value, None)
    elif how in _KEYS:
        event[how] = value
    elif isinstance(arguments := event.get("args"), dict):
        event["args"] = arguments | {how: value}


def diagnose_whole(kind: str, events: list[Any]) -> None:
    """Diagnose; a dump may be refused, but no rule and nothing behind the readers may fail."""
    with tempfile.TemporaryDirectory() as folder:
        dump = KINDS[kind][1](Path(folder), events)
        try:
            made = diagnose(dump, None)
        except DumpError:
            return
    to_json(made.report)
    assert [p.what for p in made.report.problems if "internal error" in p.what] == []


@pytest.mark.parametrize("kind", KINDS)
@given(damaged=st.lists(damages, min_size=1, max_size=6))
@settings(max_examples=12)
def test_any_value_may_stand_anywhere_in_a_diagnosed_trace(
    kind: str, damaged: list[tuple[str, int, Any]]
) -> None:
    events: list[Any] = KINDS[kind][0]()
    for each in damaged:
        damage(events, *each)
    diagnose_whole(kind, events)


OF_ANY_TYPE = [
    pytest.param(kind, key, value, id=f"{name}-{key}-{kind}")
    for row, (name, value) in enumerate(
        {"none": None, "number": 5, "list": ["a"], "map": {"b": 1}}.items()
    )
    for column, key in enumerate(_KEYS)
    for place, kind in enumerate(KINDS)
    # Every value of every key in one Kineto trace and in one of Ascend; in both of each, if asked.
    if MANY or (row + column + place) % 2
]


@pytest.mark.parametrize(("kind", "key", "value"), OF_ANY_TYPE)
def test_a_key_may_be_of_any_type_in_every_event(kind: str, key: str, value: Any) -> None:
    diagnose_whole(kind, [event | {key: value} for event in KINDS[kind][0]()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", _KEYS)
def test_a_key_may_be_missing_in_every_event(kind: str, key: str) -> None:
    events = [{k: v for k, v in event.items() if k != key} for event in KINDS[kind][0]()]
    diagnose_whole(kind, events)


def test_a_loader_that_no_step_of_the_replay_asked_may_be_recorded() -> None:
    events = ascend_events()
    loader = next(event for event in events if event["name"] == _LOADER)
    loader["ts"] = microseconds(START - 900_000_000)
    diagnose_whole("Ascend", events)
