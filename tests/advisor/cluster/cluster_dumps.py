"""Six small ranks of a generated job, and what the tests of the cluster do with them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.generator.dump import write_ranks
from benchmarks.generator.parameters import Parameters

from npufix.profiling_parsers.discover import find_dumps

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "dumps"
SMALL = (
    "step_trace_time.csv", "op_statistic.csv", "communication.json", "communication_matrix.json",
    "kernel_details.csv",
)  # fmt: skip


def write_cluster(folder: Path, ranks: int = 6, export: str = "text", steps: int = 4) -> list[Path]:
    """Write the dumps of a job of a few kernels."""
    parameters = Parameters(kernels=60 * steps, steps=steps, ranks=ranks, version="newest")
    return write_ranks(parameters, folder, export, only=SMALL)


def output(dump: Path) -> Path:
    return dump / "ASCEND_PROFILER_OUTPUT"


def dump_paths(folder: Path) -> list[Path]:
    """Return where the dumps below a folder are."""
    return [dump.path for dump in find_dumps(folder)]
