"""What is broken in one rank of a job is said, with the exit code that the rank has alone."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from benchmarks.generator.dump import write_ranks
from benchmarks.generator.parameters import Parameters
from cluster_dumps import dump_paths, output, write_cluster

from npufix.advisor.cluster import checking, tasks
from npufix.advisor.cluster.looking import Looking, Ways
from npufix.advisor.cluster.reporting import rank_problems
from npufix.advisor.commands.cli import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from npufix.advisor.cluster.looking import Ranks

_KERNELS, _TRACE = "kernel_details.csv", "trace_view.json"
_BROKEN = 3
"""Which of six; not the one that is diagnosed."""
_REPEATED = 7
pytestmark = pytest.mark.xdist_group("checking")  # they share one dear fixture


def look(folder: Path, **ways: bool) -> Ranks:
    with closing(Looking(Ways(compare=False, **ways))) as looking:
        return looking.ranks(dump_paths(folder), None)


def diagnose(path: Path, *options: str) -> int:
    """Return the exit code."""
    return int(cli.main(["diagnose", str(path), *options], standalone_mode=False) or 0)


def in_rows(change: Callable[[list[list[str]]], list[list[str]]]) -> Callable[[bytes], bytes]:
    """Return a change of a file that changes its rows, the header among them."""

    def changed(content: bytes) -> bytes:
        text = io.StringIO(newline="")
        rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
        csv.writer(text, lineterminator="\n").writerows(change(rows))
        return text.getvalue().encode()

    return changed


def with_cells(column: str, value: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """Return a change of the cells of a column in some rows."""

    def changed(rows: list[list[str]]) -> list[list[str]]:
        at = rows[0].index(column)
        for row in rows[9:14]:
            row[at] = value(row[at])
        return rows

    return in_rows(changed)


def break_rank(folder: Path, name: str, broken: Callable[[bytes], bytes]) -> Path:
    dump = dump_paths(folder)[_BROKEN]
    file = output(dump) / name
    file.write_bytes(broken(file.read_bytes()))
    return dump


repeat = in_rows(lambda rows: rows + rows[9 : 9 + _REPEATED])


@pytest.mark.parametrize(
    ("name", "broken", "said"),
    [
        (_KERNELS, repeat, "7 of 247 rows repeat an earlier one"),
        (_KERNELS, with_cells("Step Id", lambda _: "977"), "5 of 240 kernels are of steps that"),
        (_KERNELS, with_cells("Duration(us)", "-{}".format), "5 of 240 rows are malformed"),
        (_KERNELS, in_rows(lambda rows: rows[:20] + rows[90:]), "Types disagree with the totals"),
        ("operator_memory.csv", lambda content: content[: len(content) // 2], "breaks off"),
        (_TRACE, lambda content: content[: len(content) // 2], "breaks off"),
        (_TRACE, lambda _: b"", "breaks off"),
        (_TRACE, lambda _: b"\0" * 99, "breaks off"),
    ],
    ids=["repeated", "foreign steps", "negative", "rows lost", "memory", "cut", "empty", "zeros"],
)
def test_what_is_broken_in_a_rank_is_said_of_the_job_as_of_the_rank_alone(
    whole_job: Path,
    name: str,
    broken: Callable[[bytes], bytes],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dump = break_rank(whole_job, name, broken)
    assert diagnose(dump) == 2
    capsys.readouterr()
    for _ in range(2):  # read, and known from before
        assert diagnose(whole_job, "--json") == 2
        report = json.loads(capsys.readouterr().out)
        (told,) = (each for each in report["problems"] if each["damaged"])
        assert told["where"] == str(dump)
        assert name in told["what"]
        assert said in told["what"]
        assert [bool(row["problem"]) for row in report["ranks"]].index(True) == _BROKEN


@pytest.fixture(scope="module")
def sound_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a job of which each rank has a trace and tables beside the usual ones.

    Nothing is wrong with it, which its own folder of caches knows.
    """
    parameters = Parameters(kernels=240, steps=4, ranks=6, version="newest")
    files = (
        "step_trace_time.csv", "op_statistic.csv", "communication.json", _KERNELS, _TRACE,
        "operator_memory.csv",
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("sound") / "whole"
    folder.mkdir()
    write_ranks(parameters, folder, only=files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder.parent / "caches"))
        assert diagnose(folder) == 0
    return folder


