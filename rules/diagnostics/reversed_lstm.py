"""A bidirectional LSTM turns its input round and runs twice.

What: DynamicRNN and a kernel that reverses a tensor in the same function.

Why it is slow on the NPU: the second direction is a second DynamicRNN over a reversed copy of the
input, and its output is reversed once more and joined with the first.

Evidence: kernels of DynamicRNN and of ReverseV2 at one function of the user.

Use instead: ``torch_npu.contrib.module.BiLSTM(input_size, hidden_size)``, which pairs the two
directions.

Safety: equal up to rounding; one layer, batch in the second dimension; a beta interface.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.quantities import milliseconds
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing, per_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_AT = ["path", "function"]


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such layers together."""
    layers = computing(recording, r"DynamicRNN(V\d|Grad)?")
    turned = computing(recording, r"Reverse(V\d|Sequence)?|Flip")
    turned = turned[(turned["path"] != "").to_numpy(bool)]
    if layers.empty or turned.empty:
        return
    both = turned[_AT].drop_duplicates().merge(layers[_AT].drop_duplicates())
    at = set(both.itertuples(index=False, name=None))
    rows = layers[[place in at for place in zip(layers["path"], layers["function"], strict=True)]]
    reverse = per_step(int(turned["duration_ns"].sum()), recording)
    yield from tell_together(
        "an LSTM runs once forward and once over the reversed input",
        rows,
        recording,
        basis="what the paired layer takes is not in the dump",
        saved_ns=None,
        evidence=(("reversing", f"{milliseconds(reverse)} per step"),),
    )


RULE = Diagnostic(
    id="NPU145",
    name="reversed-lstm",
    summary="a bidirectional LSTM turns its input round and runs twice",
    advice="torch_npu.contrib.module.BiLSTM(input_size, hidden_size) instead of nn.LSTM",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1",
)
