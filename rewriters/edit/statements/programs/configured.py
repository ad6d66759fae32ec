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


@lru_cache(maxsize=1)
def may_have_sites(source: str) -> bool:
    """Tell whether a module is worth reading: by what it names, configures or imports."""
    return "torch" in source or _CONFIGURES.search(source) is not None
