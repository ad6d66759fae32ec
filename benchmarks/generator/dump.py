"""One dump folder per rank, with the files that the profiler writes for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.generator import truth
from benchmarks.generator.files import (
    analysis_db,
    collectives,
    kernel_details_csv,
    memory,
    operator_details_csv,
    profiler_db,
    profiler_json,
    statistics_csv,
    trace_view,
)
from benchmarks.generator.ranks_run import runs
from benchmarks.generator.run import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from benchmarks.generator.parameters import Parameters
    from benchmarks.generator.run import Run

    Write = Callable[[Run, Path], None]

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_TEXT: Mapping[str, Write] = {
    "kernel_details.csv": kernel_details_csv.write,
    "step_trace_time.csv": statistics_csv.write_step_trace_time,
    "memory_record.csv": memory.write_memory_record,
    "operator_memory.csv": memory.write_operator_memory,
    "operator_details.csv": operator_details_csv.write,
    "trace_view.json": trace_view.write,
}
_FROM_LEVEL1: Mapping[str, Write] = {
    "op_statistic.csv": statistics_csv.write_op_statistic,
    "api_statistic.csv": statistics_csv.write_api_statistic,
}
_COLLECTIVES = ("communication.json", "communication_matrix.json")
TEXT_FILES = (*_TEXT, *_FROM_LEVEL1, *_COLLECTIVES)


def write_dump(  # noqa: PLR0913 - each is an option of the command
    parameters: Parameters,
    folder: Path,
    export: str = "text",
    *,
    only: Collection[str] = (),
    with_truth: bool = False,
    run: Run | None = None,
) -> Path:
    """Write the dump of one rank below ``folder`` and return its path.

    ``export`` is "text", "db" or "both". ``only`` names the files of the text export that are
    wanted, all if empty. ``with_truth`` adds truth.json. ``run`` is that of these parameters, if
    it is there already.
    """
    run = run or simulate(parameters)
    found = collectives.collectives(run)
    moved = (collectives.communication(found), collectives.matrix(run, found))
    layout = parameters.layout
    host = f"node{layout.host(parameters.rank):04d}" if layout.ranks > layout.per_host else "host"
    dump = folder / f"{host}_{run.pid}_20250109153443{parameters.rank:03d}_ascend_pt"
    output = dump / OUTPUT
    output.mkdir(parents=True)
    files = {**_TEXT, **(_FROM_LEVEL1 if parameters.level else {})} if export != "db" else {}
    for name, write in files.items():
        if not only or name in only:
            write(run, output / name)
    for name, content in zip(_COLLECTIVES, moved, strict=True):
        if content and parameters.level and export != "db" and (not only or name in only):
            (output / name).write_text(json.dumps(content), encoding="utf-8")
    if export != "text":
        profiler_db.write(run, output / f"ascend_pytorch_profiler_{parameters.rank}.db")
        analysis_db.write(run, output / "analysis.db", *moved)
    info = profiler_json.info(parameters, "db" if export == "db" else "text")
    profiler_json.write(info, dump / f"profiler_info_{parameters.rank}.json")
    profiler_json.write(profiler_json.metadata(parameters), dump / "profiler_metadata.json")
    if with_truth:
        truth.write(run, dump / "truth.json")
    return dump


def write_ranks(
    parameters: Parameters,
    folder: Path,
    export: str = "text",
    *,
    only: Collection[str] = (),
    with_truth: bool = False,
) -> list[Path]:
    """Write the dumps of all ranks of a job."""
    return [
        write_dump(run.parameters, folder, export, only=only, with_truth=with_truth, run=run)
        for run in runs(parameters)
    ]
