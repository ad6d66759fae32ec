"""Names in a dump behind which there is no file: reading a pipe or a device would never end."""

from __future__ import annotations

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


_SYSTEM, _ORDINARY = ("/proc/", "/sys/", "/dev/"), "/dev/shm/"  # noqa: S108 - a file system
"""What looks like a file there may wait for ever, or say what is nobody's business."""


def kind_of(path: str | Path) -> str:
    """Return what a name stands for that is neither a file nor a folder, "" if it is one."""
    try:
        kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "")  # noqa: PTH116 - a plain string
    except OSError:  # a link to nothing, or in a circle
        return ""
    real = os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 - a plain string
    system = f"{real}/".startswith(_SYSTEM) and not f"{real}/".startswith(_ORDINARY)
    return "a part of the system" if system and not kind else kind


def refuse_special_files(*folders: Path) -> None:
    """Raise ``DumpError`` if something in one of the folders is neither a file nor a folder."""
    for folder in dict.fromkeys(folders):
        with os.scandir(folder) as found:
            for path in (os.path.realpath(folder), *(entry.path for entry in found)):
                if kind := kind_of(path):
                    raise DumpError(f"{path} is {kind}, no file", "remove it from the dump")
