"""Every reference kernel against a formula written independently, in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.reference import npu_operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(name="npu")
def _npu() -> Any:
    torch.manual_seed(0)
    return npu_operators.install()


def half_turned(x: Tensor) -> Tensor:
    return torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)


def pairs_turned(x: Tensor) -> Tensor:
    turned = torch.empty_like(x)
    turned[..., 0::2], turned[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return turned


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = torch.einsum("bnqd,bnkd->bnqk", q, k) * scale
    if mask is not None:
        scores = torch.where(mask, -math.inf, scores)
    return torch.einsum("bnqk,bnkd->bnqd", torch.softmax(scores, -1), v)


def add_rms_norm(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return (a + b) / ((a + b).square().mean(-1, keepdim=True) + 1e-6).sqrt() * w


TARGET = torch.tensor([1, 0, 3])
ENDS = ([2, 3, 7], [1, 5, 9])
MASK = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) < 0.4
# token 0 goes to experts 1 and 2, and so on; where each of these copies lands
EXPERTS = torch.tensor([[1, 2], [0, 2], [1, 1], [0, 2]])
PLACES = torch.tensor([2, 5, 0, 6, 3, 4, 1, 7], dtype=torch.int32)
WIDE = torch.rand(2, 1, 32, 64, generator=torch.Generator().manual_seed(2)) < 0.5
WEIGHT = (torch.arange(18).reshape(6, 3) * 7 % 19 - 9).to(torch.int8)

# operator: shapes of its tensors, the call, the formula
VALUES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = {
    "npu_rms_norm": (
        [(3, 8), (8,)],
        lambda npu, x, w: npu.npu_rms_norm(x, w, 1e-6)[0],
        lambda x, w: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w,
    ),
    "npu_gemma_rms_norm": (
        [(3, 8), (8,)],
        lambda npu, x, w: npu.npu_gemma_rms_norm(x, w, 1e-6)[0],
        lambda x, w: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + w),
    ),
    "npu_add_rms_norm": (
        [(3, 8), (3, 8), (8,)],
        lambda npu, a, b, w: npu.npu_add_rms_norm(a, b, w)[0],
        add_rms_norm,
    ),
    "npu_add_rms_norm sum": (
        [(3, 8), (3, 8), (8,)],
        lambda npu, a, b, w: npu.npu_add_rms_norm(a, b, w)[2],
        lambda a, b, w: a + b,  # noqa: ARG005 - the weight is not in the sum
    ),
    "npu_add_layer_norm": (
        [(3, 8), (3, 8), (8,), (8,)],
        lambda npu, a, b, w, c: npu.npu_add_layer_norm(a, b, w, c, 1e-3, additional_output=True)[
            ::3
        ],
        lambda a, b, w, c: (F.layer_norm(a + b, (8,), w, c, 1e-3), a + b),
    ),
    "npu_group_norm_silu": (
        [(2, 6, 5), (6,), (6,)],
        lambda npu, x, w, b: npu.npu_group_norm_silu(x, w, b, 3, 1e-4)[0],
        lambda x, w, b: F.silu(F.group_norm(x, 3, w, b, 1e-4)),
    ),
    "npu_group_norm_swish": (
        [(2, 6, 5), (6,), (6,)],
        lambda npu, x, w, b: npu.npu_group_norm_swish(x, 3, w, b, 1e-4, 1.5)[0],
        lambda x, w, b: (y := F.group_norm(x, 3, w, b, 1e-4)) * torch.sigmoid(1.5 * y),
    ),
    "npu_swiglu": (
        [(2, 3, 8)],
        lambda npu, x: npu.npu_swiglu(x),
        lambda x: x[..., :4] / (1 + torch.exp(-x[..., :4])) * x[..., 4:],
    ),
    "npu_swiglu dim": (
        [(2, 4, 3)],
        lambda npu, x: npu.npu_swiglu(x, dim=1),
        lambda x: x[:, :2] * torch.sigmoid(x[:, :2]) * x[:, 2:],
    ),
    "npu_clipped_swiglu": (
        [(3, 8)],
        lambda npu, x: npu.npu_clipped_swiglu(x, alpha=2.0, limit=0.5),
        lambda x: (
            (gate := x[:, ::2].clamp(max=0.5))
            * torch.sigmoid(2.0 * gate)
            * (x[:, 1::2].clamp(-0.5, 0.5) + 1)
        ),
    ),
    "npu_clipped_swiglu halves": (
        [(4, 3)],
        lambda npu, x: npu.npu_clipped_swiglu(x, dim=0, limit=0.5, bias=0.0, interleaved=False),
        lambda x: (
            (gate := x[:2].clamp(max=0.5)) * torch.sigmoid(1.702 * gate) * x[2:].clamp(-0.5, 0.5)
        ),
    ),
    "npu_geglu": (
        [(3, 8)],
        lambda npu, x: npu.npu_geglu(x, approximate=0)[0],
        lambda x: x[:, :4] * x[:, 4:] * 0.5 * (1 + torch.erf(x[:, 4:] / math.sqrt(2))),
    ),
    "npu_geglu left": (
        [(3, 8)],
        lambda npu, x: npu.npu_geglu(x, activate_left=True)[0],
        lambda x: F.gelu(x[:, :4], approximate="tanh") * x[:, 4:],
    ),
    "npu_gelu": (
        [(3, 8)],
        lambda npu, x: npu.npu_gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "npu_gelu_mul": (
        [(3, 8)],
        lambda npu, x: npu.npu_gelu_mul(x),
        lambda x: F.gelu(x[:, :4]) * x[:, 4:],
    ),
    "npu_fast_gelu": (
        [(3, 8)],
        lambda npu, x: npu.npu_fast_gelu(x),
        lambda x: x / (1 + torch.exp(-1.702 * x)),
    ),
    "npu_rotary_mul": (
        [(2, 3, 4, 8), (2, 1, 4, 8), (2, 1, 4, 8)],
        lambda npu, x, c, s: npu.npu_rotary_mul(x, c, s),
        lambda x, c, s: x * c + half_turned(x) * s,
    ),
    "npu_rotary_mul interleave": (
        [(2, 3, 4, 8), (1, 3, 1, 8), (1, 3, 1, 8)],
        lambda npu, x, c, s: npu.npu_rotary_mul(x, c, s, rotary_mode="interleave"),
        lambda x, c, s: x * c + pairs_turned(x) * s,
    ),
    "npu_scaled_masked_softmax": (
        [(2, 3, 32, 64)],
        lambda npu, x: npu.npu_scaled_masked_softmax(x, WIDE, 0.5),
        lambda x: torch.softmax(torch.where(WIDE, -10000.0, 0.5 * x), -1),
    ),
    "npu_fusion_attention": (
        [(2, 4, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8)],
        lambda npu, q, k, v: npu.npu_fusion_attention(
            q, k, v, 4, "BNSD", atten_mask=MASK, scale=0.3
        )[0],
        lambda q, k, v: attention(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), MASK, 0.3
        ),
    ),
    "npu_fusion_attention BSH": (
        [(2, 4, 6), (2, 5, 6), (2, 5, 6)],
        lambda npu, q, k, v: npu.npu_fusion_attention(q, k, v, 2, "BSH")[0],
        lambda q, k, v: (
            attention(*(t.unflatten(-1, (2, 3)).transpose(1, 2) for t in (q, k, v)), None, 1.0)
            .transpose(1, 2)
            .flatten(2)
        ),
    ),
    "npu_fusion_attention SBH": (
        [(4, 2, 6), (4, 2, 6), (4, 2, 6)],
        lambda npu, q, k, v: npu.npu_fusion_attention(q, k, v, 2, "SBH")[0],
        lambda q, k, v: (
            attention(*(t.unflatten(-1, (2, 3)).permute(1, 2, 0, 3) for t in (q, k, v)), None, 1.0)
            .permute(2, 0, 1, 3)
            .flatten(2)
        ),
    ),
    "npu_fusion_attention pse": (
        [(2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8), (1, 2, 4, 5)],
        lambda npu, q, k, v, p: npu.npu_fusion_attention(q, k, v, 2, "BNSD", pse=p, scale=0.25)[0],
        lambda q, k, v, p: torch.softmax((q @ k.mT + p) * 0.25, -1) @ v,
    ),
    "npu_cross_entropy_loss": (
        [(3, 4), (4,)],
        lambda npu, x, w: npu.npu_cross_entropy_loss(
            x, TARGET, w.detach().abs().float(), reduction="sum"
        )[0],
        lambda x, w: -(x.log_softmax(-1)[range(3), TARGET] * w.detach().abs()[TARGET]).sum()[None],
    ),
    "npu_cross_entropy_loss mean": (
        [(3, 4)],
        lambda npu, x: npu.npu_cross_entropy_loss(x, TARGET)[0],
        lambda x: -x.log_softmax(-1)[range(3), TARGET].mean()[None],
    ),
    "npu_confusion_transpose": (
        [(2, 3, 8)],
        lambda npu, x: npu.npu_confusion_transpose(x, (0, 2, 1, 3), (2, 3, 2, 4), False),  # noqa: FBT003
        lambda x: x.view(2, 3, 2, 4).transpose(1, 2),
    ),
    "npu_confusion_transpose first": (
        [(2, 3, 8)],
        lambda npu, x: npu.npu_confusion_transpose(x, (1, 0, 2), (3, 16), True),  # noqa: FBT003
        lambda x: torch.stack([x[:, i].flatten() for i in range(3)]),
    ),
    "npu_moe_gating_top_k_softmax": (
        [(5, 6)],
        lambda npu, x: npu.npu_moe_gating_top_k_softmax(x, k=2)[0],
        lambda x: x.softmax(-1).topk(2).values,
    ),
    "npu_transpose_batchmatmul": (
        [(4, 2, 16), (2, 16, 32)],
        lambda npu, x, w: npu.npu_transpose_batchmatmul(x, w, perm_x1=[1, 0, 2]),
        lambda x, w: torch.einsum("mbk,bkn->mbn", x, w),
    ),
    "npu_transpose_batchmatmul parts": (
        [(4, 2, 16), (2, 16, 32)],
        lambda npu, x, w: npu.npu_transpose_batchmatmul(
            x, w, perm_x1=[1, 0, 2], batch_split_factor=4
        ),
        lambda x, w: torch.stack(torch.einsum("mbk,bkn->mbn", x, w).flatten(1).split(16, 1)),
    ),
    "npu_weight_quant_batchmatmul": (
        [(4, 6), (3,)],
        lambda npu, x, s: npu.npu_weight_quant_batchmatmul(x, WEIGHT, s),
        lambda x, s: x @ (WEIGHT.double() * s),
    ),
    "npu_weight_quant_batchmatmul offset": (
        [(4, 6), (3,), (3,)],
        lambda npu, x, s, o: npu.npu_weight_quant_batchmatmul(x, WEIGHT, s, o),
        lambda x, s, o: x @ ((WEIGHT.double() + o) * s),
    ),
    "npu_rotary_mul tokens": (
        [(5, 3, 8), (5, 1, 8), (5, 1, 8)],
        lambda npu, x, c, s: npu.npu_rotary_mul(x, c, s),
        lambda x, c, s: x * c + half_turned(x) * s,
    ),
    "npu_fusion_attention sequences": (
        [(7, 4, 8), (9, 2, 8), (9, 2, 8)],
        lambda npu, q, k, v: npu.npu_fusion_attention(
            q, k, v, 4, "TND", scale=0.3, actual_seq_qlen=ENDS[0], actual_seq_kvlen=ENDS[1]
        )[0],
        lambda q, k, v: torch.cat(
            [
                attention(
                    *(t.transpose(0, 1)[None].repeat_interleave(4 // t.shape[1], 1) for t in own),
                    None,
                    0.3,
                )[0].transpose(0, 1)
                for own in zip(*(sequences(t, e) for t, e in ((q, 0), (k, 1), (v, 1))), strict=True)
            ]
        ),
    ),
    "npu_ffn": (
        [(3, 8), (8, 6), (6, 8), (6,), (8,)],
        lambda npu, x, w, v, b, c: npu.npu_ffn(x, w, v, "silu", bias1=b, bias2=c),
        lambda x, w, v, b, c: F.silu(x @ w + b) @ v + c,
    ),
    "npu_ffn experts": (
        [(5, 8), (2, 8, 6), (2, 6, 8)],
        lambda npu, x, w, v: npu.npu_ffn(x, w, v, "relu", expert_tokens=[2, 3]),
        lambda x, w, v: torch.cat([(x[:2] @ w[0]).relu() @ v[0], (x[2:] @ w[1]).relu() @ v[1]]),
    ),
    "npu_grouped_matmul": (
        [(5, 8), (2, 8, 6), (2, 6)],
        lambda npu, x, w, b: npu.npu_grouped_matmul(
            [x], [w], bias=[b], group_list=[2, 5], split_item=3, group_type=0
        )[0],
        lambda x, w, b: torch.cat([x[:2] @ w[0] + b[0], x[2:] @ w[1] + b[1]]),
    ),
    "npu_grouped_matmul.List counts": (
        [(5, 8), (2, 8, 6)],
        lambda npu, x, w: npu.npu_grouped_matmul(
            [x], [w], group_list=torch.tensor([2, 3]), group_list_type=1, split_item=3, group_type=0
        )[0],
        lambda x, w: torch.cat([x[:2] @ w[0], x[2:] @ w[1]]),
    ),
    "npu_interleave_rope": (
        [(2, 3, 4, 64), (2, 1, 4, 64), (2, 1, 4, 64)],
        lambda npu, x, c, s: npu.npu_interleave_rope(x, c, s),
        lambda x, c, s: (y := torch.cat([x[..., ::2], x[..., 1::2]], -1)) * c + half_turned(y) * s,
    ),
    "npu_moe_token_permute": (
        [(4, 3)],
        lambda npu, x: npu.npu_moe_token_permute(x, EXPERTS)[0],
        lambda x: x[[1, 3, 0, 2, 2, 0, 1, 3]],
    ),
    "npu_moe_token_unpermute": (
        [(8, 3), (4, 2)],
        lambda npu, x, p: npu.npu_moe_token_unpermute(x, PLACES, p),
        lambda x, p: p[:, :1] * x[[2, 0, 3, 1]] + p[:, 1:] * x[[5, 6, 4, 7]],
    ),
}
SILENT = {
    "npu_gemma_rms_norm",
    "npu_group_norm_silu",
    "npu_gelu_mul",
    "npu_clipped_swiglu",
    "npu_transpose_batchmatmul",
    "npu_ffn",
    "npu_grouped_matmul",
    "npu_grouped_matmul.List",
    "npu_weight_quant_batchmatmul",
}
HALF_ONLY = {"npu_weight_quant_batchmatmul", "npu_ffn", "npu_interleave_rope"}
RAISING = {"npu_add_rms_norm", "npu_interleave_rope", "npu_moe_gating_top_k_softmax"}


def sequences(x: Tensor, which: int) -> list[Tensor]:
    ends = ENDS[which]
    return [x[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def operator(case: str) -> str:
    return case.partition(" ")[0]


def drawn(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(*shape).to(dtype).requires_grad_() for shape in shapes]


def several(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def close(value: Tensor, reference: Tensor, dtype: torch.dtype, roundings: int) -> bool:
    bound = roundings * torch.finfo(dtype).eps
    off = (value.double() - reference).abs()
    return bool((off <= bound * (reference.abs() + reference.abs().max())).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", VALUES)
def test_values_are_those_of_the_formula(npu: Any, case: str, dtype: torch.dtype) -> None:
    shapes, call, formula = VALUES[case]
    tensors = drawn(shapes, dtype)
    if operator(case) in HALF_ONLY and dtype == torch.float32:
        with pytest.raises(RuntimeError, match=f"{operator(case)}: no kernel for"):
            call(npu, *tensors)
        return
    found = several(call(npu, *tensors))
    expected = several(formula(*(t.detach().double() for t in tensors)))
    # Kernels that round in between (probabilities, the sum before gamma) are off by that as well.
    for value, reference in zip(found, expected, strict=True):
        assert value.dtype == dtype
        assert value.shape == reference.shape
        assert close(value, reference, dtype, 2)


@pytest.mark.parametrize("case", [c for c in VALUES if operator(c) not in SILENT | RAISING])
def test_gradients_are_those_of_the_formula(npu: Any, case: str) -> None:
    shapes, call, formula = VALUES[case]
    for dtype, roundings in ((torch.float64, 1000), (torch.float32, 30), (torch.bfloat16, 4)):
        tensors = drawn(shapes, dtype)
        widened = [t.detach().double().requires_grad_() for t in tensors]
        found, expected = several(call(npu, *tensors)), several(formula(*widened))
        upstream = [torch.randn(t.shape).to(dtype) for t in found]
        mine = torch.autograd.grad(found, tensors, upstream, allow_unused=True)
        theirs = torch.autograd.grad(
            expected, widened, [u.double() for u in upstream], allow_unused=True
        )
        for left, right in zip(mine, theirs, strict=True):
            assert (left is None) == (right is None)
            if left is not None and right is not None:
                assert left.dtype == dtype
                assert close(left, right, dtype, roundings)


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
@pytest.mark.parametrize("case", [c for c in VALUES if operator(c) in SILENT])
def test_without_a_derivative_gradients_are_lost_quietly(npu: Any, case: str) -> None:
    shapes, call, _ = VALUES[case]
    tensors = drawn(shapes, torch.bfloat16)
    result = call(npu, *tensors)
    result.sum().backward()
    assert all(t.grad is None for t in tensors)


@pytest.mark.parametrize("case", [c for c in VALUES if operator(c) in RAISING])
def test_without_a_derivative_backward_raises(npu: Any, case: str) -> None:
    shapes, call, _ = VALUES[case]
    result = call(npu, *drawn(shapes, torch.bfloat16))
    with pytest.raises(RuntimeError, match=f"derivative for npu::{operator(case)} is not"):
        result.sum().backward()


def test_every_operator_of_the_table_is_tested(npu: Any) -> None:
    assert {operator(case) for case in VALUES} == set(npu_operators.read_table().operators)
    assert npu.__version__ == npu_operators.read_table().versions[-1]


def test_a_rotated_query_is_new_memory_in_order(npu: Any) -> None:
    """``.view`` of it works, as of the ``torch.cat`` that it takes the place of."""
    x = torch.randn(2, 3, 4, 8).transpose(1, 2)
    angles = torch.randn(1, 4, 1, 8)
    assert npu.npu_rotary_mul(x, angles.cos(), angles.sin()).is_contiguous()
