"""What is above the bounds of a chip, in sentences that all outputs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.shared.quantities import milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.reports.prediction import Headroom


def headroom_lines(headroom: Headroom) -> Iterator[str]:
    """Yield how much is above the bounds, and by what rates these are taken."""
    yield (
        f"{milliseconds(headroom.above_ns)} of {milliseconds(headroom.time_ns)} on the device are "
        f"above the bound, which {percent(headroom.covered)} of the device time has."
    )
    if any(row.limit == "link" for row in headroom.operators):
        yield "Of a collective, waiting for other ranks is above the bound, too."
    yield f"Bounds by {headroom.basis}: {rates_text(headroom)}."


def rates_text(headroom: Headroom) -> str:
    """Return ``1.76 TB/s, 353.9 TFLOPS of bf16``."""
    rates = [f"{rate:g} TFLOPS of {name}" for name, rate in headroom.tflops.items()]
    return ", ".join([f"{headroom.tb_per_s:g} TB/s", *rates])
