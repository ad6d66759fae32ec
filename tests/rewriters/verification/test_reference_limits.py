"""What the reference kernels refuse, and where they differ from the eager code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.verification import npu_operators
from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    ShapeRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@pytest.fixture(name="npu")
def _npu() -> Any:
    torch.manual_seed(0)
    return npu_operators.install()


def attention(q: Tensor, k: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
    scores = q @ k.mT * scale
    return torch.softmax(scores if mask is None else scores.where(~mask, -torch.inf), -1) @ k


ROW = torch.ones(2, 8)
CUBE = torch.ones(2, 3, 4, 8)
LARGE = torch.ones(1, 2, 32, 32)
REFUSED: dict[str, Callable[[Any], Any]] = {
    "npu_rms_norm: gamma": lambda npu: npu.npu_rms_norm(ROW, torch.ones(4)),
    "npu_gemma_rms_norm: gamma": lambda npu: npu.npu_gemma_rms_norm(ROW, torch.ones(4)),
    "npu_add_rms_norm: x1": lambda npu: npu.npu_add_rms_norm(ROW, ROW[:1], torch.ones(8)),
    "npu_add_layer_norm: gamma": lambda npu: npu.npu_add_layer_norm(ROW, ROW, ROW[0, :2], ROW[0]),
    "npu_group_norm_silu: 8 channels": lambda npu: npu.npu_group_norm_silu(ROW, None, None, 3),
    "npu_swiglu: dimension -1": lambda npu: npu.npu_swiglu(ROW[:, :7]),
    "npu_geglu: dimension -1": lambda npu: npu.npu_geglu(ROW[:, :7]),
    "npu_gelu_mul: dimension -1": lambda npu: npu.npu_gelu_mul(ROW[:, :7]),
    "npu_rotary_mul: input has 2": lambda npu: npu.npu_rotary_mul(ROW, ROW, ROW),
    "npu_rotary_mul: dimension -1": lambda npu: npu.npu_rotary_mul(*[CUBE[..., :7]] * 3),
    "npu_rotary_mul: cos": lambda npu: npu.npu_rotary_mul(CUBE, *[CUBE[..., :4]] * 2),
    "npu_rotary_mul: cos .* half allows": lambda npu: npu.npu_rotary_mul(
        CUBE, *[torch.ones(1, 1, 1, 8)] * 2
    ),
    "npu_rotary_mul: cos .* interleave": lambda npu: npu.npu_rotary_mul(
        CUBE, *[torch.ones(2, 1, 4, 8)] * 2, rotary_mode="interleave"
    ),
    "npu_rotary_mul: the last": lambda npu: npu.npu_rotary_mul(*[torch.ones(1, 1, 1, 896)] * 3),
    "npu_scaled_masked_softmax: the last": lambda npu: npu.npu_scaled_masked_softmax(
        LARGE[..., :31], LARGE[..., :31].bool()
    ),
    "npu_scaled_masked_softmax: mask": lambda npu: npu.npu_scaled_masked_softmax(
        LARGE, LARGE.bool()[:, :, :1]
    ),
    "npu_scaled_masked_softmax: x and": lambda npu: npu.npu_scaled_masked_softmax(
        LARGE, LARGE.bool()[0]
    ),
    "npu_fusion_attention: head_num": lambda npu: npu.npu_fusion_attention(*[CUBE] * 3, 2, "BNSD"),
    "npu_fusion_attention: BSH": lambda npu: npu.npu_fusion_attention(*[CUBE] * 3, 3, "BSH"),
    "npu_fusion_attention: atten_mask": lambda npu: npu.npu_fusion_attention(
        *[CUBE] * 3, 3, "BNSD", atten_mask=torch.ones(1, 3, 4, 4).bool()
    ),
    "npu_fusion_attention: sparse_mode 2": lambda npu: npu.npu_fusion_attention(
        *[CUBE] * 3, 3, "BNSD", atten_mask=torch.ones(4, 4).bool(), sparse_mode=2
    ),
    "npu_fusion_attention: pse": lambda npu: npu.npu_fusion_attention(
        *[CUBE] * 3, 3, "BNSD", pse=torch.ones(4, 4)
    ),
    "npu_cross_entropy_loss: input": lambda npu: npu.npu_cross_entropy_loss(
        CUBE, torch.zeros(2).long()
    ),
    "npu_moe_gating_top_k_softmax: k=9": lambda npu: npu.npu_moe_gating_top_k_softmax(ROW, k=9),
    "npu_transpose_batchmatmul: both": lambda npu: npu.npu_transpose_batchmatmul(ROW, ROW),
}


@pytest.mark.parametrize("message", REFUSED)
def test_shapes_that_an_operator_does_not_take_are_refused(npu: Any, message: str) -> None:
    with pytest.raises(ShapeRefusedError, match=message):
        REFUSED[message](npu)


@pytest.mark.parametrize(
    "call",
    [
        lambda npu: npu.npu_swiglu(ROW.long()),
        lambda npu: npu.npu_add_rms_norm(ROW, ROW.half(), ROW[0]),
        lambda npu: npu.npu_rotary_mul(CUBE, CUBE, CUBE, rotary_mode="quarter"),
        lambda npu: npu.npu_scaled_masked_softmax(LARGE, LARGE),
        lambda npu: npu.npu_fusion_attention(*[CUBE] * 3, 3, "BHSD"),
        lambda npu: npu.npu_fusion_attention(*[CUBE] * 3, 3, "BNSD", keep_prob=0.0),
        lambda npu: npu.npu_fusion_attention(CUBE, CUBE.half(), CUBE, 3, "BNSD"),
        lambda npu: npu.npu_fusion_attention(*[CUBE] * 3, 3, "BNSD", atten_mask=CUBE[0, 0]),
        lambda npu: npu.npu_geglu(ROW, approximate="tanh"),
        lambda npu: npu.npu_group_norm_silu(ROW, ROW[0].half(), ROW[0].half(), 2),
    ],
)
def test_other_arguments_that_are_wrong_are_errors(npu: Any, call: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError) as raised:
        call(npu)
    assert not isinstance(raised.value, ShapeRefusedError)


def test_what_is_not_modelled_says_so(npu: Any) -> None:
    with pytest.raises(NoReferenceKernelError):
        npu.npu_fusion_attention(CUBE, CUBE, CUBE, 3, "BNSD", actual_seq_qlen=[1])
    with pytest.raises(NoReferenceKernelError):
        npu.npu_cross_entropy_loss(ROW, torch.zeros(2).long(), return_zloss=True)


def test_a_fully_masked_row_of_the_softmax_is_uniform(npu: Any) -> None:
    found = npu.npu_scaled_masked_softmax(torch.randn(1, 1, 32, 32), LARGE[:, :1].bool())
    assert torch.equal(found, torch.full((1, 1, 32, 32), 1 / 32))


def test_a_fully_masked_row_of_attention_is_zero(npu: Any) -> None:
    mask = torch.zeros(4, 4).bool()
    mask[1] = True
    q = torch.randn(2, 3, 4, 8, requires_grad=True)
    found = npu.npu_fusion_attention(q, q, q, 3, "BNSD", atten_mask=mask)[0]
    assert not found[:, :, 1].any()
    assert found[:, :, 0].all()
    (gradient,) = torch.autograd.grad(found.sum(), q)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("mode", "shift"), [(2, 0), (3, 2)])
def test_causal_modes_differ_where_keys_outnumber_queries(npu: Any, mode: int, shift: int) -> None:
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 5, 8)
    compressed = torch.ones(2048, 2048).triu(1).bool()
    found = npu.npu_fusion_attention(
        q, k, k, 1, "BNSD", atten_mask=compressed, sparse_mode=mode, scale=0.2
    )[0]
    assert torch.allclose(
        found, attention(q, k, torch.ones(3, 5).triu(1 + shift).bool(), 0.2), atol=1e-6
    )


def test_without_a_mask_no_mode_masks(npu: Any) -> None:
    q = torch.randn(1, 2, 3, 8)
    found = npu.npu_fusion_attention(q, q, q, 2, "BNSD", sparse_mode=2, next_tockens=0)
    assert torch.allclose(found[0], attention(q, q), atol=1e-6)
    assert [type(value) for value in found] == [torch.Tensor] * 4 + [int] * 3
    assert found[1].shape == found[2].shape == (1, 2, 3, 8)


def test_dropout_of_attention_is_drawn_once_for_both_passes(npu: Any) -> None:
    q, v = torch.randn(1, 1, 16, 8), torch.randn(1, 1, 16, 8, requires_grad=True)
    eye = torch.eye(16).expand(1, 1, 16, 16)[..., :8].contiguous() * 0
    found = npu.npu_fusion_attention(eye, q, v, 1, "BNSD", keep_prob=0.5)[0]
    after = torch.rand(1)
    upstream = torch.randn(1, 1, 16, 8)
    (gradient,) = torch.autograd.grad(found, v, upstream)
    # The result is linear in the values, so <result, upstream> is <values, gradient>.
    assert torch.allclose((found * upstream).sum(), (v * gradient).sum(), atol=1e-5)
    assert not torch.allclose(found, v.mean(2, keepdim=True).expand_as(found), atol=1e-3)
    assert torch.rand(1) != after


def test_mixed_precision_of_rope_takes_the_dtype_of_the_input(npu: Any) -> None:
    x, cos, sin = CUBE.bfloat16(), torch.rand(2, 1, 4, 8), torch.rand(2, 1, 4, 8)
    found = npu.npu_rotary_mul(x, cos, sin)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, npu.npu_rotary_mul(x, cos.bfloat16(), sin.bfloat16()))


def test_old_versions_have_old_schemas() -> None:
    with pytest.raises(RuntimeError, match="at most 3"):
        npu_operators.install("2.4.0").npu_rotary_mul(CUBE, CUBE, CUBE, rotary_mode="half")
    assert npu_operators.install("2.4.0").npu_rotary_mul(CUBE, CUBE, CUBE).shape == CUBE.shape
    with pytest.raises(AttributeError, match="npu_gelu_mul"):
        npu_operators.install("2.4.0").npu_gelu_mul(ROW)
