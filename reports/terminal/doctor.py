"""What ``npufix doctor`` says about a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.text import Text

from npufix.reports.language.terminal import Verbatim, lines, translate
from npufix.reports.wording.report import plain

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1


class Part(msgspec.Struct, frozen=True):
    """Something that a machine has, or has not."""

    name: str
    value: str


class GroundLine(msgspec.Struct, frozen=True):
    """Whether verification can run on a ground."""

    ground: str
    usable: bool
    what: str
    """What a verdict on this ground stands on."""
    missing: str
    remedy: str


class MachineReport(msgspec.Struct, frozen=True):
    """A machine, and what can be verified on it."""

    tool: str
    parts: list[Part]
    grounds: list[GroundLine]
    chosen: str
    """What ``--on auto`` takes."""
    warnings: list[str]
    schema: int = SCHEMA_VERSION


def to_json(diagnosis: MachineReport) -> str:
    """Return it as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode()


def show(diagnosis: MachineReport, console: Console) -> None:
    """Print it on a terminal."""
    console.print(Text(headline(diagnosis), "bold"))
    console.print()
    width = max(len(part.name) for part in diagnosis.parts)
    for part in diagnosis.parts:
        _hanging(f"{part.name:<{width}}  ", plain(part.value), console)
    console.print("\nA change can be verified on")
    width = max(len(line.ground) for line in diagnosis.grounds)
    for line in diagnosis.grounds:
        head = f"  {line.ground:<{width}}  "
        if line.usable:
            _hanging(head, f"yes: {line.what}", console, "green")
        else:
            _hanging(head, f"no: {plain(line.missing)}", console, "yellow")
            _hanging(" " * len(head), f"for it: {plain(line.remedy)}", console, "dim")
    for warning in diagnosis.warnings:
        console.print()
        _hanging("", plain(warning), console, "yellow")


def headline(diagnosis: MachineReport) -> str:
    """Return what ``--on auto`` takes here, in a sentence."""
    if diagnosis.chosen == "none":
        return "Nothing can be verified here; see below for what to install."
    return f"Changes are verified on the ground {diagnosis.chosen!r} here."


def _hanging(head: str, text: str, console: Console, style: str = "") -> None:
    """Print a text whose further lines start below its first word."""
    said = translate(Text(text, style))
    for number, line in enumerate(lines(said, console, max(console.width - len(head), 20))):
        before = head if number == 0 else " " * len(head)
        console.print(Verbatim(before).append_text(line))
