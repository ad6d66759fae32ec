"""Diagnostics of the host, on both sides of each threshold."""

from __future__ import annotations

from typing import Any

import pytest
from observed import LOADER, api, nothing, only

from npufix.advisor.rules_test.recordings import MS, START, US, in_a_row, recording
from npufix.profiling_parsers.profile import Environment
from npufix.rules.diagnostic import Place, Recording
from npufix.rules.diagnostics import (
    blocking_launches,
    compile_in_loop,
    device_memory_reallocation,
    host_bound_step,
    synchronising_operator,
    verbose_logging,
)
from npufix.rules.shared.recording.observing import host_calls


def late(count: int, gap: int, *, launched_after: int) -> list[dict[str, Any]]:
    """Return kernels of 100 µs, each launched some time after the one before has ended."""
    rows = in_a_row([100 * US] * count, gap, path="train.py", line=7, function="step")
    return [
        {**row, "launch_ns": row["start_ns"] - gap + launched_after} if i else row
        for i, row in enumerate(rows)
    ]


# Ten gaps of 1 ms, 11 kernels of 0.1 ms.
def host_bound(launched_after: int, free_ns: int = 10 * MS, **more: Any) -> Recording:
    rows = late(11, MS, launched_after=launched_after)
    return recording(rows, step={"free_ns": free_ns}, step_ns=12 * MS, **more)


def test_late_launches_make_a_step_host_bound() -> None:
    found = only(host_bound_step, host_bound(950 * US))
    # Launched 0.95 ms late and started 0.05 ms after that: in time, both would be gone.
    assert found.cost_ns == 10 * MS
    assert found.saving_ns == (0, 10 * MS)
    assert found.is_idle
    assert found.places == (Place("train.py", 7, "step", 10 * MS, 10),)
    assert found.hurries == set(range(11))
    assert "83.3% of the step (10 ms of 12 ms); in 10 ms" in found.what


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [(LOADER, 10 * MS, 0), (LOADER, 2 * MS, 1), ("my own work", 10 * MS, 1),
     ("aten::_local_scalar_dense", 500 * US, 1)],
)  # fmt: skip
def test_what_a_loader_explains_is_not_the_speed_of_the_host(
    name: str, length: int, expected: int
) -> None:
    calls = [{"name": name, "start_ns": 100 * US + i, "duration_ns": length} for i in range(1)]
    rows = late(11, MS, launched_after=950 * US)
    looked_at = recording(rows, calls, step={"free_ns": 10 * MS}, step_ns=12 * MS)
    found = list(host_bound_step.check(looked_at))
    assert len(found) == expected
    if name == LOADER and found:
        # Of its 2 ms, 1.9 lie in the first two gaps of 1 ms; the other eight are late as a whole.
        assert found[0].cost_ns == 8 * MS + 100 * US


def test_a_gap_behind_a_value_that_was_waited_for_is_not_the_speed_of_the_host() -> None:
    rows = [{**row, "launch_ns": row["start_ns"] - US} for row in in_a_row([100 * US] * 9, 10 * US)]
    end = rows[-1]["start_ns"] + 100 * US
    rows.append({"start_ns": end + 5 * MS, "duration_ns": US, "launch_ns": end + 5 * MS - US})
    read = {"name": "aten::_local_scalar_dense", "start_ns": end - 50 * US, "duration_ns": 60 * US}
    free = {"free_ns": 5 * MS}
    assert nothing(host_bound_step, recording(rows, [read], step=free, step_ns=6 * MS))
    assert len(list(synchronising_operator.check(recording(rows, [read], step_ns=6 * MS)))) == 1
    other = {**read, "name": "aten::add"}
    assert (
        len(list(host_bound_step.check(recording(rows, [other], step=free, step_ns=6 * MS)))) == 1
    )


@pytest.mark.parametrize(("free_ns", "expected"), [(119_999, 0), (120_000, 1)])
def test_free_time_is_told_from_a_hundredth_on(free_ns: int, expected: int) -> None:
    found = list(host_bound_step.check(host_bound(950 * US, free_ns)))
    assert len(found) == expected
    assert all(o.saving_ns == (0, free_ns) for o in found)


@pytest.mark.parametrize(("launched_after", "expected"), [(490 * US, 0), (491 * US, 1)])
def test_late_launches_must_explain_most_gaps(launched_after: int, expected: int) -> None:
    assert len(list(host_bound_step.check(host_bound(launched_after)))) == expected


