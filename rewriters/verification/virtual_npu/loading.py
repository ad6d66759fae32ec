"""Load the stub libraries, and lead their functions somewhere."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from npufix.rewriters.verification.virtual_npu.wheel import elf_reader
from npufix.rewriters.verification.virtual_npu.wheel.elf_writer import SLOTS

if TYPE_CHECKING:
    from pathlib import Path

MAIN = "libascendcl.so"
"""Defines everything; the other libraries are empty and lead here."""
KERNELS = "kernels.txt"
"""The kernels among the functions, one per line."""


class Slots:
    """Where each stub function jumps to, by name."""

    def __init__(self, folder: Path) -> None:
        """Load the libraries of a folder: the loader takes them for those of CANN.

        It compares the names that torch_npu needs with the names inside libraries that are
        loaded already, before it looks for files.
        """
        main = folder / MAIN
        names = [s.name for s in elf_reader.read(main).defined if s.name != SLOTS]
        library = ctypes.CDLL(str(main), mode=ctypes.RTLD_GLOBAL)
        self._slots = (ctypes.c_uint64 * len(names)).in_dll(library, SLOTS)
        self._places = {name: place for place, name in enumerate(names)}
        self._libraries = [library]
        for path in sorted(folder.glob("*.so")):
            if path != main:
                self._libraries.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __setitem__(self, name: str, address: int) -> None:
        self._slots[self._places[name]] = address


def read_kernel_names(folder: Path) -> list[str]:
    """Return the names of the functions that launch something."""
    return (folder / KERNELS).read_text().split()
