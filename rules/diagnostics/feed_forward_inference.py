"""A feed-forward block that runs product by product in inference.

What: ``act(x @ w1 + b1) @ w2 + b2``, or the gated form ``(act(x @ wg) * (x @ wu)) @ wd``.

Why it is slow on the NPU: the wide activation in the middle is written and read between the
products, while the cube cores wait for the vector cores. ``npu_ffn`` overlaps them.

Evidence: MatMul > activation > MatMul, or MatMul > activation > MatMul > Mul > MatMul, where each
reads a tensor as large as the one before wrote, in a run without a backward pass; told where the
vector kernels take 30 µs or more and 10 % of the block, which is when MindSpeed fuses.

Use instead: ``torch_npu.npu_ffn(x, w1, w2, "gelu", bias1=b1, bias2=b2)``; for the gated form
``"swiglu"``, ``"geglu"`` or ``"reglu"`` with the two projections as one weight.

Safety: advice. Forward only: it has no gradient and does not say so. Weights are (k, n), transposed
to those of nn.Linear; axes below 65536; the gated forms in float16 only, without experts.

References: torch_npu.npu_ffn in the API reference of Ascend Extension for PyTorch; ffn.md of
MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.recording.fusable import MATMUL, Fusable, passes_on, tell_fusable, trains
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording
    from npufix.rules.shared.recording.sequences import Mask, Occurrences

_ACTIVATION = "Gelu|GeluV2|FastGelu|FastGeluV2|Relu|Swish|Silu"
LEAST_VECTOR_NS, LEAST_VECTOR_SHARE = 30_000, 0.1
_FORMS = (
    Fusable(
        parts=(MATMUL, _ACTIVATION, MATMUL, "Mul", MATMUL),
        saved=(1, 3),
        operator="npu_ffn",
        basis="at most all vector kernels of the block",
        links=passes_on((0, 1), (1, 3), (2, 3), (3, 4)),
    ),
    Fusable(
        parts=(MATMUL, _ACTIVATION, MATMUL),
        saved=(1,),
        operator="npu_ffn",
        basis="at most all activations of the block",
        links=passes_on((0, 1), (1, 2)),
    ),
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for gated blocks, and one for plain ones."""
    if trains(recording):
        return
    taken = Labels()
    for form in _FORMS:
        found = find(recording, form.parts).without(taken)
        if found.count and form.links is not None:
            found = found.where(form.links(found) & _pays(found, form.saved))
            taken |= found.labels
            yield from tell_fusable(found, form)


def _pays(found: Occurrences, vector: tuple[int, ...]) -> Mask:
    """Tell where the vector kernels are long enough to be worth the fusion."""
    spent = found.durations[:, list(vector)].sum(axis=1)
    share = LEAST_VECTOR_SHARE * found.durations.sum(axis=1)
    return np.asarray((spent >= LEAST_VECTOR_NS) & (spent > share), np.bool_)


RULE = Diagnostic(
    id="NPU138",
    name="feed-forward-inference",
    summary="a feed-forward block runs product by product in inference",
    advice="inference: torch_npu.npu_ffn(x, w1, w2, activation, bias1=b1, bias2=b2)",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
