"""Commands in a page are run when the site is built, and their real output is shown.

A fenced block ``run`` holds commands, one a line. They are run in a copy of the example program,
in the order of the pages; a block with commands that were run already (the same page in another
language) shows the same output. Options behind ``run``: ``status=1`` is the exit status that the
last command must have, ``from=REGEX`` is the first line to show, ``to=REGEX`` the last or
``before=REGEX`` the one behind it, ``quiet`` shows no output. A block ``output`` shows more lines
of the last command.

It is not markdown-exec, which shows no excerpts, runs the commands of each language anew and has no
folder that is kept between blocks.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_BLOCK = re.compile(r"^```(run|output)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = shutil.which("bash") or "/bin/sh"
_LONGEST_S = 300
_SHOWN_FOLDER = "~/npufix"
_ELLIPSIS = "[...]"


class SessionError(Exception):
    """A command did not do what its page says."""


@dataclass(frozen=True)
class Result:
    """What one command printed, and how it ended."""

    command: str
    status: int
    lines: tuple[str, ...]


@dataclass
class Session:
    """A folder that commands are run in, and what they printed."""

    folder: Path
    done: dict[tuple[str, ...], Result] = field(default_factory=dict)
    """By the commands of a block: the result of the last."""

    @classmethod
    def of_example(cls, root: Path, folder: Path) -> Session:
        """Return a session in a repository that holds the example and its dump."""
        commands = folder / ".bin"
        commands.mkdir()
        script = commands / "npufix"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m npufix.advisor "$@"\n')
        script.chmod(0o755)
        for name in ("bert_like", "dump"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / "examples" / name, folder / "examples" / name, ignore=ignored)
        (folder / ".gitignore").write_text(".bin\n")
        session = cls(folder)
        session.run(("git init -q", "git add -A", "git commit -q -m Example"))
        return session

    def run(self, commands: Sequence[str], status: int = 0) -> Result:
        """Run the commands of a block, unless they were; only the last may fail, as announced.

        Raises:
            SessionError: one ends with another exit status.

        """
        key = tuple(commands)
        if key not in self.done:
            for command in commands[:-1]:
                _check(self._run(command), 0)
            self.done[key] = self._run(commands[-1])
        return _check(self.done[key], status)

    def _run(self, command: str) -> Result:
        try:
            ended = subprocess.run(
                [_SHELL, "-c", command], cwd=self.folder, env=self._environment(), check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, encoding="utf-8", timeout=_LONGEST_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SessionError(f"{command!r} took longer than {_LONGEST_S} s") from error
        text = ended.stdout.replace(str(self.folder.resolve()), _SHOWN_FOLDER)
        return Result(command, ended.returncode, tuple(text.rstrip().splitlines()))

    def _environment(self) -> dict[str, str]:
        kept = ("HOME", "XDG_CACHE_HOME", "TMPDIR", "LD_LIBRARY_PATH")
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "PATH": f"{self.folder / '.bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "XDG_STATE_HOME": str(self.folder / ".state"),
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_NAME": "You" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "you@example.com" for who in ("AUTHOR", "COMMITTER")},
        }


def _check(result: Result, status: int) -> Result:
    if result.status != status:
        last = "\n".join(result.lines[-20:])
        raise SessionError(f"{result.command!r} ends with {result.status}, not {status}:\n{last}")
    return result


def with_outputs(markdown: str, session: Callable[[], Session]) -> str:
    """Return a page with the output of its commands.

    Raises:
        SessionError: a command fails, or does not print a line that the page wants to show.

    """
    last: Result | None = None

    def shown(match: re.Match[str]) -> str:
        nonlocal last
        kind, given, body = match.groups()
        options = _options(given)
        commands = body.strip().splitlines()
        prompt: list[str] = []
        if kind == "run":
            last = session().run(commands, int(options.get("status", "0")))
            prompt = [f"$ {line}" for line in commands]
        if last is None:
            raise SessionError("a block `output` without a command before it")
        lines = [] if "quiet" in options else excerpt(last.lines, options)
        return "\n".join(["```console", *prompt, *lines, "```"])

    return _BLOCK.sub(shown, markdown)


def _options(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (each.partition("=") for each in shlex.split(text))}


def excerpt(
    lines: Sequence[str], options: dict[str, str], ellipsis: Sequence[str] = (_ELLIPSIS,)
) -> list[str]:
    """Return the lines from one with ``from`` to the next one with ``to``, or before ``before``.

    Raises:
        SessionError: there is no such line.

    """
    first = _find(lines, options.get("from", ""), 0)
    end = len(lines)
    if "to" in options:
        end = _find(lines, options["to"], first) + 1
    elif "before" in options:
        end = _find(lines, options["before"], first + 1)
    shown = list(lines[first:end])
    while shown and not shown[-1]:
        shown.pop()
    return [*(ellipsis if first else ()), *shown, *(ellipsis if end < len(lines) else ())]


def _find(lines: Sequence[str], pattern: str, start: int) -> int:
    for number in range(start, len(lines)):
        if re.search(pattern, lines[number]):
            return number
    if not lines and not pattern:
        return 0
    raise SessionError(f"no line with {pattern!r} in:\n" + "\n".join(lines))
