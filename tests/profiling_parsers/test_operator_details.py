from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from damage import check_any_bytes, check_every_column, check_nothing_to_read, read_damaged

from npufix.profiling_parsers.profile import CallSite
from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.text import operator_details
from npufix.profiling_parsers.text.operator_details import read_operator_details

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (
    b"Name,Input Shapes,Call Stack,Host Self Duration(us),Host Total Duration(us),"
    b"Device Self Duration(us),Device Total Duration(us),Device Self Duration With AICore(us),"
    b"Device Total Duration With AICore(us)\n"
)
STACK = b'"/home/me/model.py(12): forward;\n/home/me/train.py(7): main;\n<string>(1): <module>"'
ROWS = (
    b'aten::mul,"4,128;\n128;\n",' + STACK + b",132.09,140,10.5,10.5,0,0\n",
    b'aten::mul,"4,128;\n128;\n",' + STACK + b",1,2,20.25,20.25,20.25,20.25\n",
    b'aten::empty,";\n;\n",,7.5,7.5,0,496.8508203,0,496.8508203\n',
)
OPERATORS = HEADER + b"".join(ROWS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "operator_details.csv"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("block", [1200, 1203, 1206, 1209, 1212])
def test_rows_and_line_ends_across_blocks(
    path: Path, line_end: bytes, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_details, "_BLOCK_BYTES", block)
    path.write_bytes((HEADER + b"".join(ROWS) * 300).replace(b"\n", line_end))
    totals, stacks, problems = read_operator_details(path)
    assert problems == []
    assert totals["host_self_ns"].tolist() == [133_090 * 300, 7_500 * 300]
    assert len(stacks) == 1


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_the_calls_of_one_operator_at_one_place_are_one_row(path: Path, line_end: bytes) -> None:
    path.write_bytes(OPERATORS.replace(b"\n", line_end))
    totals, stacks, problems = read_operator_details(path)
    assert problems == []
    assert totals.dtypes.astype(str).to_dict() == SCHEMAS["operator_totals"]
    assert totals.to_numpy().tolist() == [
        ["aten::mul", "4,128;128;", 0, 133_090, 30_750],
        ["aten::empty", ";;", -1, 7_500, 0],
    ]
    assert stacks == (
        (
            CallSite("/home/me/model.py", 12, "forward"),
            CallSite("/home/me/train.py", 7, "main"),
            CallSite("<string>", 1, "<module>"),
        ),
    )


def test_a_cut_anywhere_is_told_and_gives_the_rows_before(path: Path) -> None:
    ends = [len(HEADER + b"".join(ROWS[:count])) for count in range(len(ROWS) + 1)]
    borders = {end + by for end in ends for by in (-2, -1, 0, 1, 2)}
    for cut in sorted({*range(0, len(OPERATORS), 7), *borders} & {*range(len(OPERATORS))}):
        tables, told = read_damaged(read_operator_details, path, OPERATORS[:cut])
        assert told or cut in ends[1:], OPERATORS[:cut]
        if tables:
            whole = sum(cut >= end for end in ends[1:])
            host = tables[0]["host_self_ns"].sum()
            # The columns that are used end before the last: that may be cut.
            assert host in (sum([132_090, 1_000, 7_500][:n]) for n in (whole, whole + 1))


def test_a_row_without_a_time_is_left_out_and_told(path: Path) -> None:
    path.write_bytes(OPERATORS.replace(b",132.09,", b",N/A,"))
    totals, _, (problem,) = read_operator_details(path)
    assert totals["host_self_ns"].sum() == 8_500
    assert "1 of 3 rows" in problem.what


def test_a_quote_that_is_lost_is_told(path: Path) -> None:
    for position in [at for at in range(len(HEADER), len(OPERATORS)) if OPERATORS[at] == ord('"')]:
        damaged = OPERATORS[:position] + OPERATORS[position + 1 :]
        _, told = read_damaged(read_operator_details, path, damaged)
        assert told, damaged


def test_a_name_that_is_no_utf8_is_told(path: Path) -> None:
    path.write_bytes(OPERATORS.replace(b"aten::empty", b"aten::\xc3\x28"))
    totals, _, (problem,) = read_operator_details(path)
    assert len(totals) == 2
    assert "UTF-8" in problem.what


def test_zero_bytes_from_one_row_into_another_are_told(path: Path) -> None:
    start = OPERATORS.index(b"train.py")
    end = OPERATORS.index(b"train.py", start + 1)
    path.write_bytes(OPERATORS[:start] + b"\0" * (end - start) + OPERATORS[end:])
    totals, _, (problem,) = read_operator_details(path)
    assert totals["host_self_ns"].sum() == 8_500
    assert "zero bytes" in problem.what


def test_damage(path: Path) -> None:
    check_every_column(read_operator_details, path, OPERATORS)
    check_nothing_to_read(read_operator_details, path, OPERATORS)
    check_any_bytes(read_operator_details, path, OPERATORS)


def test_memory_does_not_grow_with_the_file(path: Path) -> None:
    with path.open("wb") as file:
        file.write(HEADER)
        for _ in range(200):
            file.write(b"".join(ROWS) * 3_000)
    script = (
        "import sys, resource; from pathlib import Path;"
        "from npufix.profiling_parsers.text.operator_details import read_operator_details as read;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "totals, _, problems = read(Path(sys.argv[1])); assert not problems;"
        "assert totals['host_self_ns'].sum() == 200 * 3000 * 140590;"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) * 1024 < path.stat().st_size * 0.7


def test_a_real_one(alexnet: Path) -> None:
    file = alexnet / "ASCEND_PROFILER_OUTPUT" / "operator_details.csv"
    totals, stacks, problems = read_operator_details(file)
    theirs = pd.read_csv(file)
    assert problems == []
    for ours, column in [
        ("host_self_ns", "Host Self Duration(us)"),
        ("device_self_ns", "Device Self Duration(us)"),
    ]:
        assert totals[ours].sum() / 1e3 == pytest.approx(theirs[column].sum())
    assert len(stacks) == theirs["Call Stack"].nunique()
    assert all("/" in stack[0].path for stack in stacks)
