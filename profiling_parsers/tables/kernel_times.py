"""The time columns of kernels to int64 nanoseconds, and which of them no device can have taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from npufix.profiling_parsers.tables.exact_time import LARGEST_US, parse_duration_ns, parse_epoch_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.tables.csv_columns import CsvColumns

    Nanoseconds = tuple[NDArray[np.int64], NDArray[np.bool_]]

START, DURATION = pa.decimal128(22, 3), pa.float64()
"""What to read the columns as: epoch microseconds have more digits than a float64, and a decimal
with three places is already the number of nanoseconds."""

LONGEST_NS = 3_600 * 10**9
"""No kernel runs for an hour: collectives give up after half of one."""
_LONGEST_RUN_NS = 7 * 86_400 * 10**9
_SECOND_NS = 10**9
_SINCE_EPOCH_NS = 10**17


def read_starts(columns: CsvColumns) -> Nanoseconds:
    """Return the column ``start``, with a mask of the rows that have one."""
    if not columns.is_a("start", START):
        return parse_epoch_ns(columns.text("start"))
    chunks = [_of_decimals(chunk) for chunk in columns.table["start"].chunks]
    if not chunks:
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    return np.concatenate([c[0] for c in chunks]), np.concatenate([c[1] for c in chunks])


def read_durations(columns: CsvColumns, key: str) -> Nanoseconds:
    """Return a column of short times, with a mask of the rows that have one (0 elsewhere)."""
    if not columns.is_a(key, DURATION):
        return parse_duration_ns(columns.text(key))
    microseconds = columns.table[key].to_numpy()
    valid = np.abs(microseconds) < LARGEST_US  # False for nan and inf
    if not valid.all():
        microseconds = np.where(valid, microseconds, 0.0)
    return np.rint(microseconds * 1000).astype(np.int64), valid


def read_waits(columns: CsvColumns) -> NDArray[np.int64]:
    """Return the column ``wait``, 0 where it holds none: no kernel waits for less, or for hours."""
    waited = read_durations(columns, "wait")[0]
    return np.where((waited >= 0) & (waited < LONGEST_NS), waited, 0)


def find_plausible(start: NDArray[np.int64], duration: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which times are of this run, as opposed to a number of another column."""
    usable = (start >= 0) & (duration >= 0) & (duration < LONGEST_NS)
    if usable.any():
        started = start[usable]
        middle = np.partition(started, len(started) // 2)[len(started) // 2]
        usable &= np.abs(start - middle) < _LONGEST_RUN_NS
    return np.asarray(usable)


def has_round_starts(start: NDArray[np.int64]) -> bool:
    """Tell whether some start is a whole second, as those that a spreadsheet rounded are."""
    return bool(np.any((start % _SECOND_NS == 0) & (start > _SINCE_EPOCH_NS)))


def count_rounded(texts: pa.ChunkedArray) -> int:
    """Return how many times are in scientific notation: ``1.69512E+15`` lost its last digits."""
    found = pc.match_substring_regex(texts, r"^\W*[0-9.]+[eE]\+?[0-9]+\W*$")
    return int(pc.sum(found, min_count=0).as_py())


def _of_decimals(chunk: pa.Decimal128Array) -> Nanoseconds:
    """Return the digits of an array of ``START``: 128 bits each, of which the lower 64 suffice."""
    halves = np.frombuffer(chunk.buffers()[1], np.int64)
    low, high = halves.reshape(-1, 2)[chunk.offset : chunk.offset + len(chunk)].T
    valid = high == low >> 63
    if chunk.null_count:
        valid &= chunk.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, low, 0), valid
