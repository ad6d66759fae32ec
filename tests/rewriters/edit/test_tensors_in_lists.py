"""Tensors that a list makes numbers of, to copy those back, stay where they are."""

from typing import Any

import pytest
import torch
from searching import found

_MADE = "def step(x: torch.Tensor, y: torch.Tensor, device):\n    return {made}\n"


@pytest.mark.parametrize(
    ("made", "new"),
    [
        ("x.new_tensor([y.sum()])", "y.sum().detach().reshape(1).to(x)"),
        (
            "torch.tensor([x.sum(), y.max()], device=device)",
            "torch.stack([x.sum(), y.max()]).detach().to(device)",
        ),
        (
            "torch.tensor([x.sum(), y.max()], dtype=torch.float16, device=device)",
            "torch.stack([x.sum(), y.max()]).detach().to(device, torch.float16)",
        ),
        (
            "torch.as_tensor([x.sum().item(), y.max()], dtype=torch.float64, device=x.device)",
            "torch.stack([x.sum(), y.max()]).detach().to(x.device, torch.float64)",
        ),
        ("torch.tensor([x.sum()]).to(device)", "x.sum().detach().reshape(1).to(device)"),
    ],
)
def test_numbers_of_the_device_are_put_together_there(made: str, new: str) -> None:
    source = _MADE.format(made=made)
    (site,) = found(source, "NPU219")
    assert site.rewrite is not None
    assert new in site.rewrite.direct
    for kinds in ((torch.float32, torch.int64), (torch.bfloat16, torch.float32), (torch.bool,) * 2):
        values = [torch.randint(0, 5, (4,)).to(kind) for kind in kinds]
        old, got = (_run(text, *values) for text in (source, site.rewrite.direct))
        assert (old.dtype, old.shape, got.requires_grad) == (got.dtype, got.shape, False)
        torch.testing.assert_close(got, old)


@pytest.mark.parametrize(
    "made",
    [
        "torch.tensor([x.sum().item(), y.max().item()], device=device)",  # the dtype of Python
        "torch.tensor([x, y.max()], device=device)",
        "torch.tensor([x.sum(), 3], device=device)",
        "torch.tensor([x.sum(), y.max()])",  # which stay on the host
        "torch.tensor(x.sum(), device=device)",  # copied on the device
        "torch.tensor([x.sum(), y.max()], device=device, requires_grad=True)",
        "torch.tensor([x.sum(), y.cpu().sum()], device=device)",
        "torch.tensor([x[:, :1].sum(0), y[:, :1].sum(0)], device=device)",  # of one element each
    ],
)
def test_numbers_that_make_another_tensor_are_read(made: str) -> None:
    assert all(site.rewrite is None for site in found(_MADE.format(made=made), "NPU219"))


@pytest.mark.parametrize(
    "made",
    ["torch.tensor([n.item()], dtype=torch.float32, device=n.device)", "x.new_tensor(n.item())"],
)
def test_what_is_made_shares_no_memory(made: str) -> None:
    source = (
        "def step(x: torch.Tensor, y: torch.Tensor, device):\n"
        f"    n = x.sum()\n    made = {made}\n    made += y.sum()\n    return made - n\n"
    )
    (site,) = found(source, "NPU219")
    assert site.rewrite is not None
    old, got = (_run(t, torch.ones(3), torch.ones(2)) for t in (source, site.rewrite.direct))
    torch.testing.assert_close(got, old)


def _run(source: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    known: dict[str, Any] = {}
    exec(f"import torch\n{source}" if "import" not in source else source, known)  # noqa: S102 - code of this test
    made: torch.Tensor = known["step"](x, y, "cpu")
    return made
