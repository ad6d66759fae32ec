"""Write the dump that an NPU run of ``bert_like`` might leave: ``python make_dump.py [FOLDER]``.

The program runs unchanged, on the CPU. What it asks of the device is recorded (operators, shapes,
executing lines, autograd links); which kernels that becomes on an Atlas A2 card, and when they
run, is modelled. See README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import platform
import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from simulate import tables  # noqa: E402
from simulate.record import Recorder  # noqa: E402
from simulate.routes import Profiler, npu_routes, virtual_torch_npu  # noqa: E402
from simulate.text import Recorded  # noqa: E402
from simulate.timeline import Simulation, Timeline  # noqa: E402
from simulate.trace_view import trace_view  # noqa: E402

PROGRAM = HERE / "bert_like"
NAME = "bert-like_4021_20250801080000123_ascend_pt"
START_NS = 1754035200123456789  # 2025-08-01 08:00 UTC
SIMULATED = (
    "made by examples/make_dump.py on a CPU: kernels and their times come from a cost model,"
    " not from an NPU"
)


def record(seed: int) -> Timeline:
    """Run the training program, and lay out its active steps on a host and a device."""
    entry = PROGRAM / "train.py"
    recorder = Recorder(entry)
    profilers: list[Profiler] = []

    def start(schedule: SimpleNamespace) -> Profiler:
        profilers.append(Profiler(recorder, schedule))
        return profilers[-1]

    # One wait step, one warm-up step, three active ones: the schedule of train.py.
    arguments = [str(entry), "--steps", "5", "--seed", str(seed), "--profile", "unused"]
    with (
        mock.patch.object(sys, "argv", arguments),
        mock.patch.object(sys, "path", [str(PROGRAM), *sys.path]),
        mock.patch.dict(sys.modules, {"torch_npu": virtual_torch_npu(start)}),
        npu_routes(recorder),
        recorder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        runpy.run_path(str(entry), run_name="__main__")
    [profiler] = profilers
    return Simulation(START_NS, seed).run([step for step in profiler.steps if step.operators])


def profiler_info() -> dict[str, object]:
    return {
        "config": {
            "common_config": {
                "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"],
                "schedule": {"wait": 1, "active": 3, "warmup": 1, "repeat": 1, "skip_first": 0},
                "record_shapes": True,
                "profile_memory": False,
                "with_stack": True,
                "with_flops": False,
                "with_modules": False,
            },
            "experimental_config": {
                "_profiler_level": "Level1",
                "_aic_metrics": "ACL_AICORE_PIPE_UTILIZATION",
                "_l2_cache": False,
                "_msprof_tx": False,
                "_data_simplification": True,
                "record_op_args": False,
                "_export_type": ["text"],
                "_op_attr": False,
                "_gc_detect_threshold": None,
            },
        },
        "torch_npu_version": "2.7.1",
        "cann_version": "8.2.RC1",
        "rank_id": -1,
    }


def profiler_metadata(recorded: Recorded) -> dict[str, object]:
    sources = sorted(PROGRAM.rglob("*.py"))
    return {
        "ENV_VARIABLES": {
            "ASCEND_GLOBAL_LOG_LEVEL": "",
            "ASCEND_LAUNCH_BLOCKING": "",
            "PYTORCH_NPU_ALLOC_CONF": "",
            "TASK_QUEUE_ENABLE": "",
        },
        "simulated": SIMULATED,
        "simulated_with": {
            "torch": torch.__version__.partition("+")[0],
            "python": ".".join(platform.python_version_tuple()[:2]),
        },
        "source_sha256": {
            recorded.path(str(path)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sources
        },
    }


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "dump")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    timeline, recorded = record(options.seed), Recorded(PROGRAM)
    dump: Path = options.folder / NAME
    if dump.exists():
        shutil.rmtree(dump)
    output = "ASCEND_PROFILER_OUTPUT"
    files = {
        "profiler_info.json": json.dumps(profiler_info(), indent=4),
        "profiler_metadata.json": json.dumps(profiler_metadata(recorded), indent=4),
        f"{output}/trace_view.json": trace_view(timeline, recorded),
        f"{output}/kernel_details.csv": tables.kernel_details(timeline),
        f"{output}/op_statistic.csv": tables.op_statistic(timeline),
        f"{output}/operator_details.csv": tables.operator_details(timeline, recorded),
        f"{output}/step_trace_time.csv": tables.step_trace_time(timeline),
        f"{output}/api_statistic.csv": tables.api_statistic(timeline),
    }
    write(dump, files)
    print(dump)


if __name__ == "__main__":
    main()
