"""Copies beside which nothing runs, on a GPU and on an NPU."""

from __future__ import annotations

from typing import Any

import pytest

from npufix.advisor.evidence.run_findings import change_of
from npufix.advisor.rules_test.recordings import MS, START, recording
from npufix.rules.diagnostics.exposed_copies import check


def task(kind: str, start: int, duration: int, **columns: Any) -> dict[str, Any]:
    return {"type": kind, "start_ns": start * MS, "duration_ns": duration * MS, **columns}


@pytest.mark.parametrize(
    ("kernels", "alone"),
    [
        ([], 10),
        ([task("aten::mm", 0, 5)], 10),
        ([task("aten::mm", 5, 7)], 8),
        ([task("aten::mm", 12, 2), task("aten::add", 13, 4)], 5),
        ([task("aten::mm", 12, 6), task("aten::add", 13, 1)], 4),
        ([task("aten::mm", 0, 50)], 0),
        ([task("aten::mm", 0, 50, device=1)], 10),
        ([task("Memcpy DtoD", 0, 50)], 0),
    ],
)
def test_a_copy_costs_the_time_in_which_no_kernel_runs(
    kernels: list[dict[str, Any]], alone: int
) -> None:
    found = list(check(recording([*kernels, task("Memcpy HtoD", 10, 10)])))
    expected = [(alone * MS, (0, alone * MS))] if alone else []
    assert [(o.cost_ns, o.saving_ns) for o in found] == expected


def test_the_wait_that_is_told_is_that_of_the_copies_that_are_counted() -> None:
    kernels = [
        task("Memcpy HtoD", 2, 20, host_op=0),
        task("Memcpy HtoD", 32, 20, host_op=1),
        task("Memcpy HtoD", 62, 10, host_op=2),
    ]
    calls = [
        {"name": name, "start_ns": at * MS, "duration_ns": ns * MS}
        for name, at, ns in (("aten::to", 2, 20), ("aten::copy_", 32, 20), ("aten::copy_", 60, 1))
    ]
    (found,) = check(recording(kernels, calls, step_ns=100 * MS))
    assert "waits for 2 copies" in found.what
    assert "for 40 ms meanwhile (40.0% of the step)" in found.what
    assert found.cost_ns == 50 * MS


def test_short_copies_and_copies_on_the_device_are_left_alone() -> None:
    assert not list(check(recording([task("Memcpy HtoD", 0, 10)], step_ns=1001 * MS)))
    assert not list(check(recording([task("Memcpy DtoD", 0, 10)])))


@pytest.mark.parametrize(("alone", "told"), [((4, 6), 5), ((2, 3), 0), ((5, 60), 15)])
def test_copies_of_an_npu_cost_the_time_in_which_no_kernel_runs(
    alone: tuple[int, int], told: int
) -> None:
    start, duration = alone
    copies = [
        {"start_ns": START + at * MS, "duration_ns": ns * MS, "asked_ns": asked}
        for at, ns, asked in ((start, duration, START + 7), (start + 1, 1, -1))
    ]
    kernels = [task("MatMulV2", 0, 5), task("MatMulV2", 20, 5)]
    asks = [{"name": "aten::copy_", "start_ns": 7, "duration_ns": 2, "path": "a.py", "line": 3}]
    found = list(check(recording(kernels, asks, copies=copies, step_ns=25 * MS)))
    expected = [(told * MS, "a.py", 3)] if told else []
    assert [(o.cost_ns, o.places[0].path, o.places[0].line) for o in found] == expected
    assert not any(o.host_ops for o in found), "the call had returned"
    assert [dict(o.freed_ns) for o in found] == [{1: told * MS}] * bool(told)
    assert all("stream of its own" in o.advice for o in found)
    asks[0]["duration_ns"] = 70 * MS
    blocked = list(check(recording(kernels, asks, copies=copies, step_ns=25 * MS)))
    assert [len(o.host_ops) for o in blocked] == [1] * len(blocked)


def test_a_call_that_prepares_its_copy_is_no_wait_for_it() -> None:
    # Out of pageable memory: 32 ms on the host, then 8 on the device.
    copies = [{"start_ns": START + 37 * MS, "duration_ns": 8 * MS, "asked_ns": START + 5 * MS}]
    kernels = [task("MatMulV2", 0, 5), task("MatMulV2", 45, 5)]
    asks = [{"name": "aten::copy_", "start_ns": 5 * MS, "duration_ns": 40 * MS}]
    (found,) = check(recording(kernels, asks, copies=copies, step_ns=50 * MS))
    assert (set(found.host_ops), dict(found.sooner_ns)) == ({0}, {1: 8 * MS})
    assert not found.freed_ns


def test_a_copy_out_of_pinned_memory_still_takes_a_fifth() -> None:
    call = {"name": "aten::to", "start_ns": 2 * MS, "duration_ns": 20 * MS}
    (found,) = check(recording([task("Memcpy HtoD", 2, 20, host_op=0)], [call], step_ns=50 * MS))
    assert found.likely_ns == 16 * MS
    change = change_of(found, recording([task("Memcpy HtoD", 2, 20)]))
    assert change is not None
    assert change.keeps == pytest.approx((0.4, 0.2, 0.0))
