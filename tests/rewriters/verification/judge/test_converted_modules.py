"""Buffers that a change adds, which ``half()`` rounds, and sizes that are no powers of two."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.changed_programs import verdict

from npufix.rewriters.verification.verdict import Status

_FRAME = """
class Frame(torch.nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.width = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(self.width)
        return (x.float() * window).to(x.dtype)
"""
_MADE = "        window = torch.hann_window(self.width)\n"
_WIDTH = "        self.width = width\n"
_BUFFER = '        self.register_buffer("window", torch.hann_window(width), persistent=False)\n'
_SLOPES = """
class Bias(torch.nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        at = torch.arange(scores.shape[-1])
        return scores * (at % self.heads == 0)
"""


@pytest.mark.parametrize("made", ["        window = torch.hann_window(self.width)\n", ""])
def test_of_a_new_buffer_that_a_conversion_rounds_it_is_said(made: str) -> None:
    attribute = "" if made else "        self.window = torch.hann_window(width)\n"
    frame = _FRAME if made else _FRAME.replace(_MADE, "").replace("* window", "* self.window")
    used = ((made, ""), ("* window", "* self.window")) if made else ()
    change = (_WIDTH + attribute, _WIDTH + _BUFFER)
    found = verdict(frame.replace(_WIDTH, _WIDTH + attribute), change, *used)
    assert found.status is Status.EQUIVALENT
    assert found.ground.startswith("not for a module converted by .half(), which rounds window")


def test_a_buffer_that_results_round_as_well_is_the_same() -> None:
    frame = _FRAME.replace("(x.float() * window).to(x.dtype)", "x * window.to(x.dtype)")
    change = (_WIDTH, _WIDTH + _BUFFER), (_MADE, ""), ("* window", "* self.window")
    found = verdict(frame, *change)
    assert found.status is Status.EQUIVALENT
    assert "converted" not in found.ground


@pytest.mark.parametrize("config", [False, True])
def test_heads_are_no_power_of_two(*, config: bool) -> None:
    text = _SLOPES
    if config:
        text = text.replace(", heads)", ", config)").replace("= heads", "= config.num_heads")
    found = verdict(text, ("at % self.heads == 0", "at & (self.heads - 1) == 0"))
    assert found.status is Status.REFUTED
