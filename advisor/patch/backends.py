"""Whether a program runs on NPUs alone, so that its old code need not be kept."""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from npufix.rewriters.edit.imports import imports_torch_npu

if TYPE_CHECKING:
    from npufix.advisor.project.source_tree import SourceTree

_BACKEND = re.compile(r"(^|_)(npu|ascend|dlinfer|310p|cann)(_|\.|$)")


def needs_npu(tree: SourceTree) -> bool:
    """Tell whether the program cannot start without torch_npu: then no fallback is needed.

    What lies below a package in ``backends/ascend`` or ``npu_patch.py`` is one backend of several.
    """
    for file in tree.files.values():
        if "torch_npu" in file.text and not _is_of_backend(file.relative):
            try:
                module = ast.parse(file.text)
            except (SyntaxError, ValueError, RecursionError):
                continue
            if imports_torch_npu(module, unconditionally=True):
                return True
    return False


def _is_of_backend(relative: str) -> bool:
    return any(map(_BACKEND.search, PurePosixPath(relative).parts[1:]))
