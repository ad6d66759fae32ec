"""Hot lines of a dump whose kernels lead to none: by the operators' own sums of device time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.project.user_frames import user_frames
from npufix.reports.report import HotLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.profiling_parsers.signals import Signals

_NAMES_SHOWN = 3


def operator_lines(
    signals: Signals, mapped: Mapping[str, str], top: int, compute_ns: int
) -> tuple[list[HotLine], float]:
    """Return the hot lines by operator_details, and the share of the compute time on any line.

    ``types`` of these lines are host operators, ``calls`` their calls.
    """
    frames = user_frames(signals.operator_stacks, mapped)
    totals = signals.operator_totals
    known = totals[(totals["stack"] >= 0) & (totals["device_self_ns"] > 0)]
    stacks = known["stack"].to_numpy()
    located = known.assign(
        path=np.array([frame.path for frame in frames], object)[stacks],
        line=np.array([frame.line for frame in frames], np.int64)[stacks],
        function=np.array([frame.function for frame in frames], object)[stacks],
        via=np.array([frame.via for frame in frames], object)[stacks],
    )
    located = located[located["path"] != ""]
    if located.empty or not compute_ns:
        return [], 0.0
    lines = []
    for (path, line, function), own in located.groupby(["path", "line", "function"], sort=True):
        spent = own.groupby("name", observed=True)["device_self_ns"].sum()
        names = spent.sort_values(ascending=False, kind="stable").index[:_NAMES_SHOWN]
        total = int(own["device_self_ns"].sum())
        lines.append(
            HotLine(
                path=str(path),
                line=int(str(line)),
                function=str(function),
                level="line",
                via=str(own["via"].iloc[int(np.argmax(own["device_self_ns"].to_numpy()))]),
                calls=len(own),
                total_ns=total,
                share=total / compute_ns,
                types=[str(name) for name in names],
            )
        )
    lines.sort(key=lambda hot: (-hot.total_ns, hot.path, hot.line))
    return lines[:top], sum(hot.share for hot in lines)
