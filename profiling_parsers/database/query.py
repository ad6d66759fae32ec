"""What is to be read of a table, and the columns that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from npufix.profiling_parsers.tables.columns import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.sqlite.file import TableLayout
    from npufix.profiling_parsers.database.sqlite.records import Rows
    from npufix.profiling_parsers.database.texts import Lookup

    Columns = dict[str, NDArray[Any]]
    Spellings = Mapping[str, tuple[str, ...]]

LATEST_NS = 1 << 62
"""No moment is later: with a duration added it stays inside of int64."""
_SMALLEST_SHARE, _MARGIN = 1e-3, 1.2


@dataclass(frozen=True)
class Query:
    """Columns of a table, whatever type they are declared with, and of which rows."""

    table: str
    columns: Spellings
    """How the versions of the file spell each column, by the key that it gets here."""
    required: Collection[str] = ()
    """Columns without which the table says nothing; the others are ``NONE`` where missing."""
    expected: Collection[str] = ()
    """Columns that every version has: rows are read without them, but their loss is told."""
    dtypes: Mapping[str, type] = field(default_factory=dict)
    """int64 unless int32 (``NONE`` for what that cannot hold) or float64 (NaN for NULL)."""
    only: Mapping[str, Lookup] = field(default_factory=dict)
    """The values that some of the columns must have."""
    sample: Callable[[Columns], NDArray[np.bool_]] | None = None
    """Says from the first row of each page which pages to read, where the table is so large."""

    def dtype(self, key: str) -> type:
        """Return the type of a column."""
        return self.dtypes.get(key, np.int64)

    def missing(self, key: str) -> Any:  # noqa: ANN401 - a number of the dtype
        """Return what a column that is not there is full of."""
        dtype = self.dtype(key)
        return dtype(np.nan if dtype is np.float64 else NONE)

    def fitting(self, key: str, column: NDArray[Any]) -> NDArray[Any]:
        """Return numbers as the type of their column, ``NONE`` where that cannot hold them."""
        if column.dtype == self.dtype(key):
            return column
        narrow: NDArray[Any] = column.astype(self.dtype(key))
        if (narrow != column).any():
            narrow[narrow != column] = NONE
        return narrow

    def cells(self, rows: Rows, table: TableLayout, found: Mapping[str, str]) -> Columns:
        """Return the columns that were ``found``, of those rows that ``only`` lets through."""
        cells: Columns = {}
        for key, allowed in self.only.items():
            cells[key] = self._column(key, rows, table, found)
            mask = allowed(cells[key]) >= 0
            if not mask.all():
                rows = rows.where(mask)
                cells = {key: each[mask] for key, each in cells.items()}
        return {
            key: cells[key] if key in cells else self._column(key, rows, table, found)
            for key in found
        }

    def _column(
        self, key: str, rows: Rows, table: TableLayout, found: Mapping[str, str]
    ) -> NDArray[Any]:
        name = found[key].lower()
        if name == table.key:
            return rows.keys
        position = table.position(name)
        if self.dtype(key) is np.float64:
            return rows.reals(position)
        return rows.integers(position, NONE)


class Growing:
    """A column that is as long as it has become; what it does not fill takes no memory."""

    def __init__(self, dtype: type) -> None:
        """Start without rows."""
        self._cells: NDArray[Any] = np.empty(0, dtype)
        self._count = 0

    def append(self, column: NDArray[Any], share: float) -> None:
        """Add rows; with them, the column has about this ``share`` of its final length."""
        count = self._count + len(column)
        if count > len(self._cells):
            expected = int(count / max(share, _SMALLEST_SHARE) * _MARGIN) + 1
            longer = np.empty(expected, self._cells.dtype)
            longer[: self._count] = self._cells[: self._count]
            self._cells = longer
        self._cells[self._count : count] = column
        self._count = count

    def whole(self) -> NDArray[Any]:
        """Return the rows."""
        return self._cells[: self._count]
