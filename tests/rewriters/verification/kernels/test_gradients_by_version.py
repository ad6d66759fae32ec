"""Gradients that an operator has in some versions of torch_npu only."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.reference import npu_operators  # noqa: E402 - needs torch


@pytest.mark.parametrize(("version", "kept"), [("2.7.1", False), ("2.7.1.post11", True)])
def test_fast_gelu_loses_its_gradient_in_old_wheels(version: str, kept: bool) -> None:  # noqa: FBT001 - a parameter
    module = npu_operators.install(version)
    y = module.npu_fast_gelu(torch.ones(3, requires_grad=True))
    if kept:
        y.sum().backward()
    assert (y.grad_fn is not None and "WarnNotImplemented" not in y.grad_fn.name()) is kept
