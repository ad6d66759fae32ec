"""Collectives that move much data slowly.

What: collectives that move 16 MB or more over SDMA, at less than 14.4 GB/s (80 % of 18 GB/s).

Why it is slow on the NPU: matrix products that run at the same time take the bandwidth of the
memory; addresses that are not aligned to 512 bytes break transfers into small pieces.

Evidence: size, time and bandwidth of each collective in communication.json.

Use instead: pad buckets to 512 bytes (``nccl_start_alignment_factor`` of DeepSpeed); compare a run
with and one without overlap of computation and communication and keep the faster.

Safety: padding keeps the results.

References: bandwidth_contention.yaml (18 GB/s, 0.8) and byte_alignment.yaml of msprof-analyze;
solution_to_top1.md of the troubleshooting guide (350 ms to 50 ms by alignment).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.chips import link_rate
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.collectives import (
    CONTENTION_SHARE,
    LEAST_SHARE,
    PACKET_BYTES,
    kernels_of,
    moving_ns,
    of_steady_steps,
)
from npufix.rules.shared.recording.observing import places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all slow collectives together."""
    usual = link_rate("SDMA") or 0.0
    rows, steps = of_steady_steps(recording.signals.transports, recording)
    large = rows[(rows["transport"] == "SDMA") & (rows["size_bytes"] >= PACKET_BYTES["SDMA"])]
    slow = large[(large["gb_per_s"] > 0) & (large["transit_ns"] > 0)]
    slow = slow[slow["gb_per_s"] < CONTENTION_SHARE * usual]
    moving = moving_ns(slow, recording)
    cost = min(int(moving.sum()) // steps, recording.step_ns)
    if slow.empty or share(cost, recording) < LEAST_SHARE:
        return
    reached = slow["gb_per_s"].to_numpy() / usual
    saved = min(cost, round(float((moving * (1 - reached)).sum()) / steps))
    own = kernels_of(slow["name"], recording)
    yield Observation(
        what=(
            f"{len(slow)} of {len(large)} large collectives over SDMA reach less than "
            f"{CONTENTION_SHARE * usual:.1f} GB/s; they take {milliseconds(cost)} "
            f"per step ({percent(share(cost, recording))})"
        ),
        evidence=(
            ("slowest", f"{slow['gb_per_s'].min():.2f} GB/s"),
            ("data", f"{slow['size_bytes'].sum() / steps / 1e6:.0f} MB per step"),
        ),
        cost_ns=cost,
        saving_ns=(0, saved),
        likely_ns=saved,
        basis=f"at most what is lost against {usual:.0f} GB/s",
        places=places(own, own["duration_ns"].to_numpy(), recording),
        kernels=Labels(own.index),
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
