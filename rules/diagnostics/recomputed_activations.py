"""A backward pass runs forward passes again.

What: kernels that activation checkpointing asks for a second time, 1 % of the step or more.

Why it is slow on the NPU: as on any device, each recomputed layer costs its forward pass once more.
That is the price of memory, and worth it only as far as the memory is needed.

Evidence: kernels whose call stack leads through the backward pass of ``torch.utils.checkpoint``, of
Megatron's or of DeepSpeed's, or whose operator lies in ``CheckpointFunctionBackward`` but in no
node of the graph that it makes; how much memory was reserved where the dump has it.

Use instead: no recomputation where the memory allows it, or that of the attention alone
(``--recompute-activations`` of Megatron instead of ``--recompute-granularity full``), fewer layers
(``--recompute-num-layers``), or a fused attention, which stores no scores.

Safety: results stay the same; it takes more memory.

References: activation recomputation in the documentation of Megatron-LM and MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent, size
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.observing import find_named, per_step, places, rows_where, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

    Mask = NDArray[np.bool_]

_NODE = r"\w*Checkpoint\w*Backward"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all that is computed again."""
    again = recording.kernels["recomputed"].to_numpy(bool) | _within_checkpoints(recording)
    rows = rows_where(recording.kernels, again)
    rows = rows_where(rows, ~rows["communication"].to_numpy(bool))
    cost = per_step(int(rows["duration_ns"].sum()), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    count = format_count(len(rows) / max(1, recording.step_count), "kernel")
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
        kernels=Labels(rows.index),
    )


def _within_checkpoints(recording: Recording) -> Mask:
    """Tell which kernels ``CheckpointFunctionBackward`` asks for before it goes backward itself.

    Without call stacks: its forward operators lie in it, the nodes of the graph that it has made in
    ``autograd::engine::evaluate_function`` in it.
    """
    ops = recording.host_ops
    asked = ops["start_ns"].reindex(recording.kernels["host_op"], fill_value=-1).to_numpy()
    node = _around(asked, find_named(ops, _NODE))
    # What evaluates the checkpoint itself may start in the same moment.
    inner = find_named(ops, rf"autograd::engine::evaluate_function: (?!{_NODE}$).*")
    inner = rows_where(inner, _around(inner["start_ns"].to_numpy(), find_named(ops, _NODE)))
    again: Mask = node & ~_around(asked, inner)
    return again


def _around(moments: NDArray[np.int64], calls: pd.DataFrame) -> Mask:
    """Tell which moments lie in one of the calls, of which none is in two."""
    start = np.sort(calls["start_ns"].to_numpy())
    end = np.sort((calls["start_ns"] + calls["duration_ns"]).to_numpy())
    inside: Mask = np.searchsorted(start, moments, side="right") > np.searchsorted(end, moments)
    return inside


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
