"""How large the operand of a collective is, from its count and the name that HCCL gives a dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTHS = {
    "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BFP16": 2, "BF16": 2, "INT32": 4,
    "UINT32": 4, "FP32": 4, "INT64": 8, "UINT64": 8, "FP64": 8, "INT128": 16,
}  # fmt: skip
_LARGEST_COUNT = 1 << 50


def payload(count: object, dtype: str) -> int:
    """Return the bytes of ``count`` elements, 0 where either is not known."""
    if not isinstance(count, int) or not 0 < count < _LARGEST_COUNT:
        return 0
    return count * _WIDTHS.get(dtype, 0)


def payload_table(sizes: Mapping[str, int]) -> pd.DataFrame:
    """Return ``Signals.payloads`` of sizes by name."""
    known = {name: size for name, size in sizes.items() if size}
    frame = pd.DataFrame({"name": list(known), "size_bytes": list(known.values())})
    return frame.astype({"name": "category", "size_bytes": "int64"})
