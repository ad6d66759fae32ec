"""profiler_info_N.json and profiler_metadata.json: the settings of the recording."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.generator.run import EPOCH_NS

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.generator.parameters import Parameters

VARIABLES = {
    "ASCEND_GLOBAL_LOG_LEVEL": "",
    "HCCL_RDMA_TC": "",
    "HCCL_RDMA_SL": "",
    "ACLNN_CACHE_LIMIT": "",
    "HOST_CACHE_CAPACITY": "",
    "ASCEND_ENHANCE_ENABLE": "",
    "PYTORCH_NPU_ALLOC_CONF": "",
    "ASCEND_LAUNCH_BLOCKING": "",
}
_VERSIONS = {
    "cann8.2": ("2.7.1", "8.2.RC1"), "cann8.3": ("2.7.1", "8.3.RC1"), "newest": ("2.9.0", "8.5.0"),
}  # fmt: skip


def info(own: Parameters, export: str) -> dict[str, object]:
    """Return the content of profiler_info_N.json."""
    named = own.version in _VERSIONS
    schedule = {"wait": 0, "active": own.steps, "warmup": 1, "repeat": 1, "skip_first": 10}
    common = {
        "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"],
        **({"schedule": schedule} if own.schedule else {}),
        "record_shapes": own.shapes,
        "profile_memory": True,
        "with_stack": own.stacks,
        "with_flops": False,
        "with_modules": own.modules,
    }
    experimental = {
        "_profiler_level": f"Level{own.level}",
        "_aic_metrics": "ACL_AICORE_PIPE_UTILIZATION" if own.level else "ACL_AICORE_NONE",
        "_l2_cache": False,
        "_msprof_tx": False,
        "_data_simplification": True,
        "record_op_args": False,
        "_export_type": [export] if named else export,
        "_op_attr": False,
        "_gc_detect_threshold": 0.0,
    }
    made: dict[str, object] = {
        "config": {"common_config": common, "experimental_config": experimental},
        "start_info": {"syscnt_enable": True, "freq": 100, "start_cnt": 17_238_197_612_056,
                       "start_monotonic": 172_163_581_670_080},
        "end_info": {"collectionTimeEnd": EPOCH_NS, "MonotonicTimeEnd": 172_164_265_133_640},
    }  # fmt: skip
    if named:
        torch_npu, cann = _VERSIONS[own.version]
        made |= {"torch_npu_version": torch_npu, "cann_version": cann, "rank_id": str(own.rank)}
    else:
        made["rank_id"] = own.rank
    return made


def metadata(own: Parameters) -> dict[str, object]:
    """Return the content of profiler_metadata.json; only ranks that wait form several groups."""
    made: dict[str, object] = {"ENV_VARIABLES": VARIABLES}
    layout = own.layout
    groups = layout.groups_of(own.rank) if own.waits else [layout.everyone]
    sizes = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "data_parallel_size": layout.dp,
    }
    if own.ranks > 1:
        world = {"rank": own.rank, "world_size": own.ranks}
        made["distributed_args"] = {**(sizes if own.waits else {}), **world}
        made["parallel_group_info"] = {
            group.name: {
                "group_name": group.role,
                "group_rank": group.members.index(own.rank),
                "global_ranks": list(group.members),
            }
            for group in groups
        }
    return made


def write(content: dict[str, object], path: Path) -> None:
    """Write one of the two."""
    path.write_text(json.dumps(content, indent=4), encoding="utf-8")
