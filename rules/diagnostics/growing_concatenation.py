"""A cache of keys and values grows by concatenation.

What: ConcatD whose result is one row longer than its first input, in every call.

Why it is slow on the NPU: ``torch.cat([cache, new])`` makes a new tensor and copies the whole cache
to add one token: the longer the text, the more is copied for each word, and the allocator never
sees the same size twice.

Evidence: recorded shapes: one input differs from the result by 1 to 8 in one dimension and is at
least 32 times as long there as what is added.

Use instead: a cache of the longest length that is written in place:
``torch_npu.scatter_update_(cache, indices, new, axis)`` or ``npu_scatter_nd_update_``; the static
cache of transformers (``cache_implementation="static"``).

Safety: in place, so for inference; attention must mask what is not written yet.

References: torch_npu optimisation points of the Ascend ModelZoo (KV cache).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

MOST_NEW = 8
"""Rows that one call adds: a token, or a few that were guessed."""
LEAST_GROWN = 32
"""How many times as long the cache is."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such concatenations together."""
    rows = computing(recording, r"Concat(D|V\d)?")
    rows = rows[per_row(rows, ["input_shapes", "output_shapes"], _grows) > 0]
    yield from tell_together(
        "a tensor is copied to append a few rows to it",
        rows,
        recording,
        basis="at most all copies: what is written in place is a few rows",
        likely_ns=float(rows["duration_ns"].sum()) * (1 - 1 / LEAST_GROWN),
    )


def _grows(inputs: str, outputs: str) -> float:
    """Tell whether a result is one of the inputs with a few rows more."""
    made = shapes(outputs)[0]
    return any(_is_grown(given, made) for given in shapes(inputs)[:2])


def _is_grown(given: tuple[int, ...], made: tuple[int, ...]) -> bool:
    added = [long - short for short, long in zip(given, made, strict=False)]
    if len(given) != len(made) or len(made) < 2:  # noqa: PLR2004 - a vector is no cache
        return False
    more = [(new, short) for new, short in zip(added, given, strict=True) if new]
    return len(more) == 1 and all(
        0 < new <= MOST_NEW and short >= LEAST_GROWN * new for new, short in more
    )


RULE = Diagnostic(
    id="NPU240",
    name="growing-concatenation",
    summary="a cache grows by concatenation, which copies all of it for each token",
    advice=(
        "a cache of the longest length, written in place: torch_npu.scatter_update_(cache, "
        'indices, new, axis); transformers: cache_implementation="static"'
    ),
    check=check,
    table="affinity",
)
