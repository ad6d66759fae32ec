"""Functions that take only what is as long as a product of their other arguments."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from changed_programs import verdict

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
