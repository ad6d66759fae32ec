"""Folded stacks: a line a call stack with its microseconds, for flamegraph.pl and inferno."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.formats import Format
from npufix.reports.report import Report
from npufix.reports.wording.report import plain

if TYPE_CHECKING:
    from npufix.reports.formats import Result


def _render(result: Result[Report]) -> str:
    """Return ``main (train.py:3);forward (model.py:9);MatMulV2 812``."""
    lines = []
    for frames, ns in result.run.stack_times() if result.run else ():
        names = ";".join(plain(frame).replace(";", ":") for frame in frames)
        lines.append(f"{names} {round(ns / 1000)}\n")
    return "".join(lines)


FORMAT = Format(
    name="folded",
    about="Call stacks with their microseconds on the device, for flame graphs.",
    renders={Report: _render},
    needs_recording=True,
)
