"""Trains a LLaMA-style block on ``npu``: as written, patched, and patched wrongly.

Run by the tests on a virtual NPU. Prints one JSON object: what each variant computed, how much
it launched, or what it was refused with.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
import torch_npu
from torch import nn

from npufix.rewriters.verification.virtual_npu import current_device

HEADS, WIDTH, LENGTH, BATCH, WORDS = 4, 64, 16, 2, 24
PER_HEAD = WIDTH // HEADS
EPS = 1e-3


@dataclass(frozen=True)
class Patch:
    """Which operators a variant uses, and what is wrong with it."""

    fused: bool = True
    forgets_eps: bool = False
    inverts_mask: bool = False
    swaps_halves: bool = False
    wrong_keyword: bool = False
    drops_gradient: bool = False


class Norm(nn.Module):
    def __init__(self, patch: Patch) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.patch = patch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patch = self.patch
        if not patch.fused:
            wide = x.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
            return self.weight * wide.to(x.dtype)
        if patch.wrong_keyword:
            return torch_npu.npu_rms_norm(x, self.weight, eps=EPS)[0]
        if patch.forgets_eps:
            return torch_npu.npu_rms_norm(x, self.weight)[0]
        if patch.drops_gradient:
            return torch_npu.npu_gemma_rms_norm(x, self.weight - 1, EPS)[0]
        return torch_npu.npu_rms_norm(x, self.weight, epsilon=EPS)[0]


def rotated(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Block(nn.Module):
    def __init__(self, patch: Patch) -> None:
        super().__init__()
        self.patch = patch
        self.before_attention, self.before_mlp = Norm(patch), Norm(patch)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.before_attention(x)
        q, k, v = (
            layer(y).view(batch, length, HEADS, PER_HEAD).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        attended = self.attention(q, k, v, cos, sin, hidden)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        y = self.before_mlp(x)
        return self.head(x + self.down(self.activated(self.gate(y), self.up(y))))

    def attention(self, q, k, v, cos, sin, hidden):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913, PLR0917 - as users write it
        scale = 1 / math.sqrt(PER_HEAD)
        if self.patch.fused:
            q = torch_npu.npu_rotary_mul(q, cos, sin)
            k = torch_npu.npu_rotary_mul(k, cos, sin)
            mask = ~hidden if self.patch.inverts_mask else hidden
            return torch_npu.npu_fusion_attention(
                q, k, v, HEADS, "BNSD", atten_mask=mask, scale=scale
            )[0]
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v

    def activated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if not self.patch.fused:
            return F.silu(gate) * up
        halves = (up, gate) if self.patch.swaps_halves else (gate, up)
        return torch_npu.npu_swiglu(torch.cat(halves, -1), dim=-1)


def entropy(scores: torch.Tensor, words: torch.Tensor, *, fused: bool) -> torch.Tensor:
    if fused and hasattr(torch_npu, "npu_cross_entropy_loss"):  # not in every release
        return torch_npu.npu_cross_entropy_loss(scores, words)[0][0]
    return F.cross_entropy(scores, words)


def trained(patch: Patch, dtype: torch.dtype) -> dict[str, object]:
    torch.manual_seed(1)
    block = Block(patch).to("npu", dtype)
    torch.manual_seed(2)
    x = (torch.randn(BATCH, LENGTH, WIDTH) * 0.1).to("npu", dtype).requires_grad_()
    steps = torch.arange(0, PER_HEAD, 2) / PER_HEAD
    angles = (torch.arange(LENGTH)[:, None] / 10000**steps).repeat(1, 2)[None, None]
    cos, sin = angles.cos().to("npu", dtype), angles.sin().to("npu", dtype)
    words = (torch.arange(BATCH * LENGTH) * 7 % WORDS).to("npu")
    combined = patch.fused and dtype is torch.float32  # it takes no others
    optimizers = torch_npu.optim.NpuFusedAdamW if combined else torch.optim.AdamW
    optimizer = optimizers(block.parameters(), lr=1e-2, eps=1e-5)
    current_device().clear()
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = entropy(block(x, cos, sin).float().flatten(0, 1), words, fused=patch.fused)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    kernels = [launch.kernel for launch in current_device().launches()]
    lost = [name for name, weight in block.named_parameters() if weight.grad is None]
    return {"losses": losses, "kernels": kernels, "without gradient": lost}


def attempted(patch: Patch, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    try:
        return trained(patch, dtype)
    except (RuntimeError, AttributeError) as error:  # the latter: not in this release
        return {"refused": f"{type(error).__name__}: {error}"}


def launched_by_attention() -> list[str]:
    q = torch.ones(1, 2, 16, 16, dtype=torch.float16, device="npu")
    current_device().clear()
    F.scaled_dot_product_attention(q, q, q)
    return [launch.kernel for launch in current_device().launches()]


def uncovered() -> str:
    tables = (torch.randn(4, 16).npu(), torch.randn(4, 16).npu(), torch.randn(10, 16).npu())
    try:
        torch_npu.npu_mrope(torch.zeros(4, dtype=torch.int64).npu(), *tables, 16)
    except (RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    half = torch.bfloat16
    print(  # noqa: T201 - how the tests learn of it
        json.dumps(
            {
                "original": attempted(Patch(fused=False)),
                "patched": attempted(Patch()),
                "original in bfloat16": attempted(Patch(fused=False), half),
                "patched in bfloat16": attempted(Patch(), half),
                "forgets eps": attempted(Patch(forgets_eps=True)),
                "inverts the mask": attempted(Patch(inverts_mask=True)),
                "swaps halves": attempted(Patch(swaps_halves=True)),
                "wrong keyword": attempted(Patch(wrong_keyword=True)),
                "drops a gradient": attempted(Patch(drops_gradient=True)),
                "attention of torch": launched_by_attention(),
                "uncovered": uncovered(),
                "shown": str(torch.arange(3, device="npu") + 1),
            }
        )
    )
