"""The database of msprof: the same tables without those of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from small_db import full_tables, write_database
from small_dump import START

from npufix.profiling_parsers.database.export import read_msprof_db
from npufix.profiling_parsers.profile import DumpError

if TYPE_CHECKING:
    from pathlib import Path

    from small_db import Tables


def write(root: Path, tables: Tables) -> Path:
    path = root / "PROF_000001_20250109_ABC" / "msprof_20250109.db"
    write_database(path, tables)
    return path


def tables_of_msprof() -> Tables:
    tables = full_tables()
    for name in ("PYTORCH_API", "PYTORCH_CALLCHAINS", "CONNECTION_IDS", "STEP_TIME"):
        del tables[name]
    return tables


def test_kernels_and_signals_without_operators(tmp_path: Path) -> None:
    path = write(tmp_path, tables_of_msprof())
    profile = read_msprof_db(path.parent, path)
    assert profile.format == "msprof"
    assert profile.root == path.parent
    assert profile.kernels["type"].tolist() == ["Mul", "Mul", "hcom_allReduce_"]
    assert profile.kernels["step"].isna().all()
    assert profile.kernels["launch_ns"].tolist() == [START + 40_000, START + 150_000, -1]
    assert (profile.kernels["host_op"] == -1).all()
    assert profile.environment.chip == "Ascend910B3"
    assert profile.signals.apis["count"].sum() == 5
    (step,) = profile.steps.to_dict("records")
    assert step["computing_ns"] == 30_750
    (problem,) = profile.problems
    assert not problem.damaged
    assert "no kernel is led to a line" in problem.what


def test_a_file_without_kernels(tmp_path: Path) -> None:
    path = write(tmp_path, {"STRING_IDS": [{"id": 1, "value": "x"}]})
    with pytest.raises(DumpError, match="no kernels"):
        read_msprof_db(path.parent, path)
