"""A trace of a GPU gets a diagnosis too, in the words of that device; a healthy one gets none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from npufix.advisor.diagnose.diagnosis import diagnose

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.reports.report import Report

Event = dict[str, Any]
_LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def event(cat: str, name: str, start: float, length: float, number: int = -1) -> Event:
    """Return an event on the host or, if it is a task, on the GPU; times in us."""
    on_gpu = cat in {"kernel", "gpu_memcpy"}
    arguments = {"External id": number, "correlation": number} if number >= 0 else {}
    arguments |= {"device": 0, "stream": 7} if on_gpu else {}
    place = {"pid": 0, "tid": 7} if on_gpu else {"pid": 1, "tid": 10}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": start, "dur": length,
            "args": arguments}  # fmt: skip


def trace(  # noqa: PLR0913, PLR0917 - what a step does
          loading: float = 100, copying: float = 100, kernel: float = 100, launch: float = 8,
          reading: float = 0, updating: float = 0) -> list[Event]:  # fmt: skip
    """Return three steps that load, copy, launch a hundred kernels, read a value, and update."""
    events, now, number = [], 0.0, 0
    for step in range(3):
        begin = now
        events.append(event("user_annotation", _LOADER, now + 5, loading))
        now += loading + 50
        events.append(event("cpu_op", "aten::copy_", now, copying, number))
        events.append(event("cuda_runtime", "cudaMemcpyAsync", now + 5, 20, number))
        copied = event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", now + 20, copying, number)
        events.append(copied)
        now, number = now + copying + 20, number + 1
        free = now + 20
        for _ in range(100):
            events.append(event("cpu_op", "aten::mm", now, launch + 1, number))
            events.append(event("cuda_runtime", "cudaLaunchKernel", now + launch - 3, 3, number))
            free = max(free, now + launch + 4)
            events.append(event("kernel", "ampere_bf16_s16816gemm_bf16", free, kernel, number))
            free, now, number = free + kernel, now + launch + 2, number + 1
        if reading:
            waited = max(free - now + 10, 20)
            events.append(event("cpu_op", "aten::_local_scalar_dense", now, waited, number))
            now += waited + reading
        updates = now
        for _ in range(40 if updating else 0):
            events.append(event("cpu_op", "aten::lerp_", now + 5, 9, number))
            events.append(event("cuda_runtime", "cudaLaunchKernel", now + 9, 3, number))
            free = max(free, now + 15)
            events.append(event("kernel", "lerp_scalar_kernel", free, updating, number))
            free, now, number = free + updating, now + 15, number + 1
        if updating:
            mark = "Optimizer.step#Adam.step"
            events.append(event("user_annotation", mark, updates, now - updates))
        now = max(now, free) + 20
        events.append(event("user_annotation", f"ProfilerStep#{step + 3}", begin, now - begin))
        now += 5
    return events


def report_of(events: list[Event], folder: Path) -> Report:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return diagnose(path, None).report


@pytest.mark.parametrize(
    ("planted", "rule"),
    [({"loading": 30_000}, "NPU408"), ({"copying": 20_000}, "NPU410"),
     ({"kernel": 3, "launch": 50}, "NPU401"), ({"reading": 900, "kernel": 20}, "NPU406"),
     ({"updating": 90}, "NPU128"),
     # What takes 7 ms behind the value is no wait for it.
     ({"reading": 7_000}, "NPU411")],
    ids=["loader", "copy", "launches", "value", "update", "pause"],
)  # fmt: skip
def test_the_first_finding_is_what_was_planted(
    planted: dict[str, float], rule: str, tmp_path: Path
) -> None:
    report = report_of(trace(**planted), tmp_path)
    first = report.findings[0]
    assert first.rule == rule
    assert first.share > 0.2
    assert report.split is not None
    assert first.device_ns <= report.split.total_ns
    said = " ".join(f"{f.what} {f.advice}" for f in report.findings)
    assert not any(word in said for word in ("npu", "NPU", "TASK_QUEUE", "HCCL", "CANN"))


def test_of_a_healthy_run_only_the_work_itself_is_told(tmp_path: Path) -> None:
    report = report_of(trace(), tmp_path)
    assert [(f.rule, f.kernels) for f in report.findings] == [("NPU310", ["aten::mm"])]
    assert report.headline.startswith("Nothing is slow beside the work itself")


def test_a_small_finding_before_the_work_itself_is_what_the_headline_names(tmp_path: Path) -> None:
    events = trace()
    named = {"aten::mm": "aten::one_hot", "ampere_bf16_s16816gemm_bf16": "scatter_kernel"}
    for each in events:
        if each["name"] in named and each["args"]["correlation"] % 25 == 0:
            each["name"] = named[each["name"]]
    report = report_of(events, tmp_path)
    assert report.findings[0].kernels == ["aten::one_hot"]
    said = "Little is slow beside the work itself: aten::one_hot takes"
    assert report.headline.startswith(said)


def test_copies_are_no_computing(tmp_path: Path) -> None:
    report = report_of(trace(copying=20_000), tmp_path)
    assert [op.type for op in report.hot_operators] == ["aten::mm"]
    assert report.split is not None
    assert report.split.computing_ns == 100 * 100_000


def test_many_small_copies_block_the_host_unless_it_goes_on(tmp_path: Path) -> None:
    def copying(length: float) -> Report:
        events, now = [event("cpu_op", "aten::mm", 0, 9, 0)], 10.0
        events += [event("cuda_runtime", "cudaLaunchKernel", 4, 3, 0),
                   event("kernel", "ampere_bf16_s16816gemm_bf16", 8, 2000, 0)]  # fmt: skip
        now = 2010.0
        for number in range(1, 101):
            events.append(event("cpu_op", "aten::copy_", now, length, number))
            events.append(event("cuda_runtime", "cudaMemcpyAsync", now + 15, 4, number))
            copied = event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", now + 24, 1, number)
            events.append(copied)
            now += 40
        return report_of([*events, event("user_annotation", "ProfilerStep#3", 0, now)], tmp_path)

    report = copying(38)
    first = report.findings[0]
    assert first.rule == "NPU410"
    assert "waits for 100 copies to the device per step" in first.what
    assert 0.6 < first.share < 0.65
    assert report.headline.startswith("The host waits for 100 copies")
    assert not any(f.share > 0.1 for f in copying(20).findings if f.rule == "NPU410")
