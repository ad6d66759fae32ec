"""A table that a module computes anew in every call from its settings alone.

What: frequencies of a position embedding, a grid of positions, a causal mask of the longest length
and the like, which ``forward`` computes from numbers and settings of the module (``self.dim``), and of
the input reads nothing but the device and the dtype; and tables that the sizes of images alone
decide: reference points, grids of positions, masks of shifted windows.

Why it is slow on the NPU: each call launches some small kernels for numbers that never change, and
the host, which launches them one by one, is what the step waits for.

Safety: written where ``__init__`` has set all that the statements read, nothing sets it again and
nobody but operators that make new tensors reads the table; else advice. ``register_buffer`` with
``persistent=False`` keeps the table on the device of the module and out of its state dict, so that
old checkpoints load; DistributedDataParallel sends buffers to all ranks before each forward pass
unless ``broadcast_buffers=False``. A module that is cast as a whole (``model.half()``) casts a
floating point buffer too, which loses digits that ``forward`` had; a module that is made on the
device ``meta`` gets no values (``module-moves-along``). The memory is kept for as long as the module
is. What sizes decide is kept once for each of them: where each image has a size of its own nothing
is gained, and memory grows with them.

References: torch.nn.Module.register_buffer; vllm-ascend #1890 (cosines and sines once instead of in
every call); the ports of UniAD, BEVFormer and VAD in Ascend DrivingSDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution
from npufix.rules.substitutions.upload_in_every_call import MOVES_ALONG

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def in_calls(x: Tensor, width: int, calls: int) -> Tensor:
    """Make the table in every call."""
    for _ in range(calls):
        table = torch.exp(torch.arange(width, device=x.device) * -0.5)
        x = x.unsqueeze(-1).mul(table).sum(-1)
    return x


def kept(x: Tensor, width: int, calls: int) -> Tensor:
    """Make it once."""
    places = torch.arange(width, device=x.device)
    table = torch.exp(places * -0.5)
    for _ in range(calls):
        x = x.unsqueeze(-1).mul(table).sum(-1)
    return x


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, the length of the table and a number of calls."""
    import torch

    x = draw.floats(draw.integer(1, 4), dtype=torch.float32)
    return {"x": x, "width": draw.integer(1, 4), "calls": draw.integer(0, 3)}


_FREQUENCIES = """
import math


class TimeEmbedding(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, batch):
        t = batch.time
        half = self.dim // 2
        freqs = torch.exp(-math.log(1e4) * torch.arange(half, device=t.device, dtype=torch.float32) / half)
        return t[:, None].float() * freqs
"""

_KEPT_FREQUENCIES = """
import math


class TimeEmbedding(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        half = self.dim // 2
        freqs = torch.exp(-math.log(1e4) * torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("freqs", freqs, persistent=False)

    def forward(self, batch):
        t = batch.time
        freqs = self.freqs
        return t[:, None].float() * freqs
"""
# the setting is another one later
_CHANGES = """
class Frequencies(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def resize(self, dim: int):
        self.dim = dim

    def forward(self, t: torch.Tensor):
        freqs = torch.exp(torch.arange(self.dim, device=t.device) * -0.5)
        return t[:, None] * freqs
"""
# whoever gets it may write into it
_GIVEN_AWAY = """
class Frequencies(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, t: torch.Tensor):
        freqs = torch.exp(torch.arange(self.dim, device=t.device) * -0.5)
        return freqs
"""

_GRID = """
class Encoder(nn.Module):
    def get_reference_points(self, H, W, bs, x: torch.Tensor):
        rows = torch.linspace(0.5, H - 0.5, H, dtype=x.dtype, device=x.device)
        columns = torch.linspace(0.5, W - 0.5, W, dtype=x.dtype, device=x.device)
        y, x = torch.meshgrid(rows, columns)
        points = torch.stack((y.reshape(-1) / H, x.reshape(-1) / W), -1)
        return points.repeat(bs, 1, 1)
"""
_WINDOWS = """
class Windows(nn.Module):
    def forward(self, x: torch.Tensor, slices):
        mask = torch.zeros((1, x.shape[1], x.shape[2], 1), device=x.device)
        number = 0
        for rows in slices:
            for columns in slices:
                mask[:, rows, columns, :] = number
                number += 1
        return self.attend(x, mask)
"""
_BY_DEVICE = """
def forward(pos: torch.Tensor, temperature: int = 10000):
    wide = torch.arange(128, dtype=torch.float32, device=pos.device)
    wide = temperature ** (2 * (wide // 2) / 128)
    return pos[..., None] / wide
"""

RULE = Substitution(
    id="NPU322",
    name="made-in-every-call",
    summary="a table that a module computes in every call from its settings alone",
    table="affinity",
    forms=(Form(in_calls, kept, inputs, (MOVES_ALONG,)),),
    search="constants",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        # the method that makes what is kept
        """
class Rotary(nn.Module):
    def reset(self):
        angles = torch.outer(torch.arange(self.length), 2.0 ** -torch.arange(self.dim))
        self.cos.copy_(angles.cos())
""",
        # as long as the input
        """
class Attention(nn.Module):
    def forward(self, x: torch.Tensor):
        n = x.shape[1]
        bias = -(torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)).abs()
        return x + bias
""",
        # one number
        """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor):
        loss = torch.zeros(1, device=x.device).exp().mean()
        return loss
""",
        # computed with a parameter
        """
class Attention(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(dim))
        self.dim = dim

    def forward(self, x: torch.Tensor):
        bias = (torch.arange(self.dim, device=x.device) * 2 + 1) * self.slope
        return x + bias
""",
        # other numbers in each call
        """
class Noise(nn.Module):
    def forward(self, x: torch.Tensor):
        noise = torch.randn(16, device=x.device) * 2 + torch.ones(16, device=x.device)
        return x + noise
""",
        # one kernel
        """
class Mask(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.n = n

    def forward(self, x: torch.Tensor):
        order = torch.arange(-self.n, 2 * self.n + 1, device=x.device)
        return x[..., order]
""",
        # once
        """
class Table(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        table = torch.exp(-torch.arange(n) / n) * 2
        self.register_buffer("table", table, persistent=False)
""",
    ),
    rewritten=(
        Rewritten(_FREQUENCIES, _KEPT_FREQUENCIES),
        Rewritten(_CHANGES, _CHANGES),
        Rewritten(_GIVEN_AWAY, _GIVEN_AWAY),
        Rewritten(_GRID, _GRID),
        Rewritten(_WINDOWS, _WINDOWS),
        Rewritten(_BY_DEVICE, _BY_DEVICE),
    ),
)
