"""A write that is killed, ``kill -9``, at any line of it, and what is there afterwards.

``python tests/faults/kill_points.py [STEP]`` tries every STEP-th line and prints what it found.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.write.patch import FileChange
from npufix.rewriters.write.recovering import recover
from npufix.rewriters.write.writing import write

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

NAMES = ("a.py", "b/c.py", "b/d.py")
_OURS = ("durable.py", "journal.py", "writing.py", "recovering.py")


class Outcome(NamedTuple):
    """What one kill has left."""

    ended: bool
    """The write was through before that line came."""
    before: frozenset[bytes]
    """The contents right after the kill."""
    after: frozenset[bytes]
    """The contents once the next start has put it right."""
    strangers: tuple[str, ...]
    """Files that were not there before."""
    said: tuple[str, ...]


def contents(root: Path) -> frozenset[bytes]:
    return frozenset((root / name).read_bytes() for name in NAMES)


def prepared(root: Path) -> list[FileChange]:
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"old")
    return [FileChange(root / name, name, b"old", b"new " * 50) for name in NAMES]


def killed_at(line: int, action: Callable[[], object]) -> bool:
    """Run in a process of its own that is killed at that line of ours; True: it came through."""
    process = os.fork()
    if not process:
        left = line

        def trace(frame: FrameType, event: str, _argument: object) -> Any:  # sys.settrace's own
            nonlocal left
            if not frame.f_code.co_filename.endswith(_OURS):
                return None
            if event == "line":
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    return not os.WIFSIGNALED(status)


def attempt(root: Path, line: int, line_of_recovery: int = 0) -> Outcome:
    """Kill a write, and perhaps the first recovery from it; then recover."""
    changes = prepared(root)
    os.environ["XDG_STATE_HOME"] = f"{root}.state"  # else each attempt reads what all have left
    ended = killed_at(line, lambda: write(changes, root))
    left = contents(root)
    if line_of_recovery:
        killed_at(line_of_recovery, recover)
    said = tuple(recover())
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return Outcome(ended, left, contents(root), tuple(sorted(found - set(NAMES))), said)


def is_whole(outcome: Outcome) -> bool:
    return len(outcome.after) == 1 and not outcome.strangers


def main(step: int) -> None:
    """Kill at every ``step``-th line, and at each of those again in the recovery."""
    tried = partly = wrong = again = 0
    with tempfile.TemporaryDirectory() as folder:
        line = 1
        while True:
            root = Path(folder, f"tree{line}")
            outcome = attempt(root, line)
            if outcome.ended:
                break
            tried += 1
            partly += len(outcome.before) > 1
            wrong += not is_whole(outcome)
            if outcome.said:
                second = attempt(Path(folder, f"again{line}"), line, 1 + line * 7 % 120)
                again += 1
                wrong += not is_whole(second)
            line += step
    sys.stdout.write(
        f"{tried} kills, {partly} of them between two files, {again} more in the recovery as"
        f" well; not whole afterwards: {wrong}\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
