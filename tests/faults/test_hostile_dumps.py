"""A dump is data from anybody: what never ends is refused, what steers a terminal is escaped."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from npufix.advisor.gate import baselines
from npufix.advisor.gate.baselines import BaselineError
from npufix.profiling_parsers.cluster.reading import summarise
from npufix.profiling_parsers.database.tables import Database
from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.special_files import kind_of
from npufix.profiling_parsers.trace import unpacked
from npufix.reports.encoding import encode

pytestmark = pytest.mark.fault(kind="hostile dumps of the tests")


@pytest.mark.parametrize("name", ["kernel_details.csv", "step_trace_time.csv"])
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    output = tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "kernel_details.csv").write_text("Name\n")
    (output / name).unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(output / name)
    else:
        (output / name).symlink_to("/dev/zero")
    with pytest.raises(DumpError, match=rf"{name} is {kind}, no file"):
        read_profile(output.parent)


def test_a_trace_that_unpacks_without_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "_FREE_BYTES", 1 << 20)
    path = tmp_path / "trace_view.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 21)) * 10)
    with unpacked.UnpackedFile(path) as file:
        assert len(file.read()) < 10 << 21
        assert file.damage == "it unpacks to more than 300 times its size"


def test_json_steers_no_terminal() -> None:
    text = "a\u202eb\x9bc\x7fd\u2028e\x1bé中"
    made = encode({text: text}).decode()
    assert made.isprintable()
    assert json.loads(made) == {text: text}


def test_a_link_into_the_system_is_not_followed(tmp_path: Path) -> None:
    dump = tmp_path / "rank_0_ascend_pt"
    dump.mkdir()
    (dump / "kernel_details.csv").write_text("Name\n")
    (dump / "profiler_metadata.json").symlink_to("/proc/self/status")  # as is one that waits
    with pytest.raises(DumpError, match="is a part of the system, no file"):
        read_profile(dump)
    assert "is a part of the system" in summarise(dump).problem


def test_shared_memory_holds_dumps_as_well() -> None:
    assert not kind_of("/dev/shm")  # noqa: S108 - only the name


def test_a_baseline_without_an_end_is_none() -> None:
    with pytest.raises(BaselineError, match="/dev/zero: far too large for a baseline"):
        baselines.read(Path("/dev/zero"))


def test_a_pipe_in_one_rank_of_many_is_not_waited_for(tmp_path: Path) -> None:
    host = tmp_path / "PROF_1" / "host"
    host.mkdir(parents=True)
    (tmp_path / "kernel_details.csv").write_text("Name\n")
    os.mkfifo(host / "info.json")
    _, (problem,) = read_environment(tmp_path)
    assert "is a pipe" in problem.what
    os.mkfifo(tmp_path / "step_trace_time.csv")
    assert "step_trace_time.csv is a pipe, no file" in summarise(tmp_path).problem


def test_a_column_that_is_computed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE STRING_IDS(id, value AS (hex(zeroblob(9))))")
        made.execute("INSERT INTO STRING_IDS VALUES(1)")
        made.commit()
    with closing(Database(path)) as database:
        assert database.texts()[1] == ""
