"""Collectives that move much data slowly.

What: collectives that move 16 MB or more over SDMA, at less than 14.4 GB/s (80 % of 18 GB/s), or
1 MB or more over RDMA at less than half of a port of 100 Gbit/s; and those of any size whose operand is no multiple of 512 bytes, at less than half of what the same
operation reaches on aligned operands of a similar size.

Why it is slow on the NPU: matrix products that run at the same time take the bandwidth of the
memory; addresses that are not aligned to 512 bytes break transfers into small pieces.

Evidence: size, time and bandwidth of each collective in communication.json, and its number of
elements where the trace or the database has it.

Use instead: pad buckets to 512 bytes (``nccl_start_alignment_factor`` of DeepSpeed); compare a run
with and one without overlap of computation and communication and keep the faster. Below half of
what the links reach, look at these first (``npu-smi info -t topo``, ``hccn_tool``).

Safety: padding keeps the results.

References: bandwidth_contention.yaml (18 GB/s, 0.8) and byte_alignment.yaml of msprof-analyze;
solution_to_top1.md of the troubleshooting guide (350 ms to 50 ms by alignment).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.chips import link_rate
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent
from npufix.rules.shared.recording.collectives import (
    ALIGNED_BYTES,
    CONTENTION_SHARE,
    LEAST_SHARE,
    PACKET_BYTES,
    UNALIGNED_ADVICE,
    kernels_of,
    moving_ns,
    of_steady_steps,
    payload_bytes,
    slow_unaligned,
)
from npufix.rules.shared.recording.observing import places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

_OF_LINK = {"SDMA": CONTENTION_SHARE, "RDMA": 0.5}
"""Share of what a link reaches below which it is slow: ports are shared and rates differ."""
_MOST_TOLD = 4
"""Sizes."""
_OVERLAP = (
    "compare a run with and one without overlap of computation and communication; keep the faster"
)
_LINKS = "look at the link first: npu-smi info -t topo; hccn_tool -i ID -link_stat -g; then compare a run with and one without overlap"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all slow collectives of a kind of link together."""
    rows, steps = of_steady_steps(recording.signals.transports, recording)
    rows = rows[(rows["gb_per_s"] > 0) & (rows["transit_ns"] > 0)]
    for transport in _OF_LINK:
        yield from _check_link(transport, rows[rows["transport"] == transport], steps, recording)


def _check_link(
    transport: str, rows: pd.DataFrame, steps: int, recording: Recording
) -> Iterator[Observation]:
    link = link_rate(transport) or 0.0
    limit = _OF_LINK[transport] * link
    unaligned = slow_unaligned(rows, recording)
    is_unaligned = rows.index.isin(unaligned.index)
    is_large = (rows["size_bytes"] >= PACKET_BYTES[transport]).to_numpy()
    is_slow = is_unaligned | (is_large & (rows["gb_per_s"] < limit).to_numpy())
    slow, by_size = rows[is_slow], is_unaligned[is_slow]
    moving = moving_ns(slow, recording)
    cost = min(int(moving.sum()) // steps, recording.step_ns)
    if slow.empty or share(cost, recording) < LEAST_SHARE:
        return
    usual = np.where(by_size, unaligned.reindex(slow.index), link)
    reached = slow["gb_per_s"].to_numpy() / usual
    # Side by side they take more than the step: what is lost is the same share of what they take.
    saved = round(cost * float((moving * (1 - reached)).sum()) / max(1, int(moving.sum())))
    own = kernels_of(slow["name"], recording)
    mostly = 2 * moving[by_size].sum() > moving.sum()
    speed = _speed_of_links(slow)
    overlap = _OVERLAP if _are_aligned(slow, recording) else ""
    yield Observation(
        what=(
            _say_unaligned(
                slow.assign(moving_ns=moving)[by_size], unaligned, len(rows), steps, recording
            )
            if mostly
            else f"{number(len(slow) / steps)} of {number(is_large.sum() / steps)} large collectives per "
            f"step over {transport} reach less than {limit:.1f} GB/s, {speed:.2f} GB/s "
            f"on average; of {milliseconds(cost)} that they take, {milliseconds(saved)} "
            f"({percent(share(saved, recording))} of the step) are lost against {link:g} GB/s"
        ),
        evidence=(
            ("slowest", f"{slow['gb_per_s'].min():.2f} GB/s"),
            ("data", f"{slow['size_bytes'].sum() / steps / 1e6:.0f} MB per step"),
        ),
        cost_ns=cost if mostly else saved,
        saving_ns=(0, saved),
        likely_ns=saved,
        basis=f"at most what is lost against {float(np.median(usual)):.3g} GB/s",
        places=places(own, own["duration_ns"].to_numpy(), recording),
        kernels=Labels(own.index),
        advice=UNALIGNED_ADVICE if mostly else _LINKS if speed < link / 2 else overlap,
    )


def _speed_of_links(rows: pd.DataFrame) -> float:
    """Return the GB/s of the links of some collectives, as ``gb_per_s`` is one.

    Seven links at 9 GB/s each move 63 side by side: that is no speed to hold against 14.4.
    """
    return float(rows["size_bytes"].sum()) / max(1, int(rows["transit_ns"].sum()))


def _are_aligned(slow: pd.DataFrame, recording: Recording) -> bool:
    """Tell whether all these collectives are known to be multiples of 512 bytes."""
    sizes = payload_bytes(recording)
    names = (str(name).split("@", maxsplit=1)[0] for name in slow["name"])
    return all(sizes.get(name, 1) % ALIGNED_BYTES == 0 for name in names)


def _say_unaligned(
    slow: pd.DataFrame, usual: pd.Series[float], count: int, steps: int, recording: Recording
) -> str:
    """Say which sizes are slow, and what others reach; ``count`` is of all, over the steps."""
    moved_ns = int(slow["moving_ns"].sum())
    spent = moved_ns // steps
    sizes = payload_bytes(recording)
    told = sorted({sizes[str(name).split("@", maxsplit=1)[0]] for name in slow["name"]})
    reached = _speed_of_links(slow)
    return (
        f"{number(len(slow) / steps)} of {format_count(count / steps, 'collective')} per step move "
        f"data at {reached:.2f} GB/s, others at {float(usual.median()):.1f} GB/s: their sizes are no "
        f"multiples of {ALIGNED_BYTES} bytes ({', '.join(f'{size:,}' for size in told[:_MOST_TOLD])}); "
        f"they take {milliseconds(spent)} ({percent(share(spent, recording))} of the step)"
    )


RULE = Diagnostic(
    id="NPU505",
    name="low-bandwidth",
    summary="large collectives move data slower than the links allow",
    advice=(
        "align buckets to 512 bytes (DeepSpeed nccl_start_alignment_factor); compare a run "
        "with and one without overlap of computation and communication"
    ),
    check=check,
)
