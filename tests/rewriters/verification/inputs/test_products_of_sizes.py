"""Functions that take only what is as long as a product of their other arguments."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("torch")

from changed_programs import verdict

from npufix.rewriters.verification.inputs.source.promises import find_cut_shape
from npufix.rewriters.verification.verdict import Status

WINDOWS = """
def windows(x, h: int, w: int, size: int):
    b, n, c = x.shape
    assert n == h * w
    x = x.view(b, h // size, size, w // size, size, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, c)
"""


def test_windows_of_a_picture_are_cut_along_both_axes() -> None:
    found = verdict(WINDOWS, ("permute(0, 1, 3, 2, 4, 5)", "permute(0, 3, 1, 2, 4, 5)"))
    assert found.status is Status.REFUTED, found
    found = verdict(WINDOWS, ("permute(0, 1, 3, 2, 4, 5)", "transpose(2, 3)"))
    assert found.status is Status.EQUIVALENT, found


REVERSE = '''
def window_reverse(windows: torch.Tensor, window: int, h: int, w: int) -> torch.Tensor:
    """windows: (B * windows, window, window, C). Returns (B, H, W, C)."""
    b = int(windows.shape[0] / (h * w / window / window))
    x = windows.view(b, h // window, w // window, window, window, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, -1)
'''


def test_several_windows_lie_in_each_direction_and_not_equally_many() -> None:
    rows = "windows.view(b, h // window, w // window"
    change = rows, "windows.view(b, w // window, h // window"
    assert verdict(REVERSE, change).status == "refuted"
    assert verdict(REVERSE, (rows, rows.replace("view", "reshape"))).status == "equivalent"


DECODER = """
class Up(torch.nn.Module):
    def __init__(self, c: int):
        super().__init__()
        self.up = torch.nn.ConvTranspose2d(c, c, 2, 2)
        self.mix = torch.nn.Conv2d(2 * c, c, 1)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.mix(torch.cat([self.up(x), skip], 1)) * 2
"""
DOUBLED = """
def double(x: torch.Tensor, luma: torch.Tensor) -> torch.Tensor:
    x = x.repeat_interleave(2, dim=-1).repeat_interleave(2, dim=-2)
    return torch.cat([luma, x], dim=-3) * 2
"""


@pytest.mark.parametrize(
    ("text", "old", "right", "wrong"),
    [
        (DECODER, "([self.up(x), skip], 1)) * 2", "([self.up(x), skip], 1)).mul(2)",
         "([skip, self.up(x)], 1)) * 2"),
        (DOUBLED, "dim=-3) * 2", "dim=-3).mul(2)", "dim=-3).relu() * 2"),
    ],
    ids=["decoder", "doubled"],
)  # fmt: skip
def test_a_tensor_is_twice_as_large_where_the_code_refuses_others(
    text: str, old: str, right: str, wrong: str
) -> None:
    assert verdict(text, (old, right)).status is Status.EQUIVALENT
    assert verdict(text, (old, wrong)).status is Status.REFUTED


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        # a square of patches, each of them a square of pixels
        (
            "h = w = int(x.shape[1] ** 0.5); p = self.p; x.view((x.size(0), h, w, p, p, c))",
            ("size_0", "side_1 * side_1", "p * p * c"),
        ),
        (
            "b, n, d = x.shape; s = int(math.sqrt(n)); x.transpose(1, 2).view(b, d, s, s)",
            ("size_0", "side_1 * side_1", "size_2"),
        ),
        ("b, n, d = x.shape; x.view(b, c, e, d)", ("size_0", "c * e", "size_2")),
        # of a square, what the columns are is not known
        (
            "p = self.to.patch[0]; h = w = int(x.shape[1] ** 0.5); x.view(x.shape[0], h, w, p, p)",
            ("size_0", "side_1 * side_1", "columns"),
        ),
        # any number of columns may be cut by this, or another tensor is cut
        ("b, n, d = x.shape; x.view(b, n, c, d // c)", None),
        ("b, n, d = x.shape\n    x = x @ self.w\n    x.view(b, c, e, d)", None),
        # the side of one square alone
        ("b, n, d = x.shape; s = int(n ** 0.5); x.view(b, s, -1)", None),
    ],
)
def test_what_is_cut_into_several_axes_is_a_product(
    code: str, shape: tuple[str, ...] | None
) -> None:
    (function,) = ast.parse(f"def f(self, x, c, e):\n    {code}").body
    assert isinstance(function, ast.FunctionDef)
    assert find_cut_shape(function, "x") == shape


UNPATCH = '''
class Last(torch.nn.Module):
    def __init__(self, width, patch_size, channels):
        super().__init__()
        self.patch_size, self.channels = patch_size, channels
        self.out = torch.nn.Linear(width, patch_size**2 * channels)

    def unpatchify(self, x):
        """
        x: (N, T, patch_size**2 * C)
        imgs: (N, C, H, W)
        """
        c, p = self.channels, self.patch_size
        h = w = int(x.shape[1] ** 0.5)
        assert h * w == x.shape[1]
        x = x.reshape(shape=(x.shape[0], h, w, p, p, c))
        x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(shape=(x.shape[0], c, h * p, w * p))
'''


def test_a_square_of_patches_is_put_together() -> None:
    einsum = 'torch.einsum("nhwpqc->nchpwq", x)'
    assert verdict(UNPATCH, (einsum, "x.permute(0, 5, 1, 3, 2, 4)")).status == "equivalent"
    assert verdict(UNPATCH, (einsum, "x.permute(0, 5, 1, 4, 2, 3)")).status == "refuted"


SIGNALS = '''
class Normed(torch.nn.Module):
    def __init__(self, channels, eps=1e-8):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.rand(1, channels, 1))
        self.eps = eps

    def forward(self, y):
        """y: [M, N, K]"""
        mean = y.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True)
        var = (y - mean).pow(2).mean(dim=1, keepdim=True).mean(dim=2, keepdim=True)
        return self.gain * (y - mean) / torch.pow(var + self.eps, 0.5)
'''


def test_channels_stand_where_the_weight_has_them() -> None:
    # Of small numbers, float16 makes a variance of 0 and a gradient that is NaN.
    written = "return self.gain * (y - mean) / torch.pow(var + self.eps, 0.5)"
    fused = "return F.group_norm(y, {}, self.gain.flatten(), None, self.eps)"
    assert verdict(SIGNALS, (written, fused.format(1))).status == "equivalent"
    assert verdict(SIGNALS, (written, fused.format("y.shape[1]"))).status == "refuted"


PATCHIFY = """
class Pixels(torch.nn.Module):
    def __init__(self, patch_size=4):
        super().__init__()
        self.patch_size = patch_size

    def patchify(self, imgs):
        \"\"\"
        imgs: (N, 3, H, W)
        x: (N, L, patch_size**2 *3)
        \"\"\"
        p = self.patch_size
        assert imgs.shape[2] == imgs.shape[3] and imgs.shape[2] % p == 0
        h = w = imgs.shape[2] // p
        x = imgs.reshape(shape=(imgs.shape[0], 3, h, p, w, p)).permute(0, 2, 4, 3, 5, 1)
        return x.reshape(shape=(imgs.shape[0], h * w, p**2 * 3))
"""


def test_axes_that_are_asked_to_be_equal_and_multiples_are() -> None:
    change = "permute(0, 2, 4, 3, 5, 1)", "movedim(1, -1).transpose(2, 3)"
    assert verdict(PATCHIFY, change).status == "equivalent"
    change = "permute(0, 2, 4, 3, 5, 1)", "permute(0, 2, 4, 5, 3, 1)"
    assert verdict(PATCHIFY, change).status == "refuted"


DROPPED = """
def drop_path(x, drop_prob: float = 0.0, training: bool = False):
    if drop_prob == 0.0 or not training:
        return x
    kept = torch.bernoulli(torch.full_like(x[:, :1], 1 - drop_prob))
    return x * kept / (1 - drop_prob)
"""


def test_what_the_changed_test_asks_first_is_passed_as_well() -> None:
    asked = "drop_prob == 0.0 or not training"
    found = verdict(DROPPED, (asked, "not training or drop_prob == 0.0"))
    assert found.status is Status.EQUIVALENT, found
    found = verdict(DROPPED, (asked, "not training or drop_prob <= 0.1"))
    assert found.status is Status.REFUTED, found


BLOCKS = '''
def means(x, window: int = 4):
    """x (B, T, D) with T a multiple of window: the mean of each window, for each position."""
    b, t, d = x.shape
    x = x.reshape(b, t // window, window, d)
    return x.mean(2, keepdim=True).expand_as(x).reshape(b, t, d)
'''
GROUPS = """
class Spread(torch.nn.Module):
    def __init__(self, group_size: int = 3):
        super().__init__()
        self.group_size = group_size

    def forward(self, x):
        b, d = x.shape
        assert b % self.group_size == 0
        groups = x.view(self.group_size, -1, d)
        return groups.std(0, unbiased=False).mean(-1).repeat(self.group_size)
"""


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        (
            BLOCKS,
            ("x.reshape(b, t // window, window, d)", "x.view(b, window, -1, d).transpose(1, 2)"),
            ("x.reshape(b, t // window, window, d)", "x.reshape(b, -1, window, d)"),
        ),
        (
            GROUPS,
            (".repeat(self.group_size)", ".repeat_interleave(self.group_size)"),
            ("x.view(self.group_size, -1, d)", "x.view(self.group_size, b // self.group_size, d)"),
        ),
    ],
)
def test_there_are_several_parts_of_what_is_cut(
    text: str, wrong: tuple[str, str], right: tuple[str, str]
) -> None:
    found = verdict(text, wrong)
    assert found.status is Status.REFUTED, found
    found = verdict(text, right)
    assert found.status is Status.EQUIVALENT, found


COLOURS = """
def adapt(channels: int, weight):
    weight = weight.float()
    o, i, j, k = weight.shape
    if channels == 1:
        weight = weight.sum(dim=1, keepdim=True)
    elif i == 3:
        weight = weight.repeat(1, channels, 1, 1)[:, :channels] * 3
    return weight
"""


def test_a_size_is_what_a_test_asks_for_by_its_name() -> None:
    found = verdict(COLOURS, ("[:, :channels] * 3", "[:, :channels] * channels"))
    assert found.status is Status.REFUTED, found
    assert "3, " in found.counterexample
