"""What fuzzing has found, each with the smallest input: nothing of it comes back."""

from __future__ import annotations

import gc
import io
import resource
import signal
import tempfile
from typing import TYPE_CHECKING

import msgspec
import pytest

from npufix.advisor.diagnosis import diagnose
from npufix.advisor.diff_reading import read_diff
from npufix.advisor.speaking import say
from npufix.profiling_parsers.cluster import summary
from npufix.profiling_parsers.text.communication_json import read_communication
from npufix.profiling_parsers.text.kernel_details import read_kernel_details
from npufix.profiling_parsers.text.memory_files import read_memory_record, read_operator_memory
from npufix.reports.markdown import to_markdown
from npufix.reports.report import SCHEMA_VERSION, ReportError, from_json
from npufix.reports.spreadsheet import write_workbook
from npufix.reports.tables import Column, Table

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.cluster.summary import Summary


def signed(made: Summary, old: bytes = b"", new: bytes = b"") -> bytes:
    content = summary.encoded(made)[16:].replace(old, new)
    return summary._digest(content) + content


def test_a_kept_summary_with_a_text_that_is_none() -> None:
    data = signed(summary.Summary(host="hostname"), b"hostname", b"\xa0ostname")
    with pytest.raises(summary.SummaryError, match="utf-8"):
        summary.decoded(data)


def test_a_kept_summary_with_numbers_in_place_of_words() -> None:
    columns = dict.fromkeys(summary.TABLES["groups"], b"")
    made = summary.Summary(tables={"groups": summary.Table(numbers=columns)})
    with pytest.raises(summary.SummaryError, match="other columns"):
        summary.decoded(signed(msgspec.structs.replace(made)))


@pytest.mark.parametrize("wait", ["-1", "9e15", "nan", "4e9"])
def test_a_wait_that_is_none(wait: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    header = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us)"
    path.write_text(f"{header}\nMul,Mul,AI_CORE,1736408883000852.603,9,{wait}\n")
    assert read_kernel_details(path).frame["wait_ns"].tolist() == [0]


def test_a_total_of_memory_below_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory_record.csv"
    header = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type"
    path.write_text(f"{header}\nPTA,1736408883000852.603,-5,-9,NPU:0\n")
    memory, _ = read_memory_record(path)
    assert memory[["allocated_bytes", "reserved_bytes"]].to_numpy().tolist() == [[-1, -1]]


def test_a_block_that_was_allocated_before_time_began(tmp_path: Path) -> None:
    path = tmp_path / "operator_memory.csv"
    header = "Name,Size(KB),Allocation Time(us),Duration(us)"
    path.write_text(f"{header}\naten::mul,1,-1,2\naten::add,1,1736408883000852.603,2\n")
    blocks, (problem,) = read_operator_memory(path)
    assert blocks["name"].tolist() == ["aten::add"]
    assert problem.damaged


@pytest.mark.parametrize("broken", ["Transit Time(ms)", "Transit Size(MB)", "Bandwidth(GB/s)"])
def test_a_collective_that_moves_less_than_nothing(broken: str, tmp_path: Path) -> None:
    times = ("Elapse", "Transit", "Wait", "Synchronization", "Idle")
    told = {"Start Timestamp(us)": 1736408883000852.5, **{f"{t} Time(ms)": 1.0 for t in times}}
    link = {"Transit Size(MB)": 1, "Transit Time(ms)": 1, "Bandwidth(GB/s)": 1}
    link |= {"Large Packet Ratio": 0, broken: -1}
    parts = {"Communication Time Info": told, "Communication Bandwidth Info": {"HCCS": link}}
    path = tmp_path / "communication.json"
    path.write_bytes(msgspec.json.encode({"step1": {"collective": {"hcom@1": parts}}}))
    collectives, transports, (problem,) = read_communication(path)
    assert (len(collectives), len(transports)) == (1, 0)
    assert "malformed" in problem.what


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of XlsxWriter
@pytest.mark.parametrize("most", [0, 1000])
def test_a_workbook_whose_temporary_files_find_no_room(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xlsxwriter")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = Table("steps", (Column("step"),), [("x" * 50,)] * 200)
    limit, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.SIG_IGN
    before = signal.signal(signal.SIGXFSZ, ignored)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_workbook([table], "title", io.BytesIO())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_is_no_text() -> None:
    with pytest.raises(ReportError, match="not a report: 'utf-8'"):
        from_json(b'{"schema": %d, "tool": "\xff"}' % SCHEMA_VERSION)


@pytest.mark.parametrize("name", [rb"\644", rb"\8", rb"\9x"])
def test_a_diff_with_a_byte_that_is_none(name: bytes) -> None:
    (file,) = read_diff(b'diff --git "a/%b" "b/%b"\n' % (name, name))
    assert (file.old_path, file.new_path) == tuple(f"{side}/{name[1:].decode()}" for side in "ab")


def test_a_line_on_stderr_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("npufix: a\x1b[31m\x9bb.csv:\ttorn\nagain")
    assert capsys.readouterr().err == "npufix: a?[31m?b.csv:?torn\nagain\n"


def test_neither_core_nor_code_steers_who_reads_the_markdown(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    header = "Name,Type,Accelerator Core,Start Time(us),Duration(us)"
    path.write_text(f"{header}\nMul,Mul,AI\x1b[31m|<b>,1736408883000852.603,9\n")
    made = diagnose(tmp_path, None).report
    hostile = "a = 1\rb\n```\n<script>\x1b[31m\n"  # a report may come from somebody else
    shown = to_markdown(msgspec.structs.replace(made, collect=hostile))
    assert "```python\na = 1?b\n\n<script>?[31m\n```" in shown
    assert "AI?\\[31m\\|&lt;b&gt; |" in shown
    assert "\x1b" not in shown
