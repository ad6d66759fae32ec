"""What Python itself is asked to do: refused where it reaches beyond the folder of the code."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from typing import NamedTuple

_WRITING = ("w", "a", "x", "+")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_REFUSED = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "os.system",
        "resource.prlimit",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyaddr",
        "socket.gethostbyname",
        "socket.sendmsg",
        "socket.sendto",
        "subprocess.Popen",
    }
)


class _Paths(NamedTuple):
    """Which arguments of an event are paths that it changes."""

    paths: tuple[int, ...] = (0,)
    folders: tuple[int, ...] = ()
    """The arguments with the open folders that they start from."""
    follows: bool = False
    """Whether it changes what a link leads to, not the link."""


_PATHS = {
    "os.chmod": _Paths(folders=(2,), follows=True),
    "os.chown": _Paths(folders=(3,), follows=True),
    "os.link": _Paths((0, 1), (2, 3)),
    "os.mkdir": _Paths(folders=(2,)),
    "os.remove": _Paths(folders=(1,)),
    "os.removexattr": _Paths(follows=True),
    "os.rename": _Paths((0, 1), (2, 3)),
    "os.rmdir": _Paths(folders=(1,)),
    "os.setxattr": _Paths(follows=True),
    "os.symlink": _Paths((1,), (2,)),
    "os.truncate": _Paths(follows=True),
    "os.utime": _Paths(folders=(3,), follows=True),
    "shutil.rmtree": _Paths(),
    "sqlite3.connect": _Paths(follows=True),
}


class SideEffectGuard:
    """Refuses network, processes, and files written outside a folder, in its block.

    The verifier calls functions with arguments it made up; a ``save(path)`` among what they
    call must not touch the user's disk. This stops accidents, not an attacker.
    """

    def __init__(self, home: str = "", *, processes: bool = False) -> None:
        """``home`` is the folder to write to, empty: the current one.

        ``processes``: they may be started, because the compiler of CANN is one.
        """
        self._refused = frozenset(e for e in _REFUSED if not (processes and _is_process(e)))
        self._home = os.path.realpath(home or os.curdir)
        below = ("/dev/",) if processes else ()
        self._allowed = (f"{self._home}{os.sep}", "/proc/self/", *below)
        self._active = False
        sys.addaudithook(self._hook)  # for good: there is no way to take it away

    def __enter__(self) -> None:
        """Refuse from here on."""
        self._active = True

    def __exit__(self, *_: object) -> None:
        """Refuse nothing any more."""
        self._active = False

    def _is_inside(self, path: object, *, folder: object = -1, follows: bool = True) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return True  # a file descriptor that was opened under the same rule
        text = os.fsdecode(path)
        if isinstance(folder, int) and folder >= 0:  # an absolute path stays what it is
            text = os.path.join(_path_of(folder), text)  # noqa: PTH118 - of a hook: no more calls
        if not follows:
            before, last = os.path.split(text.rstrip(os.sep))
            text = f"{os.path.realpath(before)}{os.sep}{last}"
        real = os.path.realpath(text) if follows else text
        return real == self._home or real in _DEVICES or real.startswith(self._allowed)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._active:
            return
        if event in self._refused:
            raise PermissionError(f"{event} is not allowed during verification")
        if event == "open":
            path, mode, flags = arguments
            writing = (isinstance(mode, str) and any(m in mode for m in _WRITING)) or (
                mode is None and isinstance(flags, int) and flags & _WRITES
            )
            if writing and not self._is_inside(path):
                raise PermissionError(f"writing {path!r} is not allowed during verification")
        elif (known := _PATHS.get(event)) is not None:
            self._look_at_paths(event, known, arguments)

    def _look_at_paths(self, event: str, known: _Paths, arguments: tuple[object, ...]) -> None:
        for at, place in enumerate(known.paths):
            path = arguments[place]
            if event == "sqlite3.connect" and path in {":memory:", b":memory:", ""}:
                return
            start = known.folders[at] if at < len(known.folders) else len(arguments)
            folder = arguments[start] if start < len(arguments) else -1
            if not self._is_inside(path, folder=folder, follows=known.follows):
                raise PermissionError(f"{event} of {path!r} is not allowed during verification")


def _path_of(folder: int) -> str:
    """Return the path of an open folder; one that can be nowhere if that cannot be known."""
    with suppress(OSError):
        if hasattr(fcntl, "F_GETPATH"):  # macOS
            found = fcntl.fcntl(folder, fcntl.F_GETPATH, bytes(1024))
            return os.fsdecode(found.rstrip(b"\0"))
        return os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - as above
    return os.sep


def guard_side_effects(home: str, *, processes: bool = False) -> None:
    """Refuse them to this process from here on."""
    SideEffectGuard(home, processes=processes).__enter__()


def _is_process(event: str) -> bool:
    return event.startswith(("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess."))
