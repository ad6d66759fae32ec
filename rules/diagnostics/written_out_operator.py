"""A fused operator that is written out: its kernels follow each other in the recording.

What: RMSNorm (``Pow > ReduceMean > Adds > Rsqrt > Mul > Mul``), LayerNorm, GELU, rotary embedding,
SwiGLU, dropout (``RandomUniform > Greater > Mul``) or attention (``BatchMatMul > Softmax >
BatchMatMul``) as the small kernels that PyTorch launches for each of their formulas.

Why it is slow on the NPU: each of the kernels reads the whole tensor and writes it back; a fused
one reads it once. Attention also writes its scores, which are as large as the square of the
sequence.

Evidence: the Types of kernels that ran after each other on one stream of work, with casts and
copies in between; of attention and SwiGLU the shapes as well, as others run such Types, too.

Use instead: the fused operator that the finding names. ``npufix scan FOLDER_OF_YOUR_CODE`` or
``--source`` finds the lines and writes the change where it is the same function; this rule needs no
source, and is silent where a finding at a line explains the same kernels.

Safety: advice. A recording shows which kernels ran, not which constants they had.

References: fusion rules of msprof-analyze (timeline_fusion_ops.yaml); RMSNorm, SwiGLU, rotary and
attention pages of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.formulas.formulas import CUTS, DROPOUT, FORMULAS
from npufix.rules.shared.formulas.gains import Gain, measure_gain, measure_gain_by_products
from npufix.rules.shared.formulas.gradients import find_gradient, root_gradients
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.fusable import chain, parts_of, shapes_of
from npufix.rules.shared.recording.observing import is_named, per_step, places, share
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.formulas.formulas import WrittenOut
    from npufix.rules.shared.recording.sequences import Integers, Occurrences
_ALL_BUT = (
    "at most all kernels but the longest of each: a fused one reads and writes, too",
    "at most all kernels but the products",
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each operator that is written out."""
    told: set[int] = set()
    for wanted in FORMULAS:
        forward = list(_variants(recording, wanted.variants, wanted, told))
        backward = list(_variants(recording, wanted.backward, wanted, told))
        found = [*forward, *backward]
        if not found:
            continue
        if wanted.stays:
            rows = _rows_of(found, wanted)
            gradient = rows[:0]
            gain = measure_gain_by_products(forward, backward, rows, recording)
        else:
            rows, behind = _rows_of(forward, wanted), _rows_of(backward, wanted)
            gradient = np.union1d(behind, find_gradient(rows, recording))
            if wanted.is_norm:
                gradient = np.union1d(gradient, root_gradients(forward, recording))
            gain = measure_gain(forward, rows, gradient, recording, wanted)
        rows = np.union1d(rows, gradient)
        kernels = recording.kernels.iloc[rows]
        spent = kernels["duration_ns"].to_numpy()
        cost = per_step(int(spent.sum()), recording)
        if share(cost, recording) < LEAST_SHARE:
            continue
        most = max(forward or backward, key=lambda each: each.cost_ns)
        count = sum(each.per_step for each in forward or backward)
        kept = sum(_count_kept_ns(each, wanted) for each in found)
        saved = per_step(int(spent.sum()) - kept, recording)
        yield Observation(
            what=(
                f"{wanted.name} is written out {format_count(count, 'time')} per step: "
                f"{chain(most)}, {milliseconds(cost)} ({percent(share(cost, recording))} of the "
                "step)"
            ),
            evidence=(*parts_of(most), *shapes_of(most)),
            cost_ns=cost,
            places=places(kernels, spent, recording),
            kernels=Labels(kernels.index),
            advice=wanted.instead,
            gpu_advice=wanted.on_gpu,
            **(gain or Gain(saving_ns=(0, saved), basis=_ALL_BUT[bool(wanted.stays)])),
        )


def _rows_of(found: Sequence[Occurrences], wanted: WrittenOut) -> Integers:
    """Return the kernels of some occurrences, with what is cast and dropped out in between."""
    cuts = [kind for kind in CUTS if kind in wanted.between]
    beside = [each.inside(("Cast", *cuts, *DROPOUT)) for each in found]
    beside += [] if wanted.stays else [np.concatenate(each.beside("Cast")) for each in found]
    beside += [each.beside(kind)[0] for kind in cuts for each in found]
    none = np.zeros(0, np.int64)
    rows: Integers = np.unique(
        np.concatenate([none, *(each.rows.ravel() for each in found), *beside])
    )
    return rows[rows >= 0]


def _variants(
    recording: Recording,
    variants: tuple[tuple[str, ...], ...],
    wanted: WrittenOut,
    told: set[int],
) -> Iterator[Occurrences]:
    """Yield the occurrences of each variant that has some, without the kernels of earlier ones."""
    links = wanted.backward_links if variants is wanted.backward else wanted.links
    for parts in variants:
        found = find(recording, parts, between=wanted.between)
        if not found.count:
            continue
        found = found.without(told)
        if links is not None:
            found = found.where(links(found))
        told.update(found.labels)
        if found.count:
            yield found


def _count_kept_ns(found: Occurrences, wanted: WrittenOut) -> int:
    """Return what of the kernels a fused one does as well, over the whole recording."""
    if not wanted.stays:
        return int(found.durations.max(axis=1).sum())
    return int(
        found.durations[
            is_named(found.kernels, wanted.stays, "type").reshape(found.rows.shape)
        ].sum()
    )


RULE = Diagnostic(
    id="NPU151",
    name="written-out-operator",
    summary="a fused operator runs as the small kernels of its formula",
    advice="the fused operator; npufix scan FOLDER_OF_YOUR_CODE finds the lines",
    gpu_advice="torch.compile, which joins them to one kernel",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1",
    yields=1,
)
