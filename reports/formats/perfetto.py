"""Trace events: the findings as tracks over the recorded trace."""

from __future__ import annotations

from functools import partial
from typing import IO, TYPE_CHECKING, cast

from npufix.reports.formats import Format
from npufix.reports.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.reports.formats import Result, RunDetails


def render_tracks(result: Result[Report], *, whole: bool) -> Callable[[IO[bytes]], None]:
    """Return what writes the findings over the trace or, without ``whole``, alone."""
    # A format that needs a recording is asked for no other result.
    run = cast("RunDetails", result.run)
    packed = result.path.suffix == ".gz"
    return partial(run.write_tracks, result.report.findings, packed=packed, whole=whole)


FORMAT = Format(
    name="perfetto",
    about="The findings as tracks over the original trace, for Perfetto and MindStudio Insight.",
    renders={Report: partial(render_tracks, whole=True)},
    is_binary=True,
    needs_recording=True,
)
