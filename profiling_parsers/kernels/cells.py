"""What stands in the cells of kernel tables, whichever export they are of."""

from __future__ import annotations

import numpy as np
import pandas as pd

COMMUNICATION_CORES = frozenset({"HCCL", "COMMUNICATION"})
"""Accelerator Core of collectives: the first before CANN 8, the second since."""


def step_ids(texts: pd.Categorical[str]) -> pd.arrays.IntegerArray:
    """Return step numbers, <NA> where there is none (no schedule, or outside of the steps)."""
    numbers = pd.to_numeric(pd.Series(texts.categories, dtype=object), errors="coerce")
    whole = numbers.where((numbers % 1 == 0) & (numbers.abs() < 2**53))
    values = whole.to_numpy(np.float64)[texts.codes]
    missing = np.isnan(values)
    return pd.arrays.IntegerArray(np.where(missing, 0, values).astype(np.int64), missing)


def clean_text(text: str) -> str:
    """Return a text, ``""`` where nothing was collected."""
    bare = text.strip()
    return "" if bare == "N/A" else bare


def clean_type(text: str) -> str:
    """Return a Type; old exports write 0 for that of a memory set."""
    bare = clean_text(text)
    return "" if bare == "0" else bare


def clean_shapes(text: str) -> str:
    """Return a shape list without the quotes that are part of the cell; N/A is none."""
    bare = text.strip().strip('"')
    return "" if bare == "N/A" else bare
