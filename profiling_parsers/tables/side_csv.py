"""A CSV file beside the kernels: its columns with their units, and what is wrong with it.

The profiler writes such a file only if it has rows, and ends every line. So a file without rows,
a last line without an end, a row with a wrong number of fields or without a number where one must
be are damage, and told. Each parser says which columns it needs; what it returns are whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.tables.csv_columns import CsvColumns, read_columns
from npufix.profiling_parsers.tables.csv_lines import cells, describe_missing
from npufix.profiling_parsers.tables.exact_time import as_numpy, parse_epoch_ns, parse_numbers
from npufix.profiling_parsers.tables.file_damage import NOT_UTF8, FileCondition, remedy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from npufix.profiling_parsers.profile import Problem

Checked = tuple["NDArray[np.int64]", "NDArray[np.bool_]"]
"""Values, and a mask of the rows in which they are legal."""

_NANOSECONDS = {"": 1e3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_BYTES = {"": 1.0, "B": 1.0, "KB": 1024.0, "MB": 1024.0**2, "GB": 1024.0**3}
_UNITS = {*_NANOSECONDS, *_BYTES, "%"}
_NOT_COLLECTED = ["", "N/A", "None"]
_LONGEST_LINE = 1 << 16
_BLOCK_BYTES = 1 << 20
_LARGEST = 2.0**60  # so that a few add up without leaving int64


@dataclass(frozen=True)
class SideCsv:
    """The columns of one file, by key, the unit of each, and how much of it is no row."""

    path: Path
    columns: CsvColumns
    units: Mapping[str, str]
    torn: bool
    """The last line has no end, and what is missing may be a part of a number that is read."""
    endless: bool
    """The last line has no end."""
    holes: bool
    """There are zero bytes."""

    def __contains__(self, key: str) -> bool:
        return key in self.columns

    def category(self, key: str) -> pd.Categorical[str]:
        """Return a column of names, ``""`` where nothing was collected."""
        return self.columns.category(key, _name)

    def number(self, key: str) -> NDArray[np.float64]:
        """Return a column of numbers, NaN where there is none."""
        return parse_numbers(self.columns.text(key))

    def absent(self, key: str) -> NDArray[np.bool_]:
        """Return where a column is blank or says that nothing was collected."""
        trimmed = pc.utf8_trim_whitespace(self.columns.text(key))
        return as_numpy(pc.is_in(trimmed, value_set=pa.array(_NOT_COLLECTED)))

    def duration_ns(self, key: str, *, optional: bool = False) -> Checked:
        """Return a time that is never negative; -1 where an ``optional`` one was not collected."""
        values, valid = self.signed_ns(key, optional=optional)
        return values, valid & (values >= (-1 if optional else 0))

    def signed_ns(self, key: str, *, optional: bool = False) -> Checked:
        """Return a time that may be negative; -1 where an ``optional`` one was not collected."""
        return self._scaled(key, _NANOSECONDS, optional=optional)

    def size_bytes(self, key: str, *, optional: bool = False) -> Checked:
        """Return a size, which may be negative; -1 where it was not collected."""
        return self._scaled(key, _BYTES, optional=optional)

    def count(self, key: str) -> Checked:
        """Return a number of things."""
        values = self.number(key)
        valid = (values >= 0) & (values < _LARGEST) & (np.rint(values) == values)
        return np.where(valid, values, 0).astype(np.int64), valid

    def moment_ns(self, key: str, *, optional: bool = False) -> Checked:
        """Return a time since the epoch, without loss; -1 where it was not collected."""
        if self.units.get(key, "") not in ("", "us"):
            return self.duration_ns(key, optional=optional)
        values, valid = parse_epoch_ns(self.columns.text(key))
        valid &= values >= 0
        absent = self.absent(key) if optional else np.zeros_like(valid)
        return np.where(valid, values, -1), valid | absent

    def frame(
        self, table: str, columns: Mapping[str, Any], valid: NDArray[np.bool_]
    ) -> tuple[pd.DataFrame, list[Problem]]:
        """Return a table of ``Signals`` of the ``valid`` rows, and what is wrong with the file."""
        whole = self.whole(valid)
        data = {name: columns[name] for name in SCHEMAS[table]}
        frame = pd.DataFrame(data).astype(dict(SCHEMAS[table]))
        return frame[whole].reset_index(drop=True), self.problems(whole)

    def whole(self, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the ``valid`` rows but for one that the end of the file may have cut."""
        whole = valid.copy()
        if self.torn and len(whole):
            whole[-1] = False
        return whole

    def problems(self, whole: NDArray[np.bool_]) -> list[Problem]:
        """Say what is wrong with the file, if only its ``whole`` rows are used."""
        used = int(np.count_nonzero(whole))
        condition = FileCondition(
            used=used,
            left_out=self.columns.malformed + len(whole) - used,
            endless=self.endless,
            holes=self.holes,
            misspelt=self._misspelt(),
        )
        return condition.problems(self.path)

    def _scaled(self, key: str, factors: Mapping[str, float], *, optional: bool) -> Checked:
        scaled = self.number(key) * factors[self.units.get(key, "")]
        valid = np.abs(scaled) < _LARGEST  # False for NaN
        absent = self.absent(key) if optional else np.zeros_like(valid)
        values = np.rint(np.where(valid, scaled, -1.0)).astype(np.int64)
        return values, valid | absent

    def _misspelt(self) -> bool:
        table = self.columns.table
        coded = [f.name for f in table.schema if pa.types.is_dictionary(f.type)]
        return any(NOT_UTF8 in text for key in coded for text in self.category(key).categories)


