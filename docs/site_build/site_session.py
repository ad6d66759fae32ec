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
import sysconfig
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


@dataclass
class Session:
    """A folder that commands are run in, and what they printed."""

    folder: Path
    done: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    """By the commands of a block and the last exit status: the output of the last."""

    @classmethod
    def of_example(cls, root: Path, folder: Path) -> Session:
        """Return a session in a repository that holds the example and its dump."""
        for name in ("bert_like", "dump"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / "examples" / name, folder / "examples" / name, ignore=ignored)
        session = cls(folder)
        session.run("git init -q\ngit add -A\ngit commit -q -m Example")
        return session

    def run(self, commands: str, status: int = 0) -> list[str]:
        """Run the commands of a block, unless they were; only the last may fail, as announced.

        Raises:
            SessionError: one ends with another exit status.

        """
        if (commands, status) not in self.done:
            *before, last = commands.splitlines()
            for command in before:
                self._run(command, 0)
            self.done[commands, status] = self._run(last, status)
        return self.done[commands, status]

    def _run(self, command: str, status: int) -> list[str]:
        try:
            ended = subprocess.run(
                [_SHELL, "-c", command], cwd=self.folder, env=self._environment(), check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, encoding="utf-8", timeout=_LONGEST_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SessionError(f"{command!r} took longer than {_LONGEST_S} s") from error
        text = ended.stdout.replace(str(self.folder.resolve()), _SHOWN_FOLDER).rstrip()
        if ended.returncode != status:
            raise SessionError(f"{command!r} ends with {ended.returncode}, not {status}:\n{text}")
        return text.splitlines()

    def _environment(self) -> dict[str, str]:
        kept = ("HOME", "XDG_CACHE_HOME", "TMPDIR", "LD_LIBRARY_PATH")
        scripts = sysconfig.get_path("scripts")
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "XDG_STATE_HOME": str(self.folder / ".state"),
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_NAME": "You" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "you@example.com" for who in ("AUTHOR", "COMMITTER")},
        }


def with_outputs(markdown: str, session: Callable[[], Session]) -> str:
    """Return a page with the output of its commands.

    Raises:
        SessionError: a command fails, or does not print a line that the page wants to show.

    """
    last: list[str] | None = None

    def shown(match: re.Match[str]) -> str:
        nonlocal last
        kind, given, body = match.groups()
        options = dict(each.partition("=")[::2] for each in shlex.split(given))
        prompt: list[str] = []
        if kind == "run":
            last = session().run(body.strip(), int(options.get("status", "0")))
            prompt = [f"$ {line}" for line in body.strip().splitlines()]
        if last is None:
            raise SessionError("a block `output` without a command before it")
        lines = [] if "quiet" in options else excerpt(last, options, _ELLIPSIS)
        return "\n".join(["```console", *prompt, *lines, "```"])

    return _BLOCK.sub(shown, markdown)


def excerpt(lines: Sequence[str], options: dict[str, str], ellipsis: str = "") -> list[str]:
    """Return the lines from one with ``from`` to the next one with ``to``, or before ``before``.

    Raises:
        SessionError: there is no such line.

    """
    first = _find(lines, options["from"], 0) if "from" in options else 0
    end = len(lines)
    if "to" in options:
        end = _find(lines, options["to"], first) + 1
    elif "before" in options:
        end = _find(lines, options["before"], first + 1)
    shown = "\n".join(lines[first:end]).rstrip("\n").splitlines()
    left_out = [ellipsis] if ellipsis else []
    return [*(left_out if first else []), *shown, *(left_out if end < len(lines) else [])]


def _find(lines: Sequence[str], pattern: str, start: int) -> int:
    for number in range(start, len(lines)):
        if re.search(pattern, lines[number]):
            return number
    raise SessionError(f"no line with {pattern!r} in:\n" + "\n".join(lines))
