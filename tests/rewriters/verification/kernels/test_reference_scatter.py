"""The stand-ins for torch_scatter and what mx_driving has in its place, group by group."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.kernels.common import ShapeRefusedError  # noqa: E402 - needs torch
from npufix.rewriters.verification.reference import scatter_functions  # noqa: E402 - same

PACKAGE = scatter_functions.modules()["torch_scatter"]
GROUPS = {"add": torch.sum, "mean": torch.mean, "max": torch.amax}


@pytest.mark.parametrize("how", GROUPS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_each_group_is_reduced_and_an_empty_one_is_zero(how: str, dim: int) -> None:
    index = torch.tensor([2, 0, 2, 2, 0])
    src = torch.randn(5, 5, 3).movedim(0, dim) if dim != 1 else torch.randn(4, 5, 3)
    src = src if src.shape[dim] == index.numel() else src.transpose(dim, 0)
    found = getattr(PACKAGE, f"scatter_{how}")(src, index, dim=dim)
    values, places = found if how == "max" else (found, None)
    for group in range(3):
        rows = src.index_select(dim, (index == group).nonzero().flatten())
        expected = GROUPS[how](rows, dim=dim) if rows.shape[dim] else torch.zeros(())
        torch.testing.assert_close(
            values.select(dim, group), expected.expand_as(values.select(dim, group))
        )
    if places is not None:
        taken = src.gather(dim, places.clamp(max=index.numel() - 1))
        filled = places < index.numel()
        assert bool(filled.select(dim, 0).all())
        assert not bool(filled.select(dim, 1).any())
        torch.testing.assert_close(taken[filled], values[filled])


def test_borders_are_groups() -> None:
    src, borders = torch.randn(6, 2), torch.tensor([1, 3, 3, 6])
    found = PACKAGE.segment_csr(src, borders, reduce="mean")
    expected = torch.stack([src[1:3].mean(0), torch.zeros(2), src[3:6].mean(0)])
    torch.testing.assert_close(found, expected)


def test_the_operator_of_driving_takes_int32_alone() -> None:
    src, index = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    mine = scatter_functions.DRIVING["scatter_mean"]
    torch.testing.assert_close(
        mine(src, index.int()),  # type: ignore[operator] # a function
        PACKAGE.scatter_mean(src, index, dim=0),
    )
    with pytest.raises(ShapeRefusedError):
        mine(src, index)  # type: ignore[operator] # a function
