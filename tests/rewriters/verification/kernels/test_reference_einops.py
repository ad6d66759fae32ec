"""The stand-in for einops: what each pattern says, and what fits none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.reference import einops_functions  # noqa: E402 - needs torch

PACKAGE = einops_functions.modules()["einops"]
X = torch.arange(2 * 6 * 4.0).view(2, 6, 4)


@pytest.mark.parametrize(
    ("pattern", "sizes", "expected"),
    [
        ("b n c -> b c n", {}, X.mT),
        ("b (h w) c -> b c h w", {"h": 2}, X.view(2, 2, 3, 4).permute(0, 3, 1, 2)),
        ("b n (h d) -> (b h) n d", {"d": 2}, X.view(2, 6, 2, 2).transpose(1, 2).reshape(4, 6, 2)),
        ("... c -> c ...", {}, X.permute(2, 0, 1)),
        ("b ... -> b (...)", {}, X.flatten(1)),
        ("b n c -> b () n 1 c", {}, X[:, None, :, None]),
    ],
)
def test_rearrange(pattern: str, sizes: dict[str, int], expected: object) -> None:
    torch.testing.assert_close(PACKAGE.rearrange(X, pattern, **sizes), expected)
    layer = einops_functions.Rearrange(pattern, **sizes)
    torch.testing.assert_close(layer(X), expected)


def test_reduce_repeat_and_einsum() -> None:
    same = torch.testing.assert_close
    same(PACKAGE.reduce(X, "b (n two) c -> b n c", "max", two=2), X.view(2, 3, 2, 4).amax(2))
    same(PACKAGE.reduce(X, "b n c -> b 1 1", "mean"), X.mean((1, 2), keepdim=True))
    same(PACKAGE.reduce(X, "b n c -> c", "prod"), X.prod(0).prod(0))
    same(PACKAGE.repeat(X, "b n c -> (b r) n c", r=3), X.repeat_interleave(3, 0))
    same(PACKAGE.repeat(X[:, :1], "b () c -> b n c", n=5), X[:, :1].expand(2, 5, 4))
    same(PACKAGE.einsum(X, X, "batch i d, batch j d -> batch i j"), X @ X.mT)
    same(PACKAGE.rearrange([X[0], X[1]], "b n c -> n b c"), X.transpose(0, 1))


def test_packed_is_unpacked() -> None:
    packed, shapes = PACKAGE.pack([X.view(2, 2, 3, 4), X[:, 0]], "b * c")
    assert packed.shape == (2, 7, 4)
    first, second = PACKAGE.unpack(packed, shapes, "b * c")
    torch.testing.assert_close(first, X.view(2, 2, 3, 4))
    torch.testing.assert_close(second, X[:, 0])
    assert PACKAGE.parse_shape(X, "b _ width") == {"b": 2, "width": 4}


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        ("b n -> n b", {}),
        ("b n c -> b n", {}),
        ("b n c -> b n c d", {"d": 2}),
        ("b (h w) c -> b h w c", {}),
        ("b (h w) c -> b h w c", {"h": 4}),
        ("b b c -> b c", {}),
        ("b n c -> b n c", {"d": 2}),
        ("b (n c -> b n c", {}),
        ("b n c", {}),
    ],
)
def test_what_does_not_fit_is_refused(pattern: str, sizes: dict[str, int]) -> None:
    with pytest.raises(einops_functions.EinopsError):
        PACKAGE.rearrange(X, pattern, **sizes)
