from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_api_statistic import APIS
from test_communication_json import COMMUNICATION, MATRIX
from test_l2_cache import CACHE
from test_memory_files import OPERATOR, RECORD
from test_operator_details import OPERATORS

from npufix.profiling_parsers.signals import SCHEMAS, Signals
from npufix.profiling_parsers.text.side_files import read_signals

if TYPE_CHECKING:
    from pathlib import Path

import json

FILES = {
    "api_statistic.csv": APIS,
    "memory_record.csv": RECORD,
    "operator_memory.csv": OPERATOR,
    "l2_cache.csv": CACHE,
    "communication.json": json.dumps(COMMUNICATION).encode(),
    "communication_matrix.json": json.dumps(MATRIX).encode(),
    "operator_details.csv": OPERATORS,
}
TABLES = {
    "apis": 3, "memory": 3, "allocations": 3, "l2_cache": 3, "collectives": 3,
    "transports": 3, "links": 2, "operator_totals": 2,
}  # fmt: skip


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "host_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def lengths(signals: Signals) -> dict[str, int]:
    return {name: len(getattr(signals, name)) for name in TABLES}


def test_everything(output: Path) -> None:
    signals, problems = read_signals(output, with_operator_details=True)
    assert problems == []
    assert lengths(signals) == TABLES
    assert len(signals.operator_stacks) == 1
    for table, schema in SCHEMAS.items():
        assert getattr(signals, table).dtypes.astype(str).to_dict() == schema


def test_operator_details_are_read_only_where_asked_for(output: Path) -> None:
    signals, problems = read_signals(output)
    assert problems == []
    assert lengths(signals) == {**TABLES, "operator_totals": 0}


def test_what_was_not_collected_is_no_problem(tmp_path: Path) -> None:
    signals, problems = read_signals(tmp_path, with_operator_details=True)
    assert problems == []
    assert set(lengths(signals).values()) == {0}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"Name\n", b"\xff\xfe\x00"])
def test_one_broken_file_takes_nothing_from_the_others(
    output: Path, name: str, content: bytes
) -> None:
    (output / name).write_bytes(content)
    signals, (problem,) = read_signals(output, with_operator_details=True)
    assert problem.where == name
    assert problem.damaged
    assert problem.remedy
    gone = {table for table, length in lengths(signals).items() if length != TABLES[table]}
    assert len(gone) in (1, 2)


def test_a_folder_in_place_of_a_file(output: Path) -> None:
    (output / "l2_cache.csv").unlink()
    (output / "l2_cache.csv").mkdir()
    _, (problem,) = read_signals(output)
    assert "directory" in problem.what


def test_the_remedy_names_the_dump(output: Path) -> None:
    (output / "l2_cache.csv").write_bytes(b"")
    _, (problem,) = read_signals(output)
    assert f'analyse("{output.parent}")' in problem.remedy


@given(name=st.sampled_from(sorted(FILES)), data=st.data())
@settings(max_examples=70)
def test_any_file_cut_anywhere(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    output = tmp_path_factory.mktemp("cut")
    cut = data.draw(st.integers(0, len(FILES[name]) - 1))
    (output / name).write_bytes(FILES[name][:cut])
    signals, problems = read_signals(output, with_operator_details=True)
    between_rows = name.endswith(".csv") and FILES[name][:cut].endswith(b"\n")
    assert between_rows or any(problem.damaged for problem in problems)
    for table, length in lengths(signals).items():
        assert length <= TABLES[table]


@pytest.mark.parametrize("name", ["alexnet", "megatron", "alexnet_db"])
def test_real_ones(name: str, request: pytest.FixtureRequest) -> None:
    output = request.getfixturevalue(name) / "ASCEND_PROFILER_OUTPUT"
    signals, problems = read_signals(output, with_operator_details=True)
    assert problems == []
    assert len(signals.apis) > 0
