"""The kernels that autograd launches for a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.shared.recording.observing import is_named
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import count_largest, elements, shapes
from npufix.rules.shared.recording.sequences import find, in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.sequences import Integers, Mask, Occurrences

OF_GRADIENTS = ("forward", "forward-function")
"""How a kernel was led to a line: by the forward call that it is the gradient of."""
_MOSTLY = 0.9
"""Share of a line's forward time that an operator takes where the line's gradient is its own."""
_SCALES = r"Muls?|aten::mul_?"
_POWERS = r"Pows?|aten::pow"
_DIVIDES = rf"{_SCALES}|RealDiv|Divs?|aten::div_?"
_ROOTS = (
    (_POWERS, _SCALES, _SCALES), (_SCALES, _POWERS, _SCALES), (_SCALES, _SCALES, _SCALES),
    (_POWERS, _SCALES),
)  # fmt: skip
"""``-0.5 * grad * rsqrt ** 3``, in any order, on one number a row."""
_SUMS = r"ReduceSum\w*|aten::sum"
_STEPS = rf"{_DIVIDES}|{_POWERS}|{_SUMS}|Add|AddV2|Cast|aten::(add_?|copy_|_to_copy)"
_CASTS, _ADDS = "Cast|aten::(copy_|_to_copy)", "Add|AddV2|aten::add_?"
_SHAPES = ["input_shapes", "output_shapes"]
_BEFORE, _BEHIND = 9, 6
"""Kernels on both sides of the root at most: of the weight, of both products and casts; of the
mean, of the square and the sum of both ways to the input."""


def root_gradients(forward: Sequence[Occurrences], recording: Recording) -> Integers:
    """Return the kernels of the gradient of written-out norms: what lies around that of the root.

    The root of the mean has one number a row, ``Pows, Mul, RealDiv`` on ``4096,1``. What is next to
    it on tensors of the norm's sizes belongs to it, in whichever order autograd comes to it: the
    sum over a row that it begins with, the products, the square.
    """
    none = np.zeros(0, np.int64)
    sizes = [_sizes(each) for each in forward]
    whole, rows = (set().union(*(own[at] for own in sizes)) for at in (0, 1))
    widths = {all_of // of_row for all_of in whole for of_row in rows if of_row}
    if not whole or not rows:
        return none
    kernels = recording.kernels
    small = per_row(kernels, _SHAPES, lambda *cells: _of_sizes(cells, rows | {1})) > 0
    fits = per_row(kernels, _SHAPES, lambda *cells: _of_sizes(cells, whole | rows | widths | {1}))
    belongs = (fits > 0) & is_named(kernels, _STEPS, "type")
    told = np.zeros(len(kernels), np.bool_)
    for root in _ROOTS:
        found = find(recording, (*root, _DIVIDES), between=("BroadcastTo",))
        own = np.all(small[found.rows[:, :-1]], axis=1), np.all(belongs[found.rows], axis=1)
        found = found.where(np.logical_and(*own))
        found = found.where(np.logical_not(np.any(told[found.rows], axis=1)))
        around = _around(found, belongs, recording)
        told[around] = True
    return np.flatnonzero(told).astype(np.int64)


def _sizes(forward: Occurrences) -> tuple[set[int], set[int]]:
    """Return how many numbers norms are over, and how many rows they have."""
    of_mean, of_root = (forward.part(at, "input_shapes") for at in (1, 3))
    whole, rows = (
        {int(size) for size in np.unique(per_row(own, _SHAPES[:1], count_largest)) if size}
        for own in (of_mean, of_root)
    )
    return whole, rows


def _of_sizes(cells: tuple[str, ...], sizes: set[int]) -> float:
    """Tell whether something is known to be read, and all that is recorded has such a size."""
    own = [elements(shape) for cell in cells if cell for shape in shapes(cell)]
    return float(bool(own) and all(size in sizes for size in own))


def _around(found: Occurrences, belongs: Mask, recording: Recording) -> Integers:
    """Return the kernels of each occurrence that has a sum ahead, with what belongs to it."""
    order = in_order(recording.kernels)
    at = np.empty_like(order)
    at[order] = np.arange(len(order))
    sums = is_named(recording.kernels, _SUMS, "type")
    casts, adds = (is_named(recording.kernels, name, "type") for name in (_CASTS, _ADDS))
    taken: list[Integers] = [found.rows.ravel()]
    device = recording.kernels["device"].to_numpy()
    for part, apart, most in ((0, -1, _BEFORE), (-1, 1, _BEHIND)):
        own = found.rows[:, part]
        alive = np.ones(len(own), np.bool_)
        begun, added = ~alive, ~alive
        for offset in range(1, most + 1):
            place = at[own] + apart * offset
            rows = order[place.clip(0, len(order) - 1)]
            alive &= (place >= 0) & (place < len(order)) & belongs[rows]
            alive &= (device[rows] == device[own]) & (~added | casts[rows])
            begun |= alive & sums[rows]
            taken.append(rows[alive])
            if part < 0:  # it ends with the sum, or with the cast behind that
                alive &= ~casts[rows]
                added |= adds[rows]
        if part == 0 and not begun.all():
            return _around(found.where(begun), belongs, recording)
    return np.concatenate(taken)


def find_gradient(rows: Integers, recording: Recording) -> Integers:
    """Return the kernels of the gradient: of the same nodes of autograd, and of lines.

    Lines count that compute little but the operator.
    """
    kernels = recording.kernels
    nodes = kernels["node"].to_numpy()
    of_nodes = (nodes < -1) & np.isin(-2 - nodes, nodes[rows])
    back = kernels["basis"].isin(OF_GRADIENTS).to_numpy() & (kernels["path"] != "").to_numpy()
    lines = kernels.groupby(["path", "line"], observed=True).ngroup().to_numpy()
    ahead = np.where(back, 0, kernels["duration_ns"].to_numpy())
    whole, own = (
        np.bincount(lines[at], ahead[at], lines.max(initial=0) + 1)
        for at in (np.arange(len(kernels)), rows)
    )
    mostly = (own > 0) & (own >= _MOSTLY * whole)
    return np.flatnonzero(of_nodes | (back & mostly[lines])).astype(np.int64)
