"""Inference reorders interleaved queries before it rotates their halves.

What: DeepSeek stores its queries interleaved, puts the even elements before the odd ones, and then
rotates halves: a transposition into contiguous memory before every rotary position embedding.

Why it is slow on the NPU: the transposition of the last two dimensions reads and writes the query
once more, in pieces of two bytes.

Evidence: kernels of a function named ``apply_rotary_pos_emb_interleave``, in a run without a
backward pass.

Use instead: ``torch_npu.npu_interleave_rope(x, cos, sin)``, which does both at once.

Safety: for inference only: its backward pass raises an error. It takes heads of 64 elements, with
``cos`` and ``sin`` of shape (batch, 1 or heads, length, 64). In training NPU102 replaces the
rotation itself.

References: torch_npu.npu_interleave_rope in the API reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import NamedFunction, by_name
from npufix.rules.shared.recording.observing import computing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_FUNCTION = NamedFunction(
    r"\w*rotary\w*interleave\w*|\w*rope\w*interleave\w*",
    "queries are reordered before they are rotated",
    "torch_npu.npu_interleave_rope(x, cos, sin)",
)
_BACKWARD = r"\w+Grad(V\d)?"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all queries and keys, if no kernel belongs to a gradient."""
    if computing(recording, _BACKWARD).empty:
        yield from by_name(recording, [_FUNCTION])


RULE = Diagnostic(
    id="NPU164",
    name="interleaved-rope",
    summary="inference reorders interleaved queries before it rotates them",
    advice=_FUNCTION.instead,
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
