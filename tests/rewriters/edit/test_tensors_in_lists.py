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


@pytest.mark.parametrize(
    ("body", "count"),
    [
        # what a part of the object is told, or a caller hands in; of tensors nothing is copied
        ("return x * x.new_tensor(self.bbox_coder.sizes)", 1),
        ("w = self.train_cfg.get('w')\n        if w:\n            return x.new_tensor(w)", 1),
        ("return x * x.new_tensor(meta['scale'][:2]) if 'scale' in meta else x", 1),
        ("return x * torch.tensor(meta['scale'], device=x.device)", 1),
        ("return x * torch.as_tensor(meta['scale'], device=x.device)", 0),
        ("if meta['late']:\n            x = x * x.new_tensor(meta['scale'])\n        return x", 0),
        # parts of what lies on the device; what lies on the host meets numbers of the host
        (
            "g = x.new_ones(7, device='npu')\n        g[2:] = torch.tensor([1, 2])\n        x = g",
            1,
        ),
        ("g = torch.ones(7)\n        g[2:] = torch.tensor([1, 2])\n        return g", 0),
        # behind ``else`` of training comes all of inference
        ("if self.training and meta:\n            return x\n        return x", 0),
        (
            "if self.training and meta:\n            x = 1\n        else:"
            " x = torch.as_tensor(0.0).to('cuda')".replace("else:", "else:\n           "),
            1,
        ),
        ("return torch.tensor(range(meta)).long().cuda()", 1),
        ("return x * self.class_weights.to(x.device)", 1),
        ("return x * self.seen.to(x.device)", 0),
    ],
)
def test_what_each_call_copies_is_told(body: str, count: int) -> None:
    text = f"""
class Head(nn.Module):
    def __init__(self, class_weights, seen):
        super().__init__()
        self.bbox_coder, self.train_cfg = build(1), build(2)
        self.class_weights = class_weights
        self.seen = seen

    def loss(self, x: torch.Tensor, meta):
        {body}
"""
    assert len(found(text, "NPU219")) == count


def _run(source: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    known: dict[str, Any] = {}
    exec(f"import torch\n{source}" if "import" not in source else source, known)  # noqa: S102 - code of this test
    made: torch.Tensor = known["step"](x, y, "cpu")
    return made
