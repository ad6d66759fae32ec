"""The terminal as rich sees it."""

from __future__ import annotations

import os
import sys

from npufix.advisor.console.loudness import wants_colour
from npufix.reports.language.terminal import Console

_NARROWEST, _IN_A_PIPE, _WIDEST = 20, 80, 120


def make_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, at most 120 columns; 80 in a pipe."""
    colours = wants_colour()
    made = Console(
        stderr=stderr,
        highlight=False,
        soft_wrap=False,
        force_terminal=True if colours else None,
        color_system=None if colours is False else "auto",
    )
    in_pipe = not (sys.stderr if stderr else sys.stdout).isatty()
    # The other end of a pipe is no terminal, even where this one was started from one.
    width = _IN_A_PIPE if in_pipe and "COLUMNS" not in os.environ else made.width
    made.width = max(_NARROWEST, min(width, _WIDEST))
    return made
