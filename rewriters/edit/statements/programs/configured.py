"""Which modules are worth reading, as a text alone tells before anything that reads is loaded."""

from __future__ import annotations

import re
from functools import lru_cache

LOADERS = r"\b(workers_per_gpu|num_workers)\s*=|\bTrainingArguments\("
"""How a configuration file, which imports nothing of torch, names a loader."""
OPTIMIZERS = r"""\btype\s*=\s*['"](AdamW|Adam|SGD)['"]"""
"""How a configuration file, which imports nothing of torch, names an optimizer."""
VENDORS = r"(from|import) (mmcv\.ops|mmdet3d\.ops|torch_scatter|torch_cluster|spconv)\b"
"""What a module imports that calls operators of others and nothing of torch."""
_CONFIGURES = re.compile(f"{LOADERS}|{OPTIMIZERS}|{VENDORS}")
_PARTS = ("workers", "TrainingArguments(", "Adam", "SGD", "mmcv", "mmdet3d", "spconv")
"""One of them stands in whatever configures something, or imports from a vendor."""


@lru_cache(maxsize=1)
def may_have_sites(source: str) -> bool:
    """Tell whether a module is worth reading: by what it names, configures or imports."""
    if "torch" in source:
        return True
    return any(part in source for part in _PARTS) and _CONFIGURES.search(source) is not None
