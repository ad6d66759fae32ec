"""A generated job that all these tests share; who changes a dump copies it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from cluster_dumps import write_cluster

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_cluster(folder)
    return folder


@pytest.fixture
def own_job(job: Path, tmp_path: Path) -> Path:
    """Return a copy that may be broken, and an empty cache folder."""
    shutil.copytree(job, tmp_path / "job")
    return tmp_path / "job"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "npufix" / "ranks"
