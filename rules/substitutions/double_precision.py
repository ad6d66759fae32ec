"""Double precision in code that runs in every step.

What: ``x.double()``, ``x.to(torch.float64)``, and operators with ``dtype=torch.float64`` on tensors of
the device, in code that runs in every step.

Why it is slow on the NPU: the AI cores have no float64. Operators with such inputs run on the AI CPU
of the device, some scalar cores beside the AI cores, one to two orders of magnitude slower, and
products of matrices most of all.

Safety: advice. float32 has 7 digits in place of 16, which is enough where inputs and results are
float32 and differences of large numbers are taken before they are multiplied. Tables of frequencies
or positions can be made once on the host in float64, and copied as float32. Where 16 digits are
needed, the host may compute faster than the AI CPU.

References: solution_to_top2.md of the troubleshooting guide (operators on the AI CPU); DrivingSDK HPTR,
DETR and VGGT, whose ports compute in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def in_double(x: Tensor, turn: Tensor) -> Tensor:
    """Turn points with 16 digits."""
    return (x.double() @ turn.double()).float()


def in_single(x: Tensor, turn: Tensor) -> Tensor:
    """Turn points with 7 digits."""
    return x @ turn


def inputs(draw: Draw) -> dict[str, Any]:
    """Return points and a matrix."""
    import torch

    x = draw.floats(draw.integer(1, 4), 2, dtype=torch.float32)
    return {"x": x, "turn": draw.floats(2, 2, dtype=torch.float32)}


_POINTS = """
class Positions(nn.Module):
    def forward(self, x: torch.Tensor, turn: torch.Tensor):
        return torch.matmul(x.double(), turn.transpose(-1, -2).double())
"""
_TABLE = """
class Positions(nn.Module):
    def forward(self, x: torch.Tensor):
        dtype = x.dtype
        omega = torch.arange(x.shape[-1], dtype=torch.double, device=x.device)
        return (x * omega).to(dtype)
"""
_CHOSEN = """
def rope_forward(x: torch.Tensor, freqs: torch.Tensor):
    x = x.to(torch.float64 if x.device.type != "mps" else torch.float32)
    return (x * freqs).float()
"""

RULE = Substitution(
    id="NPU225",
    name="double-precision",
    summary="double precision in every step, which the AI CPU computes",
    table="affinity",
    forms=(Form(in_double, in_single, inputs),),
    search="doubles",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        # who has float64 keeps it
        """
def scatter(x: torch.Tensor):
    dtype = torch.float32 if x.dtype not in (torch.float32, torch.float64) else x.dtype
    out = torch.zeros(3, dtype=dtype, device=x.device)
    return out + torch.zeros(
        3, dtype=x.dtype if x.dtype == torch.float64 else torch.float32, device=x.device
    )
""",
        # an inverse loses digits
        """
class Lift(nn.Module):
    def forward(self, pose: torch.Tensor, points: torch.Tensor):
        back = torch.inverse(pose.double()) @ pose.double().inverse()
        return points @ back.float()
""",
        # the author says why
        """
def add_up(x: torch.Tensor, rows: torch.Tensor, n: int):
    \"\"\"Add up in fp64: of 2000 and more float32 flips the sign.\"\"\"
    return torch.zeros(n, dtype=torch.float64, device=x.device).index_add_(0, rows, x.double())
""",
        # on the host
        """
class Positions(nn.Module):
    def forward(self, x: torch.Tensor):
        table = torch.arange(8, dtype=torch.float64) / 8
        return x * table.float().to(x.device) + x.cpu().double().sum().item()
""",
        # brought to the host at once
        """
class Head(nn.Module):
    def forward(self, x: torch.Tensor):
        return self.write(x.double().cpu())
""",
        # one number
        """
def unscale_step(scale: torch.Tensor, grads):
    inverse = scale.double().reciprocal().float()
    return [g * inverse for g in grads]
""",
        # not where it runs on an NPU
        """
class Positions(nn.Module):
    def forward(self, x: torch.Tensor, is_npu: bool):
        kind = x.to(torch.float32 if is_npu else torch.float64)
        if x.device.type != "npu":
            x = x.double()
        return x * kind
""",
        # whoever calls it has chosen
        """
class Model(nn.Module):
    def forward(self, x: torch.Tensor, dtype):
        if dtype == torch.float64:
            x = x.double()
        return x
""",
        # only asked for
        """
def forward(x: torch.Tensor):
    if x.dtype == torch.float64:
        x = x.float()
    return x * 2
""",
        # once
        """
class Positions(nn.Module):
    def __init__(self, x: torch.Tensor):
        super().__init__()
        self.register_buffer("table", x.double().cos().float(), persistent=False)
""",
    ),
    rewritten=(
        Rewritten(_POINTS, _POINTS),
        Rewritten(_TABLE, _TABLE),
        Rewritten(_CHOSEN, _CHOSEN),
    ),
)
