"""The few columns of a dump's CSV file that are needed, whatever its version calls them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.tables.columns import category
from npufix.profiling_parsers.tables.csv_lines import (
    CountedLines,
    SoundLines,
    describe_missing,
    read_header,
)
from npufix.profiling_parsers.tables.exact_time import parse_numbers

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

T = TypeVar("T")

_NOT_A_NUMBER = ["", "N/A", "NA", "None"]
_TABLE_ROWS = 1 << 17
_BLOCK_BYTES = 1 << 20
"""Fits the cache: blocks of 16 MB take twice the time."""


@dataclass(frozen=True)
class CsvColumns:
    """The columns found, by the name asked for, and the number of lines that were no rows."""

    table: pa.Table
    malformed: int
    endless: bool = False
    """The last line has no end: the file was cut, or a person wrote it."""

    def __contains__(self, key: str) -> bool:
        return key in self.table.column_names

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def is_a(self, key: str, kind: pa.DataType) -> bool:
        """Tell whether a column was read as numbers of that type."""
        return key in self and self.table.schema.field(key).type == kind

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
        column = self.table[key]
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        chunks = column.unify_dictionaries().chunks
        codes: dict[str, int] = {}
        known = chunks[0].dictionary.to_pylist() if chunks else []
        cleaned = np.array([codes.setdefault(clean(v), len(codes)) for v in known], np.int32)
        rows = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in chunks]
        indices = np.concatenate(rows) if rows else np.empty(0, np.int32)
        return category(cleaned[indices], list(codes))

    def floats(self, key: str) -> NDArray[np.float32]:
        """Return a column of ratios, NaN where there is none."""
        if self.is_a(key, pa.float32()):
            ratios = np.asarray(self.table[key].to_numpy())
            return np.where(np.isinf(ratios), np.float32("nan"), ratios)
        column = self.category(key)
        values = parse_numbers(pa.array(column.categories, pa.string())).astype(np.float32)
        return np.asarray(values[column.codes])


@dataclass(frozen=True)
class Blocks(Generic[T]):
    """What became of the rows of a file, block by block, and of the lines that were no rows."""

    parts: tuple[T, ...]
    malformed: int
    endless: bool
    """The last line has no end: the file was cut, or a person wrote it."""


@dataclass(frozen=True)
class ColumnSelection:
    """Which columns of a file to read, and as what."""

    names: Mapping[str, tuple[str, ...]]
    """Key -> spellings of the column's name."""
    required: Collection[str]
    plain: Collection[str] = ()
    """Read as text; others are texts of which there are few."""
    numbers: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Read as that type, null where nothing was collected. If a single cell of all these columns
    is something else, they are read as if they were not in here."""


def read_columns(
    path: Path,
    names: Mapping[str, tuple[str, ...]],
    *,
    required: Collection[str],
    plain: Collection[str] = (),
) -> CsvColumns:
    """Read the columns ``names`` (key -> spellings), those in ``plain`` as text, others coded.

    Raise ``DumpError`` if the file cannot be read or lacks a ``required`` column. Rows with a
    wrong number of fields are counted, not read.
    """
    blocks = read_blocks(path, ColumnSelection(names, required, plain), lambda block: block)
    table = pa.concat_tables(block.table for block in blocks.parts)
    return CsvColumns(table, blocks.malformed, blocks.endless)


def read_blocks(
    path: Path, selection: ColumnSelection, convert: Callable[[CsvColumns], T]
) -> Blocks[T]:
    """Read as ``read_columns`` does, but keep of each block only what ``convert`` makes of it."""
    header = read_header(path)
    names = selection.names
    keys = _keys(header, names)
    missing = [" or ".join(names[key][:2]) for key in selection.required if key not in keys]
    if missing:
        raise DumpError(
            describe_missing(path, missing, header),
            f"is this the profiler's own file? If not, {remedies.analyse(path.parent.parent)}",
        )
    coded = pa.dictionary(pa.int32(), pa.string())
    found = [key for key in keys if key in names]
    texts = {key: pa.string() if key in selection.plain else coded for key in found}
    typed = {key: kind for key, kind in selection.numbers.items() if key in texts}
    blocks = _read_fast(path, keys, {**texts, **typed}, convert) if typed else None
    blocks = blocks or _read_fast(path, keys, texts, convert)
    blocks = blocks or _read_line_by_line(path, keys, texts, convert)
    pa.default_memory_pool().release_unused()  # else Arrow keeps the memory of a block for itself
    return blocks


def _keys(header: list[str], names: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return one unique name per column: the key of those asked for, the number of others."""
    keys = [str(index) for index in range(len(header))]
    for key, spellings in names.items():
        found = next((name for name in spellings if name in header), None)
        if found is not None:
            keys[header.index(found)] = key
    return keys


def _read_fast(
    path: Path,
    keys: list[str],
    types: Mapping[str, pa.DataType],
    convert: Callable[[CsvColumns], T],
) -> Blocks[T] | None:
    """Read the rows, ``None`` if some line is none or a cell is of no such type."""
    rows, parts = 0, []
    with CountedLines(path) as file:
        try:
            for table in _tables(file, keys, types, skip_rows=1):
                rows += table.num_rows
                parts.append(convert(CsvColumns(table, 0)))
        except pa.ArrowInvalid:
            return None
        # A quote that is never closed swallows the lines after it.
        return Blocks(tuple(parts), 0, file.endless) if file.lines == 1 + rows else None


def _read_line_by_line(
    path: Path,
    keys: list[str],
    types: Mapping[str, pa.DataType],
    convert: Callable[[CsvColumns], T],
) -> Blocks[T]:
    """Read the rows that are whole; every line that is none is counted, unless it is blank."""
    rows, parts = 0, []
    with SoundLines(path, len(keys)) as file:
        try:
            # Only here is a row skipped: pyarrow cannot hand over one that is no UTF-8.
            for table in _tables(file, keys, types, skip_rows=0, skip=lambda _: "skip"):
                rows += table.num_rows
                parts.append(convert(CsvColumns(table, 0)))
        except pa.ArrowInvalid as error:
            if file.sound:
                remedy = remedies.analyse(path.parent.parent)
                raise DumpError(f"{path}: not CSV ({error})", remedy) from error
        if not parts:
            parts = [convert(CsvColumns(pa.schema(types).empty_table(), 0))]
        return Blocks(tuple(parts), max(file.lines - rows, 0), file.endless)


def _tables(
    file: io.RawIOBase,
    keys: list[str],
    types: Mapping[str, pa.DataType],
    skip_rows: int,
    skip: Callable[[pyarrow.csv.InvalidRow], str] | None = None,
) -> Iterator[pa.Table]:
    """Parse a file, at least one table; with one thread, as several take half as much CPU more."""
    reader = pyarrow.csv.open_csv(
        file,
        read_options=pyarrow.csv.ReadOptions(
            column_names=keys, skip_rows=skip_rows, use_threads=False, block_size=_BLOCK_BYTES
        ),
        parse_options=pyarrow.csv.ParseOptions(invalid_row_handler=skip),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types, include_columns=list(types), null_values=_NOT_A_NUMBER
        ),
    )
    batches, rows = [], 0
    for batch in reader:
        batches.append(batch)
        rows += batch.num_rows
        if rows >= _TABLE_ROWS:
            yield pa.Table.from_batches(batches)
            batches, rows = [], 0
    yield pa.Table.from_batches(batches, pa.schema(types))
