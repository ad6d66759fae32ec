"""Which frame of a call stack is the user's own code."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npufix.profiling_parsers.profile import CallSite

# Folders of code that the user did not write.
_LIBRARY_MARKS = ("/site-packages/", "/dist-packages/", "/lib/python", "<")
# Python functions are recorded without the folders of sys.path: these names begin their paths.
_LIBRARIES = frozenset(
    {
        "accelerate", "apex", "deepspeed", "diffusers", "ignite", "lightning", "megatron",
        "mindspeed", "mmcv", "mmengine", "numpy", "peft", "pytorch_lightning", "runpy", "torch",
        "torch_npu", "torchvision", "transformers", "vllm", "vllm_ascend",
    }
)  # fmt: skip


_PACKAGES = ("/site-packages/", "/dist-packages/")
_BELOW_MODELS = frozenset({"torch", "torch_npu", "numpy", "runpy"})
"""Packages that say nothing of what is computed: those that call them do."""


@dataclass(frozen=True, slots=True)
class UserFrame:
    """The innermost frame of the user, and what it called."""

    path: str = ""
    """Below the source, where that holds the file, else as recorded; "" if there is none."""
    line: int = 0
    function: str = ""
    via: str = ""
    """The library function called at that line, ``functional.py:1500 relu``."""


def is_user_code(site: CallSite) -> bool:
    """Tell whether a frame looks like the user's own code, for want of the source."""
    path = site.path.replace("\\", "/")
    if path.startswith("<") or any(mark in path for mark in _LIBRARY_MARKS):
        return False
    if path.startswith("/") or path[1:2] == ":":
        folder, _, name = path.rpartition("/")  # /usr/local/bin/vllm starts what is installed
        return not folder.endswith("/bin") or "." in name
    top = path.split("/")[0].removesuffix(".py")
    return top not in _LIBRARIES and top not in sys.stdlib_module_names


def _is_of_models(site: CallSite) -> bool:
    """Tell whether a frame is of an installed package of models: ``vllm_ascend/qwen2.py``."""
    path = site.path.replace("\\", "/")
    mark = next((mark for mark in _PACKAGES if mark in path), "")
    if path.startswith("<") or (path.startswith("/") and not mark):
        return False
    top = (path.split(mark)[-1] if mark else path).split("/")[0].removesuffix(".py")
    return top not in _BELOW_MODELS and top not in sys.stdlib_module_names


def user_frames(stacks: Sequence[Sequence[CallSite]], mapped: Mapping[str, str]) -> list[UserFrame]:
    """Return the frame of each stack.

    Where a server runs installed models and none is the user's, that of the models counts.
    """
    found = [user_frame(stack, mapped) for stack in stacks]
    if any(frame.path for frame in found):
        return found
    return [user_frame(stack, mapped, _is_of_models) for stack in stacks]


def user_frame(
    stack: Sequence[CallSite],
    mapped: Mapping[str, str],
    is_own: Callable[[CallSite], bool] = is_user_code,
) -> UserFrame:
    """Return the innermost frame in the source (``mapped``: recorded path -> path there).

    Where none is, the innermost that looks like the user's own code counts.
    """
    at = next((i for i, site in enumerate(stack) if site.path in mapped), None)
    if at is None:
        at = next((i for i, site in enumerate(stack) if is_own(site)), None)
    if at is None:
        return UserFrame()
    site = stack[at]
    via = ""
    if at:
        inside = stack[at - 1]
        via = f"{inside.path.replace(chr(92), '/').rsplit('/', 1)[-1]}:{inside.line}"
        via = f"{via} {inside.function}".strip()
    return UserFrame(mapped.get(site.path, site.path), site.line, site.function, via)
