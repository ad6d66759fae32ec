"""Kernels that torch_npu launches outside of operators, on memory as CANN describes it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.virtual_npu.direct_launches import (  # noqa: E402 - needs torch
    _DTYPES,
    _KERNELS,
    compute_kernel,
)
from npufix.rewriters.verification.virtual_npu.recorder import Recorder  # noqa: E402
from npufix.rewriters.verification.virtual_npu.runtime import HostRuntime  # noqa: E402
from npufix.rewriters.verification.virtual_npu.wheel.entry_points import DIRECT, DeviceTensor  # noqa: E402

_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def described(tensor: torch.Tensor) -> DeviceTensor:
    return DeviceTensor(
        tuple(tensor.shape),
        _CODES[tensor.dtype],
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().data_ptr(),
    )


def test_every_kernel_that_may_be_prepared_is_computed() -> None:
    assert DIRECT.keys() == _KERNELS.keys()
    assert all(kinds.endswith("t") for kinds in DIRECT.values())


def test_strides_and_offset_are_followed() -> None:
    x = torch.arange(40.0).reshape(5, 8)[1:, ::2].t()
    result = torch.zeros(4, 4)
    compute_kernel("aclnnTriu", [described(x), 1, described(result)])
    assert torch.equal(result, x.triu(1))


def test_a_mask_of_nothing_is_fine() -> None:
    empty = torch.zeros(0, 3, dtype=torch.bool)
    compute_kernel("aclnnLogicalNot", [described(empty), described(empty)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_looked_up_twice_get_both_gradients(dtype: torch.dtype) -> None:
    gradient = torch.ones(2, 3, 4, dtype=dtype)
    words = torch.tensor([[1, 1, 2], [0, 2, 1]])
    result = torch.full((5, 4), 9.0, dtype=dtype)
    compute_kernel(
        "aclnnEmbeddingDenseBackward",
        [described(gradient), described(words), 5, 2, False, described(result)],
    )
    assert result[:, 0].tolist() == [1, 3, 0, 0, 0]


def test_a_launch_that_nothing_computes_is_refused() -> None:
    recorder = Recorder()
    runtime = HostRuntime("Ascend910B2", recorder)
    assert runtime._launch("aclnnMul") != 0
    assert "aclnnMul was launched outside of an operator" in recorder.message
    unknown = DeviceTensor((2, 2), 99, (2, 1), 0, 0)
    runtime._tensors |= {1: unknown, 2: unknown}
    runtime._prepare("aclnnTriu", 1, 0, 2)
    assert runtime._launch("aclnnTriu") != 0
    assert "no reference kernel for this" in recorder.message
    assert recorder.launches == []
