"""Ctrl-C and a killed parent: nothing of a verification stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
CODE = "def f(x):\n    while x is not None:\n        pass\n    return x * 2\n"

# A shell starts what runs in its background with interrupts ignored.
AS_IN_A_TERMINAL = """
import signal
from npufix.advisor.commands.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_nothing_is_left_of_an_interrupted_verification(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    pytest.importorskip("torch")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(CODE)
    after.write_text(CODE.replace("x * 2", "x + x"))
    command = [sys.executable, "-c", AS_IN_A_TERMINAL, "verify", str(after)]
    command += ["--against", str(before), "--on", "reference", "--no-cache"]
    running = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: list(temporary.glob("npufix-verify-*/job-*")))
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    assert running.returncode == status
    assert "Traceback" not in said
    until(lambda: not list(temporary.iterdir()))
    until(lambda: not processes(str(temporary)))


def processes(home: str) -> list[int]:
    """Return the processes whose home is below a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if home in (entry / "environ").read_text(errors="replace"):
                found.append(int(entry.name))
        except OSError:  # noqa: PERF203 - it ended, or is not ours
            continue
    return found


def until(happened: object, seconds: float = 60) -> None:
    """Wait for something."""
    assert callable(happened)
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)