@pytest.fixture
def whole_job(sound_job: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the job, known already; what a test breaks in a rank is mended for the next one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(sound_job.parent / "caches"))
    folder = output(dump_paths(sound_job)[_BROKEN])
    sound = {file: file.read_bytes() for file in folder.iterdir()}
    yield sound_job
    for file, content in sound.items():
        if file.read_bytes() != content:
            file.write_bytes(content)


@pytest.mark.parametrize(
    "trace",
    [
        b"[]", b'[{"name": "a", "args": {"Input Dims": [[1, 2]]}}]\n', b'[{"name": "a"}\n]\n',
        b'\xef\xbb\xbf[{"name": "a"}]', b'{"traceEvents": [{"name": "a"}], "distributedInfo": {}}',
    ],
)  # fmt: skip
def test_a_trace_with_an_end_is_whole(own_job: Path, trace: bytes) -> None:
    for dump in dump_paths(own_job):
        (output(dump) / _TRACE).write_bytes(trace)
    assert not any(summary.problem for summary in look(own_job).summaries)


def test_a_rank_that_breaks_after_it_was_read_is_read_again(own_job: Path) -> None:
    assert not any(summary.problem for summary in look(own_job).summaries)
    dump = break_rank(own_job, _KERNELS, repeat)
    told = [summary.problem for summary in look(own_job).summaries]
    assert [bool(what) for what in told].index(True) == _BROKEN
    file = output(dump) / _KERNELS
    file.write_bytes(file.read_bytes()[:-9])
    assert "cut off" in look(own_job).summaries[_BROKEN].problem


def test_rows_that_were_looked_through_are_not_again(
    own_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(own_job)
    monkeypatch.setattr(tasks, "find_damage", lambda _: "read again")
    assert not any(summary.problem for summary in look(own_job).summaries)
    again = [summary.problem for summary in look(own_job, cache=False).summaries]
    assert again.count("read again") == 5


def test_of_many_large_ranks_the_rows_of_some_are_looked_through_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(tmp_path, 12)
    seen: list[str] = []
    monkeypatch.setattr(tasks, "find_damage", lambda dump: seen.append(dump.name) or "")
    monkeypatch.setattr(checking, "_MOST_BYTES", 1)
    monkeypatch.setattr(checking, "_LEAST", 4)
    said = "the rows of 4 of 11 ranks were looked through for damage"
    told = rank_problems(look(tmp_path, cache=False))
    assert len({*seen}) == 4
    assert [each.what.startswith(said) and not each.damaged for each in told] == [True]
    seen.clear()
    assert not rank_problems(look(tmp_path, cache=False, every=True))
    assert len({*seen}) == 11


@pytest.mark.parametrize("place", [0, 1, 5])
def test_ranks_without_tables_that_others_have_are_named_first(
    own_job: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = dump_paths(own_job)[place]
    for name in ("communication.json", "communication_matrix.json"):
        (output(dump) / name).unlink()
    said = f"missing in rank {place}, there in others: communication.json, communication_matrix"
    (told,) = rank_problems(look(own_job))
    assert told.what.startswith(said)
    assert not told.damaged
    capsys.readouterr()
    assert diagnose(own_job) == diagnose(dump) == 0
    assert said[:40] in " ".join(capsys.readouterr().out.split())


def test_a_table_that_no_rank_has_is_missing_in_none(own_job: Path) -> None:
    for dump in dump_paths(own_job):
        (output(dump) / "communication.json").unlink()
    assert not rank_problems(look(own_job))
    for dump in dump_paths(own_job)[1:]:
        (output(dump) / "op_statistic.csv").unlink()
    (told,) = rank_problems(look(own_job))
    assert told.what == "missing in ranks 1, 2, 3 and 2 more, there in others: op_statistic.csv"


def test_what_shows_only_in_a_rank_that_is_read_as_a_whole_is_said(whole_job: Path) -> None:
    dump = break_rank(whole_job, _TRACE, lambda content: content.replace(b'"ph"', b'"ph', 1))
    assert diagnose(dump) == 2
    assert diagnose(whole_job, "--all") == 2
    assert diagnose(whole_job, "--all") == 2, "and the second time"