def test_short_kernels_that_each_wait_for_their_launch_are_host_bound() -> None:
    # One launch each 14 µs, 9 before the start, kernels of 3: each is late by 2 of the 11 idle.
    rows = [{"start_ns": (14 * n + 9) * US, "duration_ns": 3 * US, "launch_ns": 14 * n * US}
            for n in range(200)]  # fmt: skip
    looked_at = recording(rows, step={"free_ns": 2_200 * US}, step_ns=2_800 * US)
    assert only(host_bound_step, looked_at).cost_ns == pytest.approx(199 * 11 * US)


def test_kernels_launched_long_ago_wait_for_something_else() -> None:
    assert nothing(host_bound_step, host_bound(-50 * MS))


def test_without_launch_times_nothing_is_said_about_the_host() -> None:
    rows = in_a_row([100 * US] * 11, MS)
    assert nothing(host_bound_step, recording(rows, step={"free_ns": 10 * MS}, step_ns=12 * MS))


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [([MS - US] * 100, 1), ([MS - US] * 99, 0), ([MS] * 100, 0),
     ([100 * US] * 100 + [9 * MS], 1), ([100 * US] * 100 + [11 * MS], 0), ([30 * MS], 0)],
    ids=["many", "few", "long", "mostly short", "a loader", "one"],
)  # fmt: skip
def test_many_short_gaps_stand_for_launches_that_were_not_recorded(
    gaps: list[int], expected: int
) -> None:
    rows, at = [], 0
    for gap in (0, *gaps):
        at += gap
        rows.append({"start_ns": at, "duration_ns": 100 * US})
        at += 100 * US
    free = sum(gaps)
    found = list(host_bound_step.check(recording(rows, step={"free_ns": free}, step_ns=at)))
    short = sum(gap for gap in gaps if gap < MS)
    assert [(o.cost_ns, o.saving_ns) for o in found] == [(short, (0, short))] * expected
    assert all(f"{len(gaps) - (9 * MS in gaps)} short gaps" in o.what for o in found)


def test_blocking_launches_are_not_called_host_bound() -> None:
    blocking = {"ASCEND_LAUNCH_BLOCKING": "1"}
    assert nothing(host_bound_step, host_bound(950 * US, variables=blocking))


def test_a_host_clock_that_is_ahead_does_not_make_launches_late() -> None:
    # Every launch is stated 80 µs after its kernel started: they all come before their gap.
    rows = in_a_row([100 * US] * 11, 90 * US)
    rows = [{**row, "launch_ns": row["start_ns"] + 80 * US} for row in rows]
    found = list(host_bound_step.check(recording(rows, step={"free_ns": 900 * US}, step_ns=2 * MS)))
    (seen,) = found
    # The clocks are corrected so that no kernel starts before its launch.
    assert seen.saving_ns == (0, 900 * US)
    rows = [{**row, "launch_ns": row["start_ns"] - 60 * US} for row in rows]
    rows[5]["launch_ns"] = rows[5]["start_ns"] + 80 * US
    rows += in_a_row([US] * 300, 0, launch_ns=0)
    assert nothing(host_bound_step, recording(rows, step={"free_ns": 900 * US}, step_ns=2 * MS))


@pytest.mark.parametrize(("kind", "told"), [("Add", 1), ("RmsNormGrad", 0)])
def test_graph_mode_is_for_what_computes_no_gradient(kind: str, told: int) -> None:
    rows = [{**row, "type": kind} for row in late(11, MS, launched_after=950 * US)]
    found = only(host_bound_step, recording(rows, step={"free_ns": 10 * MS}, step_ns=12 * MS))
    assert found.advice.count("torch.npu.NPUGraph") == told


def test_the_profiler_is_named_as_a_cause() -> None:
    environment = Environment(with_stack=True, profiler_level="Level2")
    found = only(host_bound_step, host_bound(950 * US, environment=environment))
    assert ("lengthened by the profiler itself", "with_stack, Level2") in found.evidence


@pytest.mark.parametrize(("waits", "expected"), [(50, 0), (51, 1)])
def test_a_wait_for_every_second_launch_blocks(waits: int, expected: int) -> None:
    apis = [
        api("aclrtSynchronizeStreamWithTimeout", waits, 4 * MS),
        api("launch", 100, MS, "node"),
    ]
    found = list(blocking_launches.check(recording(step={"free_ns": 30 * MS}, apis=apis)))
    assert [o.cost_ns for o in found] == [4 * MS] * expected


def test_the_setting_alone_tells_that_launches_block() -> None:
    looked_at = recording(step={"free_ns": 30 * MS}, variables={"ASCEND_LAUNCH_BLOCKING": "1"})
    assert only(blocking_launches, looked_at).cost_ns == 30 * MS
    assert nothing(blocking_launches, recording(variables={"ASCEND_LAUNCH_BLOCKING": "0"}))
    assert nothing(blocking_launches, recording(variables={"ASCEND_LAUNCH_BLOCKING": ""}))


