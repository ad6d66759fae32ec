"""Values of trace events, which may be any JSON value, to columns: codes, keys, nanoseconds.

Each kind of value has one form in which the profiler writes it, converted as a whole; a list with
anything else in it is converted value by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from npufix.profiling_parsers.tables.columns import category
from npufix.profiling_parsers.tables.exact_time import Nanoseconds, parse_epoch_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

MODULE, BUILT_IN = "nn.Module: ", "<built-in"
"""How the names of Python calls begin that are no functions of a source."""
_LARGEST_KEY = 1 << 62
_LONGEST_INTEGER = 100
_LONGEST_US = 9e12
_INTEGER = "^[0-9]{1,36}$"
_HALF = 18
_INT32 = np.iinfo(np.int32)

Value = TypeVar("Value", str, bytes)


class Codes(dict[Value, int], Generic[Value]):
    """Number values in the order in which they come."""

    def __missing__(self, value: Value) -> int:
        self[value] = code = len(self)
        return code

    def of(self, values: Sequence[Value]) -> Integers:
        """Return the codes of ``values``."""
        return np.fromiter(map(self.__getitem__, values), np.int64, len(values))

    def category(self, codes: pd.Series[int], text: Callable[[Value], str]) -> pd.Categorical[str]:
        """Return a column of codes as a category of the texts of their values."""
        unique: dict[str, int] = {}
        merged = [unique.setdefault(text(value), len(unique)) for value in self]
        return category(np.array(merged, np.int32)[codes], list(unique))


class Keys:
    """Ids of a trace as int64."""

    def __init__(self) -> None:
        self._others: Codes[str] = Codes()

    def of(self, values: Sequence[object]) -> Integers:
        """Return integers, written as numbers or as texts, as they are, and others below -1.

        -1 is kept for "none", which is how the profiler writes it too. Integers beyond int64, the
        connections of some versions, keep their last 62 bits.
        """
        kinds = set(map(type, values))
        if kinds == {str}:
            keys, known = _parse(pa.array(values, pa.string()))
        elif kinds == {int}:
            keys, known = _check(values)
        else:
            keys, known = np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
        for place in np.flatnonzero(~known).tolist():
            keys[place] = self.key(values[place])
        return keys

    def key(self, value: object) -> int:
        """Return the key of one value."""
        if type(value) is str and (value.isdecimal() or value == "-1"):
            value = int(value) if len(value) <= _LONGEST_INTEGER else value
        if type(value) is int and value >= -1:
            return value if value < _LARGEST_KEY else -_LARGEST_KEY - value % _LARGEST_KEY
        return -2 - self._others[text_of(value)]


def _parse(column: pa.Array) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the keys of texts and which of them are integers, of at most 36 digits."""
    known = pc.match_substring_regex(column, _INTEGER)
    digits = pc.if_else(known, column, "0")
    low = np.asarray(pc.utf8_slice_codeunits(digits, -_HALF).cast(pa.uint64()))
    if len(column) and (longest := pc.max(pc.binary_length(digits)).as_py()) > _HALF:
        heads = pc.utf8_slice_codeunits(pc.utf8_lpad(digits, longest, "0"), 0, -_HALF)
        high = np.asarray(heads.cast(pa.uint64()))
    else:
        high = np.zeros(len(low), np.uint64)
    # Arithmetic of uint64 is modulo 2**64, so the last bits are right whatever the length.
    last = ((high * np.uint64(10**_HALF) + low) & np.uint64(_LARGEST_KEY - 1)).astype(np.int64)
    most = _LARGEST_KEY // 10**_HALF
    fits = (high < most) | ((high == most) & (low < _LARGEST_KEY % 10**_HALF))
    return np.where(fits, last, -_LARGEST_KEY - last), np.asarray(known).copy()


def _check(values: Sequence[object]) -> tuple[Integers, NDArray[np.bool_]]:
    """Return integers and which of them are keys as they are."""
    try:
        keys = np.array(values, np.int64)
    except OverflowError:
        return np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)
    return keys, (keys >= -1) & (keys < _LARGEST_KEY)


class EventTable:
    """Columns of integers that grow in place.

    A list of arrays, joined at the end, would take all of them twice. Those in ``small`` take half
    the memory as long as their values allow it.
    """

    def __init__(self, *columns: str, small: Sequence[str] = ()) -> None:
        self._length = 0
        self._columns: dict[str, NDArray[Any]] = {
            name: np.empty(0, np.int32 if name in small else np.int64) for name in columns
        }

    def add(self, *columns: Integers) -> None:
        """Append rows."""
        length = self._length + len(columns[0])
        for name, added in zip(list(self._columns), columns, strict=True):
            column = self._columns[name]
            if column.dtype != np.int64 and not _is_small(added):
                self._columns[name] = column = column.astype(np.int64)
            if length > len(column):
                column.resize(length + length // 4, refcheck=False)
            column[self._length : length] = added
        self._length = length

    def keep(self, name: str, wanted: NDArray[np.bool_]) -> None:
        """Forget the rows whose code in a column is not wanted."""
        rows = np.flatnonzero(wanted[self._columns[name][: self._length]])
        for column in self._columns.values():
            column[: len(rows)] = column[rows]
        self._length = len(rows)

    def frame(self) -> pd.DataFrame:
        """Return everything kept, in the order of the last column, and forget it."""
        names = list(self._columns)
        for column in self._columns.values():
            column.resize(self._length, refcheck=False)
        times = self._columns[names[-1]]
        if (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
            for name in names:
                self._columns[name] = self._columns[name][order]
        columns, self._columns = self._columns, {}
        return pd.DataFrame(columns, copy=False)


def parse_texts(values: Sequence[object]) -> Sequence[str]:
    """Return values as the texts that stood there."""
    return values if set(map(type, values)) == {str} else list(map(text_of, values))  # type: ignore[return-value]


def text_of(value: object) -> str:
    """Return a JSON value as the text that stood there."""
    if type(value) is str:
        return value
    return "" if value is None else repr(value)


def parse_moments(values: Sequence[object]) -> Nanoseconds:
    """Return microseconds as nanoseconds, with a mask of the values that are moments."""
    nanoseconds, valid = parse_epoch_ns(pa.array(parse_texts(values), pa.string()))
    return nanoseconds, valid & (nanoseconds >= 0)


def parse_durations(values: Sequence[Any]) -> Integers:
    """Return durations in microseconds, numbers or texts, as nanoseconds.

    0 where there is none, -1 for what cannot be one: ``"-3.5"``, ``"soon"``.
    """
    try:
        column = pa.array(values if set(map(type, values)) == {str} else list(map(str, values)))
        microseconds = np.asarray(column.cast(pa.float64()))
    except pa.ArrowInvalid:
        microseconds = np.fromiter(map(_number, values), np.float64, len(values))
    valid = (microseconds >= 0) & (microseconds < _LONGEST_US)
    nanoseconds = np.rint(np.where(valid, microseconds, 0) * 1000).astype(np.int64)
    return np.where(valid, nanoseconds, -1)


def _number(value: object) -> float:
    try:
        return 0.0 if value is None else float(value)  # type: ignore[arg-type]  # whatever the file holds
    except (TypeError, ValueError, OverflowError):
        return -1.0


def _is_small(values: Integers) -> bool:
    return not len(values) or bool(values.min() >= _INT32.min and values.max() <= _INT32.max)
