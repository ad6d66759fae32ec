"""Records of an SQLite table as arrays: what each row of some pages holds in a column.

A record is its types and then its cells. A table of a million rows has a few dozen kinds of
records, so a cell is found by one look-up of where that kind has it. Only what these exports are
made of is understood (whole numbers, digits, floats); the rest is ``Unusual``.
The format: https://www.sqlite.org/fileformat2.html#record_format
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]

PADDING = 32
"""Bytes before and behind the pages of ``Rows.data``: a word at any cell is inside of it."""
_WIDTHS = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_NULL, _FLOAT, _ZERO, _ONE = 0, 7, 8, 9
_WHOLE = frozenset(range(1, 7))
_RESERVED = {10, 11}
_TEXT = 13
_MOST_DIGITS = 19
_LATEST = np.uint64(np.iinfo(np.int64).max)
_CONTINUES = np.uint64(0x8080808080808080)
_MANY = 128
"""From here on, a number takes more than a byte."""


class Unusual(Exception):  # noqa: N818 - no error: SQLite itself then reads the table
    """The pages hold something that only SQLite should make sense of."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a table, in the order of their keys."""

    data: Bytes
    """The pages that hold them, one after the other."""
    starts: Integers
    """Where in ``data`` the record of each row starts."""
    keys: Integers
    """The rowid of each row."""
    kind: Integers
    """Index into ``kinds`` of each row."""
    kinds: tuple[tuple[int, ...], ...]
    """The length of the header and the types of the cells, per kind of record."""

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, mask: NDArray[np.bool_]) -> Rows:
        """Return only the rows that ``mask`` is true for."""
        return Rows(self.data, self.starts[mask], self.keys[mask], self.kind[mask], self.kinds)

    def integers(self, column: int, null: int) -> Integers:
        """Return a column of whole numbers, be they written as digits; NULL becomes ``null``."""
        types, at = self._cells(column)
        constants = {_NULL: null, _ZERO: 0, _ONE: 1}
        values: Integers = words(self.data, at, ">i8")
        values >>= self._of_kind([64 - 8 * min(_width(kind), 8) for kind in types])
        for kind in self._present(types) - _WHOLE:
            rows = self._are(types, kind)
            if kind in constants:
                values[rows] = constants[kind]
            elif kind >= _TEXT and kind % 2:
                values[rows] = _digits(self.data, at[rows], (kind - _TEXT) // 2)
            else:
                raise Unusual
        return values

    def reals(self, column: int) -> NDArray[np.float64]:
        """Return a column of numbers; NULL becomes NaN."""
        types, at = self._cells(column)
        constants = {_NULL: np.nan, _ZERO: 0.0, _ONE: 1.0}
        values: NDArray[np.float64] = words(self.data, at, ">f8")
        for kind in self._present(types) - {_FLOAT}:
            rows = self._are(types, kind)
            if kind in constants:
                values[rows] = constants[kind]
            elif kind in _WHOLE:
                values[rows] = words(self.data, at[rows], ">i8") >> (64 - 8 * _width(kind))
            else:
                raise Unusual
        return values

    def _cells(self, column: int) -> tuple[list[int], Integers]:
        """Return the type of the column per kind, and where the cell of each row starts."""
        if any(len(kind) <= column + 1 for kind in self.kinds):
            raise Unusual  # the column was added later
        offsets = [kind[0] + sum(map(_width, kind[1 : column + 1])) for kind in self.kinds]
        types = [kind[column + 1] for kind in self.kinds]
        return types, self.starts + self._of_kind(offsets)

    def _of_kind(self, values: list[int]) -> Integers:
        """Return what holds for the kind of each row; one number if it holds for all of them."""
        every = np.array(values, np.int64)
        return every[:1] if len(set(values)) == 1 else every[self.kind]

    def _are(self, types: list[int], wanted: int) -> NDArray[np.bool_] | slice:
        if set(types) == {wanted}:
            return slice(None)
        return np.array([kind == wanted for kind in types], np.bool_)[self.kind]

    @cached_property
    def _used(self) -> list[int]:
        return np.flatnonzero(np.bincount(self.kind, minlength=len(self.kinds))).tolist()

    def _present(self, types: list[int]) -> set[int]:
        return {types[kind] for kind in self._used}


def words(data: Bytes, at: Integers, dtype: str) -> Any:  # noqa: ANN401 - an array of dtype
    """Return the 8 bytes at each position as a number."""
    every = np.ndarray((len(data) - 7,), dtype, data, strides=(1,))
    found = every[at]
    if found.dtype.isnative:
        return found
    return found.byteswap(inplace=True).view(found.dtype.newbyteorder("="))


def read_records(data: Bytes, cells: Integers, ends: Integers, longest: int) -> Rows:
    """Read the records in the cells of table leaves.

    ``ends`` is where the page of each cell ends; a record over ``longest`` continues elsewhere.
    """
    size, at = _short_numbers(data, cells)
    keys, starts = _long_numbers(data, at)
    if ((size > longest) | (starts + size > ends)).any():
        raise Unusual
    kind, headers = _distinct_headers(data, starts, size)
    kinds = tuple(_types(header) for header in headers)
    filled = np.array([types[0] + sum(map(_width, types[1:])) for types in kinds], np.int64)
    if (filled[kind] != size).any():
        raise Unusual
    return Rows(data, starts, keys, kind, kinds)


def _width(kind: int) -> int:
    return _WIDTHS[kind] if kind <= _ONE else (kind - 12) // 2


def _short_numbers(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the numbers below 2**14 that start at ``at``, and where each ends."""
    first = data[at]
    numbers = first.astype(np.int64)
    at = at + 1
    if first.max(initial=0) >= _MANY:
        long = first >= _MANY
        low = data[at]
        if (low[long] >= _MANY).any():
            raise Unusual
        numbers[long] = (numbers[long] & 127) << 7 | low[long]
        at += long
    return numbers, at


def _long_numbers(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the numbers, seven bits a byte, that start at ``at``, and where each ends."""
    stored: Words = words(data, at, ">u8")
    length = _lengths(stored)
    stored >>= (64 - 8 * length).astype(np.uint64)
    longest = int(length.max(initial=1))
    # Close the gaps: between seven bits first, then between what two, and four of them make.
    for step, low in enumerate((0x007F007F007F007F, 0x00003FFF00003FFF, 0x000000000FFFFFFF)):
        if longest > 1 << step:
            upper = stored >> np.uint64(1 << step)
            upper &= np.uint64(low << (7 << step))
            stored &= np.uint64(low)
            stored |= upper
        else:
            stored &= np.uint64(low)
            break
    return stored.view(np.int64), at + length


def _lengths(stored: Words) -> Integers:
    """Return how many bytes the number takes that each word starts with: one length if all do."""
    stop = ~stored
    stop &= _CONTINUES
    if not stop.all():
        raise Unusual  # nine bytes: negative, or larger than any real one
    exponents = np.frexp((stop[:1] if _alike(stop) else stop).astype(np.float64))[1]
    return ((64 - exponents.astype(np.int64)) >> 3) + 1


def _alike(stop: Words) -> bool:
    """Return whether the first byte without its highest bit is the same one in all words."""
    if not len(stop):
        return False
    highest = np.uint64(1 << int(stop[0]).bit_length() - 1)
    return bool((stop >= highest).all() and (stop >> np.uint64(1) < highest).all())


def _distinct_headers(
    data: Bytes, starts: Integers, size: Integers
) -> tuple[Integers, list[bytes]]:
    """Return which header each record has, and the headers."""
    lengths = data[starts].astype(np.int64)
    if not len(lengths):
        return lengths, []
    longest = int(lengths.max())
    if longest >= _MANY or lengths.min() < 1 or (lengths > size).any():
        raise Unusual
    parts: list[Words] = []
    mixed: Words = np.zeros(len(starts), np.uint64)
    for first in range(0, longest, 8):
        # Behind a short header nothing counts, and where it is the last of all there is nothing.
        part: Words = words(data, np.minimum(starts + first, len(data) - 8), ">u8")
        # The cells behind the header go; a shift by 64 leaves nothing.
        part >>= (8 * (first + 8 - lengths)).clip(0, 64).astype(np.uint64)
        if (part != part[0]).any():
            parts.append(part)
            mixed = (mixed ^ part) * np.uint64(0x9E3779B97F4A7C15)
    kind, distinct = pd.factorize(mixed) if parts else (np.zeros(len(starts), np.int64), [0])
    example = np.zeros(len(distinct), np.int64)
    example[kind] = np.arange(len(kind))
    if any((part[example][kind] != part).any() for part in parts):
        raise Unusual  # two headers that mix to the same number
    places = zip(starts[example].tolist(), lengths[example].tolist(), strict=True)
    return kind, [data[start : start + length].tobytes() for start, length in places]


def _types(header: bytes) -> tuple[int, ...]:
    """Return the length of a header and the types that it lists."""
    types, number = [len(header)], 0
    for byte in header[1:]:
        number = number << 7 | byte & 127
        if byte < _MANY:
            types.append(number)
            number = 0
    if number or not _RESERVED.isdisjoint(types[1:]):
        raise Unusual
    return tuple(types)


def _digits(data: Bytes, at: Integers, length: int) -> Integers:
    """Return the numbers that ``length`` decimal digits at each position spell.

    Eight digits at a time: two neighbours become a number below 100, two of those one below
    10**4, and so on, all inside one word.
    """
    if not 0 < length <= _MOST_DIGITS:
        raise Unusual
    total = np.zeros(len(at), np.uint64)
    for behind in range(0, length, 8):
        word: Words = words(data, at + (length - behind - 8), "<u8")
        word ^= np.uint64(0x3030303030303030)
        if (unread := 8 - (length - behind)) > 0:  # what stands before the text
            word = word >> np.uint64(8 * unread) << np.uint64(8 * unread)
        if ((word + np.uint64(0x7676767676767676) | word) & _CONTINUES).any():
            raise Unusual
        for factor, mask, bits in (
            (10 << 8 | 1, 0x00FF00FF00FF00FF, 8),
            (100 << 16 | 1, 0x0000FFFF0000FFFF, 16),
            (10_000 << 32 | 1, 0x00000000FFFFFFFF, 32),
        ):
            word = word * np.uint64(factor) >> np.uint64(bits) & np.uint64(mask)
        total += word * np.uint64(10**behind)
    if (total > _LATEST).any():
        raise Unusual
    return total.astype(np.int64)
