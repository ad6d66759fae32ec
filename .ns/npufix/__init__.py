"""Where the device time of a PyTorch program on an Ascend NPU goes, in a program or a notebook.

    run = npufix.load("run1_ascend_pt", source="src")
    run.operators, run.lines, run.findings          # tables of pandas
    run.compare(npufix.load("run2_ascend_pt"))
    npufix.scan("src").findings                     # without a dump
    assert npufix.verify(old_norm, new_norm)        # of functions

In an installation this file lies beside the packages. In a checkout they are links, and what is
imported through them has the names of the real files, as sandboxes and caches go by these.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.advisor.api.recording import Recording, load
    from npufix.advisor.api.searching import Scanned, scan
    from npufix.advisor.api.verifying import Verified, verify
    from npufix.advisor.runtime.api import apply_fused_kernels, fused_kernels

    __version__: str

__all__ = [
    "Recording",
    "Scanned",
    "Verified",
    "__version__",
    "apply_fused_kernels",
    "fused_kernels",
    "load",
    "scan",
    "verify",
]

_HOMES = {
    "npufix.advisor.api.recording": ("Recording", "load"),
    "npufix.advisor.api.searching": ("Scanned", "scan"),
    "npufix.advisor.api.verifying": ("Verified", "verify"),
    "npufix.advisor.runtime.api": ("apply_fused_kernels", "fused_kernels"),
}
_REAL = os.path.dirname(os.path.realpath(os.path.join(__path__[0], "advisor")))  # noqa: PTH118, PTH120 - pathlib takes longer to load than all of this
__path__ = list(dict.fromkeys((_REAL, *__path__)))


def __getattr__(name: str) -> object:
    """Load what a program asks for when it asks: ``import npufix`` takes no time."""
    if name == "__version__":
        return import_module("importlib.metadata").version("npufix")
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Return what there is, for completion."""
    return sorted(__all__)
