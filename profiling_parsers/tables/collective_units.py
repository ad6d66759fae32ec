"""The units in which every export writes what it says of collectives.

Sizes are decimal megabytes, times milliseconds but for the start, which is in microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.tables.columns import category

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_MILLION = 1e6  # bytes of a megabyte, nanoseconds of a millisecond
LARGEST = 9e12
"""In milliseconds or megabytes: above it they leave int64."""
LATEST_US = 9e15
DIFFERENCES = frozenset({"wait_ns", "synchronization_ns", "idle_ns"})
"""What is left between two measured times, which may come out below nothing."""


def in_units(columns: Mapping[str, Sequence[Any] | NDArray[Any]], table: str) -> pd.DataFrame:
    """Return columns of a table of ``Signals``, numbers as they were written, in its units."""
    schema = SCHEMAS[table]
    return pd.DataFrame({name: _in_unit(name, columns[name], schema[name]) for name in schema})


def _in_unit(name: str, values: Sequence[Any] | NDArray[Any], kind: str) -> Any:  # noqa: ANN401 - a column
    if kind == "category":
        texts = sorted(set(values))
        places = {text: place for place, text in enumerate(texts)}
        return category(np.array([places[text] for text in values], np.int32), texts)
    numbers = np.asarray(values, np.float64)
    if name == "start_ns":
        return _exact_ns(numbers)
    if name.endswith(("_ns", "_bytes")):
        numbers = np.rint(numbers * _MILLION)
    return numbers.astype(kind)


def _exact_ns(microseconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return epoch nanoseconds; a float64 of that size would round them to 256."""
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)
