"""What fuzzing has found, each with the smallest input: nothing of it comes back."""

from __future__ import annotations

import gc
import io
import resource
import signal
import sqlite3
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from npufix.advisor.console.speaking import say
from npufix.advisor.diagnose.diagnosis import diagnose
from npufix.advisor.verify.diff_reading import read_diff
from npufix.profiling_parsers.attribution.call_stack import parse_call_stack
from npufix.profiling_parsers.attribution.module_hierarchy import module_path
from npufix.profiling_parsers.cluster import summary
from npufix.profiling_parsers.database import cann_api
from npufix.profiling_parsers.database.communication import read_analysed
from npufix.profiling_parsers.database.query import Query
from npufix.profiling_parsers.database.signals import _read_frequency
from npufix.profiling_parsers.database.tables import Database
from npufix.profiling_parsers.database.texts import Texts
from npufix.profiling_parsers.kineto.names import short_name
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.text.communication_json import read_communication
from npufix.profiling_parsers.text.kernel_details import read_kernel_details
from npufix.profiling_parsers.text.op_statistic import read_op_statistic
from npufix.profiling_parsers.text.side_tables import read_memory_record, read_operator_memory
from npufix.profiling_parsers.text.trace_kernels import kernel_type
from npufix.profiling_parsers.trace.json_stream import EventStream
from npufix.reports.data.tables import Column, Table
from npufix.reports.formats.xlsx import write_workbook
from npufix.reports.language.terminal import Console
from npufix.reports.markdown.report import to_markdown
from npufix.reports.report import SCHEMA_VERSION, ReportError, from_json
from npufix.reports.terminal.report import show

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npufix.profiling_parsers.cluster.summary import Summary


def signed(made: Summary, old: bytes = b"", new: bytes = b"") -> bytes:
    content = summary.encode(made)[16:].replace(old, new)
    return summary._digest(content) + content


def test_a_kept_summary_with_a_text_that_is_none() -> None:
    data = signed(summary.Summary(host="hostname"), b"hostname", b"\xa0ostname")
    with pytest.raises(summary.SummaryError, match=r"(?i)utf-8"):
        summary.decode(data)


def test_a_kept_summary_with_numbers_in_place_of_words() -> None:
    columns = dict.fromkeys(summary.TABLES["groups"], b"")
    made = summary.Summary(tables={"groups": summary.Table(numbers=columns)})
    with pytest.raises(summary.SummaryError, match="other columns"):
        summary.decode(signed(msgspec.structs.replace(made)))


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
    with pytest.raises(ReportError, match=r"(?i)not a report: .*utf-8"):
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


@pytest.mark.filterwarnings("error")  # nobody wants to read one below a report
@pytest.mark.parametrize("number", ["1e308", "-1e308", "1e39"])
def test_a_number_that_nobody_means(number: str, tmp_path: Path) -> None:
    header = "Name,Type,Accelerator Core,Start Time(us),Duration(us),aiv_vec_ratio"
    kernels = tmp_path / "kernel_details.csv"
    kernels.write_text(f"{header}\nMul,Mul,AI_CORE,1736408883000852.603,x9,0.5\nMul,Mul,AI_CORE,"
                       f"1736408883000852.603,9,{number}\n")  # fmt: skip
    assert read_kernel_details(kernels).frame["bound_ratio"].isna().tolist() == [True]
    totals = tmp_path / "op_statistic.csv"
    totals.write_text(f"OP Type,Core Type,Count,Total Time(us),Ratio(%)\nA,B,1,{number},{number}\n")
    rows, (problem,) = read_op_statistic(totals)
    assert rows.empty
    assert problem.damaged


@pytest.mark.parametrize("broken", ["start_timestamp", "transit_time"])
def test_a_collective_of_a_database_below_nothing(broken: str, tmp_path: Path) -> None:
    path = tmp_path / "analysis.db"
    numbers = ("start_timestamp", "elapse_time", "transit_time", "wait_time",
               "synchronization_time", "idle_time")  # fmt: skip
    with closing(sqlite3.connect(path)) as made:
        words = "step TEXT, type TEXT, hccl_op_name TEXT, group_name TEXT"
        made.execute(f"CREATE TABLE CommAnalyzerTime({words}, {', '.join(numbers)})")
        for wrong in ("idle_time", broken):  # what is left of two times may be negative
            values = ", ".join("-1" if name == wrong else "1" for name in numbers)
            made.execute(f"INSERT INTO CommAnalyzerTime VALUES('', '', 'a', 'b', {values})")
        made.commit()
    with closing(Database(path)) as database:
        collectives, _, _ = read_analysed(database)
        assert collectives["idle_ns"].tolist() == [-1_000_000]
        assert any("1 of 2 rows" in problem.what for problem in database.problems)


