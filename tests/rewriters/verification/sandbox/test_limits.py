"""Whatever the code of one site does, it is the verdict of that site and of no other."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from npufix.rewriters.verification import Job, Settings, verify
from npufix.rewriters.verification.sandbox.limits import source_folders
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.workers import pool, process

LINUX = sys.platform == "linux"
ONLY_LINUX = pytest.mark.skipif(not LINUX, reason="needs a process for each job")
BAD = {
    # code: what the verdict says
    "os._exit(0)": "the code ended its process",
    "os._exit(3)": "the code ended its process with exit code 3",
    "os.abort()": "SIGABRT",
    "ctypes.string_at(0)": "SIGSEGV",
    "getattr(ctypes.CDLL(None), 'raise')(8)": "SIGFPE",
    "sys.exit('enough')": "SystemExit: enough",
    "f(n)": "RecursionError",
    "bytearray(1 << 34)": "MemoryError",
    "torch.empty(1 << 40)": "memory",
    "while True: n += 1": "does not return",
    "os.closerange(0, 1 << 10)": "pipe of its observations",
    "while True: [os.write(n, bytes(1 << 20)) for n in pipes()]": "without end",
    "open('big', 'wb').truncate(1 << 40)": "File too large",
    "socket.socket().connect(('192.0.2.1', 9))": "not permitted" if LINUX else "not allowed",
    "subprocess.run(['true'])": "not allowed",
    "ctypes.CDLL(None).fork() >= 0 or exec('raise OSError(1)')": "OSError: 1",
}  # fmt: skip
HARMLESS = (
    "torch.Tensor.__mul__ = json.dumps = msgspec_json.encode = os.getpid = None",
    "[os.write(n, b'{}\\n') for n in pipes()]",
    "print('{}' * 1000000, bytes(999), sys.stdin.read(), file=sys.stderr)",
    "threading.active_count() > 9 or threading.Thread(target=threading.Event().wait).start()",
    "shutil.rmtree('.', ignore_errors=True)",
    "signal.signal(signal.SIGPROF, signal.SIG_IGN)",
)
IMPORTS = (
    "import ctypes, fcntl, json, os, shutil, signal, socket, stat, subprocess, sys, threading\n"
    "import torch\n"
    "import msgspec.json as msgspec_json\n"
    "def pipes():\n"
    "    found = os.listdir('/proc/self/fd')\n"
    "    return [int(n) for n in found if os.path.exists(f'/proc/self/fd/{n}')\n"
    "            and stat.S_ISFIFO(os.stat(f'/proc/self/fd/{n}').st_mode)\n"
    "            and fcntl.fcntl(int(n), fcntl.F_GETFL) & os.O_WRONLY]\n"
)


def job(code: str) -> Job:
    text = f"{IMPORTS}def f(n: int):\n    {code}\n    return abs(n) + 2\n"
    line = text.count("\n")
    patched = text.replace("abs(n) + 2", "2 + abs(n)")
    return Job("/user/m.py", "/user", text, patched, "f", (line,), (line,))


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """Return the verdicts of one run, from which nothing is left."""
    codes = [*BAD, *HARMLESS, "pass"]
    temporary = tmp_path_factory.mktemp("tmp")
    before = children(os.getpid())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool._Kept, "pools", None)
        patch.setattr("tempfile.tempdir", str(temporary))
        found = verify([job(code) for code in codes], Settings())
    assert not list(temporary.iterdir())
    assert children(os.getpid()) == before
    return dict(zip(codes, found, strict=True))


def children(parent: int) -> list[str]:
    """Return the processes that a process has started and that are there, dead or alive."""
    if not LINUX:
        return []
    return [
        text
        for task in Path(f"/proc/{parent}/task").iterdir()
        for number in (task / "children").read_text().split()
        if "verification" in (text := Path(f"/proc/{number}/cmdline").read_text())
        or not text  # a zombie
    ]


@pytest.mark.xdist_group("limits")
@ONLY_LINUX
@pytest.mark.parametrize(("code", "reason"), BAD.items())
def test_bad_code_is_a_verdict(verdicts: dict[str, Verdict], code: str, reason: str) -> None:
    verdict = verdicts[code]
    assert verdict.status is Status.NOT_VERIFIED, verdict
    assert reason in verdict.reason


@pytest.mark.xdist_group("limits")
@pytest.mark.parametrize("code", [*HARMLESS, "pass"])
def test_what_code_does_to_its_process_is_gone_with_it(
    verdicts: dict[str, Verdict], code: str
) -> None:
    assert verdicts[code].status is Status.EQUIVALENT, verdicts[code]


@ONLY_LINUX
def test_what_ends_its_process_has_its_changed_statements_verified_alone() -> None:
    codes = {"ctypes.string_at(0)": "SIGSEGV", "while True: n += 1": "no verdict within 5 s"}
    jobs = [replace(job(code), alone=True) for code in codes]
    wrong = replace(jobs[0], patched=jobs[0].patched.replace("2 + abs(n)", "2 + abs(n + 1)"))
    *right, refuted = verify([*jobs, wrong], Settings(), timeout_s=5.0)
    for verdict, reason in zip(right, codes.values(), strict=True):
        assert verdict.status is Status.EQUIVALENT, verdict
        assert verdict.scope == "the changed statements of f"
        assert any(reason in note for note in verdict.notes)
    assert refuted.status is Status.NOT_VERIFIED, refuted
    assert "SIGSEGV" in refuted.reason


def test_a_verifier_that_cannot_start_is_the_reason_of_every_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool._Kept, "pools", None)
    monkeypatch.setattr(process, "_CHILD", "npufix.no_such_module")
    found = verify([job("pass")] * 3)
    assert [v.status for v in found] == [Status.NOT_VERIFIED] * 3
    assert all("No module named" in v.reason for v in found)


def test_what_is_installed_is_no_folder_of_the_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside = f"{sys.prefix}-other"  # only its name begins alike: nothing else lets it be read
    library = str(Path(sys.base_prefix, "lib", "python3"))
    monkeypatch.setattr(sys, "path", ["", library, f"{sys.prefix}/lib", beside, str(tmp_path)])
    model = tmp_path / "model.py"
    found = source_folders(Job(str(model), str(tmp_path), "", "", "f", (1,), (1,)))
    assert {Path(beside), tmp_path} <= set(found)
    assert not {Path(library), Path(sys.prefix, "lib"), Path()} & set(found)
