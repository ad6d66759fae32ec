"""The units in which every export writes what it says of collectives.

Sizes are decimal megabytes, times milliseconds but for the start, which is in microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.signals import SCHEMAS

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_MILLION = 1e6  # bytes of a megabyte, nanoseconds of a millisecond
LARGEST = 9e12
"""In milliseconds or megabytes: above it they leave int64."""
LATEST_US = 9e15


def in_units(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Return rows of a table of ``Signals``, numbers as they were written, in its units."""
    schema = SCHEMAS[table]
    for column in schema:
        if column == "start_ns":
            frame[column] = _exact_ns(frame[column].to_numpy(np.float64))
        elif column.endswith(("_ns", "_bytes")):
            frame[column] = np.rint(frame[column].to_numpy(np.float64) * _MILLION)
    return frame.astype(dict(schema))


def _exact_ns(microseconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return epoch nanoseconds; a float64 of that size would round them to 256."""
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)
