"""The walls around the user's code: environment, streams, limits, time."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # ``signal`` looks for each handler among names
import os
import re
import resource
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.packages import package_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.edit.job import Job

_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "CONDA_PREFIX", "SYSTEMROOT")
_OF_DEVICE = (
    "ACL_", "ASCEND", "ASDOPS_", "ATB_", "CANN_", "HCCL_", "NPU_", "OPP_", "PYTORCH_NPU_",
    "TASK_QUEUE_ENABLE", "TBE_", "TE_", "TOOLCHAIN_HOME",
)  # fmt: skip
"""How variables start that CANN, its compiler and torch_npu read."""
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(^|_)KEY(_|$)", re.IGNORECASE)
_SET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
    # A pool of threads does not survive the fork of a process.
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    # Scripted and compiled functions run as the Python they are written in: only there can
    # the verifier see which lines ran.
    "PYTORCH_JIT": "0",
    "TORCHDYNAMO_DISABLE": "1",
    # A real torch_npu would claim the ``npu`` operators before the reference kernels do.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}
_WAITING = 2.0
"""How much longer than it may compute code may wait."""
_LOOK_S, _LEAST_S = 1.0, 0.001
"""How often to look, and what a process has used by then that does more than wait."""
_FILE_BYTES = 256 << 20
"""The largest file that code may write."""
_MOST_OPEN = 4096
_MORE_THREADS = 512


class ExpiredError(BaseException):
    """One call of the user's code took too long; no ``except Exception`` of theirs stops it."""


def environment(parent: Mapping[str, str], home: str, *, device: bool = False) -> dict[str, str]:
    """Return what the child may know of the parent's environment: no tokens, no proxies.

    With ``device``, also what CANN and torch_npu are told by it.
    """
    kept = {name: parent[name] for name in _KEPT if name in parent}
    if device:
        known = {n: v for n, v in parent.items() if n.startswith(_OF_DEVICE)}
        kept |= {n: v for n, v in known.items() if not _SECRET.search(n)}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return kept | _SET | {"HOME": home, "TMPDIR": home, "PYTHONPATH": path}


def separate_streams() -> tuple[int, int]:
    """Keep the pipes of the protocol to ourselves; the user's code gets /dev/null instead."""
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return reading, writing


def limit_resources(allowed: int) -> None:
    """Let the process grow by ``allowed`` bytes from here; bound its files, leave no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    statm = Path("/proc/self/statm")
    # What torch has mapped by now is not the user's doing (a CUDA build maps gigabytes).
    mapped = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
    threads = _threads_of_user()
    limits = {
        **({"RLIMIT_NPROC": threads + _MORE_THREADS} if threads else {}),
        "RLIMIT_AS": mapped + allowed,
        "RLIMIT_DATA": mapped + allowed,
        "RLIMIT_FSIZE": _FILE_BYTES,
        "RLIMIT_NOFILE": _MOST_OPEN,
    }
    for name, wanted in limits.items():
        kind = getattr(resource, name, None)
        if kind is not None:
            _, hard = resource.getrlimit(kind)
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (most, most))  # the code must not raise it again


def _threads_of_user() -> int:
    """Return how many threads the user has, 0 if that cannot be known."""
    user, found = os.getuid(), 0
    with suppress(OSError):
        for entry in os.scandir("/proc"):
            with suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == user:
                    found += len(os.listdir(f"{entry.path}/task"))  # noqa: PTH208 - many
    return found


def source_folders(job: Job) -> list[Path]:
    """Return the folders that the code of a job is imported from."""
    installed = (sys.prefix, sys.base_prefix)  # read as a whole: hundreds of rules fewer, each job
    given = {Path(entry) for entry in sys.path if entry}
    own = {path for path in given if not any(map(path.is_relative_to, installed))}
    return [Path(job.root), package_of(Path(job.path))[1], *sorted(own)]


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise ``ExpiredError`` inside the block when it takes longer; a no-op off the main thread.

    Processor time is what counts, on a busy machine as on an idle one. Code that waits uses none:
    it is looked at every second, and ended when it has waited twice as long as it may compute. A
    process that only waits for its turn gets a thousandth of a second now and then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waited, used = 0, time.process_time()

    def expire(_signal: int, _frame: object) -> None:
        raise ExpiredError(f"no result within {seconds:g} s")

    def look(number: int, frame: object) -> None:
        nonlocal waited, used
        before, used = used, time.process_time()
        waited += used - before < _LEAST_S
        if waited * _LOOK_S >= _WAITING * seconds:
            expire(number, frame)

    handlers = ((signal.SIGPROF, expire), (signal.SIGALRM, look))
    previous = [_signal.signal(number, handler) for number, handler in handlers]
    # Again and again: what is raised in a callback of the garbage collector, nobody gets.
    signal.setitimer(signal.ITIMER_PROF, seconds, _LOOK_S)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        for clock in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(clock, 0)
        for (number, _), handler in zip(handlers, previous, strict=True):
            _signal.signal(number, handler)
