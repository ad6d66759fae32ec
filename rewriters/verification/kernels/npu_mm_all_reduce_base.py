"""``npu_mm_all_reduce_base``: needs the ranks of a group, of which one process has one."""

from __future__ import annotations

from npufix.rewriters.verification.kernels.common import NoReferenceKernelError


def forward(*_arguments: object) -> object:
    """Refuse: the sum over the group is not to be had here."""
    raise NoReferenceKernelError(
        "there is no reference kernel for npu_mm_all_reduce_base: it adds up the results of "
        "several processes, and this is one"
    )
