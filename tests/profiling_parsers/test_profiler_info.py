from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.profiling_parsers.profile import Environment
from npufix.profiling_parsers.profiler_info import read_environment

if TYPE_CHECKING:
    from pathlib import Path

INFO = {
    "config": {
        "common_config": {"with_stack": False, "record_shapes": True},
        "experimental_config": {"_profiler_level": "Level1"},
    },
    "torch_npu_version": "2.7.1.post2",
    "cann_version": "8.3.RC1",
    "rank_id": "3",
}
METADATA = {
    "distributed_args": {"rank": 3, "world_size": 4},
    "ENV_VARIABLES": {"HCCL_ALGO": "", "TASK_QUEUE_ENABLE": "2"},
}
RAW = {"platform_version": "5", "cannVersion": "8.5.0", "rank_id": 2}


def write(root: Path, **files: object) -> Path:
    """Write JSON files; ``__`` in a name is a folder and ``_json`` its suffix."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def test_the_settings_of_the_run(tmp_path: Path) -> None:
    root = write(tmp_path, profiler_info_3_json=INFO, profiler_metadata_json=METADATA)
    environment, problems = read_environment(root)
    assert problems == []
    assert environment == Environment(
        rank=3,
        world_size=4,
        torch="2.7.1",
        torch_npu="2.7.1.post2",
        cann="8.3.RC1",
        profiler_level="Level1",
        with_stack=False,
        record_shapes=True,
        variables={"HCCL_ALGO": "", "TASK_QUEUE_ENABLE": "2"},
    )


def test_what_the_run_could_not_find_out_is_unknown(tmp_path: Path) -> None:
    info = {"torch_npu_version": "N/A", "cann_version": "not known"}
    environment, _ = read_environment(write(tmp_path, profiler_info_json=info))
    assert environment == Environment()


@pytest.mark.parametrize("folder", ["host", "device_0"])
@pytest.mark.parametrize("number", ["5", 5])
def test_the_chip_of_the_raw_data_beside(tmp_path: Path, folder: str, number: object) -> None:
    name = "info_json" if folder == "host" else "info_json.0"
    raw = {f"PROF_000001_2025_ABC__{folder}__{name}": {**RAW, "platform_version": number}}
    environment, problems = read_environment(write(tmp_path, profiler_info_json={}, **raw))
    assert problems == []
    assert environment.chip == "Ascend910B"
    assert environment.cann == "8.5.0"
    assert environment.rank == 2


def test_the_raw_data_itself(tmp_path: Path) -> None:
    environment, _ = read_environment(write(tmp_path, **{"device_0__info_json.0": RAW}))
    assert environment.chip == "Ascend910B"


def test_devices_that_disagree_and_unknown_chips_say_nothing(tmp_path: Path) -> None:
    raw = {
        "PROF_1__device_0__info_json.0": RAW,
        "PROF_1__device_1__info_json.1": {**RAW, "platform_version": "1"},
    }
    assert read_environment(write(tmp_path / "a", **raw))[0].chip is None
    unknown = {"PROF_1__host__info_json": {"platform_version": "99"}}
    assert read_environment(write(tmp_path / "b", **unknown))[0].chip is None


@pytest.mark.parametrize("say", ["metadata", "folder", "raw"])
def test_the_settings_of_this_rank_among_those_of_several(tmp_path: Path, say: str) -> None:
    levels = {
        f"profiler_info_{rank}_json": {
            "config": {"experimental_config": {"_profiler_level": f"Level{rank}"}},
            "rank_id": rank,
        }
        for rank in (0, 1, 2, 10)
    }
    root = tmp_path / ("rank_2_ascend_pt" if say == "folder" else "host_1_ascend_pt")
    files: dict[str, Any] = {
        "metadata": {"profiler_metadata_json": {"distributed_args": {"rank": 2}}},
        "folder": {},
        "raw": {"PROF_1__host__info_json": RAW},
    }[say]
    environment, problems = read_environment(write(root, **levels, **files))
    assert problems == []
    assert environment.rank == 2
    assert environment.profiler_level == "Level2"


def test_one_of_several_ranks_and_nothing_says_which(tmp_path: Path) -> None:
    files = {f"profiler_info_{rank}_json": INFO for rank in (0, 1)}
    environment, (problem,) = read_environment(write(tmp_path, **files))
    assert environment.rank is None
    assert environment.cann == "8.3.RC1"
    assert "2 ranks" in problem.what
    assert not problem.damaged


@pytest.mark.parametrize("content", ["", "{", "\x00", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}"])
@pytest.mark.parametrize("name", ["profiler_info_json", "profiler_metadata_json"])
def test_a_broken_file_is_told(tmp_path: Path, name: str, content: str) -> None:
    environment, (problem,) = read_environment(write(tmp_path, **{name: content}))
    assert problem.damaged
    assert "\n" not in problem.what
    assert environment == Environment()


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.just(10**40),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def _shaped_like(content: object) -> st.SearchStrategy[Any]:
    """Return JSON like this, but with anything in place of any part of it."""
    if not isinstance(content, dict):
        return st.just(content) | json_values
    fields = {key: _shaped_like(value) for key, value in content.items()}
    return st.fixed_dictionaries({}, optional=fields) | json_values


@given(_shaped_like(INFO), _shaped_like(METADATA), _shaped_like(RAW))
def test_any_json_anywhere(
    tmp_path_factory: pytest.TempPathFactory, info: Any, metadata: Any, raw: Any
) -> None:
    root = tmp_path_factory.mktemp("any")
    write(root, profiler_info_0_json=json.dumps(info), profiler_metadata_json=json.dumps(metadata))
    write(root, PROF_1__host__info_json=json.dumps(raw))
    environment, _ = read_environment(root)
    assert environment.rank is None or 0 <= environment.rank < 2**31
    assert environment.world_size is None or isinstance(environment.world_size, int)
    assert isinstance(environment.with_stack, bool | None)
    for text in (environment.cann, environment.chip, environment.profiler_level):
        assert text is None or isinstance(text, str)
    assert all(isinstance(value, str) for value in environment.variables.values())
