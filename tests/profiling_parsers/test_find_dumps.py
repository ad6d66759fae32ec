from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_dump import write_dump

from npufix.profiling_parsers.discover import DumpLocation, find_dumps
from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.reader import read_profile


@pytest.mark.parametrize("give", ["", "..", "ASCEND_PROFILER_OUTPUT"])
def test_a_dump_is_found_from_itself_above_and_inside(dump: Path, give: str) -> None:
    (found,) = find_dumps((dump / give).resolve())
    assert found == DumpLocation(dump, "ascend")
    assert len(read_profile(found).kernels) == 3


def test_ranks_come_in_order_wherever_they_lie(tmp_path: Path) -> None:
    for rank, folder in ((10, "a/x_ascend_pt"), (2, "b/c/d/y_ascend_pt"), (0, "z_ascend_pt")):
        root = write_dump(tmp_path / folder)
        (root / f"profiler_info_{rank}.json").write_text("{}")
    found = find_dumps(tmp_path)
    assert [each.path.name for each in found] == ["z_ascend_pt", "y_ascend_pt", "x_ascend_pt"]


def test_without_a_rank_the_numbers_of_the_path_count(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        write_dump(tmp_path / f"rank{number}_ascend_pt")
    names = [each.path.name for each in find_dumps(tmp_path)]
    assert names == ["rank1_ascend_pt", "rank9_ascend_pt", "rank10_ascend_pt"]


def test_files_copied_out_of_the_output_folder_are_a_dump(dump: Path, tmp_path: Path) -> None:
    bare = tmp_path / "copied" / "files"
    bare.parent.mkdir()
    (dump / "ASCEND_PROFILER_OUTPUT").rename(bare)
    assert find_dumps(tmp_path / "copied") == [DumpLocation(bare, "ascend")]
    assert len(read_profile(bare).kernels) == 3


def test_links_in_a_circle_end(dump: Path) -> None:
    (dump.parent / "again").symlink_to(dump.parent, target_is_directory=True)
    assert find_dumps(dump.parent) == [DumpLocation(dump, "ascend")]


def test_a_linked_rank_is_found(dump: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "rank0").symlink_to(dump, target_is_directory=True)
    assert find_dumps(job) == [DumpLocation(job / "rank0", "ascend")]


def fails(path: Path) -> DumpError:
    with pytest.raises(DumpError) as caught:
        find_dumps(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def test_no_such_path(tmp_path: Path) -> None:
    assert "no such file or folder" in fails(tmp_path / "nowhere").message


@pytest.mark.parametrize("name", ["trace_view.json", "kernel_details.csv", "op_statistic.csv"])
def test_a_file_of_a_dump_stands_for_the_dump(dump: Path, name: str) -> None:
    assert find_dumps(dump / "ASCEND_PROFILER_OUTPUT" / name) == [DumpLocation(dump, "ascend")]


def test_a_trace_without_kernels_beside_it_is_a_dump(dump: Path, tmp_path: Path) -> None:
    trace = tmp_path / "copied" / "trace_view.json"
    trace.parent.mkdir()
    (dump / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").rename(trace)
    (found,) = find_dumps(trace)
    assert read_profile(found).format == "trace"


def test_what_msprof_exported_is_found_from_everywhere(tmp_path: Path) -> None:
    output = tmp_path / "PROF_000001_20250109_ABC" / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    (output / "op_summary_20250109.csv").write_text("Op Name\n")
    for given in (tmp_path, output.parent, output, output / "op_summary_20250109.csv"):
        (found,) = find_dumps(given)
        assert found.kind == "msprof"
        assert found.path in (output.parent, output)


@pytest.mark.parametrize("name", ["rank{}.pt.trace.json", "worker-{}.json", "{}.json"])
def test_each_trace_of_torch_profiler_is_a_dump(tmp_path: Path, name: str) -> None:
    for rank in (10, 9):
        trace = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}
        (tmp_path / name.format(rank)).write_text(json.dumps(trace))
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "timeline.json").write_text('[{"ph": "X", "name": "x", "ts": 1, "dur": 1}]')
    found = [each.path.name for each in find_dumps(tmp_path)]
    assert found == [name.format(9), name.format(10)]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert "_ascend_pt" in fails(tmp_path / "notes.txt").remedy


def test_no_dump_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    assert "tensorboard_trace_handler" in fails(tmp_path).remedy
    (tmp_path / "logs" / "train.py").touch()
    assert fails(tmp_path).remedy.endswith(f"npufix scan {tmp_path}")


@pytest.mark.parametrize("raw", ["FRAMEWORK", "PROF_000001_20250109_ABC"])
def test_raw_data_that_was_not_analysed(tmp_path: Path, raw: str) -> None:
    dump = tmp_path / "host_1_ascend_pt"
    (dump / raw).mkdir(parents=True)
    error = fails(dump)
    call = f'from torch_npu.profiler.profiler import analyse; analyse("{dump}")'
    assert call in error.remedy
    assert "not analysed" in error.message


def test_only_the_db_export(tmp_path: Path) -> None:
    output = tmp_path / "host_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "ascend_pytorch_profiler_0.db").touch()
    error = fails(tmp_path / "host_1_ascend_pt")
    assert "only the db export" in error.message
    assert 'export_type=["text"]' in error.remedy


def test_an_output_folder_without_kernels(tmp_path: Path) -> None:
    (tmp_path / "host_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
    error = fails(tmp_path)
    assert "kernel_details.csv" in error.message
    assert "ProfilerActivity.NPU" in error.remedy


def test_a_folder_that_may_not_be_read(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    error = fails(dump.parent)
    assert "Permission denied" in error.message
    assert "readable" in error.remedy


def test_a_dump_in_the_current_folder(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dump / "ASCEND_PROFILER_OUTPUT")
    (dump / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text("Name\n")
    (dump / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").unlink()
    with pytest.raises(DumpError, match="no column"):
        read_profile(Path())


def test_a_rank_that_fails_stays_in_the_list_and_says_why(dump: Path) -> None:
    raw = dump.parent / "other_ascend_pt"
    (raw / "FRAMEWORK").mkdir(parents=True)
    assert DumpLocation(raw, "unreadable") in find_dumps(dump.parent)
    with pytest.raises(DumpError, match="not analysed"):
        read_profile(raw)


@pytest.mark.parametrize(
    ("name", "told", "remedy"),
    [
        ("out/chrome_tracing.json", "msServiceProfiler", "acl_task_time"),
        ("0423-0852/ms_service_7.db", "msServiceProfiler", "acl_task_time"),
        ("output/batch_summary.csv", "msServiceProfiler", "acl_task_time"),
        ("copied/op_statistic_20261128.csv", "without the time of each kernel", "*_ascend_pt"),
        ("profiler/aicore_intermediate_0_type.csv", "MindSpore before 2.4", "_ascend_ms"),
        ("OPPROF_20250109_AB/OpBasicInfo.csv", "msprof op", "torch_npu.profiler"),
    ],
)
def test_what_another_tool_wrote_is_named(
    tmp_path: Path, name: str, told: str, remedy: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    for given in (tmp_path, file):
        error = fails(given)
        assert told in error.message
        assert remedy in error.remedy


def test_kernels_below_what_another_tool_wrote_are_read(dump: Path) -> None:
    (dump.parent / "chrome_tracing.json").write_text("{}")
    assert find_dumps(dump.parent) == [DumpLocation(dump, "ascend")]


@pytest.mark.parametrize(
    ("folder", "call"),
    [
        ("x_ascend_ms/FRAMEWORK", "from mindspore.profiler.profiler import analyse"),
        ("x_ascend_pt/FRAMEWORK", "from torch_npu.profiler.profiler import analyse"),
        ("PROF_000001_20250109_ABC/device_0", "msprof --export=on"),
    ],
)
def test_raw_data_is_analysed_by_who_recorded_it(tmp_path: Path, folder: str, call: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(DumpError) as caught:
        find_dumps(tmp_path)
    assert "raw data" in caught.value.message
    assert call in caught.value.remedy
