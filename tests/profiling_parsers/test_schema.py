from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

from npufix.profiling_parsers import discover, formats, reader
from npufix.profiling_parsers.discover import DumpLocation
from npufix.profiling_parsers.formats import FORMATS
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.schema import KERNELS, SchemaError, complete_kernels

if TYPE_CHECKING:
    from pathlib import Path


def required(rows: int = 2) -> pd.DataFrame:
    return pd.DataFrame(
        {
            name: pd.Series([1] * rows, dtype=column.dtype)
            for name, column in KERNELS.items()
            if column.unknown is None
        }
    )


@pytest.mark.parametrize("rows", [0, 2])
def test_what_a_dump_does_not_say_is_filled_with_what_stands_for_unknown(rows: int) -> None:
    kernels = complete_kernels(required(rows))
    dtypes = {name: column.dtype for name, column in KERNELS.items()}
    assert kernels.dtypes.astype(str).to_dict() == dtypes
    assert list(kernels) == list(KERNELS)
    assert kernels["host_op"].tolist() == [-1] * rows
    assert kernels["basis"].tolist() == [""] * rows
    assert kernels["bound_ratio"].isna().all()


@pytest.mark.parametrize(
    "name", [name for name, column in KERNELS.items() if column.unknown is None]
)
def test_a_reader_that_forgets_a_column_is_told_its_name(name: str) -> None:
    with pytest.raises(SchemaError, match=f"no column {name}$"):
        complete_kernels(required().drop(columns=name))


def test_a_column_of_another_type_is_no_column() -> None:
    with pytest.raises(SchemaError, match="device as int64, not int32"):
        complete_kernels(required().astype({"device": "int64"}))


def test_a_column_that_nobody_declared_is_told() -> None:
    with pytest.raises(SchemaError, match="no schema names: flops"):
        complete_kernels(required().assign(flops=1.0))


def test_every_profile_has_the_columns_of_the_schema(dump: Path) -> None:
    assert list(read_profile(dump).kernels) == list(KERNELS)


def test_every_kind_of_dump_has_one_entry() -> None:
    kinds = [each.kind for each in FORMATS]
    assert len(set(kinds)) == len(kinds)


def test_of_what_kind_a_dump_is_is_asked_once(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = discover.recognise(dump)
    assert found == DumpLocation(dump, "ascend")
    monkeypatch.setattr(reader, "recognise", lambda path: pytest.fail(f"{path} is asked again"))
    monkeypatch.setattr(formats, "is_kineto", lambda path: pytest.fail(f"{path} is asked again"))
    assert len(read_profile(found).kernels) == 3
