"""What the host waits for, and what waits for the host: copies, loaders, collections."""

from __future__ import annotations

from typing import Any

import pytest
from observed import LOADER, api, nothing, only

from npufix.advisor.rules_test.recordings import MS, START, US, in_a_row, recording
from npufix.rules.diagnostics import (
    ai_cpu_operator,
    blocking_copy_to_device,
    device_memory_reallocation,
    python_garbage_collection,
    slow_data_loading,
    synchronising_operator,
)

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
    # The queue ran dry within the copy: until the host has gone on, the device has no work either.
    assert found.saving_ns == (0, 2 * MS - 10 * US)
    assert "meanwhile and until the next launch" in found.what
    assert nothing(blocking_copy_to_device, recording(AROUND_A_WAIT, [copy]))
    assert nothing(
        blocking_copy_to_device, recording(AROUND_A_WAIT, [copy, inner], step_ns=201 * MS)
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


def test_a_batch_that_was_ready_did_not_wait_beside_one_that_took_long() -> None:
    rows = [{"start_ns": at * MS, "duration_ns": MS} for at in (0, 50, 99)]
    ops = [call(NEXT, MS, 49 * MS), call(NEXT, 60 * MS, 300 * US)]  # 0.3 ms: unpickled and pinned
    assert only(slow_data_loading, recording(rows, ops)).what.startswith("1 of 2 calls")


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
    assert "synchronisations" not in found.what
    # They take less than the device is idle for them: both are said.
    short: Any = {**more, "apis": [api("aclrtFree", 3, 12 * MS)]}
    found = only(device_memory_reallocation, recording(rows, step={"free_ns": 31 * MS}, **short))
    assert "begin with, the device is idle for" in found.what


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


def test_collections_of_steps_that_are_left_out_are_not_counted() -> None:
    rows = [{"start_ns": 0, "duration_ns": MS}, {"start_ns": 50 * MS, "duration_ns": MS}]
    runs = [{"start_ns": START + at * MS, "duration_ns": 5 * MS} for at in (10, 700, 800)]
    found = only(python_garbage_collection, recording(rows, gc=runs))
    assert found.what.startswith("1 run of the garbage collector")
    assert (found.cost_ns, dict(found.evidence)["all long runs"]) == (5 * MS, "5 ms")


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


def test_a_queue_on_the_device_waits_for_the_loader() -> None:
    """In the sink mode of MindSpore no call of the host does; and no AI core would be faster."""
    rows = [
        {"type": "GetNext", "core": "AI_CPU", "start_ns": 0, "duration_ns": 40 * MS},
        {"type": "MatMulV2", "start_ns": 40 * MS, "duration_ns": 60 * MS},
    ]
    found = only(slow_data_loading, recording(rows, step_ns=100 * MS))
    assert (found.cost_ns, found.saving_ns) == (40 * MS, (0, 40 * MS))
    assert "num_parallel_workers" in found.advice
    assert not list(ai_cpu_operator.check(recording(rows, step_ns=100 * MS)))


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


def test_mindspore_waits_for_its_pipeline() -> None:
    rows = [{"start_ns": at, "duration_ns": MS} for at in (0, 42 * MS)]
    waits = call("Dataset::Pipeline::AsyncWait", MS, 41 * MS)
    found = only(slow_data_loading, recording(rows, [waits], step_ns=48 * MS))
    assert "mindspore.dataset" in found.advice
    assert found.cost_ns == pytest.approx(40 * MS, rel=0.01)
    assert nothing(
        slow_data_loading, recording(rows, [call("Dataset::MapOp::Process", MS, 9 * MS)])
    )


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
    assert 30 * MS / 1.2 - 1 <= unknown.at_worst_ns <= 30 * MS
    assert not counted.at_worst_ns


def test_a_copy_of_pinned_memory_is_not_faster_than_it_is() -> None:
    inner = call("acl_memcpy_host_to_device", MS, MS + US)
    shapes = {"input_dims": "1000,1000;1000,1000", "input_types": "float;float"}
    slow = {**call("aten::copy_", MS // 2, 2 * MS), **shapes}
    quick = {**slow, "input_dims": "5000,1000;5000,1000"}  # 20 MB in 1.5 ms
    on_gpu = [{**row, "core": "GPU"} for row in AROUND_A_WAIT]
    # 4 MB come to an NPU at 20 GB/s; how quick the link of a GPU is, is not known.
    cases = (
        (slow, AROUND_A_WAIT, 0.2, 0.5),
        (slow, on_gpu, 0.4, 1.0),
        (quick, AROUND_A_WAIT, 1.0, 1.0),
    )
    for copy, rows, stays, at_worst in cases:
        found = only(blocking_copy_to_device, recording(rows, [copy, inner]))
        assert found.stays_ns == {0: pytest.approx((stays * MS, at_worst * MS))}
        # What is certain to go is what the device waits for beyond that, if that is less than now.
        certain = found.cost_ns - at_worst * MS if at_worst < 1 else 0
        assert found.saving_ns == (certain, found.cost_ns)
    # What the device itself is busy with the copy, by the trace, stays whatever its size says.
    copied = {"start_ns": START + MS, "duration_ns": 7 * MS // 10, "asked_ns": START + MS}
    seen = recording(AROUND_A_WAIT, [slow, inner], copies=[copied])
    assert only(blocking_copy_to_device, seen).stays_ns[0][0] == pytest.approx(0.7 * MS)
