"""What forward and backward share: the random numbers they draw, gradients below autograd."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SPREAD = 0x9E3779B97F4A7C15
_LARGEST = 2**63 - 1


@contextmanager
def draw_from(state: Sequence[int] | None) -> Iterator[None]:
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


_T = TypeVar("_T")


def record_gradients(call: Callable[[], _T]) -> _T:
    """Return what a call returns in which gradients are recorded.

    In a thread of its own: what an operator on its way through torch has switched off is off in
    its thread only.
    """

    def recorded() -> _T:
        with torch.enable_grad():
            return call()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(recorded).result()
