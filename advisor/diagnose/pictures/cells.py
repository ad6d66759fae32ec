"""The compute time of the steady steps, cut as finely as the page shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.evidence.ranking import shape_text
from npufix.reports.html.details import Cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from npufix.advisor.evidence.lines import Evidence

_MOST = 4000
_KEYS = (
    "backward", "module", "path", "line", "function", "type", "input_shapes", "input_dtypes",
)  # fmt: skip
_BACKWARD = ("forward", "forward-function")
"""How a kernel of the backward pass is led to a line: by its forward operator."""


def costs(evidence: Evidence) -> pd.DataFrame:
    """Return ``size`` and ``sum`` of the kernels of each kind, the longest first."""
    rows = evidence.kernels[evidence.computes & evidence.steady]
    rows = rows.assign(backward=rows["basis"].isin(_BACKWARD).to_numpy(np.int64))
    grouped = rows.groupby(list(_KEYS), sort=False, observed=True)["duration_ns"]
    found = grouped.agg(["size", "sum"]).reset_index()
    return found.sort_values("sum", ascending=False, kind="stable")


def cells(found: pd.DataFrame, modules: Sequence[str], steps: int) -> Cells | None:
    """Return the cells; those with the least time are one for each Type and pass."""
    if found.empty:
        return None
    shown, rest = found.iloc[:_MOST], found.iloc[_MOST:]
    names = [_Names() for _ in range(4)]
    rows = []
    for backward, module, path, line, function, kind, shapes, dtypes, calls, total in zip(
        *(shown[name].tolist() for name in (*_KEYS, "size", "sum")), strict=True
    ):
        texts = (
            modules[module] if 0 <= module < len(modules) else "",
            place_text(str(path), line, str(function)),
            str(kind),
            shape_text(str(shapes), str(dtypes)),
        )
        rows.append((backward, *_numbers(names, texts), calls, total))
    if len(rest):
        sums = rest.groupby(["backward", "type"], sort=False, observed=True)[["size", "sum"]].sum()
        columns = (sums.index.get_level_values(0), sums.index.get_level_values(1))
        for backward, kind, calls, total in zip(*columns, sums["size"], sums["sum"], strict=True):
            numbers = _numbers(names, ("", "", str(kind), ""))
            rows.append((int(backward), *numbers, int(calls), int(total)))
    module_names, places, types, shape_names = (list(part.numbers) for part in names)
    return Cells(steps, module_names, places, types, shape_names, rows)


def place_text(path: str, line: int, function: str) -> str:
    """Return ``file.py:12 forward``, "" for no place."""
    return f"{path}:{line} {function}".rstrip() if path else ""


def _numbers(
    names: Sequence[_Names], texts: tuple[str, str, str, str]
) -> tuple[int, int, int, int]:
    one, two, three, four = (part.number(text) for part, text in zip(names, texts, strict=True))
    return one, two, three, four


class _Names:
    """Texts, each written once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))
