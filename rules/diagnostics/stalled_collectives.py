"""Collectives that stand still: they neither move data nor wait for another rank.

What: collectives that spend more than half of their time inside on something else, 1 % of the step
or more together. In an all-reduce of 79 ms that moves its 16 MB in 0.24 ms and waits 5.6 ms for
the other rank, 73 ms are left.

Why it is slow on the NPU: HCCL cuts a collective into transfers and notifications between them. A
buffer whose size is no multiple of 512 bytes takes the slow way at its ends, on all ranks at once;
a broken link or another collective on the same plane do the same.

Evidence: elapse, transfer, wait and synchronisation time of each collective in communication.json,
and its number of elements where the trace or the database has it.

Use instead: buckets and flattened gradients whose size is a multiple of 512 bytes
(``nccl_start_alignment_factor`` of DeepSpeed, another ``bucket_cap_mb`` or padded layers with DDP);
then another ``HCCL_ALGO``, and a look at the links.

Safety: padding keeps the results.

References: byte_alignment.yaml of msprof-analyze; communication chapter of the troubleshooting guide
(350 ms to 50 ms by alignment).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent
from npufix.rules.shared.recording.collectives import (
    ALIGNED_BYTES,
    LEAST_SHARE,
    UNALIGNED_ADVICE,
    collective_times,
    kernels_of,
    longest_collectives,
    payload_bytes,
    standing_still,
)
from npufix.rules.shared.recording.observing import places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all collectives that stand still."""
    rows, steps = collective_times(recording)
    still = standing_still(rows)
    exposed = recording.step_ns
    if len(recording.steps):
        exposed = round(float(recording.steps["communication_exposed_ns"].mean()))
    spent = min(int(still["still_ns"].sum()) // steps, recording.step_ns)
    cost = min(spent, exposed, recording.step_ns)
    if still.empty or share(cost, recording) < LEAST_SHARE:
        return
    own = kernels_of(still["name"], recording)
    sizes = payload_bytes(recording)
    unaligned = _say_unaligned(rows, still, sizes)
    yield Observation(
        what=(
            f"{number(len(still) / steps)} of {format_count(len(rows) / steps, 'collective')} per step "
            f"stand still for {milliseconds(spent)} ({percent(share(spent, recording))} of the step): they "
            f"neither move data nor wait for another rank: "
            f"{longest_collectives(still, 'still_ns', steps, sizes)}{unaligned}"
        ),
        evidence=(
            ("moving data", f"{milliseconds(still['moving_ns'].sum() / steps)} per step"),
            ("waiting for other ranks", f"{milliseconds(still['waiting_ns'].sum() / steps)}"),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        likely_ns=cost,
        basis="at most the time in which they stand still",
        places=places(own, own["duration_ns"].to_numpy(), recording),
        kernels=Labels(own.index),
        advice=UNALIGNED_ADVICE if unaligned else "",
    )


def _say_unaligned(rows: pd.DataFrame, still: pd.DataFrame, sizes: dict[str, int]) -> str:
    """Say that sizes are what tells those that stand still from the others, "" if they do not."""
    slow = {_bare(name) for name in still["name"]}
    others = {_bare(name) for name in rows["name"]} - slow
    if not slow or any(name not in sizes for name in slow | others):
        return ""
    if any(sizes[name] % ALIGNED_BYTES == 0 for name in slow):
        return ""
    told = ", ".join(f"{sizes[name]:,}" for name in sorted(slow)[:4])
    if others and all(sizes[name] % ALIGNED_BYTES == 0 for name in others):
        return f"; their sizes alone are no multiples of {ALIGNED_BYTES} bytes: {told}"
    return f"; their sizes are no multiples of {ALIGNED_BYTES} bytes: {told}"


def _bare(name: object) -> str:
    return str(name).split("@", maxsplit=1)[0]


RULE = Diagnostic(
    id="NPU508",
    name="stalled-collectives",
    summary="collectives neither move data nor wait for another rank",
    advice=(
        "compare the sizes with multiples of 512 bytes; another HCCL_ALGO; the Notify_Wait events "
        "of these collectives in the trace say which plane stands still"
    ),
    check=check,
)
