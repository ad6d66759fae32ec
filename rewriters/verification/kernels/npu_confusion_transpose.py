"""``npu_confusion_transpose``: a permutation and a reshape in one copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def forward(
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    perm: Sequence[int],
    shape: Sequence[int],
    transpose_first: bool,  # noqa: FBT001 - the operator's schema
) -> Tensor:
    """Return a new, contiguous tensor."""
    if transpose_first:
        return input.permute(*perm).reshape(*shape).clone().contiguous()
    return input.reshape(*shape).permute(*perm).clone().contiguous()
