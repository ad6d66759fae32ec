"""The wall that the operating system puts around the user's code: no processes, no network.

On Linux a process may give up system calls for good (seccomp), without any rights; what calls
them nevertheless, from whatever language, gets an error. Elsewhere only what Python itself is
asked to do is refused (``sandbox.guard_side_effects``).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import NamedTuple

_PDEATHSIG, _NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 1, 38, 22, 2
_KILL = 9
_LOAD, _EQUAL, _HAS_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_THREAD = 0x10000
"""CLONE_THREAD."""


class _Calls(NamedTuple):
    """The numbers of system calls on one architecture."""

    architecture: int
    refused: tuple[int, ...]
    """fork, vfork, execve, execveat, socket, ptrace."""
    clone: int
    clone3: int
    signalling: tuple[int, ...]
    """kill, tgkill: allowed to the process itself."""


_CALLS = {
    "x86_64": _Calls(0xC000003E, (57, 58, 59, 322, 41, 101), 56, 435, (62, 234)),
    "aarch64": _Calls(0xC00000B7, (221, 281, 198, 117), 220, 435, (129, 131)),
}


def give_up_processes_and_network() -> bool:
    """Have the system refuse them to this process from here on; say whether it does."""
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return False
    code = b"".join(struct.pack("=HBBI", *step) for step in _program(calls, os.getpid()))
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None)
    arguments = [ctypes.c_ulong(n) for n in (1, 0, 0, 0)]
    if libc.prctl(_NO_NEW_PRIVILEGES, *arguments):
        return False
    return not libc.prctl(_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.c_char_p(program), None, None)


def end_with_parent() -> None:
    """Have the system end this process when the one that forked it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, ctypes.c_ulong(_KILL))


def _program(calls: _Calls, own: int) -> list[tuple[int, int, int, int]]:
    """Return the filter: operation, jump if true, jump if false, operand."""
    refuse = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    first = (_LOAD, 0, 0, _FIRST_ARGUMENT)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, calls.architecture),
        refuse,
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number in calls.refused:
        steps += [(_EQUAL, 0, 1, number), refuse]
    # Its flags are behind a pointer; without it the C library takes clone.
    steps += [(_EQUAL, 0, 1, calls.clone3), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    steps += [(_EQUAL, 0, 4, calls.clone), first, (_HAS_BITS, 0, 1, _THREAD), allow, refuse]
    for number in calls.signalling:
        steps += [(_EQUAL, 0, 4, number), first, (_EQUAL, 0, 1, own), allow, refuse]
    return [*steps, allow]
