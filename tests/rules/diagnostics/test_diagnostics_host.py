"""Diagnostics of the host, on both sides of each threshold."""

from __future__ import annotations

from typing import Any

import pytest

from npufix.advisor.rules_test.recordings import MS, START, US, in_a_row, recording
from npufix.profiling_parsers.profile import Environment
from npufix.rules.diagnostic import Observation, Place, Recording
from npufix.rules.diagnostics import (
    blocking_copy_to_device,
    blocking_launches,
    compile_in_loop,
    device_memory_reallocation,
    host_bound_step,
    python_garbage_collection,
    slow_data_loading,
    synchronising_operator,
    verbose_logging,
)


def only(rule: Any, looked_at: Recording) -> Observation:
    (found,) = rule.RULE.check(looked_at)
    assert isinstance(found, Observation)
    return found


def nothing(rule: Any, looked_at: Recording) -> bool:
    return list(rule.RULE.check(looked_at)) == []


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


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


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


def test_the_profiler_is_named_as_a_cause() -> None:
    environment = Environment(with_stack=True, profiler_level="Level2")
    found = only(host_bound_step, host_bound(950 * US, environment=environment))
    assert ("lengthened by the profiler itself", "with_stack, Level2") in found.evidence


def api(name: str, count: int, total_ns: int, level: str = "acl") -> dict[str, Any]:
    return {"level": level, "name": name, "count": count, "total_ns": total_ns, "max_ns": total_ns}


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


# A kernel of 1 ms, 2 ms of idle time, then kernels with gaps of 10 µs.
AROUND_A_WAIT = [
    {"start_ns": 0, "duration_ns": MS},
    *({**row, "start_ns": row["start_ns"] + 3 * MS} for row in in_a_row([MS] * 5, 10 * US)),
]


def call(name: str, start: int, end: int) -> dict[str, Any]:
    where = {"path": "train.py", "line": 3, "function": "step"}
    return {"name": name, "start_ns": start, "duration_ns": end - start, **where}


