"""The Type of a kernel by its name, for exports that do not say it: Level0 and task_time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.tables.columns import category

if TYPE_CHECKING:
    import pandas as pd

# aclnn<API>_<variant>_<Type>[_<suffix>], and Inner<API>_... of an API that another one calls; a
# memory set before a kernel has the name of the kernel.
_ACLNN = re.compile(r"(aclnn|Inner)[A-Za-z0-9]+_[A-Za-z0-9]+_(?P<type>[A-Za-z0-9]+)(?:_\w+)?")
_MEMSET = re.compile(r"atomic_memset\W.*|\w+_MemSet")
_CONVERSION = re.compile(r"trans_(?P<type>[A-Za-z]+)_[0-9]+")
_COLLECTIVE = re.compile(r"(?P<type>hcom_[A-Za-z]+_)_.*")
# Operators of the graph engine are counted: Conv2D7 is the seventh of a kind. GatherV282 is
# GatherV2 and 82: no version has two digits.
_COUNTED = re.compile(r"(?P<type>[A-Z][A-Za-z0-9]*?(?:V[0-9]|[A-UW-Za-z]))[0-9]+")


def type_of_name(name: str) -> str:
    """Return the Type that the name of a kernel tells, or the name itself."""
    if _MEMSET.fullmatch(name):
        return "MemSet"
    for pattern in (_ACLNN, _CONVERSION, _COLLECTIVE, _COUNTED):
        if found := pattern.fullmatch(name):
            return found["type"]
    return name


def fill_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Return kernels whose ``type`` is told by their ``name`` where it was empty."""
    known = frame["type"].cat
    if "" not in known.categories:
        return frame
    codes = {text: code for code, text in enumerate(known.categories)}
    told = [type_of_name(name) if name else "" for name in frame["name"].cat.categories]
    of_name = np.array([codes.setdefault(text, len(codes)) for text in told], np.int32)
    missing = known.codes.to_numpy() == known.categories.get_loc("")
    filled = np.where(missing, of_name[frame["name"].cat.codes], known.codes)
    return frame.assign(type=category(filled, list(codes)))
