"""What fused kernels take in place of those of a formula."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from npufix.rules.shared.formulas.formulas import MASK, PRODUCT
from npufix.rules.shared.formulas.gradients import OF_GRADIENTS
from npufix.rules.shared.recording.fusable import MATMUL, masks_square
from npufix.rules.shared.recording.observing import is_named, per_step
from npufix.rules.shared.recording.recorded_cells import (
    CELLS,
    count_moved_bytes,
    per_row,
    tensor_bytes,
)
from npufix.rules.shared.recording.recorded_shapes import product_operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.formulas.formulas import WrittenOut
    from npufix.rules.shared.recording.sequences import Integers, Occurrences

_SPREAD = 0.3
"""How far a fused kernel is from the bandwidth of those in its place."""
_OF_QUICKEST = ((0.4, 0.9), (0.35, 0.8))
"""Products inside of fused attention compute so much of what the quickest of a run does, forward
and backward."""
_SKIPS = 2
"""With a mask of a square below its diagonal a fused kernel computes half of it."""
_AGAIN = 5 / 4
"""The gradient computes the scores once more: five products instead of four."""
_LARGE_PRODUCT = 1e9
"""Operations from which a product shows how quickly the chip computes."""
_BY_PRODUCTS = "of a fused kernel only the products count, by the quickest of this dump"
_BY_BYTES = "a fused kernel reads and writes the tensor once, at the bandwidth of these kernels"


class Gain(TypedDict, total=False):
    """What an observation says of its saving."""

    saving_ns: tuple[int, int]
    basis: str
    instead: tuple[int, ...]
    instead_backward: tuple[int, ...] | None


def measure_gain(
    forward: Sequence[Occurrences],
    rows: Integers,
    gradient: Integers,
    recording: Recording,
    wanted: WrittenOut,
) -> Gain:
    """Return what fused kernels take: they move what is handed over at the bandwidth of these."""
    kernels = recording.kernels
    firsts = []
    for each in forward:
        cast = each.beside("Cast")[0]
        firsts.append(np.where(cast >= 0, cast, each.rows[:, wanted.handed_by]))
    first = kernels.iloc[np.concatenate(firsts)] if firsts else kernels[:0]
    handed = float(per_row(first, CELLS[:2], lambda *cells: max(tensor_bytes(*cells))).sum())
    spent = kernels["duration_ns"].to_numpy()
    moved = count_moved_bytes(kernels.iloc[rows])
    speed = float(moved.sum()) / max(1.0, float(spent[rows].sum()))
    if not handed or not moved.all() or not speed:
        return {}
    one = handed / speed
    times = [
        (round((1 - _SPREAD) * often * one), round((1 + _SPREAD) * often * one))
        for often in (wanted.passes[0], wanted.passes[1] if len(gradient) else 0)
    ]  # fmt: skip
    whole = int(spent[rows].sum()) + int(spent[gradient].sum())
    least, most = (sum(part) for part in zip(*times, strict=True))
    launches = len(first)
    if len(gradient) and not _is_placed(gradient, recording):
        launches, times = 2 * launches, [(least, most), (0, 0)]
    return Gain(
        saving_ns=(
            per_step(max(0, whole - most), recording),
            per_step(max(0, whole - least), recording),
        ),
        basis=_BY_BYTES,
        instead=(launches, *times[0]),
        instead_backward=times[1] if any(times[1]) else None,
    )


def _is_placed(rows: Integers, recording: Recording) -> bool:
    """Tell whether gradients have a line; those without are replaced where the forward ones are."""
    return bool(recording.kernels["basis"].iloc[rows].isin(OF_GRADIENTS).any())


def measure_gain_by_products(
    forward: Sequence[Occurrences],
    backward: Sequence[Occurrences],
    rows: Integers,
    recording: Recording,
) -> Gain:
    """Return what fused attention takes: its products, without what is written between them."""
    kernels = recording.kernels
    products = is_named(kernels, f"{PRODUCT}|{MATMUL}|aten::(add)?mm", "type")
    quickest = kernels[products]
    done = product_operations(quickest)
    spent = quickest["duration_ns"].to_numpy(np.float64)
    large = (done >= _LARGE_PRODUCT) & (spent > 0)
    if not forward or not large.any():
        return {}
    rate = float((done[large] / spent[large]).max())
    # A square mask may be causal, of which half is skipped, or hide padding: nothing tells, but of
    # one for several sequences at once.
    may_skip, causal = (masks_square(forward, MASK, for_all=one) for one in (False, True))
    times: list[tuple[int, int, int]] = []
    for found, again, (slow, fast) in zip(
        (forward, backward), (1.0, _AGAIN), _OF_QUICKEST, strict=True
    ):
        own = np.concatenate([each.rows.ravel() for each in found]) if found else rows[:0]
        own = kernels.iloc[own[products[own]]]
        operations, now = product_operations(own) * again, float(own["duration_ns"].sum()) * again
        if len(own) and not operations.all():
            return {}
        quick = fast * (_SKIPS if may_skip else 1)
        most, least = (min(now, float(operations.sum()) / rate / part) for part in (slow, quick))
        likely = math.sqrt(least * most) if causal else (least + most) / 2
        times.append((round(least), round(most), round(likely)))
    whole = int(kernels["duration_ns"].to_numpy()[rows].sum())
    placed = _is_placed(rows, recording)
    ahead, behind = times
    if backward and not placed:
        ahead = (ahead[0] + behind[0], ahead[1] + behind[1], ahead[2] + behind[2])
        behind = (0, 0, 0)
    saved = [per_step(max(0, whole - ahead[at] - behind[at]), recording) for at in (1, 0)]
    return Gain(
        saving_ns=(saved[0], saved[1]),
        basis=_BY_PRODUCTS,
        instead=(sum(each.count for each in forward), *ahead),
        instead_backward=behind if backward and placed else None,
    )
