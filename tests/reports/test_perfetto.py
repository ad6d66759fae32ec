"""Findings over a trace: the trace stays as it is, every arrow ends in the slice of a kernel."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import shutil
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npufix.advisor.diagnose.diagnosis import diagnose
from npufix.advisor.diagnose.trace_tracks import write_tracks
from npufix.reports.data.trace_events import Clock, Slice, finding_events

if TYPE_CHECKING:
    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree

ROOT = Path(__file__).parents[2]
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the example's dump: the folder *_ascend_pt."""
    copy = tmp_path_factory.mktemp("dump") / "of"
    shutil.copytree(ROOT / "examples" / "dump", copy)
    return next(copy.glob("*_ascend_pt"))


@pytest.fixture(scope="module")
def result(dump: Path, example_tree: SourceTree) -> Diagnosis:
    return diagnose(dump, example_tree)


def trace_of(dump: Path) -> Path:
    return dump / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"


def written(result: Diagnosis, *, packed: bool = False, whole: bool = True) -> Events:
    out = io.BytesIO(b"x" * 100_000)  # what was there before goes
    write_tracks(result, result.report.findings, packed=packed, whole=whole, file=out)
    data = gzip.decompress(out.getvalue()) if packed else out.getvalue()
    events: Events = json.loads(data, parse_float=Decimal)
    return events


def process(events: Events, name: str) -> int:
    (pid,) = (
        event["pid"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name" and event["args"]["name"] == name
    )
    return int(pid)


def arrows(events: Events) -> list[tuple[str, str]]:
    """Return names of the slices that each arrow leads from and to, inside which it must lie."""
    slices: defaultdict[tuple[int, int], list[tuple[Decimal, Decimal, str]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = Decimal(event["ts"])
            slices[event["pid"], event["tid"]].append((start, start + event["dur"], event["name"]))
    ends: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for event in events:
        if event.get("cat") == "npufix" and event["ph"] in {"s", "f"}:
            at = Decimal(event["ts"])
            on = slices[event["pid"], event["tid"]]
            (hit, *_) = (name for start, end, name in on if start < at < end)
            ends[event["id"]][event["ph"]] = hit
            assert (event.get("bp") == "e") == (event["ph"] == "f")
    return [(end["s"], end["f"]) for end in ends.values()]


def test_the_trace_stays_and_the_findings_lead_to_its_kernels(
    result: Diagnosis, dump: Path
) -> None:
    events = written(result)
    original: Events = json.loads(trace_of(dump).read_bytes(), parse_float=Decimal)
    assert events[: len(original)] == original
    own = process(events, "npufix findings")
    assert own not in {event["pid"] for event in original}
    led = arrows(events)
    slices = [event for event in events if event["pid"] == own and event["ph"] == "X"]
    of_kernels = [e for e in slices if e.get("args", {}).get("kernel")]  # not over the whole run
    assert len(led) == len(of_kernels) > 500
    kernels = {item.finding.rule: item.kernels for item in result.found}
    names = result.evidence.kernels["name"].astype(str)  # type: ignore[union-attr]
    for rule in ("NPU101", "NPU201"):
        to = {end for start, end in led if start.startswith(f"{rule} ")}
        assert to >= {names[kernel] for kernel in kernels[rule]}
    assert all(type(event["ts"]) is str for event in slices), "as in the original"
    on_path = [event for event in slices if event["tid"] == 0]
    ends = [Decimal(event["ts"]) + event["dur"] for event in on_path]
    assert len(on_path) > 100
    assert all(end <= Decimal(e["ts"]) for end, e in zip(ends, on_path[1:], strict=False))
    norm = next(event for event in slices if event["name"] == "NPU101 eager-rms-norm")
    finding = next(f for f in result.report.findings if f.rule == "NPU101")
    assert norm["args"]["where"].startswith("bert_like/")
    assert norm["args"]["saving_high_us"] > 0
    assert finding.saving is not None
    order = [e for e in events if e["name"] == "process_sort_index" and e["pid"] == own]
    assert order[0]["args"]["sort_index"] < min(
        e["args"]["sort_index"] for e in original if e["name"] == "process_sort_index"
    )


def test_the_findings_alone_are_small_and_keep_the_clock(result: Diagnosis) -> None:
    whole, alone = written(result), written(result, packed=True, whole=False)
    own = process(whole, "npufix findings")
    kept = [e for e in whole if e["pid"] == own and e.get("ph") in {"X", "M"}]
    assert alone == kept


@pytest.mark.parametrize("text", [None, b"[]", b'[{"ph": "X", "na'], ids=["gone", "empty", "cut"])
def test_without_a_usable_trace_the_kernels_are_drawn(
    result: Diagnosis, dump: Path, text: bytes | None
) -> None:
    trace = trace_of(dump)
    kept = trace.read_bytes()
    try:
        trace.unlink() if text is None else trace.write_bytes(text)
        events = written(result)
    finally:
        trace.write_bytes(kept)
    kernels = process(events, "NPU kernels")
    drawn = [e for e in events if e["pid"] == kernels and e["ph"] == "X"]
    assert len(drawn) == len(result.evidence.kernels)  # type: ignore[union-attr]
    assert min(e["ts"] for e in drawn) == 0
    assert len(arrows(events)) > 500


def test_a_trace_that_breaks_off_is_mended_and_relative_times_are_met(
    result: Diagnosis, dump: Path
) -> None:
    trace = trace_of(dump)
    kept = trace.read_bytes()
    events: Events = json.loads(kept, parse_float=Decimal)
    for event in events:
        if "ts" in event:
            event["ts"] = float(Decimal(event["ts"]) - Decimal(1754035200000000))
    text = json.dumps(events, default=float)[: -len(kept) // 10]
    try:
        trace.write_text(text, encoding="utf-8")
        made = written(result)
    finally:
        trace.write_bytes(kept)
    assert 0 < len(arrows(made)) <= len(arrows(written(result)))
    own = process(made, "npufix findings")
    times = [e["ts"] for e in made if e["pid"] == own and e["ph"] == "X"]
    assert all(isinstance(at, Decimal) and 0 < at < 10**9 for at in times)


def test_slices_of_a_track_never_overlap(result: Diagnosis) -> None:
    finding = result.report.findings[:1]
    spans = [(0, 10), (5, 5), (5, 20), (10, 1), (11, 0), (11, 4)]
    events = [
        json.loads(event)
        for event in finding_events(finding, [Slice(0, *span) for span in spans], Clock(False), 1)  # noqa: FBT003 - times are numbers
    ]
    by_track: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_track[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, by_track.values())) == len(spans)
    for own in by_track.values():
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(own))
    titles = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert titles[0] == f"{finding[0].rule} {finding[0].name}"
    assert titles[1] == f"{titles[0]} (2)"
