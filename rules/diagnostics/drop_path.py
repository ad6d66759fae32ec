"""Stochastic depth drops paths with small operators.

What: the function ``drop_path`` of timm and its copies: a random tensor, a floor or a Bernoulli
draw, a division and a product for each residual path.

Why it is slow on the NPU: the draw is a handful of numbers, one per sample, but costs the launches
of three kernels for every path of every block.

Evidence: kernels that a function named ``drop_path`` asked for.

Use instead: ``torch_npu.contrib.module.NpuDropPath``, which draws the masks of all paths of a step
at once.

Safety: other random numbers; a beta interface.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import NamedFunction, by_name

_FUNCTION = NamedFunction(
    r"drop_path|drop_connect|stochastic_depth",
    "paths are dropped one by one",
    "torch_npu.contrib.module.NpuDropPath instead of DropPath",
)


RULE = Diagnostic(
    id="NPU141",
    name="drop-path",
    summary="stochastic depth drops each path with several kernels",
    advice=_FUNCTION.instead,
    check=lambda recording: by_name(recording, [_FUNCTION]),
    table="fusion",
    requires="torch_npu>=2.1",
)
