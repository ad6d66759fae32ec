"""Random numbers that forward and backward must draw alike."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SPREAD = 0x9E3779B97F4A7C15
_LARGEST = 2**63 - 1


@contextmanager
def drawing_from(state: Sequence[int] | None) -> Iterator[None]:
    """Draw what follows from seed and offset, and leave the host's generator as it was."""
    if state is None:
        yield
        return
    generator = torch.default_generator
    before = generator.get_state()
    seed = 0
    for number in state:
        seed = (seed * _SPREAD + number + 1) & _LARGEST
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
