"""Joins the parts into commands: a dump and a source in, findings, patches and verdicts out.

Each room uses only those before it: ``console``, ``project``, ``roofline``, ``evidence``,
``predict``,
``redact``, ``cluster``, ``diagnose``, ``patch``, ``gate``, ``verify``, ``compare``, ``runtime``,
``commands``.
Start with ``commands.diagnose`` and follow it down. What a program calls is here:
``from npufix.advisor import apply_fused_kernels``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.advisor.runtime.api import apply_fused_kernels, fused_kernels

__all__ = ["apply_fused_kernels", "fused_kernels"]


def __getattr__(name: str) -> object:
    """Load what a program asks for when it asks."""
    if name in __all__:
        from npufix.advisor.runtime import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
