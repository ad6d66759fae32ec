"""A run as one small table: the kernels with everything in common that a comparison asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.advisor.evidence.ranking import shape_text

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from npufix.advisor.evidence.lines import Evidence

    Integers = NDArray[np.int64]

_OF_KERNEL = (
    "communication", "type", "core", "input_shapes", "input_dtypes", "path", "line", "function",
    "level",
)  # fmt: skip
_OF_HOST = {"host": "name", "host_types": "input_types"}
_LARGEST_CODE = 1 << 62


def cells_of(evidence: Evidence, devices: int) -> pd.DataFrame:
    """Return the steady kernels summed up: a row per distinct combination of the columns.

    ``communication`` (bool), ``type``, ``core``, ``shapes``, ``dtypes``, ``path``, ``line``,
    ``function``, ``level``, ``host``, ``host_types`` (text), and per step and device ``total_ns``
    and ``calls``. The table is small however long the run was.
    """
    kernels, rows = evidence.kernels, np.flatnonzero(evidence.steady).astype(np.int64)
    asked = _host_rows(evidence, rows)
    columns: dict[str, tuple[Integers, Any]] = {
        name: _codes(kernels[name], rows) for name in _OF_KERNEL
    }
    for name, of_host in _OF_HOST.items():
        codes = evidence.host_ops[of_host].cat.codes.to_numpy().astype(np.int64)
        own = np.append(codes, -1)[asked]
        columns[name] = own, evidence.host_ops[of_host].cat.categories
    numbers, firsts = _number_groups([codes for codes, _ in columns.values()])
    scale = evidence.steps * devices
    spent = kernels["duration_ns"].to_numpy()[rows]
    table = {name: _texts(codes[firsts], texts) for name, (codes, texts) in columns.items()}
    made = pd.DataFrame(
        {
            **table,
            "total_ns": np.bincount(numbers, spent, len(firsts)) / scale,
            "calls": np.bincount(numbers, minlength=len(firsts)) / scale,
        }
    )
    return _with_shapes(made)


def host_calls(evidence: Evidence, devices: int) -> pd.Series[float]:
    """Return how often each host operator asked for kernels, per step and device."""
    rows = np.flatnonzero(evidence.steady & evidence.computes).astype(np.int64)
    seen = np.zeros(len(evidence.host_ops) + 1, np.bool_)
    seen[_host_rows(evidence, rows)] = True
    names = evidence.host_ops["name"].cat
    called = names.codes.to_numpy()[seen[:-1]]
    counts = np.bincount(called[called >= 0], minlength=len(names.categories))
    texts = names.categories.astype(str)
    made = pd.Series(counts / (evidence.steps * devices), index=texts, dtype=np.float64)
    return made[made > 0]


def _host_rows(evidence: Evidence, rows: Integers) -> Integers:
    """Return the position in ``evidence.host_ops`` of what asked for each kernel, -1 unknown."""
    asked = evidence.kernels["host_op"].to_numpy()[rows]
    index = evidence.host_ops.index
    found = np.asarray(index.get_indexer(pd.Index(asked)), np.int64)
    return np.where(asked >= 0, found, -1)


def _codes(column: pd.Series[Any], rows: Integers) -> tuple[Integers, Any]:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy()[rows].astype(np.int64), column.cat.categories
    codes, found = pd.factorize(column.to_numpy()[rows])
    return codes.astype(np.int64), found


def _number_groups(columns: list[Integers]) -> tuple[Integers, Integers]:
    """Return the group of each row, and the first row of each group."""
    combined = np.zeros(len(columns[0]), np.int64)
    largest = 1
    for codes in columns:
        count = int(codes.max(initial=-1)) + 2  # -1 stands for no value
        if largest > _LARGEST_CODE // count:
            combined = pd.factorize(combined)[0].astype(np.int64)
            largest = int(combined.max(initial=0)) + 1
        combined = combined * count + codes + 1
        largest *= count
    numbers, found = pd.factorize(combined)
    firsts = np.full(len(found), -1, np.int64)
    firsts[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    return numbers.astype(np.int64), firsts


def _texts(codes: Integers, texts: ArrayLike) -> NDArray[Any]:
    """Return the value of each code, "" for none."""
    values = np.append(np.asarray(texts, object), "")
    return values[codes]


def _with_shapes(cells: pd.DataFrame) -> pd.DataFrame:
    """Replace shapes and dtypes by what is shown of them."""
    pairs = cells[["input_shapes", "input_dtypes"]].astype(str)
    distinct = pairs.drop_duplicates()
    texts = {
        (shapes, dtypes): shape_text(shapes, dtypes)
        for shapes, dtypes in distinct.itertuples(index=False)
    }
    keys = zip(pairs["input_shapes"], pairs["input_dtypes"], strict=True)
    shown = pd.Series([texts[key] for key in keys], index=cells.index, dtype=object)
    return cells.assign(
        shapes=shown, line=pd.to_numeric(cells["line"]).astype(np.int64),
        communication=cells["communication"].astype(np.bool_),
    ).drop(columns="input_shapes").rename(columns={"input_dtypes": "dtypes"})  # fmt: skip
