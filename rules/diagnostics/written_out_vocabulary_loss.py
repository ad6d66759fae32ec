"""The loss over a vocabulary is computed by small operators.

What: Exp, Sub, reductions, divisions and casts of a tensor as wide as the
vocabulary, 1 % of the step or more together.

Why it is slow on the NPU: logits of 4,096 tokens and 151,936 words are 1.2 GB in bfloat16 and 2.5 GB
in float32. Written out, softmax, logarithm and their gradient read and write them a dozen times, and
compute almost nothing.

Evidence: time and shapes of these kernels. A product of two matrices writes rows of that
width, which makes it a vocabulary and not a long sequence of scores; no source is needed.

Use instead: a fused loss: ``--cross-entropy-loss-fusion`` of Megatron,
``torch_npu.npu_cross_entropy_loss(logits, labels)[0]`` elsewhere; logits that stay in bfloat16; the
rows in chunks, so that the logits are never whole in memory.

Safety: advice; a fused loss rounds differently, and what it accepts is in the page of NPU114.

References: npu_cross_entropy_loss in the API reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.quantities import format_count, milliseconds
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.recorded_cells import count_moved_bytes
from npufix.rules.shared.recording.vocabulary import find_written_out_loss, logits_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Observation, Recording

_MOST_TYPES = 8
_USUAL_PASSES = 2
"""Times the least: a fused loss reads the logits for their largest, their sum and their gradient."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all kernels of the loss together."""
    rows, words = find_written_out_loss(recording)
    if rows.empty:
        return
    moved = float(count_moved_bytes(rows).sum())
    kept = min(1.0, logits_bytes(rows) / moved) if moved else 1.0
    spent = float(rows["duration_ns"].sum())
    yield from tell_together(
        f"the loss over {words} classes is written out",
        rows,
        recording,
        basis="at most all but one read and one write of the logits in half precision",
        saved_ns=spent * (1 - kept),
        likely_ns=spent * (1 - min(1.0, _USUAL_PASSES * kept)),
        evidence=tuple(_by_type(rows, max(1, recording.step_count))),
        goes=True,
    )


def _by_type(rows: pd.DataFrame, steps: int) -> Iterator[tuple[str, str]]:
    spent = rows.groupby("type", observed=True)["duration_ns"].agg(["sum", "size"])
    spent = spent.sort_values("sum", ascending=False, kind="stable").head(_MOST_TYPES)
    for kind, total, count in spent.itertuples():
        yield str(kind), f"{format_count(count / steps, 'kernel')}, {milliseconds(total / steps)}"


RULE = Diagnostic(
    id="NPU150",
    name="written-out-vocabulary-loss",
    summary="the loss over a vocabulary is computed by small operators",
    advice=(
        "Megatron: --cross-entropy-loss-fusion; elsewhere "
        "torch_npu.npu_cross_entropy_loss(logits, labels)[0] (NPU114); logits in bfloat16, and the "
        "loss in chunks of rows"
    ),
    check=check,
    table="fusion",
)
