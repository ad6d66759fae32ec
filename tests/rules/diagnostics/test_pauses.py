"""What the host does while the device waits."""

from __future__ import annotations

from typing import Any

import pytest

from npufix.advisor.rules_test.recordings import MS, START, US, in_a_row, recording
from npufix.rules.diagnostics import (
    blocking_copy_to_device,
    host_bound_step,
    host_pause,
    hot_operator,
    optimizer_in_small_kernels,
    recomputed_activations,
    synchronising_operator,
)

WALK = "DistributedDataParallel.forward#search_unused_parameters"


def call(name: str, start: int, duration: int, **more: Any) -> dict[str, Any]:
    place = {"path": "train.py", "line": 9, "function": "step"}
    return {"name": name, "start_ns": start, "duration_ns": duration, **place, **more}


def two_kernels(gap: int, launched_after: int) -> list[dict[str, Any]]:
    first, second = in_a_row([MS, MS], gap, path="model.py", line=3, function="forward")
    return [first, {**second, "launch_ns": second["start_ns"] - gap + launched_after}]


@pytest.mark.parametrize(("gap", "told"), [(15 * MS, 1), (900 * US, 0)])
def test_a_long_gap_is_named_by_the_call_that_fills_it(gap: int, told: int) -> None:
    rows = two_kernels(gap, gap - 5 * US)
    calls = [call("ProfilerStep#3", 0, gap + 3 * MS), call(WALK, MS, gap - 100 * US)]
    looked_at = recording(rows, calls, step={"free_ns": gap}, step_ns=gap + 2 * MS)
    found = list(host_pause.check(looked_at))
    assert len(found) == told
    for seen in found:
        assert seen.cost_ns == gap - 5 * US
        assert WALK in seen.what
        assert (seen.places[0].path, seen.places[0].line) == ("train.py", 9)
        assert "find_unused_parameters=False" in seen.advice
        assert seen.is_symptom
        # It is no slowness of the host: nothing is left of the gap.
        assert list(host_bound_step.check(looked_at)) == []


def test_a_pause_without_a_call_is_told_before_its_line() -> None:
    rows = two_kernels(15 * MS, 14 * MS)
    (seen,) = host_pause.check(recording(rows, step={"free_ns": 15 * MS}, step_ns=17 * MS))
    assert seen.cost_ns == 14 * MS
    assert "Python between calls" in seen.what
    assert (seen.places[0].path, seen.places[0].line) == ("model.py", 3)


