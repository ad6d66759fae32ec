"""The AI cores run slower than they can.

What: while kernels run, the clock of the AI cores is 5 % or more below the highest of the
recording, or half as much where that takes 1 % of the step.

Why it is slow on the NPU: the device lowers its clock when it gets too hot or draws too much power;
kernels that compute then take longer in the same proportion. In a job of many ranks all wait for
the slowest device.

Evidence: AI Core Freq of the recording, weighed by the time of the kernels that ran at each clock.
A clock that is low only while the device idles is not told. The highest clock of the recording
stands for what the device can do: a device that is slow all the time looks healthy here.

Use instead: check temperature and power (``npu-smi info -t temp -i 0``, ``npu-smi info -t power
-i 0``), fans, the power limit and the neighbours in the rack.

Safety: nothing changes in the program.

References: ai_core_freq of msprof-analyze (threshold 5 %).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.observing import COOLING, clock_of, per_step, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

FREQ = 0.05
"""How far below the highest clock; from half of it on it is told if it costs enough of the step, so
that none vanishes just below."""
_MOSTLY = 0.5
"""Share of the slow time whose kernels ran at the highest clock, too, and so tell what is lost."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation per device whose kernels ran at a lower clock."""
    clock = recording.signals.frequency
    if clock.empty:
        return
    kernels = recording.kernels[~recording.kernels["communication"].to_numpy(bool)]
    devices = sorted(clock["device"].unique())
    for device in devices:
        own = kernels[kernels["device"].isin([device, -1])] if len(devices) > 1 else kernels
        readings = clock[(clock["device"] == device) & (clock["mhz"] > 0)]
        yield from _of_device(int(device), readings, own, recording)


def _of_device(
    device: int, readings: pd.DataFrame, kernels: pd.DataFrame, recording: Recording
) -> Iterator[Observation]:
    if readings.empty or kernels.empty:
        return
    mhz = clock_of(kernels, readings)
    highest = float(readings["mhz"].max())
    slow = mhz <= (1 - FREQ / 2) * highest
    duration = kernels["duration_ns"].to_numpy()
    affected = float(duration[slow].sum())
    if not affected:
        return
    lost = float((duration[slow] * (1 - mhz[slow] / highest)).sum())
    likely = _lost_against_full_clock(kernels, slow, lost)
    cost = per_step(lost if likely is None else likely, recording)
    if share(cost, recording) < LEAST_SHARE and not (mhz <= (1 - FREQ) * highest).any():
        return
    mean = float(np.average(mhz[slow], weights=np.maximum(duration[slow], 1)))
    yield Observation(
        what=(
            f"device {device} ran {percent(affected / duration.sum())} of its compute time at "
            f"{mean:.0f} instead of {highest:.0f} MHz, which takes {milliseconds(cost)} per step "
            f"({percent(share(cost, recording))} of the step)"
        ),
        evidence=(
            ("lowest clock while computing", f"{mhz[slow].min():.0f} MHz"),
            ("compute time at a low clock", f"{milliseconds(affected)} in all"),
        ),
        cost_ns=cost,
        saving_ns=(0, per_step(lost, recording)),
        likely_ns=None if likely is None else per_step(likely, recording),
        basis="at most the time in proportion to the clock: kernels bound by memory gain less",
        kernels=Labels(kernels.index[slow]),
    )


def _lost_against_full_clock(
    kernels: pd.DataFrame, slow: NDArray[np.bool_], most: float
) -> float | None:
    """Return how much longer slow kernels take than the same ones did at the highest clock.

    What is beyond ``most``, the time in proportion to the clock, has other reasons.
    """
    keys = ["type", "input_shapes", "input_dtypes"]
    full = kernels[~slow].groupby(keys, observed=True)["duration_ns"].median()
    own = kernels[slow]
    usual = full.reindex(own.set_index(keys).index).to_numpy(np.float64)
    spent = own["duration_ns"].to_numpy(np.float64)
    known = ~np.isnan(usual)
    if spent[known].sum() < _MOSTLY * spent.sum():
        return None
    lost = float((spent[known] - usual[known]).sum())
    return min(most, max(0.0, lost * float(spent.sum() / spent[known].sum())))


RULE = Diagnostic(
    id="NPU306",
    name="frequency-drop",
    summary="the AI cores run below their highest clock while they compute",
    advice=COOLING,
    check=check,
)
