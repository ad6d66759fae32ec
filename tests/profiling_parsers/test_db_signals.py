"""What a db export records beside its kernels, in the units of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from small_db import api, cann, collective_tables, full_tables, split_tables, task, write_db_dump
from small_dump import START

from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.signals import SCHEMAS, Signals

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from small_db import Tables

    from npufix.profiling_parsers.profile import Profile


def read(root: Path, tables: Tables | None = None, split: Tables | None = None) -> Profile:
    whole = {**split_tables(), **collective_tables()}
    dump = write_db_dump(
        root / "host_1_ascend_pt",
        full_tables() if tables is None else tables,
        whole if split is None else split,
    )
    return read_profile(dump)


def rows(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    return list(frame.itertuples(index=False, name=None))


@pytest.fixture
def signals(tmp_path: Path) -> Signals:
    profile = read(tmp_path)
    assert profile.problems == ()
    return profile.signals


def test_each_table_has_the_columns_of_the_schema(signals: Signals, tmp_path: Path) -> None:
    dump = write_db_dump(tmp_path / "none_ascend_pt")
    for each in (signals, read_profile(dump).signals):
        for table, schema in SCHEMAS.items():
            assert getattr(each, table).dtypes.astype(str).to_dict() == dict(schema), table


def test_apis_are_summed_per_level_and_name(signals: Signals) -> None:
    assert rows(signals.apis) == [
        ("acl", "opCompile", 1, 700_000, 700_000),
        ("acl", "aclnnMul", 1, 20_000, 20_000),
        ("node", "launch", 2, 20_000, 11_000),
        ("runtime", "KernelLaunch", 1, 1_000, 1_000),
    ]


def test_long_calls_are_told_one_by_one(signals: Signals) -> None:
    assert rows(signals.long_calls) == [("acl", "opCompile", START + 200_000, 700_000)]


def test_collector_and_clocks(signals: Signals) -> None:
    assert rows(signals.gc) == [(START + 7, 50)]
    assert rows(signals.frequency) == [(0, START, 1800.0), (0, START + 90, 800.0)]


def test_memory_is_in_bytes(signals: Signals) -> None:
    assert rows(signals.memory) == [
        ("APP", "NPU:0", START, -1, 4096),
        ("GE", "NPU:0", START + 10, 0, 2048),
        ("PTA", "NPU:0", START + 20, 512, 1024),
    ]
    assert rows(signals.allocations) == [
        ("aten::mul", 512, START, 99),
        ("aten::mul", 64, -1, -1),
    ]


def test_how_a_collective_spent_its_time(signals: Signals) -> None:
    entry = ("50", "collective", "hcom_allReduce__1_0_1", "17")
    times = (100_000, 50_000, 20_000, 10_000, 30_000)
    assert rows(signals.collectives) == [(*entry, START, *times)]
    assert rows(signals.transports) == [(*entry, "HCCS", 2_500_000, 50_000, 50.0, 0.5)]
    link = ("50", "collective", "allreduce-top1", "17", 0, 1, "HCCS", 2_500_000, 50_000, 50.0)
    assert rows(signals.links) == [link]


def test_without_analysis_a_collective_still_has_its_time(tmp_path: Path) -> None:
    tables = full_tables()
    tables["COMMUNICATION_OP"].append({**tables["COMMUNICATION_OP"][0], "endNs": 3, "opId": 2})
    signals = read(tmp_path, tables, split_tables()).signals
    unknown = (-1, -1, -1, -1)
    (found,) = rows(signals.collectives)
    assert found == (
        "", "collective", "hcom_allReduce_1", "", START + 300_000, 100_000, *unknown,
    )  # fmt: skip
    assert signals.transports.empty
    assert signals.links.empty


def test_a_table_that_lacks_a_column_is_told_and_left_out(tmp_path: Path) -> None:
    split = {**split_tables(), **collective_tables()}
    for row in split["CommAnalyzerTime"]:
        del row["wait_time"]
    profile = read(tmp_path, split=split)
    (problem,) = profile.problems
    assert problem.where == "analysis.db"
    assert problem.damaged
    assert "wait_time" in problem.what
    assert profile.signals.collectives["idle_ns"].tolist() == [-1]
    assert len(profile.signals.links) == 1


def test_allocations_of_msprof_are_pairs_of_an_address(tmp_path: Path) -> None:
    tables = full_tables()
    del tables["OP_MEMORY"], tables["MEMORY_RECORD"]
    known = {row["value"]: row["id"] for row in tables["STRING_IDS"]}
    for name in ("allocate", "release"):
        known[name] = max(known.values()) + 1
        tables["STRING_IDS"].append({"id": known[name], "value": name})

    def event(kind: str, address: int, time: int, size: int) -> dict[str, int]:
        return {
            "operatorName": known["Mul"],
            "addr": address,
            "type": known[kind],
            "size": size,
            "timestampNs": START + time,
            "totalAllocate": size,
            "totalReserve": 4096,
            "component": known["GE"],
            "deviceId": 0,
        }

    tables["NPU_OP_MEM"] = [
        event("release", 1, 50, 8),
        event("allocate", 1, 10, 8),
        event("allocate", 2, 20, 16),
        event("allocate", 1, 60, 32),
        event("release", 3, 70, 64),
    ]
    check_pairs(read(tmp_path, tables).signals)
    kinds = {name: number for number, name in enumerate(("app", "device", "allocate", "release"))}
    texts = {number: name for name, number in known.items()}
    for row in tables["NPU_OP_MEM"]:
        row["type"] = kinds[texts[row["type"]]]
    for row in tables["NPU_MEM"]:
        row["type"] = kinds[texts[row["type"]]]
    tables["ENUM_MEMORY"] = [{"id": number, "name": name} for name, number in kinds.items()]
    check_pairs(read(tmp_path / "enumerated", tables).signals)


def check_pairs(signals: Signals) -> None:
    assert rows(signals.allocations) == [
        ("Mul", 8, START + 10, 40),
        ("Mul", 32, START + 60, -1),
        ("Mul", 16, START + 20, -1),
    ]
    assert signals.memory["component"].tolist() == ["APP", "GE", "GE", "GE", "GE", "GE"]


def test_copies_that_the_host_waits_for_are_from_or_to_it(tmp_path: Path) -> None:
    tables = full_tables()
    texts = tables["STRING_IDS"]
    texts += [{"id": 901, "value": "MEMCPY_ASYNC"}, {"id": 902, "value": "aten::copy_"}]
    starts = (2_010_000, 4_000_000)  # the second one while the host does something else
    copies = [{**task(90 + n, at, 700_000, 990), "taskType": 901} for n, at in enumerate(starts)]
    tables["TASK"] += copies
    tables["PYTORCH_API"].append(api(902, 10, 2_000_000, 800_000))
    found = read(tmp_path, tables).signals.copies
    assert rows(found) == [(START + 2_010_000, 700_000, START + 2_000_000)]


@pytest.mark.parametrize(("call", "told"), [("aclrtMemcpyAsync", True), ("aclnnMul", False)])
def test_copies_that_the_host_does_not_wait_for_are_told_by_the_queue(
    tmp_path: Path, call: str, *, told: bool
) -> None:
    """``x.to(device, non_blocking=True)`` has returned long before 700 µs are copied."""
    tables = full_tables()
    asks, waits = "acl_memcpy_host_to_device", "aten::copy_"
    known = {901: "MEMCPY_ASYNC", 902: waits, 903: asks, 904: f"Dequeue@{asks}", 905: call}
    tables["STRING_IDS"] += [{"id": number, "value": value} for number, value in known.items()]
    tables["TASK"].append({**task(90, 2_100_000, 700_000, 990), "taskType": 901})
    tables["PYTORCH_API"] += [
        api(902, 10, 2_000_000, 30_000),
        api(903, 10, 2_010_000, 5_000),
        api(904, 11, 2_040_000, 20_000, kind=50002),
    ]
    tables["CANN_API"].append(cann(20_000, 905, 2_050_000, 9_000, 990))
    expected = [(START + 2_100_000, 700_000, START + 2_000_000)] if told else []
    assert rows(read(tmp_path, tables).signals.copies) == expected


def test_collectives_that_a_file_lost_are_told(tmp_path: Path) -> None:
    tables = full_tables()
    del tables["COMMUNICATION_OP"]
    (lost,) = (p for p in read(tmp_path, tables).problems if "COMMUNICATION_OP" in p.what)
    assert lost.damaged
    assert "1 collectives" in lost.what
