"""Kernels that one fused operator does at once: what the pieces of advice about them share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.observing import is_named, per_step, share
from npufix.rules.shared.recording.recorded_cells import (
    CELLS,
    count_moved_bytes,
    list_costliest,
    per_row,
)
from npufix.rules.shared.recording.recorded_shapes import (
    holds_square_mask,
    product_operations,
    reads,
    same_elements,
)
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.sequences import Mask, Occurrences

    Linked = Callable[[Occurrences], Mask]

MATMUL = "MatMul|MatMulV2|MatMulV3|MatMulCommon|GemmV3"
"""Types of a product of two matrices."""
BATCH_MATMUL = "BatchMatMul|BatchMatMulV2|BatchMatMulV3"
GROUPED_MATMUL = "GroupedMatmul|GroupedMatmulV[2-5]"
_BACKWARD = r"\w+Grad(V\d)?|ApplyAdam\w*|EmbeddingDenseGrad\w*"
_BACKWARD_CALLS = r"autograd::engine::evaluate_function.*|Optimizer\.step#.*"
_MOST_SHAPES = 3
_SHORTEST, _LONGEST_LAUNCH_NS, _LEAST_LEFT = 0.1, 5_000.0, 0.5
"""Quantile of the times of kernels that is a launch, and the most that one takes; what is left of a
product's time without it is at least this share."""


@dataclass(frozen=True, slots=True)
class Fusable:
    """A sequence of kernels, and the part of it that a fused operator does not need."""

    parts: tuple[str, ...]
    """One regular expression over Types per kernel, in start order."""
    saved: tuple[int, ...]
    """Which of them cost nothing once they are part of the operator."""
    operator: str
    basis: str
    """Why the saving is at most what it is."""
    likely: float = 0.5
    """Share of what these cost that is expected to be saved: all but what the operator still has to
    read for them, or cannot hide behind a product."""
    between: Collection[str] = ()
    within: str = ""
    links: Linked | None = None
    """Which occurrences hand a tensor from kernel to kernel, by their shapes."""


_GRAPH = (
    "where shapes repeat, graph mode: torch.npu.NPUGraph, or torch.compile with the backend of "
    "torchair (vllm-ascend: without --enforce-eager)"
)


def graph_mode(recording: Recording) -> str:
    """Return the advice to launch a whole step at once, "" where a backward pass runs as well."""
    return "" if trains(recording) else _GRAPH


def trains(recording: Recording) -> bool:
    """Tell whether the recording holds backward passes or steps of an optimizer."""
    if is_named(recording.kernels, _BACKWARD, "type").any():
        return True
    return bool(is_named(recording.host_ops, _BACKWARD_CALLS, "name").any())


def fusable(recording: Recording, wanted: Fusable) -> Iterator[Observation]:
    """Yield one observation where a sequence takes a share of the step worth telling."""
    found = find(recording, wanted.parts, between=wanted.between, within=wanted.within)
    if found.count and wanted.links is not None:
        found = found.where(wanted.links(found))
    yield from tell_fusable(found, wanted)


def tell_fusable(found: Occurrences, wanted: Fusable) -> Iterator[Observation]:
    """Yield one observation about occurrences that are known to be fusable."""
    recording = found.recording
    if not found.count or share(found.cost_ns, recording) < LEAST_SHARE:
        return
    saved = per_step(int(found.durations[:, list(wanted.saved)].sum()), recording)
    yield Observation(
        what=(
            f"{format_count(found.per_step, chain(found))} per step take "
            f"{milliseconds(found.cost_ns)}, {percent(share(found.cost_ns, recording))} of the "
            f"step; {wanted.operator} does them at once"
        ),
        evidence=(*parts_of(found), *shapes_of(found)),
        cost_ns=found.cost_ns,
        saving_ns=(0, saved),
        likely_ns=round(saved * wanted.likely),
        basis=wanted.basis,
        places=found.places(wanted.saved[0]),
        kernels=found.labels,
        dropped=Labels(recording.kernels.index[found.rows[:, list(wanted.saved)].ravel()]),
    )


def chain(found: Occurrences) -> str:
    """Return the most common Types of a sequence: ``Add > RmsNorm sequence``."""
    types = found.recording.kernels["type"].array
    common = []
    for codes in types.codes[found.rows.T]:
        counts = np.bincount(codes)
        most = np.flatnonzero(counts == counts.max())
        common.append(min(str(types.categories[at]) for at in most))
    return f"{' > '.join(common)} sequence"


def parts_of(found: Occurrences) -> Iterator[tuple[str, str]]:
    """Yield what each part of a sequence takes per step, by its Types."""
    for number in range(found.rows.shape[1]):
        types = sorted({str(name) for name in found.part(number, "type")["type"].unique()})
        yield f"time of {', '.join(types)}", f"{milliseconds(found.part_cost_ns(number))} per step"


def shapes_of(found: Occurrences, number: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the most expensive input shapes of one part, if shapes were recorded."""
    cells, times = found.part(number, "input_shapes"), found.durations.sum(axis=1)
    for cell, spent, count in list_costliest(cells["input_shapes"], times, _MOST_SHAPES):
        yield f"shapes {cell}", f"{count} times, {milliseconds(spent)}"


def passes_on(*pairs: tuple[int, int]) -> Linked:
    """Return the test that, by their shapes, the second of each pair reads what the first wrote."""
    return partial(_passes_on, pairs)


def _passes_on(pairs: tuple[tuple[int, int], ...], found: Occurrences) -> Mask:
    linked = np.ones(found.count, np.bool_)
    for writer, reader in pairs:
        written = found.part(writer, "output_shapes")
        linked &= reads(written, found.part(reader, "input_shapes"), same_elements)
    return linked


def quickest_products_ns(own: pd.DataFrame, recording: Recording, launches: int) -> float:
    """Return what products take in so many launches at the best rates of the recording.

    A small one is as long as its weight is read, a large one as long as it is computed; what the
    shortest kernels of the run take is not counted in these rates, but once a launch. 0 where no
    rate is known.
    """
    compute = recording.kernels[~recording.kernels["communication"].to_numpy(bool)]
    taken = compute["duration_ns"].to_numpy(np.float64)
    taken = taken[taken > 0]
    latency = min(_LONGEST_LAUNCH_NS, *np.quantile(taken, [_SHORTEST])) if len(taken) else 0.0
    every = recording.kernels[is_named(recording.kernels, MATMUL, "type")]
    spent = every["duration_ns"].to_numpy(np.float64).clip(min=1.0)
    spent = np.maximum(spent - latency, _LEAST_LEFT * spent)
    computed, moved = product_operations(every) / spent, count_moved_bytes(every) / spent
    if not (computed.max(initial=0) and moved.max(initial=0)):
        return 0.0
    operations, moves = product_operations(own), count_moved_bytes(own)
    work = float(np.maximum(operations / computed.max(), moves / moved.max()).sum())
    return work + launches * latency


def masks_square(found: Sequence[Occurrences], mask: str, *, for_all: bool = False) -> bool:
    """Tell whether most of what is added to the scores is one square for all heads: ``1,1,S,S``."""
    rows = np.concatenate([each.rows.ravel() for each in found])
    kernels = found[0].recording.kernels.iloc[rows[rows >= 0]]
    masks = kernels[is_named(kernels, mask, "type")]
    square = per_row(masks, CELLS[:1], lambda cell: holds_square_mask(cell, for_all=for_all))
    return bool(len(masks)) and 2 * float(square.sum()) > len(masks)
