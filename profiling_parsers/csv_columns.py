"""The few columns of a dump's CSV file that are needed, whatever its version calls them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.profile import DumpError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_LONGEST_HEADER = 1 << 16
"""Far above the 50 columns of the widest export; a binary file has no line end to stop at."""
_BLOCK_BYTES = 1 << 22


def category(codes: NDArray[Any], texts: list[str]) -> pd.Categorical[str]:
    """Return a column of texts given as positions in ``texts``."""
    return pd.Categorical.from_codes(codes, categories=pd.Index(texts, dtype=object))


@dataclass(frozen=True)
class Columns:
    """The columns found, by the name asked for, and the number of lines that were no rows."""

    table: pa.Table
    malformed: int

    def __contains__(self, key: str) -> bool:
        return key in self.table.column_names

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def text(self, key: str) -> pa.ChunkedArray:
        """Return a column as text, empty where the file does not have it."""
        if key in self:
            column = self.table[key]
            is_dictionary = pa.types.is_dictionary(column.type)
            return column.cast(pa.string()) if is_dictionary else column
        return pa.chunked_array([pa.array([""] * len(self), pa.string())])

    def category(self, key: str, clean: Callable[[str], str] = str.strip) -> pd.Categorical[str]:
        """Return a column as a category whose values went through ``clean``."""
        if key not in self:
            return category(np.zeros(len(self), np.int8), [""])
        chunks = self.table[key].unify_dictionaries().chunks
        codes: dict[str, int] = {}
        known = chunks[0].dictionary.to_pylist() if chunks else []
        cleaned = np.array([codes.setdefault(clean(v), len(codes)) for v in known], np.int32)
        rows = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in chunks]
        indices = np.concatenate(rows) if rows else np.empty(0, np.int32)
        return category(cleaned[indices], list(codes))


def read_columns(
    path: Path,
    names: Mapping[str, tuple[str, ...]],
    *,
    required: Collection[str],
    plain: Collection[str] = (),
) -> Columns:
    """Read the columns ``names`` (key -> spellings), those in ``plain`` as text, others coded.

    Raise ``DumpError`` if the file cannot be read or lacks a ``required`` column. Rows with a
    wrong number of fields are counted, not read.
    """
    header = _header(path)
    keys = _keys(header, names)
    missing = [" or ".join(names[key][:2]) for key in required if key not in keys]
    if missing:
        raise DumpError(
            f"{path}: no column {', '.join(missing)} (the first line is {','.join(header)[:80]!r})",
            f"is this the profiler's own file? If not, {remedies.analyse(path.parent.parent)}",
        )
    types = {
        key: pa.string() if key in plain else pa.dictionary(pa.int32(), pa.string())
        for key in keys
        if key in names
    }
    return _read(path, keys, types)


def _header(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            line = file.readline(_LONGEST_HEADER)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}", "make the file readable") from error
    text = line.decode("utf-8-sig", errors="replace").replace("\0", "")
    return [name.strip() for row in csv.reader([text.strip()]) for name in row]


def _keys(header: list[str], names: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return one unique name per column: the key of those asked for, the number of others."""
    keys = [str(index) for index in range(len(header))]
    for key, spellings in names.items():
        found = next((name for name in spellings if name in header), None)
        if found is not None:
            keys[header.index(found)] = key
    return keys


def _read(path: Path, keys: list[str], types: Mapping[str, pa.DataType]) -> Columns:
    """Read the rows; every line that did not become a row is counted."""

    def parse(source: str | pa.BufferReader, skip_rows: int) -> pa.Table:
        return pyarrow.csv.read_csv(
            source,
            read_options=pyarrow.csv.ReadOptions(column_names=keys, skip_rows=skip_rows),
            parse_options=pyarrow.csv.ParseOptions(invalid_row_handler=skip),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, include_columns=list(types)
            ),
        )

    skipped: list[int] = []

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        skipped.append(row.actual_columns)
        return "skip"

    try:
        table = parse(str(path), skip_rows=1)
        if _count_lines(path) == 1 + table.num_rows + len(skipped):
            return Columns(table, malformed=len(skipped))
    except pa.ArrowInvalid:
        pass  # one of the reasons below, or no line after the header
    # A quote that is never closed swallows the lines after it; bytes that are no UTF-8 stop the
    # reader; blank lines are harmless. So take the lines one by one.
    lines, whole = _lines(path)
    table = pa.schema(types).empty_table()
    if whole:
        try:
            table = parse(pa.BufferReader(_as_utf8(whole)), skip_rows=0)
        except pa.ArrowInvalid as error:
            remedy = remedies.analyse(path.parent.parent)
            raise DumpError(f"{path}: not CSV ({error})", remedy) from error
    return Columns(table, malformed=max(lines - table.num_rows, 0))


def _count_lines(path: Path) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _lines(path: Path) -> tuple[int, list[bytes]]:
    """Return how many lines after the header are not blank, and those with no open quote."""
    with path.open("rb") as file:
        lines = [line for line in file.readlines()[1:] if line.strip()]
    return len(lines), [line for line in lines if line.count(b'"') % 2 == 0]


def _as_utf8(lines: list[bytes]) -> bytes:
    return b"".join(lines).decode("utf-8", errors="replace").encode()
