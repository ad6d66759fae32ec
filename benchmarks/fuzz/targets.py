"""Everything that reads a file: what its inputs are like, and how it is called."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from benchmarks.fuzz import corpus, mutations, oracle
from benchmarks.generator.dump import OUTPUT

from npufix.advisor.diagnose.diagnosis import diagnose
from npufix.advisor.diagnose.source_scan import scan
from npufix.advisor.gate import baselines
from npufix.advisor.gate.baselines import merge_baseline
from npufix.advisor.gate.measuring import measure_report
from npufix.advisor.project.configuration import read_configuration
from npufix.advisor.project.source_tree import read_source_tree
from npufix.advisor.verify.changes import from_patch
from npufix.advisor.verify.diff_reading import apply_diff, read_diff
from npufix.profiling_parsers.cluster import reading, summary
from npufix.profiling_parsers.cluster.job import read_groups
from npufix.profiling_parsers.cluster.summary import _digest
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.trace.view import read_trace
from npufix.reports import baseline as files
from npufix.reports.formats import Result, formats
from npufix.reports.report import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.fuzz.mutations import Mutation


@dataclass(frozen=True)
class Target:
    """One reader. ``quick`` reads the file alone; ``whole`` does all that a command does."""

    name: str
    path: str
    """Where the input lies, below a folder of its own."""
    mutate: Mutation
    seeds: Callable[[], list[bytes]]
    quick: Callable[[Path], Any]
    whole: Callable[[Path, bool], Any] | None = None
    beside: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    """Other files of that folder, which stay as they are."""
    real: tuple[str, ...] = ()
    """Names of files in a corpus of the user's that are first inputs, too."""
    pack: Callable[[bytes], bytes] = bytes
    """From an input to the bytes of the file."""

    def prepare(self, folder: Path) -> Path:
        """Write the files beside the input, and return where it belongs."""
        for name, content in self.beside.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content())
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


_BESIDE = ("kernel_details.csv", "step_trace_time.csv", "profiler_info_0.json")


def _file(name: str) -> Callable[[], bytes]:
    return lambda: corpus.file(name)


