"""Trace events: the tracks of the findings alone."""

from __future__ import annotations

from functools import partial

from npufix.reports.formats import Format
from npufix.reports.formats.perfetto import render_tracks
from npufix.reports.report import Report

FORMAT = Format(
    name="perfetto-findings",
    about="The tracks of the findings alone.",
    renders={Report: partial(render_tracks, whole=False)},
    is_binary=True,
    needs_recording=True,
)
