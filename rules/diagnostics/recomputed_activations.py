"""A backward pass runs forward passes again.

What: kernels that activation checkpointing asks for a second time, 1 % of the step or more.

Why it is slow on the NPU: as on any device, each recomputed layer costs its forward pass once more.
That is the price of memory, and worth it only as far as the memory is needed.

Evidence: kernels whose call stack leads through the backward pass of ``torch.utils.checkpoint``, of
Megatron's or of DeepSpeed's; how much memory was reserved where the dump has it.

Use instead: no recomputation where the memory allows it, or that of the attention alone
(``--recompute-activations`` of Megatron instead of ``--recompute-granularity full``), fewer layers
(``--recompute-num-layers``), or a fused attention, which stores no scores.

Safety: results stay the same; it takes more memory.

References: activation recomputation in the documentation of Megatron-LM and MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import counted, milliseconds, percent, size
from npufix.rules.shared.recording.collectives import LEAST_SHARE, labels
from npufix.rules.shared.recording.observing import per_step, places, rows_where, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all that is computed again."""
    rows = rows_where(recording.kernels, recording.kernels["recomputed"].to_numpy(bool))
    rows = rows_where(rows, ~rows["communication"].to_numpy(bool))
    cost = per_step(int(rows["duration_ns"].sum()), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    count = counted(len(rows) / max(1, recording.step_count), "kernel")
    yield Observation(
        what=(
            f"activations are computed again in the backward pass: {count} per step, "
            f"{milliseconds(cost)} ({percent(share(cost, recording))} of the step)"
        ),
        evidence=tuple(_memory(recording)),
        cost_ns=cost,
        saving_ns=(cost, cost),
        basis="all of it, where the memory suffices without",
        places=places(rows, rows["duration_ns"].to_numpy(), recording),
        kernels=labels(rows),
    )


def _memory(recording: Recording) -> Iterator[tuple[str, str]]:
    reserved = recording.signals.memory["reserved_bytes"]
    if len(reserved) and reserved.max() > 0:
        yield "most memory reserved", size(float(reserved.max()))


RULE = Diagnostic(
    id="NPU312",
    name="recomputed-activations",
    summary="the backward pass runs forward passes again",
    advice=(
        "without checkpointing where the memory allows it; of the attention alone (Megatron "
        "--recompute-activations) or of fewer layers (--recompute-num-layers)"
    ),
    check=check,
    gpu_advice="without torch.utils.checkpoint where the memory allows it, or for fewer layers",
)