def _seeds(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [corpus.file(name) for name in names]


def _whole_dump(dump: Path) -> Callable[[Path, bool], Any]:
    """Return what diagnoses the dump at a place below the folder of an input."""

    def run(folder: Path, thorough: bool) -> None:  # noqa: FBT001 - one call
        oracle.check_profile(read_profile(folder / dump))
        oracle.check_diagnosis(diagnose(folder / dump, None), whole=thorough)

    return run


def _reader(module: str, function: str) -> Callable[[Path], Any]:
    """Return what calls a reader and looks at the tables that it returns."""

    def run(path: Path) -> None:
        found = getattr(import_module(f"npufix.profiling_parsers.{module}"), function)(path)
        for part in found if isinstance(found, tuple) else (getattr(found, "frame", None),):
            if isinstance(part, pd.DataFrame):
                oracle.check_table(function, part)

    return run


def _profile(path: Path) -> None:
    oracle.check_profile(read_profile(path))


def _dump_file(name: str, module: str, function: str, *seeds: str) -> Target:
    beside = {f"d_ascend_pt/{OUTPUT}/{file}": _file(file) for file in _BESIDE[:2] if file != name}
    beside[f"d_ascend_pt/{_BESIDE[2]}"] = _file(_BESIDE[2])
    return Target(
        name=name.partition(".")[0].replace("_", "-"),
        path=f"d_ascend_pt/{OUTPUT}/{name}",
        mutate=mutations.of_json if name.endswith(".json") else mutations.of_lines,
        seeds=_seeds(*(seeds or [name])),
        quick=_reader(module, function),
        whole=_whole_dump(Path("d_ascend_pt")),
        beside=beside,
        real=(name,),
    )


def _info(path: Path) -> None:
    from npufix.profiling_parsers.cluster.job import find_end_of_recording  # noqa: PLC0415 - see above

    environment, _ = read_environment(path.parent)
    find_end_of_recording(path.parent, environment.rank)
    read_groups(path.parent)


def _trace(path: Path) -> None:
    read_trace(path, None)


def _summary(path: Path) -> None:
    read = summary.decode(path.read_bytes())
    for name, columns in summary.TABLES.items():
        for column, kind in columns.items():
            if name in read.tables:
                (read.words if kind == summary.WORD else read.numbers)(name, column)
    if summary.decode(summary.encode(read)) != read:
        raise oracle.Broken("a summary reads back as another one")


def _summary_seed() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in corpus.generate().items():
            inner = folder if name.startswith("profiler_") else f"{folder}/{OUTPUT}"
            Path(inner).mkdir(exist_ok=True)
            Path(inner, name).write_bytes(content)
        return [summary.encode(reading.summarise(Path(folder)))[16:]]


def _sign(data: bytes) -> bytes:
    """Return a summary with a checksum that fits: what is read behind it counts."""
    return _digest(data) + data


def _scan(path: Path) -> None:
    oracle.check_diagnosis(scan(read_source_tree(path)), whole=False)


def _diff(path: Path) -> None:
    for file in read_diff(path.read_bytes()):
        for one in (file, file.reversed()):
            apply_diff(one, (path.parent / "m.py").read_bytes())


def _verify_diff(folder: Path, _thorough: bool) -> None:  # noqa: FBT001 - as every target
    made = from_patch((folder / "x.patch").read_bytes(), "x.patch", folder)
    for file in made.files:
        if not file.path.resolve().is_relative_to(folder.resolve()):
            raise oracle.Broken(f"a diff leads to {file.path}")


def _report(path: Path) -> None:
    made = from_json(path.read_bytes())
    if from_json(to_json(made)) != made:
        raise oracle.Broken("a report reads back as another one")
    for kind in ("terminal", "markdown"):
        oracle.check_text(str(formats()[kind].render(Result(made, details=True))), kind)


def _use_report(folder: Path, _thorough: bool) -> None:  # noqa: FBT001 - as every target
    report, good = folder / "report.json", folder / "good.json"
    for pair in ((report, good), (good, report)):
        oracle.check_command("compare", *pair)
    oracle.check_command("gate", report, "--baseline", folder / "baseline.json")


def _use_baseline(folder: Path, _thorough: bool) -> None:  # noqa: FBT001 - as every target
    oracle.check_command("gate", folder / "good.json", "--baseline", folder / "baseline.json")
    oracle.check_command("compare", folder / "baseline.json", folder / "good.json")


@cache
def _report_seed() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("kernel_details.csv", "step_trace_time.csv", "communication.json"):
            Path(folder, name).write_bytes(corpus.file(name))
        return [to_json(diagnose(Path(folder), None).report).encode()]


def _baseline(path: Path) -> None:
    made = baselines.read(path)
    baselines.typical(made)
    baselines.fingerprints(made)
    if files.from_json(files.to_json(made)) != made:
        raise oracle.Broken("a baseline reads back as another one")


def _baseline_seed() -> list[bytes]:
    run = measure_report(from_json(_report_seed()[0]))
    return [files.to_json(merge_baseline([run, run], commit="1234567")).encode()]


def _configuration(path: Path) -> None:
    made = read_configuration(path.parent)
    made.excludes(path)
    made.find_ignored(path)


def _redact(path: Path) -> None:
    """Copy a dump without names; what was found must be gone, which the command itself looks at."""
    copy, before = path.parents[1] / "copy", path.read_bytes()
    shutil.rmtree(copy, ignore_errors=True)
    oracle.check_command("redact", path.parent, "-o", copy)
    if path.read_bytes() != before:
        raise oracle.Broken("redact changes what it copies")


def _kineto_gz() -> list[bytes]:
    return [gzip.compress(corpus.file("kineto.json"), mtime=0)]


def _metadata() -> list[bytes]:
    group = {"group_name": "dp", "group_rank": 0, "global_ranks": [0, 1, 2, 5]}
    variables = {"MASTER_ADDR": "node7"}
    named = {"parallel_group_info": {"group_name_1": group}, "ENV_VARIABLES": variables}
    return [corpus.file("profiler_metadata.json"), json.dumps(named).encode()]


_CSV, _TRACE_FOLDER = mutations.of_lines, f"t_ascend_pt/{OUTPUT}"
_ALL = (
    _dump_file("kernel_details.csv", "text.kernel_details", "read_kernel_details"),
    _dump_file("op_statistic.csv", "text.op_statistic", "read_op_statistic"),
    _dump_file("step_trace_time.csv", "text.step_trace_time", "read_step_trace_time"),
    _dump_file("operator_details.csv", "text.operator_details", "read_operator_details"),
    _dump_file("memory_record.csv", "text.side_tables", "read_memory_record"),
    _dump_file("operator_memory.csv", "text.side_tables", "read_operator_memory"),
    _dump_file("api_statistic.csv", "text.side_tables", "read_api_statistic"),
    _dump_file("l2_cache.csv", "text.side_tables", "read_l2_cache", "l2_cache.csv"),
    _dump_file("communication.json", "text.communication_json", "read_communication"),
    _dump_file("communication_matrix.json", "text.communication_json", "read_communication_matrix"),
    Target("profiler-info", "d_ascend_pt/profiler_info_0.json", mutations.of_json,
           _seeds("profiler_info_0.json"), _info, real=("profiler_info*.json",)),
    Target("profiler-metadata", "d_ascend_pt/profiler_metadata.json", mutations.of_json,
           _metadata, _info, real=("profiler_metadata.json",)),
    Target("trace-view", f"{_TRACE_FOLDER}/trace_view.json", mutations.of_json,
           _seeds("trace_view.json"), _trace, _whole_dump(Path("t_ascend_pt")),
           real=("trace_view.json",)),
    Target("kineto", "x.pt.trace.json", mutations.of_json, _seeds("kineto.json"), _profile,
           _whole_dump(Path("x.pt.trace.json")), real=("*.pt.trace.json",)),
    Target("kineto-gz", "x.pt.trace.json.gz", mutations.of_bytes, _kineto_gz, _profile),
    Target("op-summary", "PROF_1/mindstudio_profiler_output/op_summary_20250109123456.csv", _CSV,
           _seeds("op_summary.csv"), lambda path: _profile(path.parent.parent),
           _whole_dump(Path("PROF_1")), real=("op_summary*.csv",)),
    Target("task-time", "PROF_1/mindstudio_profiler_output/task_time_20250109123456.csv", _CSV,
           _seeds("task_time.csv"), lambda path: _profile(path.parent.parent),
           _whole_dump(Path("PROF_1")), real=("task_time*.csv",)),
    Target("database", f"d_ascend_pt/{OUTPUT}/ascend_pytorch_profiler_0.db", mutations.of_database,
           _seeds("main.db"), lambda path: _profile(path.parent.parent),
           _whole_dump(Path("d_ascend_pt")), real=("ascend_pytorch_profiler*.db",)),
    Target("msprof-database", "PROF_1/msprof_20250109123456.db", mutations.of_database,
           _seeds("main.db"), _profile, _whole_dump(Path("PROF_1"))),
    Target("analysis-database", f"d_ascend_pt/{OUTPUT}/analysis.db", mutations.of_database,
           _seeds("analysis.db"), lambda path: _profile(path.parent.parent),
           beside={f"d_ascend_pt/{OUTPUT}/ascend_pytorch_profiler_0.db": _file("main.db")},
           real=("analysis.db",)),
    Target("summary", "summary", mutations.of_bytes, _summary_seed, _summary, pack=_sign),
    Target("source", "m.py", mutations.of_python, _seeds("source.txt"), _scan, real=("*.py",)),
    Target("diff", "x.patch", mutations.of_bytes, _seeds("changes.diff"), _diff, _verify_diff,
           beside={"m.py": _file("source.txt"), "ä.py": _file("source.txt")}, real=("*.patch",)),
    Target("report", "report.json", mutations.of_json, _report_seed, _report, _use_report,
           beside={"good.json": lambda: _report_seed()[0],
                   "baseline.json": lambda: _baseline_seed()[0]}),
    Target("baseline", "baseline.json", mutations.of_json, _baseline_seed, _baseline,
           _use_baseline, beside={"good.json": lambda: _report_seed()[0]}),
    Target("redact-metadata", "d_ascend_pt/profiler_metadata.json", mutations.of_json, _metadata,
           _redact, real=("profiler_metadata.json",)),
    Target("redact-trace", "d_ascend_pt/trace_view.json", mutations.of_json,
           _seeds("trace_view.json"), _redact),
    Target("redact-table", "d_ascend_pt/op_statistic.csv", _CSV, _seeds("op_statistic.csv"),
           _redact, real=("op_statistic.csv",)),
    Target("configuration", "pyproject.toml", mutations.of_bytes, _seeds("settings.toml"),
           _configuration, real=("pyproject.toml",)),
)  # fmt: skip
TARGETS: Mapping[str, Target] = {target.name: target for target in _ALL}
