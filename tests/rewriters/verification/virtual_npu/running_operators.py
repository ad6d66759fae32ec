"""Compares operators of torch_npu with formulas in stock torch. Prints JSON: what failed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name
import torch_npu

if TYPE_CHECKING:
    from collections.abc import Callable

SPANS = [(0, 2), (2, 5), (5, 10)]
ENDS = [2, 5, 10]


def close(found: torch.Tensor, expected: torch.Tensor, off: float = 2e-3) -> None:
    a, b = found.detach().cpu().float(), expected.detach().float()
    assert a.shape == b.shape, (a.shape, b.shape)
    assert torch.allclose(a, b, rtol=off, atol=off), (a - b).abs().max()


def attention_v2(pse_type: int | None, keep: float) -> None:
    shapes = [(2, 3, 16, 8), (2, 3, 20, 8), (2, 3, 20, 8), (2, 3, 16, 20)]
    host = [torch.randn(s).half() for s in shapes]
    device = [x.npu().requires_grad_() for x in host]
    expected = [x.float().requires_grad_() for x in host]
    options = {} if pse_type is None else {"pse": device[3], "pse_type": pse_type}
    torch.manual_seed(3)
    found = torch_npu.npu_fusion_attention_v2(
        *device[:3], 3, "BNSD", scale=0.3, keep_prob=keep, **options
    )[0]
    q, k, v, pse = expected
    scores = q @ k.transpose(-1, -2)
    if pse_type is None:
        scores = scores * 0.3
    else:
        scores = (scores + pse) * 0.3 if pse_type == 1 else scores * 0.3 + pse
    torch.manual_seed(3)
    result = F.dropout(torch.softmax(scores, -1), 1 - keep) @ v
    close(found, result, 1e-2)
    found.backward(torch.ones_like(found))
    result.backward(torch.ones_like(result))
    for own, other in zip(device[: 3 + (pse_type is not None)], expected, strict=False):
        close(own.grad, other.grad, 2e-2)


def attention_v2_with_ropes() -> None:
    host = [torch.randn(10, 3, width).half() for width in (8, 8, 8, 4, 4)]
    device = [x.npu().requires_grad_() for x in host]
    q, k, v, q_rope, k_rope = device
    ropes = {"query_rope": q_rope, "key_rope": k_rope}
    ends = {"actual_seq_qlen": [4, 10], "actual_seq_kvlen": [4, 10]}
    found = torch_npu.npu_fusion_attention_v2(q, k, v, 3, "TND", scale=0.3, **ropes, **ends)[0]
    found.backward(torch.ones_like(found))
    expected = [x.float().requires_grad_() for x in host]
    parts = []
    for start, end in ((0, 4), (4, 10)):
        a, b, c, d, e = (x[start:end].transpose(0, 1) for x in expected)
        scores = (a @ b.transpose(-1, -2) + d @ e.transpose(-1, -2)) * 0.3
        parts.append((torch.softmax(scores, -1) @ c).transpose(0, 1))
    result = torch.cat(parts)
    result.backward(torch.ones_like(result))
    close(found, result, 1e-2)
    for own, other in zip(device, expected, strict=True):
        close(own.grad, other.grad, 2e-2)


def adam_w() -> None:
    w, m, v, g = (torch.rand(5, 3) for _ in range(4))
    own = tuple(x.npu() for x in (w, m, v))
    torch_npu.npu_apply_adam_w(
        0.9, 0.99, 0.01, 0.1, 0.9, 0.99, 1e-6, g.npu(), None, amsgrad=False, maximize=True, out=own
    )
    first, second = 0.9 * m - 0.1 * g, 0.99 * v + 0.01 * g * g
    step = first / (1 - 0.9**2) / ((second / (1 - 0.99**2)).sqrt() + 1e-6)
    for found, expected in zip(own, (w * (1 - 0.001) - 0.01 * step, first, second), strict=True):
        close(found, expected, 1e-5)


def add_rms_norm() -> None:
    a, b, g = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    total = a + b
    rstd = (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    x1, x2 = a.npu(), b.npu()
    found = torch_npu.npu_add_rms_norm_v2_functional(x1, x2, g.npu())
    for own, expected in zip(found, (rstd, total * rstd * g, total), strict=True):
        close(own, expected, 1e-5)
    close(x1, a, 0)
    close(torch_npu.npu_add_rms_norm_v2(x1, x2, g.npu()), rstd, 1e-5)
    close(x1, total * rstd * g, 1e-5)
    close(x2, total, 0)
    cast = torch_npu.npu_add_rms_norm_cast(*(x.half().npu() for x in (a, b, g)))
    assert [x.dtype for x in cast[:2]] == [torch.float32, torch.float16]
    close(cast[0], total * rstd * g, 1e-2)


def gating() -> None:
    x = torch.randn(5, 7)
    values, _, whole = torch_npu.npu_moe_gating_top_k_softmax_v2(x.npu(), k=2, output_softmax=True)
    close(values, torch.softmax(x, -1).topk(2)[0])
    close(whole, torch.softmax(x, -1))
    done = torch.tensor([True, False, False, False, False]).npu()
    values, chosen, _ = torch_npu.npu_moe_gating_top_k_softmax_v2(
        x.npu(), k=3, renorm=1, finished=done
    )
    close(values, torch.softmax(x.topk(3)[0], -1))
    assert chosen[0].cpu().tolist() == [7] * 3


def activations() -> None:
    for eager, fused in ((F.silu, torch_npu.npu_silu), (F.mish, torch_npu.npu_mish)):
        host = torch.randn(4, 5).requires_grad_()
        device = host.detach().npu().requires_grad_()
        eager(host).sum().backward()
        fused(device).sum().backward()
        close(device.grad, host.grad, 1e-4)
    x = torch.randn(4, 5)
    own = x.npu()
    torch_npu.npu_silu_(own)
    close(own, F.silu(x), 1e-5)


def dropout_with_byte_mask() -> None:
    x = (torch.rand(4, 40) + 1).npu().requires_grad_()
    y = torch_npu.dropout_with_byte_mask(x, p=0.3, train=True)
    y.backward(torch.ones_like(y))
    kept = (y != 0).cpu()
    assert 0 < kept.sum() < kept.numel()
    close(y, torch.where(kept, x.detach().cpu() / 0.7, 0.0))
    close(x.grad, kept.float() / 0.7)


def dropout_with_add_softmax() -> None:
    a, b, weight = (torch.rand(32, 1, 128, 128) for _ in range(3))
    x1, x = a.npu().requires_grad_(), b.npu().requires_grad_()
    _, soft, result = torch_npu.npu_dropout_with_add_softmax(x, x1, 0.125, 0.4, -1)
    result.backward(weight.npu())
    a.requires_grad_(), b.requires_grad_()
    expected = torch.softmax(a + 0.125 * b, -1)
    kept = (result != 0).cpu() / 0.6
    (expected * kept).backward(weight)
    close(soft, expected, 1e-5)
    close(result, expected * kept, 1e-5)
    close(x1.grad, a.grad, 1e-5)
    close(x.grad, b.grad, 1e-5)


def few(*shape: int) -> torch.Tensor:
    return torch.randint(-5, 6, shape, dtype=torch.int8)


def dynamic_quant() -> None:
    x = torch.randn(3, 4, 16).half()
    rows, scale = torch_npu.npu_dynamic_quant(x.npu())
    close(scale, x.float().abs().amax(-1) / 127, 1e-6)
    close(rows.cpu() * scale.cpu()[..., None], x, 2e-2)
    packed, scale = torch_npu.npu_dynamic_quant(x.npu(), dst_type=torch.quint4x2)
    assert (packed.dtype, packed.shape) == (torch.int32, (3, 4, 2))
    rows, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(x.npu())
    close((rows.cpu() - offset.cpu()[..., None]) * scale.cpu()[..., None], x, 2e-2)


def quantised_product() -> None:
    a, b, scale, rows = few(6, 32), few(32, 16), torch.rand(16) * 0.1, torch.rand(6)
    product = (a.int() @ b.int()).float()
    multiply, packed = torch_npu.npu_quant_matmul, torch_npu.npu_trans_quant_param(scale.npu())
    half = {"output_dtype": torch.float16}
    close(multiply(a.npu(), b.npu(), packed, **half), product * scale)
    close(multiply(a.npu(), b.npu(), scale.npu(), **half), product * scale)
    bias = torch.randint(-9, 9, (16,), dtype=torch.int32)
    by_row = {"pertoken_scale": rows.npu(), "bias": bias.npu()}
    expected = (product + bias) * scale * rows[:, None]
    close(multiply(a.npu(), b.npu(), scale.npu(), **by_row, **half), expected)
    whole = multiply(a.npu(), b.npu(), scale.npu(), offset=torch.full((16,), 3.0).npu())
    assert whole.dtype == torch.int8
    close(whole, (product * scale + 3).round().clamp(-128, 127), 1.01)

    def pack(x: torch.Tensor) -> torch.Tensor:
        one = torch.ones(1).npu()
        return torch_npu.npu_quantize(x.float().npu(), one, None, torch.quint4x2, -1, False)  # noqa: FBT003 - its signature

    close(multiply(pack(a), pack(b), packed, **half), product * scale)
    close(multiply(pack(a), pack(b.t().contiguous()).t(), packed, **half), product * scale)


def grouped_product_with_scales() -> None:
    x, w, scale, rows = few(10, 32), few(3, 32, 16), torch.rand(3, 16) * 0.1, torch.rand(10)
    groups = {"group_list": torch.tensor(ENDS).npu(), "group_type": 0, "split_item": 2}
    expected = torch.cat(
        [(x[a:b].int() @ w[i].int()) * scale[i] * rows[a:b, None] for i, (a, b) in enumerate(SPANS)]
    )
    scales = {"scale": [scale.npu()], "per_token_scale": [rows.npu()]}
    found = torch_npu.npu_grouped_matmul(
        [x.npu()], [w.npu()], **scales, **groups, output_dtype=torch.float16
    )
    close(found[0], expected, 5e-3)
    h, columns = torch.randn(10, 32).half(), torch.rand(3, 16).half()
    shift = {"antiquant_offset": [torch.zeros(3, 16).half().npu()]}
    found = torch_npu.npu_grouped_matmul(
        [h.npu()], [w.npu()], antiquant_scale=[columns.npu()], **shift, **groups
    )
    own = [h[a:b].float() @ (w[i] * columns[i]).float() for i, (a, b) in enumerate(SPANS)]
    close(found[0], torch.cat(own), 2e-2)


def grouped_swiglu() -> None:
    x, w, scale, rows = few(10, 32), few(3, 32, 64), torch.rand(3, 64), torch.rand(10)
    ends = torch.tensor(ENDS).npu()
    product = torch.cat(
        [(x[a:b].int() @ w[i].int()) * scale[i] * rows[a:b, None] for i, (a, b) in enumerate(SPANS)]
    )
    gate, up = product.chunk(2, -1)
    expected = F.silu(gate) * up
    found = torch_npu.npu_grouped_matmul_swiglu_quant(
        x.npu(), w.npu(), ends, scale.npu(), rows.npu()
    )
    again = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        x.npu(), [w.npu()], [scale.npu()], rows.npu(), ends
    )
    for whole, own in (found[:2], again):
        close(own, expected.abs().amax(-1) / 127, 1e-5)
        close(whole, (expected / own.cpu()[:, None]).round(), 1.01)


CHECKS: dict[str, Callable[[], None]] = {
    "attention": lambda: attention_v2(None, 1.0),
    "attention with pse before": lambda: attention_v2(1, 1.0),
    "attention with pse after": lambda: attention_v2(0, 1.0),
    "attention with dropout": lambda: attention_v2(None, 0.7),
    "attention with ropes": attention_v2_with_ropes,
    "adam_w": adam_w,
    "add_rms_norm": add_rms_norm,
    "gating": gating,
    "activations": activations,
    "dropout_with_byte_mask": dropout_with_byte_mask,
    "dropout_with_add_softmax": dropout_with_add_softmax,
    "dynamic_quant": dynamic_quant,
    "quantised_product": quantised_product,
    "grouped_product_with_scales": grouped_product_with_scales,
    "grouped_swiglu": grouped_swiglu,
}


def failure(check: Callable[[], None]) -> str:
    torch.manual_seed(0)
    try:
        check()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test says it
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    print(json.dumps({name: failure(check) for name, check in CHECKS.items()}))  # noqa: T201 - for the test that started it