def test_a_pause_behind_a_wait_is_all_of_it() -> None:
    # A value is read in 1 ms; then 12 ms of logging, none of which the read explains.
    rows = two_kernels(13 * MS, 13 * MS)
    reads = [call("aten::_local_scalar_dense", MS // 2, MS + MS // 2)]
    looked_at = recording(rows, reads, step={"free_ns": 13 * MS}, step_ns=15 * MS)
    (seen,) = host_pause.check(looked_at)
    assert seen.cost_ns == 12 * MS


@pytest.mark.parametrize(("count", "named"), [(1, False), (3, True)])
def test_synchronisations_that_empty_the_queue_again_and_again_are_named(
    count: int, *, named: bool
) -> None:
    apis = [{"level": "acl", "name": "aclrtSynchronizeDevice", "count": count, "total_ns": MS}]
    looked_at = recording(two_kernels(15 * MS, 14 * MS), step={"free_ns": 15 * MS}, apis=apis)
    (seen,) = host_pause.check(looked_at)
    assert ("synchronisations of the device" in seen.what) == named
    assert ("torch.npu.synchronize()" in seen.advice) == named


def test_memory_that_a_gpu_asks_for_has_the_setting_of_a_gpu() -> None:
    rows = two_kernels(15 * MS, 15 * MS - US)
    calls = [call("aten::empty_strided", MS, 15 * MS)]
    (seen,) = host_pause.check(recording(rows, calls, step={"free_ns": 15 * MS}))
    assert "which asks the driver for memory" in seen.what
    assert "PYTORCH_NPU_ALLOC_CONF" in seen.advice
    assert "PYTORCH_CUDA_ALLOC_CONF" in seen.gpu_advice


def test_a_compilation_within_the_steps_is_named() -> None:
    rows = two_kernels(15 * MS, 14 * MS)
    name = "/usr/lib/torch/_dynamo/convert_frame.py(640): compile_inner"
    looked_at = recording(
        rows,
        step={"free_ns": 15 * MS},
        step_ns=17 * MS,
        functions=[{"name": name, "start_ns": START + MS, "duration_ns": 14 * MS}],
    )
    (seen,) = host_pause.check(looked_at)
    assert "in compile_inner" in seen.what
    assert "TORCH_LOGS=recompiles" in seen.advice


def test_a_function_is_measured_without_the_wait_that_is_told_elsewhere() -> None:
    # The queue runs dry in a copy of 7 ms to the host, then NumPy takes 21 ms: both in sample().
    rows = two_kernels(27 * MS, 27 * MS - 5 * US)
    copy = call("aten::copy_", MS // 2, 6 * MS)
    names = {
        "/app/sampler.py(37): sample": (MS // 4, 28 * MS - MS // 2),
        "/app/sampler.py(40): top_p": (7 * MS, 21 * MS - 100 * US),
    }
    functions = [
        {"name": name, "start_ns": START + start, "duration_ns": duration}
        for name, (start, duration) in names.items()
    ]
    looked_at = recording(rows, [copy], step={"free_ns": 27 * MS}, functions=functions)
    (seen,) = host_pause.check(looked_at)
    assert "in top_p" in seen.what
    assert (seen.places[0].path, seen.places[0].line) == ("/app/sampler.py", 40)


def test_a_kernel_that_was_launched_in_time_follows_no_pause() -> None:
    rows = two_kernels(15 * MS, 0)
    assert list(host_pause.check(recording(rows, step={"free_ns": 15 * MS}))) == []


def test_a_collection_of_garbage_is_no_pause_twice() -> None:
    rows = two_kernels(15 * MS, 15 * MS)
    runs = [{"start_ns": START + MS, "duration_ns": 15 * MS}]
    looked_at = recording(rows, step={"free_ns": 15 * MS}, step_ns=17 * MS, gc=runs)
    assert list(host_pause.check(looked_at)) == []
    assert list(host_bound_step.check(looked_at)) == []


def test_reads_of_values_are_told_where_they_are_all_gaps() -> None:
    rows = in_a_row([100 * US] * 11, 400 * US)
    reads = [
        call("aten::_local_scalar_dense", row["start_ns"] + 10 * US, 95 * US) for row in rows[:10]
    ]
    (seen,) = synchronising_operator.check(recording(rows, reads, step={"free_ns": 4 * MS}))
    assert seen.cost_ns == 4 * MS


def test_a_read_and_the_copy_within_it_are_one_wait() -> None:
    # CANN counts ten waits; the ten longest calls would be five reads and five copies.
    rows = in_a_row([100 * US] * 11, 400 * US)
    at = [row["start_ns"] for row in rows[:10]]
    reads = [call("aten::_local_scalar_dense", start + 10 * US, 95 * US) for start in at]
    copies = [call("aten::copy_", start + 12 * US, 92 * US) for start in at]
    waits = {"name": "aclrtSynchronizeStream", "level": "acl", "count": 10, "total_ns": MS}
    looked_at = recording(rows, [*reads, *copies], step={"free_ns": 4 * MS}, apis=[waits])
    (seen,) = synchronising_operator.check(looked_at)
    assert "_local_scalar_dense (.item()" in seen.what
    assert "10 times" in seen.what
    assert seen.cost_ns == 4 * MS
    assert seen.host_ops == set(range(20))


@pytest.mark.parametrize(("held", "told"), [(3 * MS, 1), (20 * US, 0)])
def test_a_read_that_takes_the_lead_of_the_host_is_told(held: int, told: int) -> None:
    # The device is busy when the value is read; then all kernels are launched too late.
    rows = in_a_row([3 * MS, *[10 * US] * 60], 20 * US)
    rows = [{**row, "launch_ns": row["start_ns"] - 5 * US} for row in rows]
    around = call("aten::_local_scalar_dense", 10 * US, held)
    inside = call("aten::copy_", 12 * US, held - 5 * US)
    looked_at = recording(rows, [around, inside], step={"free_ns": 2 * MS}, step_ns=10 * MS)
    found = list(synchronising_operator.check(looked_at))
    assert len(found) == told
    for seen in found:
        assert seen.cost_ns == 60 * 15 * US
        assert seen.host_ops == {0, 1}


@pytest.mark.parametrize(("count", "left"), [(1, False), (3, True)])
def test_a_read_gains_nothing_for_sure_where_synchronisations_are_left(
    count: int, *, left: bool
) -> None:
    rows = in_a_row([3 * MS, *[10 * US] * 60], 20 * US)
    rows = [{**row, "launch_ns": row["start_ns"] - 5 * US} for row in rows]
    apis = [{"level": "acl", "name": "aclrtSynchronizeDevice", "count": count, "total_ns": 0}]
    read = call("aten::_local_scalar_dense", 10 * US, 3 * MS)
    looked_at = recording(rows, [read], step={"free_ns": 2 * MS}, step_ns=10 * MS, apis=apis)
    (seen,) = synchronising_operator.check(looked_at)
    assert (seen.saving_ns is None, not seen.host_ops) == (left, left)
    assert ("torch.npu.synchronize()" in seen.advice) == left


def test_a_read_takes_the_lead_up_to_the_next_call_that_waits() -> None:
    # An optimizer ends with a read of 3 ms; then each expert asks for its rows.
    rows = in_a_row([3 * MS, *[10 * US] * 60], 20 * US)
    rows = [{**row, "launch_ns": row["start_ns"] - 5 * US} for row in rows]
    asks = [call("aten::nonzero", 3 * MS + at * 90 * US, 16 * US, line=7) for at in range(1, 20)]
    read = call("aten::_local_scalar_dense", 10 * US, 3 * MS)
    looked_at = recording(rows, [read, *asks], step={"free_ns": 2 * MS}, step_ns=10 * MS)
    found = {seen.what.split()[0]: seen for seen in synchronising_operator.check(looked_at)}
    assert "aten::_local_scalar_dense" not in found


def update(times: int) -> list[dict[str, Any]]:
    kinds = ["Axpy", "Muls", "Axpy"]
    return [
        {"type": kind, "start_ns": n * 10 * US, "duration_ns": 5 * US}
        for n, kind in enumerate(kinds * times)
    ]


@pytest.mark.parametrize(("times", "told"), [(40, 1), (3, 0)])
def test_updates_of_parameters_are_known_without_a_mark(times: int, told: int) -> None:
    found = list(optimizer_in_small_kernels.check(recording(update(times), step_ns=MS)))
    assert len(found) == told
    for seen in found:
        assert len(seen.kernels) == 3 * times
        assert seen.cost_ns - seen.idle_ns == 3 * times * 5 * US
        assert "the device waits for their launches" in seen.what
        assert seen.idle_ns == 400 * US, "all that is left of the step"


def test_updates_of_a_gpu_are_known_by_their_operators() -> None:
    rows = [{**row, "type": {"Axpy": "aten::lerp_", "Muls": "aten::mul_"}[row["type"]]}
            for row in update(40)]  # fmt: skip
    (seen,) = optimizer_in_small_kernels.check(recording(rows, step_ns=MS))
    assert len(seen.kernels) == 120


def test_clipping_by_parameter_is_an_update_with_advice_of_its_own() -> None:
    rows = [
        {"type": kind, "start_ns": n * 10 * US, "duration_ns": 5 * US}
        for n, kind in enumerate(["LpNormV2"] * 30 + ["Mul"] * 30)
    ]
    looked_at = recording(rows, step_ns=MS)
    (seen,) = optimizer_in_small_kernels.check(looked_at)
    assert len(seen.kernels) == 60
    assert "clip_grad_norm_" in seen.advice
    # They are two things, not one expression.
    assert {hot.what.split()[0] for hot in hot_operator.check(looked_at)} == {"LpNormV2", "Mul"}


def test_the_kernels_of_an_expression_are_one_finding() -> None:
    place = {"path": "model.py", "line": 22, "function": "forward", "duration_ns": 5 * US}
    kinds = ["Exp", "Adds", "Log", "Tanh", "Mul"] * 4
    rows = [{"type": kind, "start_ns": n * 10 * US, **place} for n, kind in enumerate(kinds)]
    (seen,) = hot_operator.check(recording(rows, step_ns=MS))
    assert seen.what.startswith("Adds, Exp, Log, Mul, Tanh together take 100 µs per step")
    assert seen.kernels == frozenset(range(20))


def test_element_wise_kernels_between_products_are_no_update() -> None:
    rows = [
        {"type": kind, "start_ns": n * 10 * US, "duration_ns": 5 * US}
        for n, kind in enumerate(["Mul", "Adds", "MatMulV3"] * 40)
    ]
    assert list(optimizer_in_small_kernels.check(recording(rows, step_ns=MS))) == []


@pytest.mark.parametrize(("spent", "told"), [(6 * MS, 1), (4 * MS, 1), (MS // 2, 0)])
def test_what_is_computed_again_is_told(spent: int, told: int) -> None:
    rows = in_a_row([50 * MS, spent], 0)
    rows[1]["recomputed"] = True
    found = list(recomputed_activations.check(recording(rows)))
    assert [(seen.cost_ns, seen.kernels) for seen in found] == [(spent, {1})] * told


def test_a_pause_is_led_to_the_python_function_that_ran() -> None:
    functions = [
        {"name": "metrics.py(14): track", "start_ns": START + MS, "duration_ns": 14 * MS},
        {"name": "train.py(3): run", "start_ns": START, "duration_ns": 900 * MS},
    ]
    rows, step = two_kernels(15 * MS, 14 * MS), {"free_ns": 15 * MS}
    (seen,) = host_pause.check(recording(rows, step=step, step_ns=17 * MS, functions=functions))
    assert "the host is in track while" in seen.what
    assert (seen.places[0].path, seen.places[0].line) == ("metrics.py", 14)
    # One that began long before the device ran dry, and launched nothing, is what ran.
    longer = [
        {"name": "metrics.py(14): track", "start_ns": START - 40 * MS, "duration_ns": 55 * MS}
    ]
    (seen,) = host_pause.check(recording(rows, step=step, step_ns=17 * MS, functions=longer))
    assert seen.places[0].line == 14
    # What lasts as long as all steps says nothing of a pause.
    looked_at = recording(rows, step=step, step_ns=17 * MS, functions=functions[1:])
    assert "Python between calls" in next(host_pause.check(looked_at)).what


def test_what_a_checkpoint_asks_for_before_it_goes_backward_is_computed_again() -> None:
    node = "autograd::engine::evaluate_function: "
    calls = [
        call(f"{node}CheckpointFunctionBackward", 0, 10 * MS),
        call("CheckpointFunctionBackward", 1, 10 * MS - 2),
        call("aten::linear", MS, MS),
        call(f"{node}MmBackward0", 3 * MS, MS),
        call("aten::mm", 3 * MS + 1, MS - 2),
        call("aten::mm", 20 * MS, MS),
    ]
    rows = [
        {**row, "host_op": asked}
        for row, asked in zip(in_a_row([6 * MS] * 4, 0), (2, 4, 5, -1), strict=True)
    ]
    (seen,) = recomputed_activations.check(recording(rows, calls))
    assert seen.kernels == {0}


def test_several_calls_of_one_name_fill_a_pause_together() -> None:
    # Three tensors go to the host one after the other, 4 ms each, with 1 ms of Python between.
    where = {"path": "log.py", "line": 40, "function": "histogram"}
    copies = [
        {**call(name, at * MS + inner, 4 * MS - 2 * inner), **where}
        for at in (2, 7, 12)
        for name, inner in (("aten::to", 0), ("aten::copy_", 5 * US))
    ]
    looked_at = recording(
        two_kernels(15 * MS, 14 * MS), copies, step={"free_ns": 15 * MS}, step_ns=17 * MS
    )
    (seen,) = host_pause.check(looked_at)
    assert "while the host does something else, 12 ms of it in aten::copy_" in seen.what
    (place,) = seen.places
    assert (place.line, place.calls) == (40, 3)
    assert place.cost_ns == pytest.approx(seen.cost_ns, abs=3)
    assert seen.host_ops == {1, 3, 5}


def test_what_evaluates_a_checkpoint_may_start_with_it() -> None:
    # Both at one time stamp: what follows is computed again all the same.
    node = "autograd::engine::evaluate_function: "
    calls = [
        call(f"{node}CheckpointFunctionBackward", 0, 10 * MS),
        call("CheckpointFunctionBackward", 0, 10 * MS),
        call("aten::linear", MS, MS),
    ]
    rows = [{**row, "host_op": 2} for row in in_a_row([6 * MS], 0)]
    (seen,) = recomputed_activations.check(recording(rows, calls))
    assert seen.kernels == {0}


def test_what_lies_before_the_first_kernel_of_a_step_is_a_pause() -> None:
    # Frames of a video are decoded for 20 ms, then the step computes.
    rows = [
        {**row, "start_ns": row["start_ns"] + 20 * MS, "launch_ns": row["start_ns"] + 20 * MS}
        for row in in_a_row([MS, MS], 0)
    ]
    calls = [call("ProfilerStep#3", 0, 22 * MS), call("decode_frames", MS, 18 * MS)]
    (seen,) = host_pause.check(recording(rows, calls, step={"free_ns": 20 * MS}, step_ns=22 * MS))
    assert "decode_frames" in seen.what
    assert seen.cost_ns == 20 * MS
    # A batch on its way to the device is told as that.
    calls[1:] = [call("aten::copy_", MS, 18 * MS), call("acl_memcpy_host_to_device", MS, MS)]
    copied = recording(rows, calls, step={"free_ns": 20 * MS}, step_ns=22 * MS)
    assert list(host_pause.check(copied)) == []
    assert len(list(blocking_copy_to_device.check(copied))) == 1


def test_what_the_host_does_at_the_end_of_the_last_step_is_a_pause() -> None:
    # Metrics are worked out on the host for 20 ms behind the last kernel.
    rows = [{**row, "step": 3, "launch_ns": row["start_ns"]} for row in in_a_row([MS, MS], 0)]
    calls = [call("ProfilerStep#3", 0, 22 * MS), call("topk", 2 * MS, 19 * MS)]
    step = {"free_ns": 20 * MS}
    (seen,) = host_pause.check(recording(rows, calls, step=step, step_ns=22 * MS))
    assert "topk" in seen.what
    assert seen.cost_ns == 20 * MS
    assert dict(seen.sooner_ns) == {~1: 20 * MS}
    # The device works on behind a mark that ends: the host is ahead.
    ahead = [call("ProfilerStep#3", 0, MS), call("topk", MS // 2, 19 * MS)]
    assert list(host_pause.check(recording(rows, ahead, step=step, step_ns=22 * MS))) == []


def test_a_copy_that_blocks_is_named_though_the_next_kernel_was_launched_before() -> None:
    rows = two_kernels(50 * MS, 0)
    calls = [call("train", 0, 90 * MS), call("aten::to", MS, 50 * MS)]
    (seen,) = host_pause.check(recording(rows, calls, step={"free_ns": 50 * MS}, step_ns=52 * MS))
    assert "aten::to" in seen.what
    # What lasts longer than the gap was not the reason of it.
    only = recording(rows, calls[:1], step={"free_ns": 50 * MS}, step_ns=52 * MS)
    assert list(host_pause.check(only)) == []


def test_additions_in_a_row_are_no_optimizer() -> None:
    rows = [{**row, "type": "Add"} for row in in_a_row([9 * US] * 70, 0)]
    assert list(optimizer_in_small_kernels.check(recording(rows, step_ns=MS))) == []


def test_how_much_of_a_pause_a_call_fills_is_told() -> None:
    looked_at = recording(
        two_kernels(15 * MS, 14 * MS),
        [call("aten::copy_", 2 * MS, 8 * MS)],
        step={"free_ns": 15 * MS},
        step_ns=17 * MS,
    )
    (seen,) = host_pause.check(looked_at)
    assert "waits for 14 ms per step" in seen.what
    assert "8 ms of it in aten::copy_" in seen.what


def test_what_lasts_as_long_as_the_step_names_no_pause() -> None:
    calls = [call("model_inference", 0, 100 * MS), call("aten::copy_", 2 * MS, 8 * MS)]
    step = {"free_ns": 15 * MS}
    looked_at = recording(two_kernels(15 * MS, 14 * MS), calls, step=step, step_ns=100 * MS)
    (seen,) = host_pause.check(looked_at)
    assert "in aten::copy_" in seen.what


@pytest.mark.parametrize(("before", "told"), [("Mul", True), ("Add", False)])
def test_the_first_launch_of_a_kernel_loads_its_code(before: str, *, told: bool) -> None:
    rows = two_kernels(15 * MS, 14 * MS)
    rows = [{**row, "name": name} for row, name in zip(rows, (before, "Add"), strict=True)]
    launch = {"level": "runtime", "name": "hipLaunchKernel", "start_ns": START + 2 * MS}
    looked_at = recording(
        rows,
        [call("aten::add_", MS, 14 * MS)],
        long_calls=[{**launch, "duration_ns": 13 * MS}],
        step={"free_ns": 15 * MS},
        step_ns=17 * MS,
    )
    (seen,) = host_pause.check(looked_at)
    assert ("which loads its code" in seen.what) is told
    assert ("warm-up" in seen.advice) is told


@pytest.mark.parametrize(
    ("later", "told"), [((8 * US, 9 * US), True), ((8 * MS,), False), ((), False)]
)
def test_the_first_call_of_an_operator_is_told_by_those_behind_it(
    later: tuple[int, ...], *, told: bool
) -> None:
    calls = [
        call("aten::roll", 0, 15 * MS),
        *(call("aten::roll", 20 * MS + at, ns) for at, ns in enumerate(later)),
    ]
    looked_at = recording(
        two_kernels(15 * MS, 14 * MS), calls, step={"free_ns": 15 * MS}, step_ns=17 * MS
    )
    (seen,) = host_pause.check(looked_at)
    assert ("the first calls of aten::roll (later ones take 8.5 µs)" in seen.what) is told
    assert ("warm-up" in seen.advice) is told


@pytest.mark.parametrize(("gap", "told"), [(15 * MS, 1), (900 * US, 0)])
def test_long_gaps_are_told_where_the_host_was_not_recorded(gap: int, told: int) -> None:
    rows = [{**row, "launch_ns": -1} for row in in_a_row([MS, MS], gap)]
    found = list(host_pause.check(recording(rows, step={"free_ns": gap}, step_ns=gap + 2 * MS)))
    assert len(found) == told
    for seen in found:
        assert seen.cost_ns == gap
        assert "what the host did meanwhile is not recorded" in seen.what


def test_no_device_waits_where_the_host_alone_was_recorded() -> None:
    rows = [{**row, "launch_ns": -1, "core": "CPU"} for row in in_a_row([US] * 400, 900 * US)]
    looked_at = recording(rows, step={"free_ns": 360 * MS}, step_ns=361 * MS)
    assert list(host_pause.check(looked_at)) == list(host_bound_step.check(looked_at)) == []


def test_copies_on_the_device_hold_nobody() -> None:
    # One line copies to the host once, 3 ms, and 40 times on the device: only the one holds.
    rows = in_a_row([3 * MS, *[10 * US] * 60], 20 * US)
    rows = [{**row, "launch_ns": row["start_ns"] - 5 * US, "host_op": -1} for row in rows]
    read = call("aten::copy_", 10 * US, 3 * MS)
    others = [call("aten::copy_", 4 * MS + at * 30 * US, 20 * US) for at in range(20)]
    rows = [{**row, "host_op": at if 1 <= at <= 20 else -1} for at, row in enumerate(rows)]
    step = {"free_ns": 2 * MS}
    (seen,) = synchronising_operator.check(
        recording(rows, [read, *others], step=step, step_ns=6 * MS)
    )
    assert "holds the host 1 time per step, 3 ms in all" in seen.what
