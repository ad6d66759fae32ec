"""A process that is told to end, or killed, leaves nothing behind: no files, no children."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from npufix.advisor.cluster.executors import LocalExecutor
from npufix.advisor.console import stopping
from npufix.advisor.diagnose.source_scan import scan
from npufix.advisor.project.source_tree import read_source_tree
from npufix.rewriters import find

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Hear interrupts: a shell starts what runs in its background with them ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interrupt_with_its_own_exit_status(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_seen", [])
    before = signal.signal(number, signal.SIG_DFL)
    try:
        stopping.begin()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert stopping.status() == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL, "the second one ends it at once"
        stopping.begin()
        child = os.fork()
        if not child:
            os.kill(os.getpid(), number)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
        stopping.end()
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)
        stopping.begin()
        assert signal.getsignal(number) is signal.SIG_IGN, "as nohup wants it"
    finally:
        stopping.end()
        signal.signal(number, before)


def test_an_interrupt_that_is_ignored_stays_ignored() -> None:
    """As a shell without job control has it for what runs in its background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopping.begin()
    try:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        stopping.end()


def test_an_interrupt_of_which_a_library_makes_another_error_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parser in another language did, once in hundreds: the file was called broken."""

    def swallowing(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)
        except KeyboardInterrupt as error:
            raise RuntimeError("a tree in which something is missing") from error

    monkeypatch.setattr(stopping, "_seen", [])
    monkeypatch.setattr(find, "find_sites", swallowing)
    (tmp_path / "m.py").write_text("import torch\n")
    stopping.begin()
    try:
        with pytest.raises(KeyboardInterrupt):
            scan(read_source_tree(tmp_path))
        assert stopping.status() == 128 + signal.SIGINT
    finally:
        stopping.end()


@pytest.mark.skipif(sys.platform != "linux", reason="the system that ends them is Linux")
def test_children_do_not_outlive_a_parent_that_is_killed() -> None:
    out, into = os.pipe()
    parent = os.fork()
    if not parent:
        pool = LocalExecutor(1)
        os.write(into, b"%d" % pool.submit(os.getpid).result())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    os.close(into)
    child = int(os.read(out, 20))
    os.close(out)
    for _ in range(60_000):
        try:
            with open(f"/proc/{child}/stat", encoding="ascii") as file:  # noqa: PTH123 - of the system
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except OSError:
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child waits for ever")
