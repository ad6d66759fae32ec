"""The wall around files: what the user's code may read and write, kept by the operating system.

Linux 5.13 and later let a process give up the rest of the file system for good (Landlock), without
any rights. What calls the system nevertheless, from whatever language, gets an error. On an older
system only what Python itself is asked to write is refused (``guard.SideEffectGuard``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_DEVICES_MADE = 1 << 6 | 1 << 11
"""Nobody makes devices."""
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_SINCE = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many kinds of access to files a version of the interface knows."""
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6

# What the interpreter, the C library and torch look at while they run.
_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/opt", "/nix/store",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone",
    "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/os-release", "/etc/mime.types",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems",
    "/proc/version", "/proc/sys/kernel", "/proc/sys/vm",
    "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def version() -> int:
    """Return which version of the interface the system has, 0 for none."""
    if sys.platform != "linux":
        return 0
    found = ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    return max(0, int(found))


def confine(home: Path, sources: Iterable[Path], more: Iterable[Path] = ()) -> bool:
    """Let this process write below ``home`` only, and read only what programs need; say whether.

    Of ``sources`` it may read what is not hidden at their top: programs are often kept beside keys.
    Of ``more`` it may read everything: ``list_installed``, to begin with.
    """
    abi = version()
    if not abi:
        return False
    libc = ctypes.CDLL(None)
    handled = (1 << _SINCE[max(known for known in _SINCE if known <= abi)]) - 1
    network = 0b11 if abi >= _NETWORK_SINCE else 0
    scopes = 0b11 if abi >= _SCOPES_SINCE else 0
    attributes = struct.pack("=QQQ", handled, network, scopes)
    size = 24 if abi >= _SCOPES_SINCE else 16 if abi >= _NETWORK_SINCE else 8
    rules = libc.syscall(_CREATE, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return False

    def allow(path: Path | str, access: int) -> None:
        with contextlib.suppress(OSError):  # it is not there
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if not stat.S_ISDIR(os.fstat(handle).st_mode):
                access &= _OF_FILES
            rule = struct.pack("=Qi", access & handled, handle)
            libc.syscall(_ADD, rules, _BENEATH, rule, 0)
            os.close(handle)

    reading = _READ | _LIST
    allow(home, handled & ~_DEVICES_MADE)
    for place in map(str, (*_SYSTEM, *more)):
        allow(place, reading)
    for name in _DEVICES:
        allow(name, _READ | _WRITE | _IOCTL)
    for folder in sources:
        allow(folder, _LIST)
        for path in _visible(folder):
            allow(path, reading)
    zeros = [ctypes.c_ulong(n) for n in (1, 0, 0, 0)]
    done = not libc.prctl(_NO_NEW_PRIVILEGES, *zeros) and not libc.syscall(_RESTRICT, rules, 0)
    os.close(rules)
    return done


def list_installed() -> list[str]:
    """Return where Python and what is installed for it are, editable installations included."""
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    found.add(str(Path(__file__).parents[3]))
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            mapping = getattr(module, "MAPPING", None)
            found.update(map(str, mapping.values() if isinstance(mapping, dict) else ()))
    return sorted(found)


def _visible(folder: Path) -> Iterator[str]:
    """Yield what is directly in a folder, without what is hidden or leads out of it."""
    top = os.path.realpath(folder)
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith("."):
                continue
            if not entry.is_symlink() or os.path.realpath(entry.path).startswith(f"{top}/"):
                yield entry.path
