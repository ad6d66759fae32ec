r"""``Call stack`` texts to frames: ``path(line): function`` between ``;\r\n``, innermost first.

The text comes from another machine and is not trusted: what is no frame is left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.profile import CallSite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_LINE_ENDS = re.compile(r"[\r\n]+")
# The first "(digits): " ends the path: a directory may be called "a(1)", but never "a(1): ".
_FRAME = re.compile(r"(?P<path>.+?)\((?P<line>[0-9]{1,9})\):(?:\s+(?P<function>.*))?")


def parse_call_stack(text: str) -> tuple[CallSite, ...]:
    """Return the frames of one call stack, innermost first."""
    lines = (line.strip().rstrip(";").rstrip() for line in _LINE_ENDS.split(text))
    return tuple(frame for line in lines if (frame := parse_frame(line)) is not None)


def parse_frame(text: str) -> CallSite | None:
    """Return the frame that one ``path(line): function`` is, None if it is none."""
    frame = _FRAME.fullmatch(text)
    if frame is None:
        return None
    return CallSite(frame["path"], int(frame["line"]), frame["function"] or "")


def intern_stacks(
    texts: Sequence[str],
) -> tuple[tuple[tuple[CallSite, ...], ...], NDArray[np.int32]]:
    """Return the distinct stacks of ``texts`` and, for each text, its index (-1: no frames)."""
    sites: dict[CallSite, CallSite] = {}
    stacks: dict[tuple[CallSite, ...], int] = {}
    indices = np.full(len(texts), -1, np.int32)
    for index, text in enumerate(texts):
        frames = tuple(sites.setdefault(site, site) for site in parse_call_stack(text))
        if frames:
            indices[index] = stacks.setdefault(frames, len(stacks))
    return tuple(stacks), indices
