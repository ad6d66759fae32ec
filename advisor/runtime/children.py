"""Telling the Python processes that a program starts to make the same changes.

Workers that are spawned, and programs started with ``subprocess``, know nothing of their parent
but the environment. ``PYTHONPATH`` gets a folder with a ``sitecustomize``, which Python imports
when it starts; it runs the user's own ``sitecustomize`` as well, if there is one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.runtime.process.switches import SwitchError, Switches

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE = "NPUFIX_RUNNING"
_FOLDER = str(Path(__file__).parent / "startup")


class _Asked(msgspec.Struct, frozen=True):
    rules: tuple[str, ...]
    disable: tuple[str, ...]
    allow: tuple[str, ...]
    enable: tuple[str, ...]
    on: str
    project: str


def inherit(
    said: Switches,
    on: str,
    project: Path | None,
    variables: MutableMapping[str, str] = os.environ,
) -> None:
    """Let the processes that are started from now on make the same changes."""
    asked = _Asked(said.rules, said.disable, said.allow, said.enable, on, str(project or ""))
    variables[VARIABLE] = msgspec.json.encode(asked).decode()
    others = [p for p in variables.get("PYTHONPATH", "").split(os.pathsep) if p and p != _FOLDER]
    variables["PYTHONPATH"] = os.pathsep.join([_FOLDER, *others])


def start() -> None:
    """Make the changes that the parent process was asked for; quietly, as it says what is done."""
    text = os.environ.get(VARIABLE, "")
    try:
        asked = msgspec.json.decode(text.encode(), type=_Asked)
    except msgspec.DecodeError:
        return
    from npufix.advisor.runtime.process.applying import apply

    said = Switches(asked.rules, asked.disable, asked.allow, enable=asked.enable)
    try:
        apply(said, asked.on, project=Path(asked.project) if asked.project else None)
    except SwitchError as error:  # the environment of this process says something else
        sys.stderr.write(f"npufix: {error}\n")
