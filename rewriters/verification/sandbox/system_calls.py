"""The wall that the operating system puts around the user's code: no processes, no network.

On Linux a process may give up system calls for good (seccomp), without any rights; what calls
them nevertheless, from whatever language, gets an error. Elsewhere only what Python itself is
asked to do is refused (``guard.guard_side_effects``).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import NamedTuple

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_THREAD = 0x10000
"""CLONE_THREAD."""
_OTHER_INTERFACE = 0x40000000
"""The same calls of x86_64 with short pointers have this bit."""
_CLONE_FILES = 0x400
_CAPABILITIES = 0x20080522
"""The version of the structure."""
_READ_ALL = 1 << 2
"""CAP_DAC_READ_SEARCH."""
_OF_FILES = (*range(8), 9, 16, 36, 37, 38, 1030, 1032)
"""What fcntl may do: copies, flags and locks. It may not say who gets the signals of a file (8, 10,
15), hold back who opens it (1024), or make a pipe hold gigabytes (1031)."""
_OF_DEVICES = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A)
"""What ioctl may ask: whether a terminal, its size, bytes to read, flags. Others type for the user,
freeze file systems, or make a file immutable that is open for reading only."""
_OF_THE_PROCESS = (1, 4, 35)
"""What prctl may not set: the end with the parent, who may look into it, its memory map."""
_NEWER = 463
"""The first call that came after this table was made: whatever it does."""

# By name, (x86_64, aarch64); 0 where there is none.
_REFUSED = {
    # processes and programs
    "fork": (57, 0), "vfork": (58, 0), "execve": (59, 221), "execveat": (322, 281),
    # network
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "sendto": (44, 206),
    "sendmsg": (46, 211), "sendmmsg": (307, 269), "setsockopt": (54, 208),
    # other processes: their memory, files, signals, limits, turn
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "setrlimit": (160, 164), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    # what the files of others are: Landlock keeps their contents only
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, 0), "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54),
    "utime": (132, 0), "utimes": (235, 0), "futimesat": (261, 0), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "mknod": (133, 0), "mknodat": (259, 33), "inotify_add_watch": (254, 27),
    # what outlives the process, or is memory that no limit counts
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "shmat": (30, 196), "shmctl": (31, 195), "semop": (65, 193), "semtimedop": (220, 192),
    "semctl": (66, 191), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_unlink": (241, 181), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # other ways to the same calls, and into the system
    "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41),
    "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsmount": (432, 432), "mount_setattr": (442, 442),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "vhangup": (153, 58),
    "iopl": (172, 0), "ioperm": (173, 0), "uselib": (134, 0),
}  # fmt: skip


class _Calls(NamedTuple):
    """The numbers of system calls on one architecture."""

    architecture: int
    column: int
    """Of ``_REFUSED``."""
    clone: int
    clone3: int
    prlimit: int
    fcntl: int
    ioctl: int
    prctl: int
    sched_setaffinity: int
    signalling: tuple[int, ...]
    """kill, tgkill: allowed to the process itself."""

    @property
    def refused(self) -> tuple[int, ...]:
        """Those that always fail."""
        return tuple(number for row in _REFUSED.values() if (number := row[self.column]))


_CALLS = {
    "x86_64": _Calls(0xC000003E, 0, 56, 435, 302, 72, 16, 157, 203, (62, 234)),
    "aarch64": _Calls(0xC00000B7, 1, 220, 435, 261, 25, 29, 167, 122, (129, 131)),
}
_Step = tuple[int, int, int, int]


def is_there() -> bool:
    """Tell whether the system can be made to refuse calls; nothing is given up."""
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return False
    ctypes.set_errno(0)
    ctypes.CDLL(None, use_errno=True).prctl(_SECCOMP, ctypes.c_ulong(_FILTER), None, None, None)
    return ctypes.get_errno() == errno.EFAULT  # it has looked for the filter


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


def give_up_privileges() -> None:
    """Have the administrator be a user who owns much: files are what else is to be read."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        header, has = struct.pack("=Ii", _CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
        if not libc.capget(header, has):
            keeps = (has[0] & _READ_ALL, has[1] & _READ_ALL, 0, 0, 0, 0)
            libc.capset(header, struct.pack("=6I", *keeps))


_REFUSE: _Step = (_RETURN, 0, 0, _ERROR | errno.EPERM)
_PASS: _Step = (_RETURN, 0, 0, _ALLOW)


def _program(calls: _Calls, own: int) -> list[_Step]:
    """Return the filter: operation, jump if true, jump if false, operand."""
    first: _Step = (_LOAD, 0, 0, _FIRST_ARGUMENT)
    steps: list[_Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, calls.architecture),
        _REFUSE,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_INTERFACE),
        _REFUSE,
    ]
    for number in calls.refused:
        steps += [(_EQUAL, 0, 1, number), _REFUSE]
    # Its flags are behind a pointer; without it the C library takes clone.
    unknown: _Step = (_RETURN, 0, 0, _ERROR | errno.ENOSYS)
    steps += [(_EQUAL, 0, 1, calls.clone3), unknown, (_AT_LEAST, 0, 1, _NEWER), unknown]
    # A thread, with the same open files: those of the process are counted.
    thread: list[_Step] = [first, (_HAS_BITS, 0, 2, _THREAD), (_HAS_BITS, 0, 1, _CLONE_FILES)]
    steps += [(_EQUAL, 0, 5, calls.clone), *thread, _PASS, _REFUSE]
    for number in calls.signalling:
        steps += [(_EQUAL, 0, 4, number), first, (_EQUAL, 0, 1, own), _PASS, _REFUSE]
    # Limits may be read, those of the process itself, and none set: no pointer to new ones.
    new = [(_LOAD, 0, 0, at) for at in (_THIRD_ARGUMENT, _THIRD_ARGUMENT + 4)]
    limits: list[_Step] = [first, (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, own), _REFUSE]
    limits += [new[0], (_EQUAL, 1, 0, 0), _REFUSE, new[1], (_EQUAL, 1, 0, 0), _REFUSE, _PASS]
    steps += [(_EQUAL, 0, len(limits), calls.prlimit), *limits]
    for call, at, values, then, otherwise in (
        (calls.fcntl, _SECOND_ARGUMENT, _OF_FILES, _PASS, _REFUSE),
        (calls.ioctl, _SECOND_ARGUMENT, _OF_DEVICES, _PASS, _REFUSE),
        (calls.prctl, _FIRST_ARGUMENT, _OF_THE_PROCESS, _REFUSE, _PASS),
        (calls.sched_setaffinity, _FIRST_ARGUMENT, (0, own), _PASS, _REFUSE),
    ):
        body: list[_Step] = [(_LOAD, 0, 0, at)]
        for value in values:
            body += [(_EQUAL, 0, 1, value), then]
        steps += [(_EQUAL, 0, len(body) + 1, call), *body, otherwise]
    return [*steps, _PASS]
