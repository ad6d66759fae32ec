"""Settings: told with a symptom, as the line to type, and never where the run had them already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from npufix.advisor.evidence.lines import gather_evidence
from npufix.advisor.evidence.ranking import Step
from npufix.advisor.evidence.run_findings import observe
from npufix.advisor.rules_test.recordings import MS, US, in_a_row, recording
from npufix.profiling_parsers.profile import Environment, Profile
from npufix.rules.diagnostics import (
    blocking_launches,
    chained_copies,
    changing_shapes,
    compile_in_loop,
    contended_products,
    device_memory_reallocation,
    host_bound_step,
    rdma_retransmission,
    single_precision_products,
    small_collective_buffer,
    small_kernels,
    small_packets,
    transdata_storm,
    unset_megatron_flags,
    verbose_logging,
)

if TYPE_CHECKING:
    from npufix.rules.diagnostic import Observation, Recording


def told(rule: Any, looked_at: Recording) -> list[Observation]:
    return list(rule.RULE.check(looked_at))


def advice(rule: Any, looked_at: Recording) -> str:
    (found,) = told(rule, looked_at)
    return str(found.advice)


def environment(variables: dict[str, str], **columns: Any) -> Environment:
    return Environment(variables=variables, **columns)


def host_bound(variables: dict[str, str], *, collective: bool = False, **more: Any) -> Recording:
    rows = in_a_row([100 * US] * 11, MS)
    late = [{**row, "launch_ns": row["start_ns"] - 50 * US} if i else row
            for i, row in enumerate(rows)]  # fmt: skip
    if collective:
        late.append({"type": "hcom_allReduce_", "communication": True, "duration_ns": US})
    return recording(
        late, step={"free_ns": 10 * MS}, step_ns=12 * MS,
        environment=environment(variables, **more),
    )  # fmt: skip


UNSET = {"TASK_QUEUE_ENABLE": "", "CPU_AFFINITY_CONF": "", "PER_STREAM_QUEUE": ""}


def test_a_host_bound_run_is_told_what_it_had_not_set() -> None:
    text = advice(host_bound_step, host_bound(UNSET))
    assert "; export TASK_QUEUE_ENABLE=2; export CPU_AFFINITY_CONF=2; launch fewer" in text
    assert "does not record" not in text
    assert "PER_STREAM_QUEUE" not in text
    assert "LD_PRELOAD=libtcmalloc.so; cpupower frequency-set -g performance" in text


@pytest.mark.parametrize(
    ("variables", "absent"),
    [
        ({"TASK_QUEUE_ENABLE": "2"}, "TASK_QUEUE_ENABLE"),
        ({"CPU_AFFINITY_CONF": "2,npu0:0-1"}, "CPU_AFFINITY_CONF"),
        ({"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4"}, "tcmalloc"),
    ],
)
def test_what_is_set_already_is_not_advised(variables: dict[str, str], absent: str) -> None:
    assert absent not in advice(host_bound_step, host_bound({**UNSET, **variables}))


def test_what_is_not_recorded_may_be_set() -> None:
    text = advice(host_bound_step, host_bound({"TASK_QUEUE_ENABLE": "1"}))
    assert (
        "export TASK_QUEUE_ENABLE=2; export CPU_AFFINITY_CONF=2 (unless set: the dump does" in text
    )
    assert "not record CPU_AFFINITY_CONF)" in text


def test_queues_of_streams_and_fine_binding_exclude_each_other() -> None:
    both = advice(host_bound_step, host_bound(UNSET, collective=True))
    assert "or export PER_STREAM_QUEUE=1 instead of fine core binding (not together)" in both
    bound = {**UNSET, "CPU_AFFINITY_CONF": "2"}
    assert "PER_STREAM" not in advice(host_bound_step, host_bound(bound, collective=True))
    queues = advice(host_bound_step, host_bound({**UNSET, "PER_STREAM_QUEUE": "1"}))
    assert "CPU_AFFINITY_CONF=1" in queues
    assert "CPU_AFFINITY_CONF=2" not in queues


def test_a_profile_that_inflates_is_to_be_repeated() -> None:
    slow = host_bound(UNSET, with_stack=True, profiler_level="Level2")
    assert advice(host_bound_step, slow).startswith("profile without with_stack and Level2")


def new_shapes(variables: dict[str, str]) -> Recording:
    rows = [{"step": step, "input_shapes": f"{step},8"} for step in (1, 2, 3)]
    return recording(rows, variables=variables)


@pytest.mark.parametrize(
    ("variables", "present", "absent"),
    [
        ({"ACLNN_CACHE_LIMIT": "", "HOST_CACHE_CAPACITY": ""},
         ["export ACLNN_CACHE_LIMIT=100000", "export HOST_CACHE_CAPACITY=20"], []),
        ({"ACLNN_CACHE_LIMIT": "200000", "HOST_CACHE_CAPACITY": "0"},
         ["HOST_CACHE_CAPACITY=20"], ["ACLNN"]),
        ({"ACLNN_CACHE_LIMIT": "9", "HOST_CACHE_CAPACITY": "50"}, ["ACLNN"], ["HOST_CACHE"]),
        ({"ACLNN_CACHE_LIMIT": "100000", "HOST_CACHE_CAPACITY": "1"}, ["pad"], ["export"]),
    ],
)  # fmt: skip
def test_caches_for_changing_shapes(
    variables: dict[str, str], present: list[str], absent: list[str]
) -> None:
    text = advice(changing_shapes, new_shapes(variables))
    assert all(part in text for part in present)
    assert not any(part in text for part in absent)


def short_kernels(environment: Environment) -> Recording:
    rows = [{**row, "launch_ns": row["start_ns"] - US} for row in in_a_row([US] * 20, 9 * US)]
    return recording(rows, step={"free_ns": 180 * US}, step_ns=200 * US, environment=environment)


@pytest.mark.parametrize(
    ("chip", "value", "expected"),
    [
        ("Ascend910B3", "", True),
        (None, None, True),
        ("Ascend910_9391", "True", False),
        ("Ascend310P3", "", False),
    ],
)
def test_lazy_fusion_where_the_chip_has_it(
    chip: str | None, value: str | None, *, expected: bool
) -> None:
    variables = {} if value is None else {"TORCH_NPU_LAZY_FUSION": value}
    text = advice(small_kernels, short_kernels(environment(variables, chip=chip)))
    assert ("export TORCH_NPU_LAZY_FUSION=True" in text) is expected
    assert "fused operators" in text


def reallocates(variables: dict[str, str]) -> Recording:
    calls = {"level": "acl", "name": "aclrtMalloc", "count": 9, "total_ns": 50 * MS, "max_ns": MS}
    return recording(
        [{}], step={"free_ns": 50 * MS}, step_ns=90 * MS, variables=variables, apis=[calls]
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True; or, where that fails, "
             "export PYTORCH_NPU_ALLOC_CONF=garbage_collection_threshold:0.95,max_split_size_mb:50 "
             "(not together)")),
        ("max_split_size_mb:50", "instead of max_split_size_mb (not together)"),
        ("expandable_segments:True", "expandable already: a smaller batch"),
        ("expandable_segments:True,garbage_collection_threshold:0.9",
         "remove garbage_collection_threshold: not together"),
    ],
)  # fmt: skip
def test_options_of_the_allocator(options: str, expected: str) -> None:
    text = advice(device_memory_reallocation, reallocates({"PYTORCH_NPU_ALLOC_CONF": options}))
    assert expected in text
    if "expandable_segments" in options:
        assert "export" not in text


def test_the_report_has_the_advice_of_this_run() -> None:
    looked_at = reallocates({"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:50"})
    profile = Profile(
        root=Path(),
        environment=looked_at.environment,
        kernels=looked_at.kernels.drop(columns=["path", "line", "function"]),
        host_ops=looked_at.host_ops.assign(basis=pd.Categorical([])),
        steps=looked_at.steps,
        op_statistic=pd.DataFrame(),
        stacks=(),
        signals=looked_at.signals,
    )
    rules = [device_memory_reallocation.RULE]
    found, problems = observe(profile, gather_evidence(profile, {}), Step(90 * MS, 1), rules)
    assert not problems
    assert [o.finding.advice for o in found] == [advice(device_memory_reallocation, looked_at)]
    assert found[0].finding.advice != device_memory_reallocation.RULE.advice


@pytest.mark.parametrize(("value", "expected"), [("0", True), ("1", False), ("", False)])
def test_reuse_between_streams(value: str, *, expected: bool) -> None:
    text = advice(device_memory_reallocation, reallocates({"MULTI_STREAM_MEMORY_REUSE": value}))
    assert ("unset MULTI_STREAM_MEMORY_REUSE" in text) is expected


def test_only_loud_logs_are_silenced() -> None:
    quiet = {"ASCEND_GLOBAL_LOG_LEVEL": "3", "ASCEND_SLOG_PRINT_TO_STDOUT": "1"}
    assert advice(verbose_logging, recording(variables=quiet)) == (
        "export ASCEND_SLOG_PRINT_TO_STDOUT=0"
    )
    assert not told(verbose_logging, recording(variables={"ASCEND_GLOBAL_LOG_LEVEL": "3"}))


def test_blocking_that_is_not_set_comes_from_the_program() -> None:
    waits = [
        {"level": "acl", "name": name, "count": 9, "total_ns": MS, "max_ns": 1}
        for name in ("launch", "aclrtSynchronizeStream")
    ]
    own = recording([{}], apis=waits, variables={"ASCEND_LAUNCH_BLOCKING": "0"})
    assert "torch.npu.synchronize()" in advice(blocking_launches, own)
    on = recording([{}], apis=waits, variables={"ASCEND_LAUNCH_BLOCKING": "1"})
    assert advice(blocking_launches, on) == "unset ASCEND_LAUNCH_BLOCKING"


@pytest.mark.parametrize(
    ("chip", "expected"),
    [("Ascend910A", "set_compile_mode(jit_compile=False)"), (None, "set_compile_mode"),
     ("Ascend910B2", "remove jit_compile=True")],
)  # fmt: skip
def test_compiling_is_the_default_on_old_chips_only(chip: str | None, expected: str) -> None:
    calls = {"level": "acl", "name": "aclopCompileAndExecute", "count": 20, "total_ns": MS,
             "max_ns": 1}  # fmt: skip
    chip_of_run = Environment(chip=chip)
    looked_at = recording([{}], apis=[calls], environment=chip_of_run, step={"free_ns": MS})
    assert expected in advice(compile_in_loop, looked_at)


def small_collectives(variables: dict[str, str]) -> Recording:
    rows = [
        {"step": "step1", "name": f"hcom_{n}", "transport": "SDMA", "size_bytes": 1_000_000,
         "transit_ns": MS, "gb_per_s": 1.0}
        for n in range(9)
    ]  # fmt: skip
    return recording(variables=variables, transports=rows)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HCCL_OP_EXPANSION_MODE": ""}, True),
        ({}, True),
        ({"HCCL_OP_EXPANSION_MODE": "AIV"}, False),
    ],
)
def test_expansion_of_small_collectives(variables: dict[str, str], *, expected: bool) -> None:
    text = advice(small_packets, small_collectives(variables))
    assert ("export HCCL_OP_EXPANSION_MODE=AIV" in text) is expected
    assert "ZeRO-2" in text


def retransmits(variables: dict[str, str]) -> Recording:
    names = {"step": "step1", "name": "hcom_1"}
    return recording(
        variables=variables,
        step_ns=5000 * MS,
        collectives=[{**names, "elapse_ns": 4001 * MS, "transit_ns": 4000 * MS, "wait_ns": 0}],
        transports=[{**names, "transport": "RDMA", "size_bytes": 1000}],
    )


def test_classes_of_traffic_are_those_of_the_run() -> None:
    assert "(132, the default)" in advice(rdma_retransmission, retransmits({}))
    text = advice(rdma_retransmission, retransmits({"HCCL_RDMA_TC": "104", "HCCL_RDMA_SL": "3"}))
    assert "(104)" in text
    assert "(3)" in text


def test_plain_operands_for_products_next_to_conversions() -> None:
    rows = [
        {"type": name, "start_ns": at * MS, "duration_ns": MS}
        for at, name in enumerate(["TransData", "MatMulV2"])
    ]
    assert "MM_BMM_ND_ENABLE" in advice(transdata_storm, recording(rows))
    rows[1]["type"] = "Conv2D"
    assert "MM_BMM_ND_ENABLE" not in advice(transdata_storm, recording(rows))


def copies(read: str = "8,4", line: int = 3, **more: Any) -> Recording:
    rows = [
        {"type": "Transpose", "output_shapes": "4,8", "line": 3},
        {"type": "Slice", "input_shapes": read, "line": line, "start_ns": 5 * MS},
    ]
    common = {"path": "m.py", "duration_ns": 2 * MS}
    return recording([{**common, **row} for row in rows], **more)


def test_copies_of_copies() -> None:
    (found,) = told(chained_copies, copies(variables={"COMBINED_ENABLE": ""}))
    assert found.saving_ns == (0, 2 * MS)
    assert "export COMBINED_ENABLE=1" in chained_copies.RULE.advice
    assert not told(chained_copies, copies(variables={"COMBINED_ENABLE": "1"}))
    assert not told(chained_copies, copies(read="8,5"))
    assert not told(chained_copies, copies(line=4))


@pytest.mark.parametrize(
    ("dtypes", "other", "expected"),
    [("FLOAT;FLOAT", 38 * MS, 1), ("FLOAT;FLOAT", 39 * MS, 0), ("DT_BF16;DT_BF16", MS, 0)],
)
def test_products_in_float32(dtypes: str, other: int, expected: int) -> None:
    product = {"type": "MatMulV3", "input_dtypes": dtypes, "duration_ns": 2 * MS}
    rows = [product, {"duration_ns": other}]
    assert len(told(single_precision_products, recording(rows))) == expected


@pytest.mark.parametrize(
    ("chip", "saved"), [("Ascend910B1", 1 - 99.5 / 353.9), (None, 1 - 99.5 / 353.9)]
)
def test_half_precision_gains_what_the_matrix_unit_does(chip: str | None, saved: float) -> None:
    product = {"type": "MatMulV3", "input_dtypes": "FLOAT;FLOAT", "duration_ns": 2 * MS}
    seen = recording([product], environment=Environment(chip=chip))
    (found,) = told(single_precision_products, seen)
    assert found.saving_ns == (0, pytest.approx(2 * MS * saved, rel=0.01))
    # The switch that is advised makes them round to HF32, half as quick as bfloat16.
    assert found.likely_ns == pytest.approx(0.95 * 2 * MS * (1 - 2 * (1 - saved)), rel=0.01)


def test_products_that_are_rounded_to_hf32_already_are_left_alone() -> None:
    product = {"type": "MatMulV3", "input_dtypes": "FLOAT;FLOAT", "duration_ns": 2 * MS}
    rows = [{**product, "hf32": "YES"}, {**product, "hf32": "NO"}, {"duration_ns": MS}]
    (found,) = told(single_precision_products, recording(rows))
    assert found.kernels == {1}
    assert found.advice.startswith("torch.npu.matmul.allow_hf32")
    conv = {"type": "Conv2D", "input_dtypes": "FLOAT;FLOAT", "duration_ns": 3 * MS, "hf32": "NO"}
    (both,) = told(single_precision_products, recording([*rows, conv]))
    assert both.advice.startswith("torch.npu.conv.allow_hf32")
    assert not told(single_precision_products, recording(rows[:1]))
    (unknown,) = told(single_precision_products, recording([product]))
    assert not unknown.advice, "that of the rule, which says that the dump does not say"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_64x64_nt", 1), ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", 1),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", 1),
        ("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1", 0),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_64x128_8x5_nn_align1>(Params)", 1),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_nt_align4>(Params)", 0),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_MT128x256x32", 0), ("ampere_sgemm_32x32_tn", 1),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(int)", 0),
    ],
)  # fmt: skip
def test_a_gpu_says_float32_in_the_names_of_kernels(name: str, expected: int) -> None:
    rows = [{"name": name, "type": "aten::mm", "core": "GPU", "duration_ns": 10 * MS}]
    assert len(told(single_precision_products, recording(rows))) == expected
    made = recording([{**rows[0], "core": "CPU"}])
    kinds = made.kernels["core"].cat.set_categories(["CPU", "GPU"])  # as a Kineto trace has them
    made.kernels["core"] = kinds
    assert not told(single_precision_products, made)


def overlapped(slower: float, beside: int = 6) -> Recording:
    product = {"type": "MatMulV3", "name": "mm", "input_shapes": "8,8;8,8"}
    rows: list[dict[str, Any]] = [
        {**product, "start_ns": at * 10 * MS, "duration_ns": MS} for at in range(6)
    ]
    for at in range(10, 10 + beside):
        rows.append({**product, "start_ns": at * 10 * MS, "duration_ns": round(slower * MS)})
        rows.append(
            {"type": "hcom_allReduce_", "start_ns": at * 10 * MS, "duration_ns": 9 * MS,
             "communication": True}
        )  # fmt: skip
    return recording(rows)


@pytest.mark.parametrize(("slower", "expected"), [(1.2, 1), (1.19, 0)])
def test_products_beside_collectives(slower: float, expected: int) -> None:
    found = told(contended_products, overlapped(slower))
    assert len(found) == expected
    assert all(o.saving_ns == (0, 1_200_000) and len(o.kernels) == 6 for o in found)
    assert not told(contended_products, overlapped(slower, beside=4))


def buffered(value: str, size: int = 150_000_000, exposed: int = 11 * MS) -> Recording:
    link = {"step": "step1", "name": "hcom_1", "transport": "SDMA", "size_bytes": size}
    return recording(
        variables={"HCCL_BUFFSIZE": value},
        step={"communication_exposed_ns": exposed},
        transports=[link],
    )


def test_the_buffer_of_hccl() -> None:
    assert advice(small_collective_buffer, buffered("50")).startswith("export HCCL_BUFFSIZE=150;")
    for fine in (buffered(""), buffered("200"), buffered("50", 40_000_000),
                 buffered("50", exposed=10 * MS)):  # fmt: skip
        assert not told(small_collective_buffer, fine)


def chain(names: str, path: str) -> Recording:
    rows = [
        {"type": name, "start_ns": at * MS, "duration_ns": MS, "path": path, "line": 5}
        for at, name in enumerate(names.split())
    ]
    return recording(rows)


@pytest.mark.parametrize(
    ("names", "flag"),
    [
        ("Pow ReduceMean Add Rsqrt Mul", "--use-fused-rmsnorm"),
        ("Slice Neg ConcatD Mul Add", "--use-fused-rotary-pos-emb"),
        ("Swish Mul", "--use-fused-swiglu"),
        ("BatchMatMulV2 Muls Add SoftmaxV2 BatchMatMulV2", "--use-flash-attn"),
    ],
)
def test_flags_of_megatron(names: str, flag: str) -> None:
    (found,) = told(unset_megatron_flags, chain(names, "/x/megatron/core/a.py"))
    assert found.advice == f"{flag} (MindSpeed)"
    assert not told(unset_megatron_flags, chain(names, "/x/mine/a.py"))
    assert not told(unset_megatron_flags, chain("RmsNorm FlashAttentionScore", "megatron/a.py"))
