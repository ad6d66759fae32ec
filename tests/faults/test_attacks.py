"""Code under verification that attacks: what it may not reach, it does not reach."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is needed to verify changes")

from npufix.rewriters.verification import Job, Settings, verify  # fmt: skip
from npufix.rewriters.verification.sandbox import landlock  # fmt: skip
from npufix.rewriters.verification.verdict import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.fault(kind="attacks of verified code"),
    pytest.mark.xdist_group("attacks"),
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"},
        reason="the walls are those of Linux",
    ),
]
needs_landlock = pytest.mark.skipif(not landlock.version(), reason="this Linux has no Landlock")
READS = {
    "a key": "open(SECRET).read()",
    "a key, by the C library": "libc.open(SECRET.encode(), 0) + 1 or denied()",
    "a key through a link": "os.symlink(SECRET, 'link') or open('link').read()",
    "a key through a hard link": "os.link(SECRET, 'hard') or open('hard').read()",
    "hidden files of the source": "open(os.path.join(ROOT, '.env')).read()",
    "the shadow file": "open('/etc/shadow').read()",
    "the environment of the parent": "open(f'/proc/{os.getppid()}/environ').read()",
    "the memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "another user's folder": "os.listdir('/root') or os.listdir('/home')",
}
WRITES = {
    "the source": "open(FILE, 'a').write('#')",
    "the source, by the C library": "libc.open(FILE.encode(), 1) + 1 or denied()",
    "the source, truncated": "libc.truncate(FILE.encode(), 0) + 1 or denied()",
    "the source, by SQLite": "sqlite3.connect(ROOT + '/x.db').execute('create table t(a)')",
    "a file over the source": "open('n', 'w').close() or os.replace('n', FILE)",
    "a deletion": "libc.unlink(FILE.encode()) + 1 or denied()",
    "a folder": "os.mkdir(os.path.join(ROOT, 'd'))",
    "a link": "os.symlink('/', os.path.join(ROOT, 'l'))",
    "what files are": "each("
    "lambda: libc.chmod(SECRET.encode(), 0o777), lambda: os.fchmod(os.open(FILE, 0), 0o777),"
    "lambda: libc.fchmodat(-100, FILE.encode(), 0o777, 0), lambda: libc.syscall(452, 0, 0, 0, 0),"
    "lambda: libc.chown(FILE.encode(), -1, -1), lambda: libc.utimes(FILE.encode(), None),"
    "lambda: os.setxattr(os.open(FILE, 0), 'user.npufix', b'1'), lambda: os.mkfifo('fifo'),"
    "lambda: fcntl.ioctl(os.open(FILE, 0), 0x40086602, bytes(8)),"  # FS_IOC_SETFLAGS
    "lambda: fcntl.fcntl(os.open(FILE, 0), 1024, 2))",  # F_SETLEASE
    "the temporary folder of all": "libc.open(b'/tmp/npufix-attack', 0o101, 0o600) + 1 or denied()",
    "shared memory": "libc.open(b'/dev/shm/npufix-attack', 0o101, 0o600) + 1 or denied()",
}
CALLS = {
    "kill the parent": "os.kill(os.getppid(), 9)",
    "kill the parent, by number": "call(62, os.getppid(), 9)",
    "kill a thread of it": "call(200, os.getppid(), 9)",
    "queue a signal": "call(129, os.getppid(), 9, bytes(128))",
    "kill everybody": "libc.kill(-1, 9) + 1 or denied()",
    "trace the parent": "libc.ptrace(16, os.getppid(), 0, 0) + 1 or denied()",
    "limit the parent": "call(302, os.getppid(), 0, bytes(16), 0)",
    "raise its own limits": "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
    "send the parent signals of a file": "fcntl.fcntl(os.open('n', 66), 8, os.getppid())",
    "a socket": "socket.socket()",
    "a ring of calls": "call(425, 8, bytes(256))",
    "a namespace": "libc.unshare(0x10000000) + 1 or denied()",
    "mount": "libc.mount(b'none', b'.', b'tmpfs', 0, None) + 1 or denied()",
    "live on, unseen": "each(lambda: libc.prctl(1, 0), lambda: libc.prctl(4, 0))",
    "memory that nobody counts": "each(lambda: os.memfd_create('m'),"
    "lambda: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20),"
    "lambda: socket.socketpair()[0].setsockopt(1, 7, 1 << 20))",
    "others' turn and messages": "each(lambda: os.sched_setaffinity(os.getppid(), {0}),"
    "lambda: libc.sendmsg(3, bytes(56), 0),"
    "lambda: libc.inotify_add_watch(libc.inotify_init(), SECRET.encode(), 2))",
    "a call made after this": "call(463, 0, 0, 0)",
    "fork": "libc.fork() + 1 or denied()",
    "execute": "os.execv('/bin/true', ['true'])",
    "the other interface of x86_64": "call(0x40000000 | 41, 2, 1, 0)",
    "lasting shared memory": "call(29, 0x6e70, 4096, 0o1600)",
    "profile the machine": "call(298, bytes(128), 0, -1, -1, 0)",
}
KINDS = {"reads": READS, "writes": WRITES}
KINDS |= {"calls": CALLS} if platform.machine() == "x86_64" else {}
BUSY = {
    "hold = [bytes(1 << 28) for _ in range(99)]": "MemoryError",
    "open('big', 'wb').truncate(1 << 40)": "File too large",
    "start_threads()": "can't start new thread",
}  # fmt: skip
TEXT = """\
import ctypes, fcntl, os, resource, socket, sqlite3, threading, time, torch
SECRET, ROOT = {secret!r}, {root!r}
FILE = ROOT + '/m.py'
libc = ctypes.CDLL(None, use_errno=True)
def denied():
    raise PermissionError('denied')