@dataclass(frozen=True)
class Header:
    """The first line of a file, and its last."""

    columns: tuple[str, ...]
    found: Mapping[str, str]
    """Column of each key that was asked for and is there."""
    last: str
    """The last line if it has no end, else ``""``."""

    def unit(self, key: str) -> str:
        """Return the unit of a column, ``""`` where its name has none."""
        return _split(self.found[key])[1]


def read_header(
    path: Path, names: Mapping[str, tuple[str, ...]], required: Collection[str]
) -> Header:
    """Find the columns ``names`` (key -> spellings, without the unit).

    Raise ``DumpError`` if the file cannot be read, or a ``required`` column is not there or there
    twice.
    """
    first, last = _ends(path)
    columns = cells(first)
    spelled = {key: _spell(path, columns, spellings) for key, spellings in names.items()}
    found = {key: column for key, column in spelled.items() if column is not None}
    missing = [names[key][0] for key in required if key not in found]
    if missing:
        raise DumpError(describe_missing(path, missing, columns), remedy(path))
    return Header(tuple(columns), found, last.strip())


def read_side_csv(
    path: Path,
    names: Mapping[str, tuple[str, ...]],
    *,
    required: Collection[str],
    categories: Collection[str],
) -> SideCsv:
    """Read the columns ``names`` (key -> spellings, without the unit).

    Those in ``categories`` hold names, the others numbers.

    Raise ``DumpError`` as ``read_header`` does.
    """
    header = read_header(path, names, required)
    exact = {key: (column,) for key, column in header.found.items()}
    plain = tuple(key for key in exact if key not in categories)
    whole = len(cells(header.last)) == len(header.columns)
    return SideCsv(
        path=path,
        columns=read_columns(path, exact, required=(), plain=plain),
        units={key: header.unit(key) for key in exact},
        torn=whole and header.columns[-1] in header.found.values(),
        endless=bool(header.last),
        holes=_has_holes(path),
    )


def _ends(path: Path) -> tuple[str, str]:
    """Return the first line, and what follows the last line end.

    Raise ``DumpError`` if there is none.
    """
    try:
        with path.open("rb") as file:
            first = file.readline(_LONGEST_LINE)
            size = file.seek(0, 2)
            file.seek(max(size - _LONGEST_LINE, 0))
            last = file.read().rpartition(b"\n")[2]
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}", "make the file readable") from error
    if not first.strip():
        what = "starts with a blank line" if size else "is empty"
        raise DumpError(f"{path}: {what}", remedy(path))
    return first.decode("utf-8-sig", errors="replace"), last.decode("utf-8", errors="replace")


def _has_holes(path: Path) -> bool:
    with path.open("rb") as file:
        return any(b"\0" in block for block in iter(lambda: file.read(_BLOCK_BYTES), b""))


def _split(cell: str) -> tuple[str, str]:
    """Return the name and the unit of a column; ``Communication(Not Overlapped)`` has none."""
    name, bracket, rest = cell.rpartition("(")
    unit = rest.removesuffix(")")
    has_unit = bracket and rest.endswith(")") and unit in _UNITS
    return (name.rstrip(), unit) if has_unit else (cell, "")


def _spell(path: Path, columns: list[str], spellings: tuple[str, ...]) -> str | None:
    cells = [cell for cell in columns if _split(cell)[0] in spellings]
    if len(cells) > 1:
        raise DumpError(f"{path}: {len(cells)} columns {spellings[0]}", remedy(path))
    return cells[0] if cells else None


def _name(text: str) -> str:
    bare = text.strip()
    return "" if bare in _NOT_COLLECTED else bare
