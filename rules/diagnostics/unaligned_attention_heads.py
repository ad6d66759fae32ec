"""Fused attention with heads whose size does not fill the cube.

What: FlashAttentionScore whose heads have a size that is no multiple of 64: 72, 80, 96.

Why it is slow on the NPU: the kernel works on tiles of 128, or of 64 for small heads. A head of 80
takes as long as one of 128.

Evidence: the last dimension of the query where it has four dimensions (BNSD and BSND alike); the
pipe that the recording names as the busiest.

Use instead: pad query, key and value of each head to the next multiple of 64 or 128 where the
projection is made (zeros change no score), scale by the original size, and cut the result.

Safety: zeros behind the features of query and key leave the scores as they are, those behind value
are cut off. ``scale`` must be given: its default is that of the padded size. Padding on every call
copies the tensors: measure.

References: FlashAttention checks of msprof-analyze (head size and length % 128).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Observation, Recording

TILE = 64
_FULL_TILE = 128
_BATCH_HEADS_LENGTH_SIZE = 4


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such kernels together."""
    rows = computing(recording, r"FlashAttentionScore(Grad)?")
    size = per_row(rows, ["input_shapes"], _head_size)
    odd = size % TILE > 0
    rows, size = rows[odd], size[odd]
    if rows.empty:
        return
    tiles = np.where(size < TILE, TILE, np.ceil(size / _FULL_TILE) * _FULL_TILE)
    used = float((size / tiles).mean())
    sizes = ", ".join(str(int(number)) for number in np.unique(size))
    yield from tell_together(
        f"attention with heads of {sizes}",
        rows,
        recording,
        basis="what padded heads would take is not in the dump",
        saved_ns=None,
        evidence=(("of the tiles used", f"{100 * used:.0f} %"), *_list_bounds(rows["bound"])),
    )


def _head_size(inputs: str) -> float:
    query = shapes(inputs)[0]
    return query[-1] if len(query) == _BATCH_HEADS_LENGTH_SIZE else 0


def _list_bounds(bound: pd.Series[str]) -> tuple[tuple[str, str], ...]:
    names = sorted({str(name) for name in bound} - {""})
    return (("busiest pipe", ", ".join(names)),) if names else ()


RULE = Diagnostic(
    id="NPU233",
    name="unaligned-attention-heads",
    summary="fused attention with a head size that is no multiple of 64",
    advice=(
        "pad query, key and value of each head to a multiple of 64 or 128 where the projection is "
        "made, and give scale=1/sqrt(original size)"
    ),
    check=check,
    table="affinity",
    requires="chip A2 A3 A5",
)
