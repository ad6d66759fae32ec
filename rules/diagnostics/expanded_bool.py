"""A boolean tensor is expanded element by element.

What: Expand, Tile or BroadcastTo of a boolean tensor on an AI core that moves less than 10 GB/s.

Why it is slow on the NPU: some versions have no vector code for a broadcast of one-byte elements and
copy each of them on its own. It has been seen to take 36 ms where the same in int32 took 0.02 ms.

Evidence: recorded shapes and dtypes, and the bytes moved per second. On current versions BroadcastTo
takes bool as it is; then nothing is told.

Use instead: leave the expanding to the operator that reads the mask, which broadcasts it
(``masked_fill``, ``where``, ``&``); else ``m.int().expand(...).bool()``.

Safety: exact.

References: "Expand operator" of the bottleneck operator samples (36,223 µs to 19 µs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing
from npufix.rules.shared.recording.recorded_cells import count_moved_bytes, dtypes, per_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

SLOW_BYTES_PER_NS = 10
"""A hundredth of what the memory of any of these devices can do."""
SHORTEST_NS = 20_000


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such kernels together."""
    rows = computing(recording, r"(Expand|Tile|BroadcastTo)(D|V\d)?")
    rows = rows[(rows["duration_ns"] > SHORTEST_NS) & (rows["core"] != "AI_CPU")]
    is_bool = per_row(rows, ["input_dtypes"], lambda cell: dtypes(cell)[0] == "BOOL") > 0
    rows = rows[is_bool]
    moved = count_moved_bytes(rows)
    rows = rows[(moved > 0) & (moved < SLOW_BYTES_PER_NS * rows["duration_ns"].to_numpy())]
    yield from tell_together(
        "boolean tensors are expanded slowly",
        rows,
        recording,
        basis="at most all of them: an expansion at full bandwidth takes next to nothing",
        least=0.001,
    )


RULE = Diagnostic(
    id="NPU236",
    name="expanded-bool",
    summary="a boolean tensor is expanded element by element",
    advice=(
        "let masked_fill, where or & broadcast the mask instead of expanding it; else "
        "m.int().expand(...).bool()"
    ),
    check=check,
    table="affinity",
)