@pytest.mark.parametrize(
    ("calls", "total_ns", "expected"),
    [(19, 4_999_999, 0), (20, 4_999_999, 1), (19, 5 * MS, 1), (0, 0, 0)],
)
def test_compiling_matters_from_20_calls_or_5_percent(
    calls: int, total_ns: int, expected: int
) -> None:
    apis = [api("aclopCompileAndExecute", calls, total_ns)]
    found = list(compile_in_loop.check(recording(step={"free_ns": 2 * MS}, apis=apis)))
    assert [o.cost_ns for o in found] == [2 * MS] * expected


def test_compiling_that_hides_behind_kernels_is_not_told() -> None:
    apis = [api("aclopCompileAndExecute", 40, 300 * MS)]  # in the warm-up, say
    assert not list(compile_in_loop.check(recording(step={"free_ns": 0}, apis=apis)))


def test_calls_of_several_steps_are_shared_between_them() -> None:
    apis = [api("aclopCompileAndExecute", 40, 40 * MS)]
    free = {"free_ns": 80 * MS}
    looked_at = recording(step=free, step_count=2, recorded_steps=4, apis=apis)
    assert only(compile_in_loop, looked_at).cost_ns == 10 * MS


def test_calls_of_a_step_that_is_left_out_are_not_spread_over_the_others() -> None:
    # Step 1 compiles for 380 ms; of steps 2 and 3, which are steady, one has a call of 1 ms.
    rows = [
        {"start_ns": at * 100 * MS, "launch_ns": at * 100 * MS, "step": at // 2}
        for at in (4, 5, 6, 7)
    ]
    name = "aclopCompileAndExecute"
    calls = [
        {"level": "acl", "name": name, "start_ns": START + start * MS, "duration_ns": spent * MS}
        for start, spent in ((10, 200), (210, 180), (610, 1))
    ]
    more: Any = {
        "step": {"free_ns": 80 * MS},
        "step_count": 2,
        "recorded_steps": 3,
        "step_ns": 200 * MS,
    }
    apis = [api(name, 30, 381 * MS)]
    looked_at = recording(rows, apis=apis, long_calls=calls, **more)
    assert host_calls(looked_at, name).per_step_ns == MS // 2
    assert nothing(compile_in_loop, looked_at)
    # Without the times of the calls, each step gets its part.
    assert only(compile_in_loop, recording(rows, apis=apis, **more)).cost_ns == 80 * MS


def test_lines_of_compiled_operators_are_those_of_aclop_names() -> None:
    rows = [
        {"name": "Conv2D1", "type": "Conv2D", "path": "m.py", "line": 3, "function": "f"},
        {"name": "aclnnAdd_AddAiCore_Add", "path": "m.py", "line": 4, "function": "f"},
    ]
    apis = [api("aclopCompileAndExecute", 20, 20 * MS)]
    (place,) = only(compile_in_loop, recording(rows, step={"free_ns": 50 * MS}, apis=apis)).places
    assert (place.line, place.cost_ns, place.calls) == (3, MS, 1)


def test_lines_of_compiled_operators_are_those_of_the_pauses() -> None:
    where = {"name": "Conv2D1", "type": "Conv2D", "path": "m.py", "line": 3, "function": "f"}
    rows = in_a_row([100 * US] * 20, 20 * US, **where)
    at = rows[-1]["start_ns"] + 8 * MS
    resized = {
        "start_ns": at,
        "launch_ns": at - 5 * US,
        "type": "Resize",
        "path": "m.py",
        "line": 7,
    }
    apis = [api("aclopCompileAndExecute", 21, 8 * MS)]
    looked_at = recording([*rows, resized], step={"free_ns": 9 * MS}, step_ns=12 * MS, apis=apis)
    (place,) = only(compile_in_loop, looked_at).places
    assert (place.line, place.calls) == (7, 1)


@pytest.mark.parametrize("itself", [False, True])
def test_without_compiling_a_step_takes_what_it_is_asked_for(*, itself: bool) -> None:
    # Asked for each 50 us; 20 kernels leave the queue each 5 us once something compiled for 1 ms.
    asked = [at * 50 * US for at in range(21)]
    ops = [{"name": "aten::mm", "start_ns": at, "duration_ns": 40 * US} for at in asked]
    if itself:
        ops[1]["duration_ns"] = 1_040 * US
    launch = [10 * US, *(1_060 * US + at * 5 * US for at in range(20))]
    rows = [
        {"start_ns": at + 9 * US, "launch_ns": at, "duration_ns": US, "host_op": op}
        for op, at in enumerate(launch)
    ]
    rows[7]["host_op"] = -1  # that of one is not known
    call = {"level": "acl", "name": "aclopCompileAndExecute", "start_ns": START + 55 * US}
    calls = [{**call, "duration_ns": MS}]
    apis = [api("aclopCompileAndExecute", 21, MS)]
    step = {"free_ns": 2 * MS}
    looked_at = recording(rows, ops, step=step, step_ns=2 * MS, apis=apis, long_calls=calls)
    sooner = only(compile_in_loop, looked_at).sooner_ns
    left = launch[-1] - launch[0] - sum(sooner.values())
    assert left == pytest.approx(145 * US if itself else 1_000 * US, abs=60 * US)


@pytest.mark.parametrize(
    ("freed_ns", "operator", "gone"),
    [
        (4 * MS, "", 9 * MS),
        (100 * US, "", 4 * MS),
        (100 * US, "aten::empty_strided", 9 * MS),  # it does nothing but ask for memory
        (100 * US, "aten::mm", 4 * MS),  # that takes as long where nothing is allocated
    ],
)
def test_what_the_allocator_waits_for_goes_with_its_calls(
    freed_ns: int, operator: str, gone: int
) -> None:
    # The device is idle for 9 ms, of which 4 are aclrtSynchronizeDevice before aclrtFree.
    rows = in_a_row([100 * US] * 20, 20 * US)
    at = rows[-1]["start_ns"] + 100 * US
    last = {"start_ns": at + 9 * MS, "launch_ns": at + 9 * MS - 5 * US, "type": "Add"}
    calls = [
        {"level": "acl", "name": name, "start_ns": START + at + begin, "duration_ns": spent}
        for name, begin, spent in (
            ("aclrtSynchronizeDevice", 0, 4 * MS), ("aclrtFree", 4 * MS, freed_ns),
        )
    ]  # fmt: skip
    apis = [api("aclrtFree", 1, 11 * MS)]
    ops = [
        {"name": operator, "start_ns": begin, "duration_ns": 9 * MS} for begin in (at, at + 20 * MS)
    ]
    looked_at = recording(
        [*rows, last], ops if operator else [], step={"free_ns": 10 * MS}, step_ns=20 * MS,
        apis=apis, long_calls=calls,
    )  # fmt: skip
    assert sum(only(device_memory_reallocation, looked_at).sooner_ns.values()) > 0
    own = device_memory_reallocation._in_their_pauses(looked_at)
    assert (sum(own.values()) > 8 * MS) == (gone == 9 * MS)


@pytest.mark.parametrize(("total_ns", "expected"), [(10 * MS, 0), (10 * MS + 1, 1)])
def test_memory_of_the_device_may_be_managed_for_10_ms(total_ns: int, expected: int) -> None:
    apis = [
        api("aclrtMalloc", 3, total_ns - MS),
        api("aclrtFree", 3, MS),
        # The same calls one level below, and memory of the host.
        api("DevMalloc", 3, total_ns - 2 * MS, "runtime"),
        api("aclrtMallocHost", 3, 90 * MS),
    ]
    memory = [{"component": "PTA", "allocated_bytes": 1 << 30, "reserved_bytes": 3 << 30}]
    looked_at = recording(step={"free_ns": 40 * MS}, apis=apis, memory=memory)
    found = list(device_memory_reallocation.check(looked_at))
    assert len(found) == expected
    for seen in found:
        assert seen.cost_ns == total_ns
        assert ("most reserved", "3.0 GiB, 1.0 GiB of it in use") in seen.evidence


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ASCEND_GLOBAL_LOG_LEVEL": "1"}, ["ASCEND_GLOBAL_LOG_LEVEL=1"]),
        ({"ASCEND_GLOBAL_LOG_LEVEL": "3"}, []),
        ({"ASCEND_GLOBAL_LOG_LEVEL": ""}, []),
        ({"ASCEND_SLOG_PRINT_TO_STDOUT": "1"}, ["ASCEND_SLOG_PRINT_TO_STDOUT=1"]),
        ({}, []),
    ],
)
def test_logs_below_error_level_are_named(variables: dict[str, str], expected: list[str]) -> None:
    found = list(verbose_logging.check(recording(variables=variables)))
    assert [seen.what.rsplit(" ", 1)[-1] for seen in found] == expected
    assert all(seen.saving_ns is None for seen in found)
