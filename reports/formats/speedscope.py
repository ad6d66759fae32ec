"""The call stacks with their device time, for https://www.speedscope.app (or a copy of it)."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from npufix.reports.encoding import encode
from npufix.reports.formats import Format
from npufix.reports.report import Report, tool

if TYPE_CHECKING:
    from npufix.reports.formats import Result

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def _render(result: Result[Report]) -> str:
    """Return a sampled profile: a sample a stack, its weight the nanoseconds on the device."""
    numbers: dict[str, int] = {}
    samples, weights = [], []
    for frames, ns in result.run.stack_times() if result.run else ():
        samples.append([numbers.setdefault(frame, len(numbers)) for frame in frames])
        weights.append(ns)
    profile = {
        "type": "sampled",
        "name": PurePath(result.report.dump).name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    made = {
        "$schema": _SCHEMA,
        "exporter": tool(),
        "shared": {"frames": [{"name": name} for name in numbers]},
        "profiles": [profile],
    }
    return encode(made).decode() + "\n"


FORMAT = Format(
    name="speedscope",
    about="Call stacks with their time on the device, for speedscope.",
    renders={Report: _render},
    needs_recording=True,
)
