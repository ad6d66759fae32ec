from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from damage import read_damaged
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.text.communication_json import (
    read_communication,
    read_communication_matrix,
)

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = {"Transit Size(MB)": 0, "Transit Time(ms)": 0, "Bandwidth(GB/s)": 0}


def op(start: float, elapse: float) -> dict[str, Any]:
    moved = {
        "Transit Size(MB)": 20.97152,
        "Transit Time(ms)": 0.86382,
        "Bandwidth(GB/s)": 24.2777,
        "Large Packet Ratio": 0.5,
        "Size Distribution": {"20.97152": [1, 0.86382]},
    }
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": start,
            "Elapse Time(ms)": elapse,
            "Transit Time(ms)": 0.86382,
            "Wait Time(ms)": 2e-05,
            "Synchronization Time(ms)": 1e-05,
            "Idle Time(ms)": 0.03274000000000001,
            "Wait Time Ratio": 0.0,
            "Synchronization Time Ratio": 0.0,
        },
        "Communication Bandwidth Info": {
            "RDMA": moved,
            "HCCS": {**NOTHING, "Large Packet Ratio": 0, "Size Distribution": {}},
        },
    }


SUM = {"Communication Time Info": {"Elapse Time(ms)": 3.0}, "Communication Bandwidth Info": {}}
COMMUNICATION = {
    "step50": {
        "p2p": {"hcom_send__822_0@1333": op(1695115378810055.25, 0.89658), "Total Op Info": SUM},
        "collective": {
            "hcom_allReduce__534_6_1@10.1.2.3%eth0_55000_0_17": op(1695115378810057, 2),
            "Total Op Info": SUM,
        },
    },
    "step": {"p2p": {}, "collective": {"hcom_broadcast__1": op(1695115378810058.5, 1)}},
}
LINK = {
    "Transport Type": "HCCS",
    "Transit Size(MB)": 37.781504,
    "Transit Time(ms)": 2.153383,
    "Bandwidth(GB/s)": 17.5452,
    "Op Name": "hcom_allReduce__586_2_1",
}
MATRIX = {
    "step50": {
        "p2p": {},
        "collective": {
            "allreduce-top1@1752": {"0-0": {**LINK, "Transport Type": "LOCAL"}, "0-1": LINK},
            "Total Op Info": {"0-1": LINK},
        },
    }
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "communication.json"


def test_the_collectives_and_their_links(path: Path) -> None:
    path.write_text(json.dumps(COMMUNICATION))
    collectives, transports, problems = read_communication(path)
    assert problems == []
    assert collectives.dtypes.astype(str).to_dict() == SCHEMAS["collectives"]
    assert transports.dtypes.astype(str).to_dict() == SCHEMAS["transports"]
    rest = [863_820, 20, 10, 32_740]
    start = 1695115378810055250
    assert collectives.to_numpy().tolist() == [
        ["50", "p2p", "hcom_send__822_0", "1333", start, 896_580, *rest],
        [
            *("50", "collective", "hcom_allReduce__534_6_1", "10.1.2.3%eth0_55000_0_17"),
            *(start + 1_750, 2_000_000, *rest),
        ],
        ["", "collective", "hcom_broadcast__1", "", start + 3_250, 1_000_000, *rest],
    ]
    assert transports["transport"].tolist() == ["RDMA"] * 3
    assert transports.iloc[0, 5:].tolist() == [20_971_520, 863_820, 24.2777, 0.5]


def test_the_links_between_ranks(path: Path) -> None:
    path.write_text(json.dumps(MATRIX))
    links, problems = read_communication_matrix(path)
    assert problems == []
    assert links.dtypes.astype(str).to_dict() == SCHEMAS["links"]
    moved = [37_781_504, 2_153_383, 17.5452]
    assert links.to_numpy().tolist() == [
        ["50", "collective", "allreduce-top1", "1752", 0, rank, link, *moved]
        for rank, link in ((0, "LOCAL"), (1, "HCCS"))
    ]


def test_a_step_without_collectives_is_no_damage(path: Path) -> None:
    path.write_text(json.dumps({"step1": {"p2p": {}, "collective": {}}}))
    collectives, transports, problems = read_communication(path)
    assert problems == []
    assert collectives.dtypes.astype(str).to_dict() == SCHEMAS["collectives"]
    assert transports.empty


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", "{}", "\xff", "[" * 100_000])
@pytest.mark.parametrize("read", [read_communication, read_communication_matrix])
def test_what_is_none_is_refused(path: Path, read: Any, content: str) -> None:
    path.write_text(content, encoding="latin1")
    with pytest.raises(DumpError, match="communication"):
        read(path)


@given(st.integers(0, len(json.dumps(COMMUNICATION)) - 1))
def test_a_cut_at_any_byte_is_told(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "communication.json"
    content = json.dumps(COMMUNICATION).encode()[:cut]
    assert read_damaged(read_communication, path, content) == ([], True)


def _paths(content: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(content, dict):
        return [path]
    below = [found for key, value in content.items() for found in _paths(value, (*path, key))]
    return [path, *below] if path else below


def _without(content: Any, path: tuple[str, ...], value: object) -> Any:
    """Return JSON in which something else stands at a path, or nothing (``...``)."""
    changed = json.loads(json.dumps(content))  # a copy that shares nothing
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if value is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed


VALUES = (..., None, [], True, "x", float("nan"), 10**400, -(10**30), {"a": {"b": {"c": 1}}})
NOT_NEEDED = ("Total Op Info", "Time Ratio", "Size Distribution", "Op Name", "Transport Type")


@given(data=st.data())
@settings(max_examples=60)
@pytest.mark.parametrize(
    ("read", "content"),
    [(read_communication, COMMUNICATION), (read_communication_matrix, MATRIX)],
    ids=["communication", "matrix"],
)
def test_any_value_anywhere_is_told_or_changes_nothing(
    read: Any, content: Any, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "communication.json"
    where = data.draw(st.sampled_from(_paths(content)))
    value = data.draw(st.sampled_from(VALUES))
    whole, _ = read_damaged(read, path, json.dumps(content).encode())
    tables, told = read_damaged(read, path, json.dumps(_without(content, where, value)).encode())
    # An entry or a kind of link may as well never have been there.
    removed = value is ... and (len(where) <= 4 or where[-1] in ("RDMA", "HCCS"))
    if any(name in key for name in NOT_NEEDED for key in where):
        assert [len(table) for table in tables] == [len(table) for table in whole]
    elif not removed:
        assert told


@pytest.mark.parametrize("name", ["alexnet", "megatron"])
def test_real_ones_add_up(name: str, request: pytest.FixtureRequest) -> None:
    output = request.getfixturevalue(name) / "ASCEND_PROFILER_OUTPUT"
    collectives, transports, problems = read_communication(output / "communication.json")
    assert problems == []
    content = json.loads((output / "communication.json").read_text())
    for step, kinds in content.items():
        for kind, entries in kinds.items():
            if not entries:
                continue
            total = entries["Total Op Info"]
            mine = collectives[(collectives["step"] == step[4:]) & (collectives["kind"] == kind)]
            stated = total["Communication Time Info"]["Elapse Time(ms)"]
            assert mine["elapse_ns"].sum() / 1e6 == pytest.approx(stated)
            for link, sums in total["Communication Bandwidth Info"].items():
                of_link = transports[
                    (transports["kind"] == kind) & (transports["transport"] == link)
                ]
                assert of_link["size_bytes"].sum() / 1e6 == pytest.approx(sums["Transit Size(MB)"])
    links, problems = read_communication_matrix(output / "communication_matrix.json")
    assert problems == []
    speed = links["size_bytes"] / links["transit_ns"].where(links["transit_ns"] > 0)
    assert speed.dropna().to_numpy() == pytest.approx(
        links["gb_per_s"][speed.notna()].to_numpy(), rel=0.02, abs=1e-3
    )