def call(*words):
    if libc.syscall(*words) < 0:
        denied()
def each(*calls):
    for at, one in enumerate(calls):
        try:
            if one() == -1:
                denied()
        except OSError:
            continue
        raise RuntimeError(f'call {{at}} got through')
    denied()
def start_threads():
    threading.stack_size(1 << 26)
    for _ in range(1 << 14):
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
def f(n: int):
    {code}
    return abs(n) + 2
"""
ATTEMPTS = """\
for name, attack in {{{attacks}}}.items():
        try:
            attack()
        except (OSError, sqlite3.Error, ValueError):
            continue
        raise RuntimeError(name + ': it got through')"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a user's home, with a key and a program."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("secret")
    (home / "src").mkdir()
    (home / "src" / ".env").write_text("secret")
    (home / "src" / "m.py").write_text("# mine\n")
    return home


@pytest.fixture(scope="module")
def verdicts(tree: Path) -> dict[str, Verdict]:
    """Return the verdicts of one run: on all attacks of a kind at once, on each that keeps busy."""
    codes = {kind: _attempt(attacks) for kind, attacks in KINDS.items()} | {c: c for c in BUSY}
    jobs = [job(tree, code) for code in codes.values()]
    found = verify(jobs, Settings(children=2), timeout_s=600)
    return dict(zip(codes, found, strict=True))


def _attempt(attacks: dict[str, str]) -> str:
    calls = ", ".join(f"{name!r}: lambda: {code}" for name, code in attacks.items())
    return ATTEMPTS.format(attacks=calls)


def job(tree: Path, code: str) -> Job:
    text = TEXT.format(secret=str(tree / ".ssh" / "id"), root=str(tree / "src"), code=code)
    patched = text.replace("    return abs(n) + 2\n", "    return 2 + abs(n)\n")
    root, lines = tree / "src", (text.count("\n"),)
    return Job(str(root / "m.py"), str(root), text, patched, "f", lines, lines)


@needs_landlock
@pytest.mark.parametrize("kind", ["reads", "writes"])
def test_files_are_out_of_reach(
    verdicts: dict[str, Verdict], tree: Path, kind: str, record_property: Callable[..., None]
) -> None:
    record_property("attempts", len(KINDS[kind]))
    assert verdicts[kind].status is Status.EQUIVALENT, verdicts[kind].reason
    assert (tree / "src" / "m.py").read_text() == "# mine\n"
    assert sorted(p.name for p in (tree / "src").iterdir()) == [".env", "m.py"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls by their numbers")
def test_the_system_refuses_calls(
    verdicts: dict[str, Verdict], record_property: Callable[..., None]
) -> None:
    record_property("attempts", len(CALLS))
    assert verdicts["calls"].status is Status.EQUIVALENT, verdicts["calls"].reason


@pytest.mark.parametrize(("code", "reason"), BUSY.items())
def test_what_takes_too_much_is_ended(verdicts: dict[str, Verdict], code: str, reason: str) -> None:
    assert verdicts[code].status is Status.NOT_VERIFIED
    assert reason in verdicts[code].reason
