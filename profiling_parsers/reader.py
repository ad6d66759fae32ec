"""One dump in, one ``Profile`` out, whatever its format; what is missing becomes a ``Problem``."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.profiling_parsers.discover import recognise
from npufix.profiling_parsers.dump_folder import find_analysed_folder
from npufix.profiling_parsers.formats import FORMATS, UNREADABLE
from npufix.profiling_parsers.special_files import refuse_special_files

if TYPE_CHECKING:
    from npufix.profiling_parsers.discover import DumpLocation
    from npufix.profiling_parsers.profile import Profile

_READERS = {each.kind: each.read for each in FORMATS}


def read_profile(dump: DumpLocation | Path) -> Profile:
    """Read one dump that ``find_dumps`` returned; of a path alone, the kind is found first.

    Raise ``DumpError`` if the kernel times cannot be read: nothing can be said without them.
    SchemaError: the reader of this format has a fault.
    """
    from npufix.profiling_parsers.schema import complete_kernels

    found = recognise(dump) if isinstance(dump, Path) else dump
    if found.kind != UNREADABLE and found.path.is_dir():
        refuse_special_files(found.path, find_analysed_folder(found.path))
    profile = _READERS[found.kind](found.path)
    whole = replace(profile, kernels=complete_kernels(profile.kernels))
    _give_back_memory()
    return whole


def _give_back_memory() -> None:
    """Return what was read in between to the system: glibc keeps all that lies below what is used.

    Of a million kernels that is 95 MB, which the rest of a diagnosis would be on top of.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
