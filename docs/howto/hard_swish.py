"""Hard swish written out.

What: ``x * F.relu6(x + 3) / 6``, as MobileNetV3 was published.

Why it is slow on the NPU: four kernels, each of which reads and writes the whole activation. There
is one for it.

Safety: equal up to rounding, also in float16; gradients differ at the two bends, -3 and 3, alone.

References: Howard et al., Searching for MobileNetV3 (2019); torch.nn.functional.hardswish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import Tensor


def written_out(x: Tensor) -> Tensor:
    """Return hard swish by its formula."""
    return x * F.relu6(x + 3) / 6


def one_kernel(x: Tensor) -> Tensor:
    """Return hard swish."""
    return F.hardswish(x)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return activations on both sides of the bends."""
    import torch

    shape = draw.choice([(7,), (2, 3), (2, 0), (2, 3, 4, 4)])
    dtype = draw.choice([torch.float32, torch.float16])
    return {"x": draw.floats(*shape, dtype=dtype) * draw.choice([1.0, 4.0])}


RULE = Substitution(
    id="ACME001",
    name="written-out-hard-swish",
    summary="hard swish written out in the operators of its formula",
    table="affinity",
    forms=(Form(written_out, one_kernel, inputs),),
    replaces=("Adds", "Relu6", "Relu6Grad", "Mul", "Muls"),
    becomes=("HardSwish", "HardSwishGrad"),
    passes=(2, 3),
    floats_only=True,
    requires="torch_npu>=2.1",
    valid=(
        # another shift
        """
def f(x: torch.Tensor):
    return x * F.relu6(x + 2) / 6
""",
        # the gate alone
        """
def f(x: torch.Tensor):
    return F.relu6(x + 3) / 6
""",
    ),
    rewritten=(
        Rewritten(
            """
def h_swish(y):
    return y * F.relu6(y + 3) / 6
""",
            """
def h_swish(y):
    return F.hardswish(y)
""",
        ),
    ),
)
