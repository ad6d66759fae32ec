"""Whatever happened to the file: a profile with problems, or an error that says what to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_db import (
    MAIN,
    collective_tables,
    full_tables,
    small_tables,
    split_tables,
    write_database,
    write_db_dump,
)
from small_dump import write_dump

from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.signals import SCHEMAS

if TYPE_CHECKING:
    from pathlib import Path

    from small_db import Tables

    from npufix.profiling_parsers.profile import Profile

WIDE = {f"Filler{number}": [{"a": "x" * 3000}] * 3 for number in range(3)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    dump = write_db_dump(tmp_path_factory.mktemp("whole"), {**WIDE, **full_tables()})
    return (dump / "ASCEND_PROFILER_OUTPUT" / MAIN).read_bytes()


def read(root: Path) -> Profile | DumpError:
    try:
        return read_profile(root)
    except DumpError as error:
        return error


def read_bytes(root: Path, content: bytes) -> Profile | DumpError:
    file = root / "ASCEND_PROFILER_OUTPUT" / MAIN
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    result = read(root)
    if isinstance(result, DumpError):
        assert "\n" not in result.message
        assert result.remedy
    else:
        assert all("\n" not in problem.what and problem.remedy for problem in result.problems)
        assert len(result.kernels)
    return result


@given(st.data())
@settings(max_examples=40)
def test_cut_at_any_byte(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(whole) - 1))
    error = read_bytes(tmp_path_factory.mktemp("cut"), whole[:cut])
    assert isinstance(error, DumpError)
    assert "analyse(" in error.remedy


@given(st.data())
@settings(max_examples=40)
def test_bytes_that_changed(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    read_bytes(tmp_path_factory.mktemp("changed"), bytes(content))


@given(st.data())
@settings(max_examples=30)
def test_pages_that_are_lost(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    page = 4096 * data.draw(st.integers(1, len(whole) // 4096 - 1))
    fill = data.draw(st.sampled_from([b"\0", b"\xff", b"\x0d", b"\x05"]))
    content = whole[:page] + fill * 4096 + whole[page + 4096 :]
    root = tmp_path_factory.mktemp("lost")
    result = read_bytes(root, content)
    if not isinstance(result, DumpError) and not any(each.damaged for each in result.problems):
        untouched = read_bytes(root, whole)
        assert not isinstance(untouched, DumpError)
        for name in ("kernels", "host_ops"):
            mine, theirs = getattr(result, name), getattr(untouched, name)
            pd.testing.assert_frame_equal(mine, theirs)
        assert all(
            len(getattr(result.signals, name)) == len(getattr(untouched.signals, name))
            for name in SCHEMAS
        )


@given(st.data())
@settings(max_examples=40)
def test_any_column_or_table_may_be_missing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tables = full_tables()
    for _ in range(data.draw(st.integers(1, 3))):
        table = data.draw(st.sampled_from(sorted(tables)))
        columns = [*tables[table][0], None]
        column = data.draw(st.sampled_from(columns))
        if column is None or len(columns) == 2:
            del tables[table]
        else:
            for row in tables[table]:
                row.pop(column)
    root = tmp_path_factory.mktemp("missing")
    write_database(root / "ASCEND_PROFILER_OUTPUT" / MAIN, tables)
    result = read(root)
    if isinstance(result, DumpError):
        assert "no kernels" in result.message
    else:
        assert len(result.kernels) in {1, 2, 3}
        assert (result.kernels["stack"] < len(result.stacks)).all()


@given(st.data())
@settings(max_examples=40)
def test_cells_of_any_kind(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tables = small_tables()
    extreme = [0, -1, -(2**63), 2**63 - 1, 2**62, 1e300, -1e300, "", "9" * 30, "x", b"\xff", None]
    cells = st.one_of(st.sampled_from(extreme), st.integers(-(2**63), 2**63 - 1))
    for _ in range(data.draw(st.integers(1, 6))):
        rows = tables[data.draw(st.sampled_from(sorted(tables)))]
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(cells)
    root = tmp_path_factory.mktemp("cells")
    write_database(root / "ASCEND_PROFILER_OUTPUT" / MAIN, tables)
    result = read(root)
    if isinstance(result, DumpError):
        assert "no kernels" in result.message
    else:
        assert (result.kernels["duration_ns"] >= 0).all()
        assert (result.host_ops["duration_ns"] >= 0).all()


def analysis_tables() -> Tables:
    return {**split_tables(), **collective_tables()}


def read_with_analysis(root: Path, tables: Tables) -> Profile:
    dump = write_db_dump(root, full_tables())
    path = dump / "ASCEND_PROFILER_OUTPUT" / "analysis.db"
    path.unlink()
    write_database(path, tables)
    return read_profile(dump)


@given(st.data())
@settings(max_examples=30)
def test_analysis_of_any_kind(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tables = analysis_tables()
    extreme = [0, -1, -(2**63), 2**63 - 1, 1e300, -1e300, 9e15, "", "x", b"\xff", None]
    for _ in range(data.draw(st.integers(1, 4))):
        rows = tables[data.draw(st.sampled_from(sorted(tables)))]
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        key = data.draw(st.sampled_from(sorted(row)))
        row[key] = data.draw(st.sampled_from(extreme))
    profile = read_with_analysis(tmp_path_factory.mktemp("cells"), tables)
    assert len(profile.kernels) == 3
    assert len(profile.steps) == 1
    for name, schema in SCHEMAS.items():
        frame = getattr(profile.signals, name)
        assert frame.dtypes.astype(str).to_dict() == dict(schema)


@pytest.mark.parametrize("table", sorted(analysis_tables()))
def test_any_column_of_analysis_may_be_missing(tmp_path: Path, table: str) -> None:
    for column in analysis_tables()[table][0]:
        tables = analysis_tables()
        for row in tables[table]:
            del row[column]
        profile = read_with_analysis(tmp_path / column, tables)
        assert len(profile.steps) == 1
        unread = {
            "package_size",
            "count",
            *({"bubble"} if table == "StepTraceTime" else ()),
        }
        assert any(each.damaged for each in profile.problems) == (column not in unread)


@given(st.data())
@settings(max_examples=30)
def test_bytes_of_analysis_that_changed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    dump = write_db_dump(tmp_path_factory.mktemp("changed"), full_tables())
    path = dump / "ASCEND_PROFILER_OUTPUT" / "analysis.db"
    path.unlink()
    write_database(path, analysis_tables())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
    path.write_bytes(content[:cut])
    profile = read_profile(dump)
    assert len(profile.kernels) == 3
    assert len(profile.steps)
    assert all("\n" not in problem.what and problem.remedy for problem in profile.problems)


@pytest.mark.parametrize("content", [b"x", b"SQLite format 3\0", b"<html>404</html>" * 99])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    error = read_bytes(tmp_path, content)
    assert isinstance(error, DumpError)
    assert MAIN in error.message


def test_a_database_of_something_else(tmp_path: Path) -> None:
    write_database(tmp_path / "ASCEND_PROFILER_OUTPUT" / MAIN, {"Users": [{"name": "x"}]})
    with pytest.raises(DumpError, match="no table TASK, COMPUTE_TASK_INFO, COMMUNICATION_OP"):
        read_profile(tmp_path)


def test_a_broken_database_beside_a_text_export(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "host_1_ascend_pt")
    profile = read_bytes(dump, b"x" * 5000)
    assert not isinstance(profile, DumpError)
    (problem,) = profile.problems
    assert problem.damaged
    assert "the text export beside it is read instead" in problem.what
    assert len(profile.op_statistic) == 1


def test_a_broken_split_is_a_problem(tmp_path: Path) -> None:
    dump = write_db_dump(tmp_path)
    (dump / "ASCEND_PROFILER_OUTPUT" / "analysis.db").write_bytes(b"x" * 500)
    (problem,) = read_profile(dump).problems
    assert problem.where == "analysis.db"
    assert problem.damaged


def test_names_and_texts_that_are_no_utf8(tmp_path: Path) -> None:
    dump = write_db_dump(tmp_path)
    path = dump / "ASCEND_PROFILER_OUTPUT" / MAIN
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE STRING_IDS SET value = CAST(x'ff41' AS TEXT) WHERE id = 0")
        connection.execute('CREATE TABLE "a""; DROP TABLE TASK; --" ("x"" y")')
        connection.commit()
    profile = read_profile(dump)
    assert profile.problems == ()
    assert any("\ufffdA" in name for name in profile.host_ops["name"].cat.categories) or any(
        "\ufffdA" in text for text in profile.host_ops["input_dims"].cat.categories
    )
