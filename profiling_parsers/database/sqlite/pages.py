"""Rows of one table from the pages of an SQLite file, a block at a time.

SQLite hands out one row after the other, and turning millions of them into Python objects costs
more than everything that is done with them. Here the pages of a table become arrays at once. For
the five large tables of a million kernels (9.9 million rows) that took 3.0 s of processor time;
adbc-driver-sqlite 1.13, which makes Arrow columns, took 2.2 times that; ``sqlite3`` with fetchmany
and numpy took 7.5 times, and 12 times with the casts that a file from elsewhere needs.

Damage, and all that is not stored as usual, is ``Unusual``: left to SQLite itself.
The format: https://www.sqlite.org/fileformat2.html#b_tree_pages
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.database.sqlite.records import PADDING, Rows, Unusual, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Choice = Callable[[Iterator[Rows]], NDArray[np.bool_]]

_HEADER_BYTES = 100
_UTF8 = 1
_SMALLEST_PAGE = 512
_LEAF, _INTERIOR = 0x0D, 0x05
_LEAF_HEADER, _INTERIOR_HEADER = 8, 12
_SHORTEST_CELL = 4
_DEEPEST = 16
_OVERFLOW_MARGIN = 35
_BLOCK_BYTES = 1 << 20
"""Small enough for the caches of a processor, large enough for the calls not to count."""
_BIG_ENDIAN = np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)


class PagedFile:
    """An SQLite file as pages; close it after use."""

    def __init__(self, path: Path) -> None:
        """Open the file; raise ``Unusual`` if it is not laid out as usual, ``OSError`` if not."""
        self._file = path.open("rb", buffering=0)
        header = self._file.read(_HEADER_BYTES)
        size = int.from_bytes(header[16:18], "big")
        self._page_bytes = 1 << 16 if size == 1 else size
        whole = len(header) == _HEADER_BYTES and self._page_bytes >= _SMALLEST_PAGE
        if not whole or int.from_bytes(header[56:60], "big") != _UTF8:
            self.close()
            raise Unusual
        self._usable = self._page_bytes - header[20]
        self._pages = path.stat().st_size // self._page_bytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, root: int, choose: Choice | None = None) -> Iterator[tuple[Rows, float]]:
        """Read the table whose first page is ``root``, up to where it is ``Unusual``.

        With some rows comes the share of the table that is read with them. ``choose`` says which
        pages to read, from the first row of each.
        """
        leaves = self._leaves(root)
        if choose is not None and len(leaves) > 1:
            leaves = leaves[choose(self._first_rows(leaves))]
        last = -1
        for behind, data in self._in_blocks(leaves):
            _, at, ends = self._cells(data, _LEAF, _LEAF_HEADER)
            rows = self._records(data, at, ends)
            if len(rows):
                if rows.keys[0] <= last or (np.diff(rows.keys) <= 0).any():
                    raise Unusual
                last = int(rows.keys[-1])
                yield rows, behind / len(leaves)

    def _first_rows(self, leaves: Integers) -> Iterator[Rows]:
        for _, data in self._in_blocks(leaves):
            counts, at, ends = self._cells(data, _LEAF, _LEAF_HEADER)
            if not counts.all():
                raise Unusual
            first = np.cumsum(counts) - counts
            yield self._records(data, at[first], ends[first])

    def _in_blocks(self, leaves: Integers) -> Iterator[tuple[int, Bytes]]:
        """Yield the pages some at a time, with how many are read then."""
        step = max(_BLOCK_BYTES // self._page_bytes, 1)
        for first in range(0, len(leaves), step):
            block = leaves[first : first + step]
            yield first + len(block), self._read(block)

    def _leaves(self, root: int) -> Integers:
        """Return the pages that hold the rows, in order."""
        level = np.array([root], np.int64)
        for _ in range(_DEEPEST):
            if level.min() <= 1 or level.max() > self._pages or len(np.unique(level)) < len(level):
                raise Unusual
            if self._read(level[:1])[PADDING] == _LEAF:
                return level
            level = self._children(self._read(level))
        raise Unusual

    def _children(self, data: Bytes) -> Integers:
        """Return the pages below some pages: one per cell, and the one behind the last cell."""
        counts, at, _ = self._cells(data, _INTERIOR, _INTERIOR_HEADER)
        children = np.zeros((len(counts), int(counts.max()) + 1), np.int64)
        slot = np.arange(children.shape[1])
        children[slot < counts[:, None]] = _page_number(data, at)
        page_starts = PADDING + np.arange(len(counts)) * self._page_bytes
        children[np.arange(len(counts)), counts] = _page_number(data, page_starts + 8)
        return children[slot <= counts[:, None]]

    def _records(self, data: Bytes, at: Integers, ends: Integers) -> Rows:
        return read_records(data, at, ends, self._usable - _OVERFLOW_MARGIN)

    def _cells(self, data: Bytes, kind: int, header: int) -> tuple[Integers, Integers, Integers]:
        """Return the number of cells per page, where each cell is, and where its page ends."""
        pages = data[PADDING:-PADDING].reshape(-1, self._page_bytes)
        if (pages[:, 0] != kind).any():
            raise Unusual
        counts = pages[:, 3].astype(np.int64) << 8 | pages[:, 4]
        most = int(counts.max())
        if header + 2 * most > self._usable:
            raise Unusual
        every = np.ascontiguousarray(pages[:, header : header + 2 * most]).view(">u2")
        pointers = every[np.arange(most) < counts[:, None]].astype(np.int64)
        if pointers.max(initial=0) > self._usable - _SHORTEST_CELL:
            raise Unusual
        # A cell lies behind the pointers of its page; mostly behind the most of any page.
        if (
            pointers.min(initial=self._usable) < header + 2 * most
            and (pointers < np.repeat(header + 2 * counts, counts)).any()
        ):
            raise Unusual
        starts = np.repeat(PADDING + np.arange(len(counts)) * self._page_bytes, counts)
        return counts, starts + pointers, starts + self._usable

    def _read(self, pages: Integers) -> Bytes:
        """Return the pages (the first is 1), padded; neighbours are read together."""
        size = self._page_bytes
        data = np.zeros(len(pages) * size + 2 * PADDING, np.uint8)
        view = data.data[PADDING:-PADDING]
        borders = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]
        for first, behind in pairwise(borders):
            self._file.seek((int(pages[first]) - 1) * size)
            if self._file.readinto(view[first * size : behind * size]) != (behind - first) * size:
                raise Unusual
        return data


def _page_number(data: Bytes, at: Integers) -> Integers:
    return np.asarray(data[at[:, None] + np.arange(4)].astype(np.int64) @ _BIG_ENDIAN)
