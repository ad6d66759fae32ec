"""Copies beside which nothing runs, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from npufix.advisor.rules_test.recordings import MS, recording
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


def test_short_copies_and_copies_on_the_device_are_left_alone() -> None:
    assert not list(check(recording([task("Memcpy HtoD", 0, 10)], step_ns=1001 * MS)))
    assert not list(check(recording([task("Memcpy DtoD", 0, 10)])))
