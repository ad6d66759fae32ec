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

_EPOCH_AS_WRITTEN = r"^[0-9]{1,15}\.[0-9]{3}$|^[0-8][0-9]{15}\.[0-9]{3}$"
_DECIMAL = (
    r"^0*(?P<whole>[0-9]{1,15}|[0-8][0-9]{15})"
    r"(?:\.(?P<fraction>[0-9]{0,3})(?P<rounding>[0-9]?)[0-9]*)?$"
)
_FLOAT = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
_LARGEST_US = 9.2e15  # above it, nanoseconds leave int64

Nanoseconds = tuple["NDArray[np.int64]", "NDArray[np.bool_]"]


def epoch_ns(texts: pa.Array | pa.ChunkedArray) -> Nanoseconds:
    """Convert microseconds to nanoseconds without loss, with a mask of the rows that are numbers.

    Only the scientific notation that a spreadsheet leaves behind (``1.69512E+15``) goes through
    a float: its digits are lost already.
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    if pc.all(pc.match_substring_regex(trimmed, _EPOCH_AS_WRITTEN), min_count=0).as_py():
        exact = pc.replace_substring(trimmed, ".", "").cast(pa.int64())
        return _numpy(exact), np.ones(len(trimmed), dtype=np.bool_)
    parts = pc.extract_regex(trimmed, _DECIMAL)
    valid = _numpy(pc.is_valid(parts))
    whole, fraction, rounding = (pc.struct_field(parts, i) for i in range(3))
    digits = pc.binary_join_element_wise(whole, pc.utf8_rpad(fraction, 3, "0"), "")
    exact = _numpy(pc.fill_null(digits, "0").cast(pa.int64()))
    exact = exact + _numpy(pc.fill_null(pc.greater_equal(rounding, "5"), fill_value=False))
    if valid.all():
        return exact, valid
    rounded, numbers = duration_ns(trimmed)
    return np.where(valid, exact, rounded), valid | numbers


def duration_ns(texts: pa.Array | pa.ChunkedArray) -> Nanoseconds:
    """Convert short times to nanoseconds, with a mask of the rows that are numbers (0 elsewhere).

    Exact up to 104 days, where microseconds with three decimals outgrow a float64.
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    try:
        floats = trimmed.cast(pa.float64())
    except pa.ArrowInvalid:
        numbers = pc.match_substring_regex(trimmed, _FLOAT)
        unsigned = pc.utf8_ltrim(trimmed, "+")
        floats = pc.if_else(numbers, unsigned, "nan").cast(pa.float64())
    microseconds = _numpy(floats)
    valid = np.abs(microseconds) < _LARGEST_US  # False for nan and inf
    nanoseconds = np.rint(np.where(valid, microseconds, 0.0) * 1000).astype(np.int64)
    return nanoseconds, valid


def _numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    chunked = isinstance(column, pa.ChunkedArray)
    return np.asarray(column.to_numpy() if chunked else column.to_numpy(zero_copy_only=False))
