"""Names in a dump behind which there is no file: reading a pipe or a device would never end."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from npufix.profiling_parsers.profile import DumpError

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def refuse_special_files(*folders: Path) -> None:
    """Raise ``DumpError`` if something in one of the folders is neither a file nor a folder."""
    for folder in dict.fromkeys(folders):
        with os.scandir(folder) as found:
            for entry in found:
                kind = ""
                with contextlib.suppress(OSError):  # a link to nothing, or in a circle
                    kind = _KINDS.get(stat.S_IFMT(entry.stat().st_mode), "")
                if kind:
                    raise DumpError(f"{entry.path} is {kind}, no file", "remove it from the dump")