def test_a_call_that_lets_the_device_run_dry_is_priced_by_the_wait_behind_it() -> None:
    waited = call("aten::_local_scalar_dense", MS // 2, MS + 100 * US)
    found = only(synchronising_operator, recording(AROUND_A_WAIT, [waited]))
    # The host lost 0.6 ms in the call. Of the 2 ms gap all but the 0.9 ms are for it from which on
    # the host does something else than to launch again.
    assert found.saving_ns == (600 * US, MS + 100 * US)
    assert found.cost_ns == MS + 100 * US
    assert [(p.path, p.line, p.calls) for p in found.places] == [("train.py", 3, 1)]


def test_what_the_host_does_behind_a_call_is_none_of_its_wait() -> None:
    # It reads the loss for 1 ms, then collects garbage for 38 ms.
    rows = [{"start_ns": 0, "duration_ns": MS}, {"start_ns": 40 * MS, "duration_ns": MS}]
    waited = call("aten::_local_scalar_dense", MS // 2, MS + 50 * US)
    assert only(synchronising_operator, recording(rows, [waited])).cost_ns == MS + 50 * US


def test_the_only_gap_is_not_the_typical_one() -> None:
    rows = [{"start_ns": 0, "duration_ns": MS}, {"start_ns": 21 * MS, "duration_ns": MS}]
    found = only(synchronising_operator, recording(rows, [call("aten::nonzero", MS // 2, 20 * MS)]))
    assert found.saving_ns == (round(19.5 * MS), 20 * MS)


@pytest.mark.parametrize(
    "quiet",
    [
        # The device was idle before the call began.
        call("aten::_local_scalar_dense", MS + 200 * US, MS + 900 * US),
        # The device still worked when the call returned.
        call("aten::_local_scalar_dense", 100 * US, 900 * US),
        # The next kernel ran already.
        call("aten::_local_scalar_dense", MS // 2, 3 * MS + 1),
        # Too short for a copy from the device.
        call("aten::_local_scalar_dense", MS - 7 * US, MS + 7 * US),
        call("aten::add", MS // 2, MS + 100 * US),
    ],
)
def test_calls_that_did_not_wait_are_not_told(quiet: dict[str, Any]) -> None:
    assert nothing(synchronising_operator, recording(AROUND_A_WAIT, [quiet]))


def test_waits_below_one_percent_are_not_told() -> None:
    waited = call("aten::nonzero", MS // 2, MS + 100 * US)
    assert nothing(synchronising_operator, recording(AROUND_A_WAIT, [waited], step_ns=111 * MS))
    assert only(synchronising_operator, recording(AROUND_A_WAIT, [waited], step_ns=109 * MS))


def test_no_more_calls_waited_than_cann_says() -> None:
    cheap = call("aten::_local_scalar_dense", MS - 50 * US, MS + 10 * US)
    longer = call("aten::_local_scalar_dense", 4 * MS, 4 * MS + 500 * US)
    apis = [api("aclrtSynchronizeStream", 1, MS)]
    assert only(synchronising_operator, recording(AROUND_A_WAIT, [cheap]))
    assert nothing(synchronising_operator, recording(AROUND_A_WAIT, [cheap, longer], apis=apis))


def test_the_innermost_of_calls_around_each_other_waited() -> None:
    rows = [
        call("aten::nonzero", MS // 4, MS + 300 * US),
        call("aten::_local_scalar_dense", MS // 2, MS + 100 * US),
    ]
    assert only(synchronising_operator, recording(AROUND_A_WAIT, rows)).what.startswith(
        "aten::_local_scalar_dense"
    )


def test_only_copies_that_go_to_the_host_synchronise() -> None:
    copy = call("aten::copy_", MS // 2, MS + 100 * US)
    inner = call("acl_memcpy_host_to_device", MS // 2 + US, MS)
    assert only(synchronising_operator, recording(AROUND_A_WAIT, [copy]))
    assert nothing(synchronising_operator, recording(AROUND_A_WAIT, [copy, inner]))
    launched = [*AROUND_A_WAIT[:-1], {**AROUND_A_WAIT[-1], "host_op": 0}]
    assert nothing(synchronising_operator, recording(launched, [copy]))


def test_without_host_operators_the_wait_behind_nonzero_shows() -> None:
    rows = [{**AROUND_A_WAIT[0], "type": "NonZero"}, *AROUND_A_WAIT[1:]]
    found = only(synchronising_operator, recording(rows))
    assert found.saving_ns == (0, 2 * MS - 10 * US)
    assert found.what.startswith("NonZero makes the device run dry 1 time")
    assert nothing(synchronising_operator, recording(AROUND_A_WAIT))


def test_copies_to_the_device_cost_what_it_idles_meanwhile() -> None:
    copy = call("aten::copy_", MS // 2, 2 * MS)
    inner = call("acl_memcpy_host_to_device", MS, MS + US)
    found = only(blocking_copy_to_device, recording(AROUND_A_WAIT, [copy, inner]))
    assert found.saving_ns == (0, MS)
    assert nothing(blocking_copy_to_device, recording(AROUND_A_WAIT, [copy]))
    assert nothing(
        blocking_copy_to_device, recording(AROUND_A_WAIT, [copy, inner], step_ns=101 * MS)
    )


def test_a_copy_before_the_first_kernel_of_a_step_counts() -> None:
    rows = [{**row, "start_ns": row["start_ns"] + 20 * MS} for row in AROUND_A_WAIT]
    ops = [
        {"name": "ProfilerStep#1", "start_ns": 5 * MS, "duration_ns": 90 * MS},
        call("aten::copy_", 4 * MS, 15 * MS),
        call("acl_memcpy_host_to_device", 6 * MS, 7 * MS),
    ]
    assert only(blocking_copy_to_device, recording(rows, ops)).cost_ns == 10 * MS
    assert nothing(blocking_copy_to_device, recording(rows, ops[1:]))


BATCH = {"input_shapes": "8,3,32,32;16,3,3,3", "output_shapes": "8,16,32,32"}


@pytest.mark.parametrize(
    ("before", "behind", "expected"),
    [
        ({}, BATCH, True),
        ({"output_shapes": "8,3,32,32"}, BATCH, False),  # made on the device: it goes to the host
        ({}, {"output_shapes": "8,3,32,32"}, False),  # of the step before: the host reads it
        ({}, {}, False),
    ],
)
def test_what_the_next_kernel_reads_was_copied_to_the_device(
    before: dict[str, Any], behind: dict[str, Any], *, expected: bool
) -> None:
    # Versions that queue the copy name no acl_memcpy_host_to_device.
    copy = {**call("aten::copy_", MS // 2, 3 * MS - US), "input_dims": "8,3,32,32;8,3,32,32"}
    rows = [{**AROUND_A_WAIT[0], **before}, {**AROUND_A_WAIT[1], **behind}, *AROUND_A_WAIT[2:]]
    looked_at = recording(rows, [copy])
    assert nothing(blocking_copy_to_device, looked_at) is not expected
    assert nothing(synchronising_operator, looked_at) is expected


NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize(("duration", "expected"), [(6 * MS, 1), (10 * MS, 1), (MS + MS // 2, 0)])
def test_a_batch_matters_by_its_share_of_the_step(duration: int, expected: int) -> None:
    rows = [{"start_ns": 0, "duration_ns": MS}, {"start_ns": 50 * MS, "duration_ns": MS}]
    ops = [call(NEXT, 0, duration), call(NEXT, 60 * MS, 100_000)]
    found = list(slow_data_loading.check(recording(rows, ops)))
    # The first millisecond is hidden behind a kernel.
    assert [o.cost_ns for o in found] == [duration - MS] * expected
    assert all(o.what.startswith("1 of 2 calls") for o in found)


@pytest.mark.parametrize(("name", "sooner"), [(LOADER, {1: 30 * MS}), (NEXT, {})])
def test_what_the_host_loads_itself_holds_up_its_next_launch(
    name: str, sooner: dict[int, int]
) -> None:
    rows = [
        {"start_ns": at, "duration_ns": MS, "launch_ns": at - US}
        for at in (2 * MS, 60 * MS, 61 * MS)
    ]
    batches = [call(name, 10 * MS, 20 * MS), call(name, 20 * MS, 40 * MS)]  # both for one step
    found = only(slow_data_loading, recording(rows, batches))
    assert found.sooner_ns == sooner


def test_calls_for_memory_hold_up_no_more_than_they_take() -> None:
    at = [0, 21 * MS, 31 * MS, 35 * MS]
    rows = [{"start_ns": ms, "duration_ns": MS, "launch_ns": ms - US} for ms in at]
    functions = [{"name": "torch_npu/npu/memory.py(120): empty_cache", "start_ns": START}]
    more: Any = {"apis": [api("aclrtFree", 3, 30 * MS)], "functions": functions}
    found = only(device_memory_reallocation, recording(rows, step={"free_ns": 31 * MS}, **more))
    assert list(found.sooner_ns) == [1, 2]
    assert found.advice == "remove torch.npu.empty_cache() from the loop"


def test_a_slow_batch_behind_which_the_device_works_costs_nothing() -> None:
    assert nothing(
        slow_data_loading,
        recording([{"start_ns": 0, "duration_ns": 40 * MS}], [call(NEXT, 0, 20 * MS)]),
    )


@pytest.mark.parametrize(("duration", "expected"), [(MS, 0), (MS + 1, 1)])
def test_a_collection_may_take_1_ms(duration: int, expected: int) -> None:
    rows = [{"start_ns": 0, "duration_ns": MS}, {"start_ns": 50 * MS, "duration_ns": MS}]
    runs = [{"start_ns": START + 2 * MS, "duration_ns": duration}]
    found = list(python_garbage_collection.check(recording(rows, gc=runs)))
    assert [o.cost_ns for o in found] == [duration] * expected


def test_a_collection_behind_the_last_kernel_ends_the_step_sooner() -> None:
    rows = [{**row, "launch_ns": row["start_ns"], "step": 1} for row in in_a_row([MS, MS], 40 * MS)]
    mark = {"name": "ProfilerStep#1", "start_ns": 0, "duration_ns": 82 * MS}
    runs = [{"start_ns": START + at * MS, "duration_ns": 30 * MS} for at in (5, 45)]
    found = only(python_garbage_collection, recording(rows, [mark], gc=runs))
    assert found.cost_ns == 60 * MS
    assert found.sooner_ns == {1: 30 * MS, ~1: 30 * MS}


def test_a_read_that_ends_the_last_step_counts() -> None:
    rows = [{"start_ns": 0, "duration_ns": MS, "step": 1, "launch_ns": 0}]
    mark = {"name": "ProfilerStep#1", "start_ns": 0, "duration_ns": 50 * MS}
    copy = call("aten::copy_", MS // 2, 50 * MS)
    found = only(synchronising_operator, recording(rows, [mark, copy], step={"free_ns": 49 * MS}))
    assert found.cost_ns == 49 * MS


def test_what_the_step_before_wrote_is_not_copied_to_the_device() -> None:
    # At the end of step 1 its logits go to the host; the first kernel of step 2 reads as many.
    logits = {"output_shapes": "8,1000", "step": 1}
    after = {**AROUND_A_WAIT[1], "input_shapes": "8,1000", "step": 2}
    copy = {**call("aten::copy_", MS // 2, 3 * MS - US), "input_dims": "8,1000;8,1000"}
    rows = [{**AROUND_A_WAIT[0], **logits}, after]
    assert nothing(blocking_copy_to_device, recording(rows, [copy]))
    mark = {"name": "ProfilerStep#1", "start_ns": 0, "duration_ns": 3 * MS}
    assert nothing(blocking_copy_to_device, recording(rows, [mark, copy]))


def test_a_collection_while_the_device_works_costs_nothing() -> None:
    runs = [{"start_ns": START, "duration_ns": 5 * MS}]
    busy = [{"start_ns": 0, "duration_ns": 40 * MS}]
    assert nothing(python_garbage_collection, recording(busy, gc=runs))


@pytest.mark.parametrize(
    ("batch_ms", "workers", "least_ms"),
    [
        (10, "2", 0),
        (90, "12", 0),  # 8 ms are left of a step without it
        (900, "119", 900 / 24),  # more than a device has cores
    ],
)
def test_as_many_workers_keep_up_as_make_a_batch_in_a_step(
    batch_ms: int, workers: str, least_ms: float
) -> None:
    rows = [{"start_ns": at, "duration_ns": MS} for at in (0, (batch_ms + 2) * MS)]
    step = {"step_ns": (batch_ms + 8) * MS}
    found = only(
        slow_data_loading, recording(rows, [call(LOADER, MS, (batch_ms + 1) * MS)], **step)
    )
    assert dict(found.evidence)["workers that keep up"] == workers
    assert found.at_least_ns == pytest.approx(least_ms * MS)


def test_workers_are_counted_by_the_calls_between_waits() -> None:
    # Each of three workers takes 90 ms for a batch: every third call waits for 60 of them.
    rows = [{"start_ns": at * 30 * MS, "duration_ns": MS} for at in range(7)]
    waits = [60 if at % 3 == 0 else 1 for at in range(6)]
    ops = [call(NEXT, at * 70 * MS, (at * 70 + ms) * MS) for at, ms in enumerate(waits)]
    steps = {"step_count": 6, "step_ns": 30 * MS}
    counted = only(slow_data_loading, recording(rows, ops, **steps))
    assert dict(counted.evidence)["a batch takes one worker"] == "90 ms"
    # Where all of them wait, nobody knows how many there are.
    alike = [call(NEXT, at * 70 * MS, (at * 70 + 20) * MS) for at in range(6)]
    unknown = only(slow_data_loading, recording(rows, alike, **steps))
    assert "times as many workers keep up" in dict(unknown.evidence)


def test_a_copy_of_pinned_memory_is_not_faster_than_it_is() -> None:
    inner = call("acl_memcpy_host_to_device", MS, MS + US)
    shapes = {"input_dims": "1000,1000;1000,1000", "input_types": "float;float"}
    slow = {**call("aten::copy_", MS // 2, 2 * MS), **shapes}
    quick = {**slow, "input_dims": "5000,1000;5000,1000"}  # 20 MB in 1.5 ms
    for copy, stays in ((slow, 0.4), (quick, 1.0)):
        found = only(blocking_copy_to_device, recording(AROUND_A_WAIT, [copy, inner]))
        assert found.stays_ns == {0: pytest.approx(stays * MS)}
