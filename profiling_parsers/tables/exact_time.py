"""Decimal microseconds, as text, to int64 nanoseconds.

An epoch time has 19 digits in nanoseconds, a float64 holds 16: read through a float, two events
that the profiler wrote as one time are up to 250 ns apart and no longer join.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DECIMALS = 3
_INT64_DIGITS = 19
_DECIMAL = (
    r"^0*(?P<whole>[0-9]{1,15}|[0-8][0-9]{15})"
    r"(?:\.(?P<fraction>[0-9]{0,3})(?P<rounding>[0-9]?)[0-9]*)?$"
)
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
LARGEST_US = 9.2e15
"""Above it, nanoseconds leave int64."""
_LARGEST = 1e30
"""No file means a larger number; sums of them, and products with units, stay finite."""

Nanoseconds = tuple["NDArray[np.int64]", "NDArray[np.bool_]"]


def parse_epoch_ns(texts: pa.Array | pa.ChunkedArray) -> Nanoseconds:
    """Convert microseconds to nanoseconds without loss, with a mask of the rows that are numbers.

    Only the scientific notation that a spreadsheet leaves behind (``1.69512E+15``) goes through
    a float: its digits are lost already.
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    written = _as_written(trimmed)
    if written is not None:
        return written, np.ones(len(trimmed), dtype=np.bool_)
    parts = pc.extract_regex(trimmed, _DECIMAL)
    valid = as_numpy(pc.is_valid(parts))
    whole, fraction, rounding = (pc.struct_field(parts, i) for i in range(3))
    digits = pc.binary_join_element_wise(whole, pc.utf8_rpad(fraction, 3, "0"), "")
    exact = as_numpy(pc.fill_null(digits, "0").cast(pa.int64()))
    exact = exact + as_numpy(pc.fill_null(pc.greater_equal(rounding, "5"), fill_value=False))
    if valid.all():
        return exact, valid
    rounded, numbers = parse_duration_ns(trimmed)
    return np.where(valid, exact, rounded), valid | numbers


def parse_duration_ns(texts: pa.Array | pa.ChunkedArray) -> Nanoseconds:
    """Convert short times to nanoseconds, with a mask of the rows that are numbers (0 elsewhere).

    Exact up to 104 days, where microseconds with three decimals outgrow a float64.
    """
    microseconds = parse_numbers(texts)
    valid = np.abs(microseconds) < LARGEST_US  # False for nan and inf
    nanoseconds = np.rint(np.where(valid, microseconds, 0.0) * 1000).astype(np.int64)
    return nanoseconds, valid


def parse_numbers(texts: pa.Array | pa.ChunkedArray) -> NDArray[np.float64]:
    """Return texts as numbers, NaN where one is none, or none that anybody means."""
    trimmed = pc.utf8_trim_whitespace(texts)
    try:
        floats = trimmed.cast(pa.float64())
    except pa.ArrowInvalid:
        is_number = pc.match_substring_regex(trimmed, _NUMBER)
        floats = pc.if_else(is_number, pc.utf8_ltrim(trimmed, "+"), "nan").cast(pa.float64())
    values: NDArray[np.float64] = as_numpy(floats)
    return np.where(np.abs(values) < _LARGEST, values, np.nan)


def _as_written(texts: pa.Array | pa.ChunkedArray) -> NDArray[np.int64] | None:
    """Convert texts that all are as long as the first, with three decimals; None if they are not.

    So are all times of a run, and their digits can be read as columns of a table of bytes.
    """
    column = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    width = len(column[0].as_py() or "") if len(column) else 0
    if not _DECIMALS + 1 < width <= _INT64_DIGITS + 1 or column.null_count:
        return None
    _, offsets, text = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    if (np.diff(bounds) != width).any():
        return None
    signs = np.frombuffer(text, np.uint8)[bounds[0] : bounds[-1]].reshape(-1, width)
    point = width - 1 - _DECIMALS
    digits = signs[:, [place for place in range(width) if place != point]] - ord("0")
    if (digits > 9).any() or (signs[:, point] != ord(".")).any():  # noqa: PLR2004 - a digit
        return None
    if width > _INT64_DIGITS and (digits[:, 0] > 8).any():  # noqa: PLR2004 - beyond int64
        return None
    nanoseconds = np.zeros(len(column), np.int64)
    for place in range(width - 1):
        nanoseconds = nanoseconds * 10 + digits[:, place]
    return nanoseconds


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return a column as an array."""
    chunked = isinstance(column, pa.ChunkedArray)
    return np.asarray(column.to_numpy() if chunked else column.to_numpy(zero_copy_only=False))
