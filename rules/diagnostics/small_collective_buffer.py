"""The buffer of HCCL is smaller than what its collectives move.

What: HCCL_BUFFSIZE was set below its default of 200 MB, collectives move more than the buffer
holds, and exposed communication takes more than 10 % of the step.

Why it is slow on the NPU: a collective moves its data through this buffer, a piece at a time, and
the ranks meet before each piece.

Evidence: the recorded environment; sizes of the collectives in communication.json;
Communication(Not Overlapped) of step_trace_time.

Use instead: ``unset HCCL_BUFFSIZE`` or the size of the largest message in MB: for language models
``ceil(micro_batch * sequence * hidden * bytes / 8 MB)``.

Safety: results stay the same; each communication domain takes twice the buffer of device memory.

References: HCCL_BUFFSIZE.md of the environment variable reference.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.collectives import of_steady_steps
from npufix.rules.shared.recording.observing import share
from npufix.rules.shared.recording.run_settings import find_recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording

DEFAULT_MB = 200
EXPOSED = 0.10
"""Share of the step (FREE-LLM)."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where the buffer cuts collectives into pieces."""
    text = find_recorded(recording, "HCCL_BUFFSIZE") or ""
    if not text.isdecimal() or int(text) >= DEFAULT_MB or recording.steps.empty:
        return
    exposed = round(float(recording.steps["communication_exposed_ns"].mean()))
    rows, _ = of_steady_steps(recording.signals.transports, recording)
    cut = rows[rows["size_bytes"] > int(text) * 1_000_000]
    if cut.empty or share(exposed, recording) <= EXPOSED:
        return
    largest = min(DEFAULT_MB, math.ceil(cut["size_bytes"].max() / 1e6))
    yield Observation(
        what=(
            f"HCCL_BUFFSIZE={text} (MB), but {len(cut)} of {len(rows)} collectives move more; "
            f"communication that nothing hides takes {milliseconds(exposed)} "
            f"({percent(share(exposed, recording))} of the step)"
        ),
        evidence=(("largest", f"{cut['size_bytes'].max() / 1e6:.0f} MB"),),
        basis="what a larger buffer gains is not in the dump",
        advice=f"export HCCL_BUFFSIZE={largest}; or unset HCCL_BUFFSIZE (200)",
    )


RULE = Diagnostic(
    id="NPU507",
    name="small-collective-buffer",
    summary="the buffer of HCCL is smaller than what its collectives move",
    advice="unset HCCL_BUFFSIZE (the default is 200), or set it to the largest message in MB",
    check=check,
)
