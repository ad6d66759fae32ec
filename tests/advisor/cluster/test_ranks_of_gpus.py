"""Traces of torch.profiler of several GPUs are compared as the ranks of a job of NPUs are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from npufix.advisor.commands.cli import cli

if TYPE_CHECKING:
    from pathlib import Path


def _trace(rank: int, kernel_us: float) -> dict[str, Any]:
    """Return two steps of 20 products and an all-reduce that ends when that of all ranks does."""
    events: list[dict[str, Any]] = []
    for step in range(2):
        begin = 100_000.0 + step * 20_000
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}",
                       "pid": 1, "tid": 1, "ts": begin, "dur": 19_990, "args": {}})  # fmt: skip
        times = [(f"gemm_{at}", begin + 50 + at * kernel_us, kernel_us - 1) for at in range(20)]
        start = begin + 50 + 20 * kernel_us
        times.append(("ncclDevKernel_AllReduce_Sum_f32", start, begin + 19_900 - start))
        events += [{"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": 7, "ts": at,
                    "dur": us, "args": {"device": rank, "stream": 7, "correlation": number}}
                   for number, (name, at, us) in enumerate(times)]  # fmt: skip
    own = {"rank": rank, "world_size": 4}
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": own,
        "traceEvents": events,
    }


def test_a_gpu_that_computes_longer_is_named(tmp_path: Path) -> None:
    for rank in range(4):
        text = json.dumps(_trace(rank, 900 if rank == 2 else 600))
        (tmp_path / f"worker-{rank}.json").write_text(text)
    told = CliRunner().invoke(cli, ["diagnose", str(tmp_path), "--no-cache"])
    assert told.exit_code == 0
    said = " ".join(told.output.split())
    assert "Computing takes 6 ms per step longer on rank 2 than on the median of 3 other" in said
    assert "nvidia-smi" in said
    assert "npu-smi" not in said
