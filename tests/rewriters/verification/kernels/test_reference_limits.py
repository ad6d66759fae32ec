"""What the reference kernels refuse, and where they differ from the eager code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    ShapeRefusedError,
    set_chip,
)
from npufix.rewriters.verification.reference import npu_operators

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
    "npu_clipped_swiglu: without group_index": lambda npu: npu.npu_clipped_swiglu(
        ROW, group_index=ROW[0].long()
    ),
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
    "npu_transpose_batchmatmul: K is 24": lambda npu: npu.npu_transpose_batchmatmul(
        torch.ones(1, 2, 24), torch.ones(1, 24, 16)
    ),
    "npu_swiglu: .* no elements": lambda npu: npu.npu_swiglu(ROW[:0]),
    "npu_gelu_mul: the last dimension is above 1024": lambda npu: npu.npu_gelu_mul(
        torch.ones(1, 1026)
    ),
    "npu_rms_norm: input has 1": lambda npu: npu.npu_rms_norm(ROW[0], ROW[0]),
    "npu_rotary_mul: batch times heads is 1000": lambda npu: npu.npu_rotary_mul(
        torch.ones(10, 100, 1001, 2), *[torch.ones(1, 1, 1001, 2)] * 2, rotary_mode="interleave"
    ),
    "npu_interleave_rope: the last": lambda npu: npu.npu_interleave_rope(*[CUBE.half()] * 3),
    "npu_ffn: N1 is 8": lambda npu: npu.npu_ffn(*[torch.ones(8, 8).half()] * 3, "geglu"),
    "npu_fusion_attention: TND wants": lambda npu: npu.npu_fusion_attention(
        *[CUBE[0]] * 3, 4, "TND"
    ),
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
    with pytest.raises(NoReferenceKernelError, match="npu_fusion_attention"):
        npu.npu_fusion_attention(CUBE, CUBE, CUBE, 3, "BNSD", prefix=[1])
    with pytest.raises(NoReferenceKernelError, match="npu_grouped_matmul"):
        npu.npu_grouped_matmul([ROW], [ROW.T], activation_input=[ROW])
    with pytest.raises(NoReferenceKernelError, match="npu_mm_all_reduce_base"):
        npu.npu_mm_all_reduce_base(ROW, ROW.T, "group")


# message: a chip, and a call at the border that it refuses; the A2 takes it
BY_CHIP: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "npu_swiglu: no kernel on 910A": ("910A", lambda npu: npu.npu_swiglu(ROW)),
    "npu_gelu: no kernel for bfloat16 on 310P": ("310P", lambda npu: npu.npu_gelu(ROW.bfloat16())),
    "npu_rms_norm: the last dimension has less than 32 bytes": (
        "310P",
        lambda npu: npu.npu_rms_norm(ROW[:, :7], ROW[0, :7]),
    ),
    "npu_rms_norm: no kernel for input torch.float16 with gamma torch.float32 on 910A": (
        "910A",
        lambda npu: npu.npu_rms_norm(ROW.half(), ROW[0]),
    ),
    "npu_rotary_mul: rotary_mode interleave has no kernel on 310P": (
        "310P",
        lambda npu: npu.npu_rotary_mul(CUBE, *[CUBE[:1, :, :1]] * 2, rotary_mode="interleave"),
    ),
    "npu_fusion_attention: no kernel on 310P": (
        "310P",
        lambda npu: npu.npu_fusion_attention(*[CUBE] * 3, 3, "BNSD"),
    ),
}


@pytest.mark.parametrize("message", BY_CHIP)
def test_a_limit_holds_on_its_chips_only(npu: Any, message: str) -> None:
    chip, call = BY_CHIP[message]
    call(npu)
    set_chip(chip)
    try:
        with pytest.raises(RuntimeError, match=message):
            call(npu)
    finally:
        set_chip("A2")


def test_on_the_310p_32_bytes_are_enough(npu: Any) -> None:
    set_chip("310P")
    try:
        assert npu.npu_rms_norm(ROW, ROW[0])[0].shape == ROW.shape
    finally:
        set_chip("A2")


def test_a_sum_is_rounded_before_the_norm_except_on_the_a5(npu: Any) -> None:
    x, y = torch.full((2, 8), 1.0).bfloat16(), torch.full((2, 8), 2.0**-9).bfloat16()
    gamma = torch.rand(8).bfloat16()
    on_the_a2 = npu.npu_add_rms_norm(x, y, gamma, 0.0)
    set_chip("A5")
    try:
        on_the_a5 = npu.npu_add_rms_norm(x, y, gamma, 0.0)
    finally:
        set_chip("A2")
    assert torch.equal(on_the_a2[2], on_the_a5[2])
    assert torch.equal(on_the_a2[1], torch.ones(2, 1))
    assert (on_the_a5[1] < 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_statistics_have_the_dtype_that_torch_npu_gives_them(npu: Any, dtype: torch.dtype) -> None:
    x, w = torch.randn(2, 6, 5).to(dtype), torch.rand(6).to(dtype)
    silu = npu.npu_group_norm_silu(x, w.float(), w.float(), 3)
    swish = npu.npu_group_norm_swish(x, 3, w, w)
    assert [t.dtype for t in (*silu, *swish)] == [dtype] * 6
    norm = npu.npu_rms_norm(x, torch.rand(5).to(dtype))
    assert [t.dtype for t in norm] == [dtype, torch.float32]


def test_a_negative_ignore_index_ignores_nothing(npu: Any) -> None:
    labels = torch.tensor([1, -100])
    with pytest.raises(RuntimeError, match=r"npu_cross_entropy_loss: a label is outside"):
        npu.npu_cross_entropy_loss(ROW, labels)
    found = npu.npu_cross_entropy_loss(ROW, torch.tensor([1, 7]), ignore_index=7)
    assert torch.allclose(found[0], torch.tensor([8.0]).log())
    assert found[2].numel() == found[3].numel() == 0


@pytest.mark.parametrize(
    "options",
    [{"ignore_index": 7}, {"label_smoothing": 0.1}, {"weight": torch.ones(8)},
     {"label_smoothing": 0.1, "reduction": "none"}],
)  # fmt: skip
def test_options_of_the_loss_that_have_no_gradient(npu: Any, options: dict[str, Any]) -> None:
    x = torch.randn(2, 8, requires_grad=True)
    loss = npu.npu_cross_entropy_loss(x, torch.tensor([1, 2]), **options)[0]
    with pytest.raises(RuntimeError, match="npu_cross_entropy_loss: no gradient"):
        loss.sum().backward()
    npu.npu_cross_entropy_loss(x, torch.tensor([1, 2]))[0].backward()


@pytest.mark.parametrize(("heads", "fits"), [(512, True), (513, False)])
def test_cos_has_a_gradient_up_to_1024_rows(npu: Any, heads: int, fits: bool) -> None:  # noqa: FBT001
    x = torch.randn(2, heads, 600, 2)
    cos = torch.rand(1, 1, 600, 2, requires_grad=True)
    found = npu.npu_rotary_mul(x, cos, cos.detach()).sum()
    if fits:
        found.backward()
    else:
        with pytest.raises(RuntimeError, match="npu_rotary_mul: batch times heads is 1026"):
            found.backward()


def test_rotate_is_the_matrix_of_the_rotation(npu: Any) -> None:
    x, cos, sin = torch.randn(2, 3, 4, 8), torch.rand(1, 1, 4, 8), torch.rand(1, 1, 4, 8)
    eye = torch.eye(4)
    zeros = torch.zeros(4, 4)
    matrix = torch.cat([torch.cat([zeros, eye], 1), torch.cat([-eye, zeros], 1)])
    found = npu.npu_rotary_mul(x, cos, sin, rotate=matrix)
    assert torch.allclose(found, npu.npu_rotary_mul(x, cos, sin), atol=1e-6)


def test_a_band_lies_along_the_last_diagonal(npu: Any) -> None:
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 5, 8)
    found = npu.npu_fusion_attention(
        q, k, k, 1, "BNSD", atten_mask=torch.ones(2048, 2048).triu(1).bool(), sparse_mode=4,
        scale=0.2, pre_tockens=1, next_tockens=0,
    )[0]  # fmt: skip
    kept = torch.ones(3, 5).triu(1).tril(2).bool()
    assert torch.allclose(found, attention(q, k, ~kept, 0.2), atol=1e-6)


def test_dropped_probabilities_may_be_given_as_bits(npu: Any) -> None:
    q, v = torch.zeros(1, 1, 2, 8), torch.eye(8)[None, None]
    bits = torch.zeros(16, dtype=torch.uint8)
    bits[:2] = torch.tensor([0b00001111, 0b10000000])
    found = npu.npu_fusion_attention(q, v, v, 1, "BNSD", keep_prob=0.5, dropout_mask=bits)[0]
    kept = torch.tensor([[1.0] * 4 + [0.0] * 4, [0.0] * 7 + [1.0]])
    assert torch.allclose(found[0, 0], kept / 4)


def test_statistics_of_sequences_come_in_either_order(npu: Any) -> None:
    q = torch.randn(3, 2, 8)
    options = {"actual_seq_qlen": [1, 3], "actual_seq_kvlen": [1, 3]}
    tokens = npu.npu_fusion_attention(q, q, q, 2, "TND", softmax_layout="TND", **options)[1]
    heads = npu.npu_fusion_attention(q, q, q, 2, "TND", **options)[1]
    assert torch.equal(tokens[0], heads[0])
    assert torch.equal(tokens[1:], heads[1:].reshape(2, 2, 8).transpose(0, 1))


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
