"""``--write`` that is killed changes all files or none, once the next start has looked at it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import kill_points
import pytest

from npufix.advisor.patch import undoing
from npufix.rewriters.write.recovering import recover
from npufix.rewriters.write.writing import write


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("line", [*range(5, 620, 24), 380, 392, 404, 416, 428])
def test_killed_at_any_line_it_is_all_or_nothing(tree: Path, line: int) -> None:
    outcome = kill_points.attempt(tree, line, line_of_recovery=1 + line * 7 % 120)
    assert kill_points.is_whole(outcome), outcome


def killed_between_two_files(root: Path) -> None:
    changes = kill_points.prepared(root)

    def action() -> None:
        replace, calls = Path.replace, 0

        def killed(path: Path, target: Path) -> Path:
            nonlocal calls
            calls += 1
            if calls == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return replace(path, target)

        Path.replace = killed  # type: ignore[assignment,method-assign] - the process ends
        write(changes, root)

    assert not kill_points.killed_at(0, action)
    assert kill_points.contents(root) == {b"old", changes[0].after}


def test_what_was_interrupted_is_finished(tree: Path) -> None:
    killed_between_two_files(tree)
    (said,) = recover()
    assert said.endswith("was interrupted; it is finished now, and npufix undo takes it back")
    assert kill_points.contents(tree) == {b"new " * 50}
    undoing.undo(tree)
    assert kill_points.contents(tree) == {b"old"}


def test_what_was_interrupted_is_taken_back_if_somebody_has_worked_on_it(tree: Path) -> None:
    killed_between_two_files(tree)
    (tree / "b/d.py").write_bytes(b"edited")
    (said,) = recover()
    assert said.endswith(f"but for what somebody has changed since: {tree / 'b/d.py'}")
    assert [(tree / name).read_bytes() for name in kill_points.NAMES] == [b"old", b"old", b"edited"]
    assert len(list(tree.rglob("*.*"))) == len(kill_points.NAMES)
