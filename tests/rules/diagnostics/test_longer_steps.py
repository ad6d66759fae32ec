"""Steps that are longer than the others, and what the host did in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from npufix.advisor.rules_test.recordings import MS, START, host_ops, in_a_row, recording
from npufix.rules.diagnostics import longer_steps


def call(name: str, start: int, duration: int) -> dict[str, Any]:
    place = {"path": "train.py", "line": 9, "function": "step"}
    return {"name": name, "start_ns": start, "duration_ns": duration, **place}


def test_longer_steps_are_shares_of_the_average_of_all() -> None:
    saving = host_ops([call("ProfilerStep#9", 0, 400 * MS), call("aten::copy_", MS, 390 * MS)])
    looked_at = replace(
        recording(step_ns=20 * MS, step_count=7), outliers={9: 420 * MS}, outlier_ops=saving
    )
    (seen,) = longer_steps.check(looked_at)
    assert seen.cost_ns == 50 * MS
    assert seen.of_ns == 70 * MS
    assert seen.saving_ns is None
    assert "420 ms (step 9; 390 ms of it in aten::copy_)" in seen.what
    (place,) = seen.places
    # 390 ms in one of eight steps, though they are more than a step usually takes.
    assert (place.line, place.cost_ns) == (9, 390 * MS // 8)


def test_longer_steps_in_which_garbage_is_collected_are_told_so() -> None:
    marks = host_ops([call("ProfilerStep#9", 0, 400 * MS), call("aten::add", MS, MS)])
    runs = [
        {"start_ns": START + at * MS, "duration_ns": length * MS}
        for at, length in ((5, 390), (500, 9))
    ]
    looked_at = replace(
        recording(step_ns=20 * MS, step_count=7, gc=runs), outliers={9: 420 * MS}, outlier_ops=marks
    )
    (seen,) = longer_steps.check(looked_at)
    assert "(step 9; 390 ms of it in Python's garbage collector)" in seen.what
    assert "gc.freeze()" in seen.advice


def test_a_longer_step_is_led_to_the_function_that_only_it_calls() -> None:
    marks = host_ops([call("ProfilerStep#9", 0, 400 * MS), call("aten::copy_", 0, 390 * MS)])
    functions = [
        {"name": f"train.py({line}): {name}", "start_ns": start, "duration_ns": length}
        for line, name, start, length in (
            (5, "main", START - 50 * MS, 20 * MS),
            (5, "main", START, 400 * MS),
            (40, "save_checkpoint", START + MS, 390 * MS),
            (80, "write", START + 2 * MS, 300 * MS),
        )
    ]
    looked_at = replace(
        recording(step_ns=20 * MS, step_count=7, functions=functions),
        outliers={9: 220 * MS},
        outlier_ops=marks,
    )
    (seen,) = longer_steps.check(looked_at)
    # 390 ms of the host are no more than the 200 ms by which the step is longer.
    assert "220 ms (step 9; 200 ms of it in save_checkpoint)" in seen.what
    assert (seen.places[0].path, seen.places[0].line) == ("train.py", 40)


@pytest.mark.parametrize("ahead", [0, 90])
@pytest.mark.parametrize(("mhz", "said"), [(1300.0, "1300 instead of 1800 MHz"), (1750.0, "waits")])
def test_a_longer_step_at_a_lower_clock_is_not_that_of_a_read(
    mhz: float, said: str, ahead: int
) -> None:
    # The host may have been done with the step before the device began it.
    mark = (100 - ahead) * MS
    ops = [call("ProfilerStep#9", mark, 28 * MS), call("aten::item", mark + MS, 26 * MS)]
    clock = [
        {"device": 0, "start_ns": START + start * MS, "mhz": value}
        for start, value in ((0, 1800.0), (100, mhz), (130, 1800.0))
    ]
    looked_at = replace(
        recording(in_a_row([50 * MS, 50 * MS], 0), step_ns=20 * MS, step_count=2, frequency=clock),
        outliers={9: 28 * MS},
        outlier_ops=host_ops(ops),
    )
    (seen,) = longer_steps.check(looked_at)
    assert said in seen.what
    assert ("cooling" in seen.advice) == (mhz < 1700)


def test_a_longer_step_that_changes_no_average_is_not_told() -> None:
    looked_at = replace(recording(step_ns=20 * MS, step_count=999), outliers={9: 30 * MS})
    assert list(longer_steps.check(looked_at)) == []
