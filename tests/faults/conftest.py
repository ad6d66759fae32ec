"""Where these tests keep things, away from the user's own, and what is counted of them."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import commands
import pytest
from benchmarks.generator.dump import write_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the journal."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "npufix" / "writes"


@pytest.fixture(autouse=True)
def kind(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Write down which kind of fault a test tries."""
    if marker := request.node.get_closest_marker("fault"):
        record_property("fault", marker.kwargs["kind"])


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Random:
    """Return what draws the same for the same seed."""
    return Random(f"{os.environ.get('NPUFIX_SEED', '0')} {request.node.name}")  # noqa: S311 - no secret


@pytest.fixture
def npufix(tmp_path: Path) -> commands.Npufix:
    """Return what runs commands."""
    return commands.Npufix(tmp_path)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a folder with the dumps of several ranks."""
    folder = tmp_path / "job"
    write_ranks(commands.SMALL, folder)
    return folder
