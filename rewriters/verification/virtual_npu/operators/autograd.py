"""Gradients below autograd."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

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
