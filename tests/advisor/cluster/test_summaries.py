"""What is read of one rank, whatever its export, and how it travels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.generator.dump import write_dump
from benchmarks.generator.parameters import Parameters
from cluster_dumps import SHARED, output, write_cluster

from npufix.profiling_parsers.cluster.job import collective_group, groups_in
from npufix.profiling_parsers.cluster.reading import of_profile, summarise
from npufix.profiling_parsers.cluster.summary import (
    TABLES,
    Summary,
    SummaryError,
    decode,
    encode,
    members_of,
    members_text,
)
from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

real = pytest.mark.skipif(not SHARED.exists(), reason="real dumps are not in the repository")


def rows(summary: Summary, table: str) -> list[tuple[object, ...]]:
    columns = []
    for column, kind in TABLES[table].items():
        if kind == "word":
            texts, codes = summary.words(table, column)
            columns.append([texts[code] for code in codes])
        else:
            columns.append(summary.numbers(table, column).tolist())
    return sorted(zip(*columns, strict=True))


def test_both_exports_and_the_whole_dump_say_the_same(tmp_path: Path) -> None:
    text, _ = write_cluster(tmp_path / "text", 2)
    database, _ = write_cluster(tmp_path / "db", 2, "db")
    found = summarise(text)
    assert (found.rank, found.problem, found.readable) == (0, "", True)
    whole = of_profile(text, read_profile(text))
    for table in ("steps", "operators", "collectives", "transports", "links"):
        assert rows(found, table)
        assert rows(summarise(database), table) == rows(found, table)
        if table != "steps":
            assert rows(whole, table) == rows(found, table)
    # The cheap files do not say when a step was marked; the first collectives of two steps say what
    # was free between them, never too much.
    at = list(TABLES["steps"]).index("free_ns")
    steps, marked = rows(found, "steps"), rows(whole, "steps")
    assert [(*row[:at], *row[at + 1 :]) for row in steps] == [
        (*row[:at], *row[at + 1 :]) for row in marked
    ]
    assert steps[0][at] == marked[0][at]
    assert all(row[at] <= of_marks[at] for row, of_marks in zip(steps[1:], marked[1:], strict=True))
    assert steps[-1][at] == marked[-1][at]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2 - content[: len(content) // 2][::-1].index(b",") + 1]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (cut, "kernel_details.csv: is cut off in its last row"),
        (lambda content: content[:40], "kernel_details.csv: does not begin as a table of kernels"),
        (lambda content: content[:0], "kernel_details.csv: does not begin as a table of kernels"),
        (lambda content: content[::-1], "does not begin as a table of kernels"),
        (lambda content: content, ""),
        (lambda content: content.rstrip(), ""),
        (lambda content: content.replace(b"\n", b"\r\n"), ""),
    ],
    ids=["cut", "cut in its header", "empty", "overwritten", "whole", "edited", "of Windows"],
)
def test_a_rank_whose_kernels_are_destroyed_is_told_in_a_job(
    tmp_path: Path, broken: Callable[[bytes], bytes], said: str
) -> None:
    dump = write_dump(Parameters(kernels=60, steps=2), tmp_path)
    file = output(dump) / "kernel_details.csv"
    file.write_bytes(broken(file.read_bytes()))
    found = summarise(dump)
    assert said in found.problem
    assert bool(found.problem) == bool(said)
    assert rows(found, "steps"), "what its small files say still stands"


def test_a_trace_alone_is_read_as_a_whole(tmp_path: Path) -> None:
    (dump,) = write_cluster(tmp_path, 1)
    for name in ("step_trace_time.csv", "op_statistic.csv"):
        (output(dump) / name).unlink()
    found = summarise(dump)
    assert [step for step, *_ in rows(found, "steps")] == [10, 11, 12, 13]
    assert len(rows(found, "operators")) > 3


@real
def test_groups_of_a_real_job_are_those_of_its_collectives() -> None:
    found = summarise(SHARED / "llm_megatron_4ranks" / "rank_0_ascend_pt")
    assert (found.rank, found.world_size, found.device) == (0, 4, 0)
    groups = {role: members_of(str(m)) for _, role, m in rows(found, "groups")}
    assert groups["default_group"] == (0, 1, 2, 3)
    assert groups["pp"] == (0, 2)
    # As torch_npu names it in profiler_metadata.json, and as HCCL does in communication.json.
    assert collective_group("group_name_19") == "3985310405473756128"
    (sent,) = (row for row in rows(found, "collectives") if row[1] == "p2p")
    assert sent[:5] == (13, "p2p", "hcom_batchSendRecv__", "3985310405473756128", 3)
    # Of each kind only the sum is counted, not the fastest, median and slowest beside it.
    moved = [row[4] for row in rows(found, "links") if row[3] == "3985310405473756128"]
    assert moved == [16_777_216]


def test_groups_that_are_numbered_have_one_role() -> None:
    names = ["dp0", "dp_3", "TP-12", "pp", "default_group", "stage_1"]
    table = groups_in({name: {"group_name": name, "global_ranks": [0, 1]} for name in names})
    assert table is not None
    assert set(table.words["role"].texts) == {"dp", "tp", "pp", "default_group", "stage_1"}


@real
@pytest.mark.parametrize("export", ["text", "db"])
def test_a_real_rank_without_groups(export: str) -> None:
    found = summarise(SHARED / "alexnet_910b_2ranks" / export / "rank0_ascend_pt")
    ((step, kind, name, _, count, *_),) = rows(found, "collectives")
    assert (step, kind, name, count) == (50, "collective", "hcom_allReduce__", 4)
    assert [row[1] for row in rows(found, "links")] == [1, 2, 3, 4, 5, 6, 7]
    assert len(encode(found)) < 10_000


def test_what_is_damaged_is_not_read(job: Path) -> None:
    data = encode(summarise(min(job.iterdir())))
    assert decode(data) == summarise(min(job.iterdir()))
    for place in range(0, len(data), 97):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(SummaryError):
            decode(flipped)
    with pytest.raises(SummaryError):
        decode(data[: len(data) // 2])
    # A checksum that is right says nothing about the columns.
    found = summarise(min(job.iterdir()))
    found.tables["steps"].numbers["step"] = b"1234567"
    with pytest.raises(SummaryError, match="unequal"):
        decode(encode(found))


@pytest.mark.parametrize("ranks", [(), (5,), (0, 4), (0, 8, 16, 24), (3, 1, 2), (1, 2, 4)])
def test_members_are_read_as_they_were_written(ranks: tuple[int, ...]) -> None:
    assert members_of(members_text(ranks)) == ranks
