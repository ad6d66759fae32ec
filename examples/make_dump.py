"""Write the dump that an NPU run of ``bert_like`` might leave: ``python make_dump.py [FOLDER]``.

The program runs unchanged, on the CPU. What it asks of the device is recorded (operators, shapes,
executing lines, autograd links); which kernels that becomes on an Atlas A2 card, and when they
run, is modelled. See README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.generator.files import profiler_json  # noqa: E402
from benchmarks.generator.dump import write_dump  # noqa: E402
from benchmarks.generator.recorded.record import spell_recorded_path  # noqa: E402
from benchmarks.generator.recorded.routes import record  # noqa: E402
from benchmarks.generator.recorded.timeline import Simulation  # noqa: E402

PROGRAM = HERE / "bert_like"
NAME = "bert-like_4021_20250801080000123_ascend_pt"
START_NS = 1754035200123456789  # 2025-08-01 08:00 UTC
FILES = (
    "trace_view.json", "kernel_details.csv", "op_statistic.csv", "operator_details.csv",
    "step_trace_time.csv", "api_statistic.csv",
)  # fmt: skip
SIMULATED = (
    "made by examples/make_dump.py on a CPU: kernels and their times come from a cost model,"
    " not from an NPU"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "dump")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # One wait step, one warm-up step, three active ones: the schedule of train.py.
    program = ("--steps", "5", "--seed", str(options.seed), "--profile", "unused")
    steps = record(PROGRAM / "train.py", *program)
    run = Simulation(START_NS, options.seed).run(steps, PROGRAM)
    dump: Path = options.folder / NAME
    if dump.exists():
        shutil.rmtree(dump)
    write_dump(run.parameters, options.folder, only=FILES, run=run).rename(dump)
    # A process that is no rank of a job has no number.
    (dump / "profiler_info_0.json").unlink()
    info = profiler_json.info(run.parameters, "text") | {"rank_id": -1}
    del info["start_info"], info["end_info"]
    schedule = {"wait": 1, "active": 3, "warmup": 1, "repeat": 1, "skip_first": 0}
    info["config"]["common_config"] |= {"schedule": schedule, "profile_memory": False}
    profiler_json.write(info, dump / "profiler_info.json")
    metadata = profiler_json.metadata(run.parameters) | {
        "simulated": SIMULATED,
        "simulated_with": {
            "torch": torch.__version__.partition("+")[0],
            "python": ".".join(platform.python_version_tuple()[:2]),
        },
        "source_sha256": {
            spell_recorded_path(path, PROGRAM): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(PROGRAM.rglob("*.py"))
        },
    }
    profiler_json.write(metadata, dump / "profiler_metadata.json")
    print(dump)


if __name__ == "__main__":
    main()