def test_a_clock_that_runs_backwards(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE AICORE_FREQ(deviceId, timestampNs, freq)")
        rows = [(0, 10, 1650), (0, 11, -2_147_483_648), (0, 1 << 62, 800), (-9, 10, 1650)]
        made.executemany("INSERT INTO AICORE_FREQ VALUES(?, ?, ?)", rows)
        made.commit()
    with closing(Database(path)) as database:
        assert _read_frequency(database)["mhz"].tolist() == [1650.0]


def test_calls_that_take_longer_than_numbers_reach() -> None:
    calls = {"start_ns": np.ones(5), "end_ns": np.full(5, 1 << 61), "level": np.zeros(5),
             "name": np.zeros(5)}  # fmt: skip
    totals = cann_api._totals({key: column.astype(np.int64) for key, column in calls.items()})
    apis = cann_api._name_calls([totals], Texts({}), Texts({}))
    assert apis["total_ns"].tolist() == [1 << 62]


def test_a_short_record_at_the_end_of_its_page_beside_longer_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as made:
        made.executescript("CREATE TABLE t(a); INSERT INTO t VALUES(5)")
        for number in range(100):
            made.execute(f"ALTER TABLE t ADD COLUMN c{number}")
        made.executescript("INSERT INTO t(a) VALUES(6)")
    with closing(Database(path)) as database:
        assert database.columns(Query("t", {"a": ("a",)}))["a"].tolist() == [5, 6]


def test_what_a_trace_says_in_other_words(tmp_path: Path) -> None:
    def event(name: str, **more: object) -> dict[str, object]:
        times = {"ts": "1736408883000852.5", "dur": 30}
        return {"ph": "X", "name": name, "pid": 7, "tid": 3, **times, **more}

    task = {"args": {"Task Type": "AI_CORE"}}
    events = [
        {"ph": "M", "name": "process_labels", "pid": 7, "args": {"labels": "NPU " + "9" * 5000}},
        event("aten::mul", cat="cpu_op", args={"Sequence number": "none"}),
        event("Mul", **task),
        event("Add", **{**task, "dur": 4e9}),  # more than an hour
        event("Sub", **{**task, "ts": "-5.000"}),
    ]
    path = tmp_path / "trace_view.json"
    path.write_bytes(msgspec.json.encode(events))
    profile = read_profile(path)
    assert profile.kernels["name"].tolist() == ["Mul"]
    assert profile.host_ops["sequence"].tolist() == [-1]
    assert sum(problem.damaged for problem in profile.problems) == 2


def test_a_report_of_somebody_else_steers_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    header = "Name,Type,Accelerator Core,Start Time(us),Duration(us)"
    path.write_text(f"{header}\nMul,Mul,AI_CORE,1736408883000852.603,9\n")
    made = diagnose(tmp_path, None).report
    first = msgspec.structs.replace(made.hot_operators[0], bound="\x1b[31m\u202e")
    hostile = msgspec.structs.replace(made, tool="\x9b31m", hot_operators=[first])
    out = io.StringIO()
    show(hostile, Console(file=out, width=200, color_system=None), details=True)
    assert "?[31m?-bound" in out.getvalue()
    shown = out.getvalue() + to_markdown(hostile)
    assert not set(shown) & set("\x1b\x9b\u202e")


_LONG = 200_000
"""A pattern that goes back and forth over it is not done before anybody loses patience."""


@pytest.mark.parametrize(
    ("reads", "text", "found"),
    [
        (kernel_type, "aclnn" + "_" * _LONG + "!", None),
        (kernel_type, "A" + "1" * _LONG + "!", None),
        (kernel_type, "GatherV282_MemSet", "MemSet"),
        (short_name, "_ZN" + "9" * _LONG, None),
        (parse_call_stack, " " * _LONG + "x" + " " * _LONG + "y", ()),
        (module_path, "a" * _LONG, ""),
        (lambda text: len(list(EventStream(io.BytesIO(text.encode())))), " " * _LONG + "x", 0),
    ],
)
def test_a_text_that_is_made_to_be_slow(
    reads: Callable[[str], object], text: str, found: object
) -> None:
    assert reads(text) == (text if found is None else found)
