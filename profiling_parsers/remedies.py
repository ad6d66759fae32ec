"""What a user does about a dump that is missing something, in the words of the profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROFILE_WITH_STACKS = (
    "profile again with `torch_npu.profiler.profile(..., with_stack=True, record_shapes=True)`"
)

PROFILE_HOST = (
    "profile again with `activities=[torch_npu.profiler.ProfilerActivity.CPU, "
    "torch_npu.profiler.ProfilerActivity.NPU]`"
)
NO_LINES = (
    "msprof records no operators of PyTorch, so no kernel is led to a line",
    "profile with `torch_npu.profiler.profile(..., with_stack=True, record_shapes=True)` instead",
)
"""What msprof leaves out, and what to do about it."""


def analyse(dump: Path, arguments: str = "") -> str:
    """Say how the raw data of a dump is turned into files that can be read."""
    call = f'from torch_npu.profiler.profiler import analyse; analyse("{dump}"{arguments})'
    return f"run `{call}` where torch_npu is installed"


def export(path: Path) -> str:
    """Say how the raw data of msprof is turned into files that can be read."""
    return f"run `msprof --export=on --output={path}` where CANN is installed"


def export_text(dump: Path) -> str:
    """Say how a dump that was exported as a database gets the text files."""
    again = analyse(dump, ', export_type=["text"]')
    return (
        f"export text: {again}, or profile with "
        "export_type=[torch_npu.profiler.ExportType.Text] in _ExperimentalConfig"
    )
