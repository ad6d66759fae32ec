"""Collectives too small to use the links.

What: more than 20 % of the collectives move less than 16 MB over SDMA, or less than 1 MB over RDMA,
at less than 80 % of what the links reach.

Why it is slow on the NPU: each transfer costs the same to set up, synchronise and acknowledge.
Small ones spend their time on that, not on data.

Evidence: size, time and bandwidth of each collective per kind of link in communication.json.

Use instead: larger buckets (``bucket_cap_mb`` of DDP, ``reduce_bucket_size`` of DeepSpeed),
gradient accumulation, ZeRO-1 or ZeRO-2 instead of ZeRO-3 where the memory allows it; for small
messages ``HCCL_OP_EXPANSION_MODE=AIV``.

Safety: buckets keep the results; accumulation changes the batch; ZeRO-2 takes more memory.

References: packet.yaml of msprof-analyze (16 MB, 1 MB, 20 %); solution_to_top1.md of the
troubleshooting guide (ZeRO-3 to ZeRO-2: 2.7 % faster).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.chips import link_rate
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent
from npufix.rules.shared.recording.collectives import (
    CONTENTION_SHARE,
    LEAST_SHARE,
    LEAST_STILL_NS,
    PACKET_BYTES,
    TINY_BYTES,
    are_waited_for,
    busy_ns,
    follow_each_other,
    kernels_of,
    moving_ns,
    of_steady_steps,
    slow_unaligned,
)
from npufix.rules.shared.recording.observing import places, share
from npufix.rules.shared.recording.run_settings import Setting, advice, lines_to_set

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

PACKET_SHARE = 0.2
"""Share of the collectives of a kind of link."""

_BUCKETS = (
    "larger buckets (DDP bucket_cap_mb, DeepSpeed reduce_bucket_size), gradient accumulation, "
    "ZeRO-2 instead of ZeRO-3"
)
_FLAT = (
    "one collective over a flat buffer (torch._utils._flatten_dense_tensors) or the buckets of DDP "
    "instead of one for each tensor"
)
_FUSED = "torch_npu.npu_mm_all_reduce_base for a product and its all-reduce"
_MANY = 16
"""Tiny ones per step that look like one for each tensor."""
_BUCKET_BYTES = 25_000_000
"""What DDP puts into one collective unless told otherwise."""
_EXPANSION = Setting("HCCL_OP_EXPANSION_MODE", "AIV")


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation per kind of link."""
    rows, steps = of_steady_steps(recording.signals.transports, recording)
    rows = rows.drop(
        index=slow_unaligned(rows, recording).index
    )  # they are slow for another reason
    for transport, limit in PACKET_BYTES.items():
        own = rows[(rows["transport"] == transport) & (rows["size_bytes"] > 0)]
        small = own[(own["size_bytes"] < limit).to_numpy() & (own["transit_ns"] > 0).to_numpy()]
        if len(small) <= PACKET_SHARE * len(own):
            continue
        named = kernels_of(small["name"], recording)
        of_layers = are_waited_for(named, recording.kernels)
        if of_layers and float(np.median(small["size_bytes"])) >= TINY_BYTES:
            continue  # one per layer, of which each needs the one before: none can be joined
        good = _measure_reached(own, limit, transport)
        if good is not None and _reached(small, recording) >= CONTENTION_SHARE * good:
            continue
        cost = _sum_spent_ns(small, recording) // steps
        if share(cost, recording) >= LEAST_SHARE:
            seen = _observation(own, small, good, steps, recording)
            yield replace(seen, advice=_of_layers(named, recording)) if of_layers else seen


def _sum_spent_ns(small: pd.DataFrame, recording: Recording) -> int:
    """Return what they take but for waiting: setting up is most of a small one."""
    moved = moving_ns(small, recording)
    return int(np.maximum(moved, busy_ns(small["name"], recording)).sum())


def _measure_reached(rows: pd.DataFrame, limit: int, transport: str) -> float | None:
    """Return the GB/s that large collectives reach here, else the known rate of the link."""
    large = rows[(rows["size_bytes"] >= limit) & (rows["transit_ns"] > 0)]
    if len(large):
        return _bandwidth(large)
    return link_rate(transport)


def _reached(small: pd.DataFrame, recording: Recording) -> float:
    """Return the GB/s with what each takes to be set up: 96 KB move in 5 of its 65 us.

    What stands still for longer does so for another reason (NPU508).
    """
    moved = moving_ns(small, recording)
    set_up = (busy_ns(small["name"], recording) - moved).clip(0, LEAST_STILL_NS)
    set_up = np.where(small["size_bytes"] < TINY_BYTES, set_up, 0)
    return float(small["size_bytes"].sum() / max(1, int((moved + set_up).sum())))


def _of_layers(own: pd.DataFrame, recording: Recording) -> str:
    reduces = own["name"].astype(str).str.contains("allreduce", case=False)
    return advice(_FUSED if reduces.any() else "", lines_to_set(recording, _EXPANSION))


def _bandwidth(rows: pd.DataFrame) -> float:
    return float(rows["size_bytes"].sum() / max(1, rows["transit_ns"].sum()))


def _observation(
    rows: pd.DataFrame, small: pd.DataFrame, good: float | None, steps: int, recording: Recording
) -> Observation:
    transport = str(rows["transport"].iloc[0])
    spent = _sum_spent_ns(small, recording)
    cost = min(spent // steps, recording.step_ns)
    median = float(np.median(small["size_bytes"]))
    are_tiny = median < TINY_BYTES and len(small) >= _MANY * steps
    own = kernels_of(small["name"], recording)
    saving, instead = None, None
    basis = "no large collective of this dump shows what the link reaches"
    if good is not None:
        moved = round(float(small["size_bytes"].sum()) / good)
        saving = (0, round(cost * max(0.0, 1 - moved / spent)))
        basis = f"at most what is lost against {good:.1f} GB/s"
        if are_tiny and follow_each_other(
            own, recording.kernels
        ):  # they become few, and their launches
            count = steps * math.ceil(float(small["size_bytes"].sum()) / steps / _BUCKET_BYTES)
            instead = count, moved, moved + round(count * spent / len(small))
    return Observation(
        what=(
            f"{number(len(small) / steps)} of {format_count(len(rows) / steps, 'collective')} per step "
            f"over {transport} move less than {PACKET_BYTES[transport] / 1e6:.0f} MB each, "
            f"{median / 1e6:.2g} MB in the middle, and take {milliseconds(cost)} "
            f"({percent(share(cost, recording))} of the step)"
        ),
        evidence=(
            ("their bandwidth", f"{_bandwidth(small):.2f} GB/s"),
            ("each", milliseconds(spent / len(small))),
        ),
        cost_ns=cost,
        saving_ns=saving,
        likely_ns=saving[1] if saving else None,
        basis=basis,
        places=places(own, own["duration_ns"].to_numpy(), recording),
        kernels=Labels(own.index),
        instead=instead,
        advice=advice(_FLAT if are_tiny else "", _BUCKETS, lines_to_set(recording, _EXPANSION)),
    )


RULE = Diagnostic(
    id="NPU503",
    name="small-packets",
    summary="collectives are too small to use the links",
    advice=f"{_BUCKETS}; {_EXPANSION.line} for small messages",
    check=check,
)
