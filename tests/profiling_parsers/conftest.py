"""The small dump, and the real ones where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_dump import write_dump

SHARED_DUMPS = Path(__file__).parents[3] / "shared" / "dumps"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write_dump(tmp_path / "host_1_20250109_ascend_pt")


def _real_dump(name: str) -> Path:
    path = SHARED_DUMPS / name
    if not path.is_dir():
        pytest.skip(f"no real dump at {path}")
    return path


@pytest.fixture(scope="session")
def alexnet() -> Path:
    return _real_dump("alexnet_910b_2ranks/text/rank0_ascend_pt")


@pytest.fixture(scope="session")
def alexnet_db() -> Path:
    return _real_dump("alexnet_910b_2ranks/db/rank0_ascend_pt")


@pytest.fixture(scope="session")
def megatron() -> Path:
    return _real_dump("llm_megatron_4ranks/rank_0_ascend_pt")
