"""``if mask.any():`` in front of a copy goes where nobody can tell the copy from the tensor."""

from __future__ import annotations

import pytest
from searching import found


@pytest.mark.parametrize(
    ("made", "known"),
    [
        ("scores = q * 2", True),
        ("scores = q * 2; n = scores.size(0)", True),
        ("scores = q", False),
        ("scores = q.view(-1, 4)", False),
        ("scores = kept = q * 2", False),
        ("scores = q * 2; outs.append(scores)", False),
        ("scores = q * 2; self.kept = scores", False),
        ("scores = q * 2; scores += 1", False),
    ],
)
def test_a_copy_is_as_good_where_one_name_holds_what_is_new(made: str, *, known: bool) -> None:
    text = f"""
        class Net(nn.Module):
            def forward(self, q: torch.Tensor, pad: torch.Tensor, outs):
                {made}
                if pad.any():
                    scores = scores.masked_fill(pad.unsqueeze(1), 0.0)
                return scores
    """
    (site,) = found(text, "NPU217")
    open_at = {proof.condition.name for proof in site.proofs if proof.basis == "open"}
    assert ("may-be-copied" not in open_at) is known


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("y[mask] = 0.0", True),
        ("y[mask] = x[mask]", True),
        # the test is one wait of four, and saves the others
        ("y[mask] -= cost[mask] * x[mask]", False),
    ],
)
def test_a_test_before_many_selections_stays(body: str, *, written: bool) -> None:
    text = f"""
        class Loss(nn.Module):
            def forward(self, x: torch.Tensor, cost: torch.Tensor, mask: torch.Tensor):
                y = torch.zeros_like(x)
                if mask.any():
                    {body}
                return y
    """
    (site,) = found(text, "NPU217")
    assert (site.rewrite is not None) is written
