"""Packages that the code to verify imports and this machine does not have."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.packages import package_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from npufix.advisor.project.source_tree import SourceFile

_IMPORT = re.compile(r"^(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
"""At the left margin: what is imported under a condition may be absent anywhere."""
_HERE = frozenset({"torch_npu", "mindspeed", "mx_driving", "torch_scatter", "flash_attn", "einops"})
"""What verification brings along."""


def find_absent(files: Iterable[SourceFile], root: Path) -> list[str]:
    """Return the top-level packages that some files import and nobody can, in order of names."""
    own = root if root.is_dir() else root.parent
    absent: set[str] = set()
    for file in files:
        folders = {own, file.path.parent, package_of(file.path)[1]}
        for name in set(_IMPORT.findall(file.text)) - _HERE - sys.stdlib_module_names - absent:
            beside = any((f / name).is_dir() or (f / f"{name}.py").is_file() for f in folders)
            if not beside and not _is_installed(name):
                absent.add(name)
    return sorted(absent)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a package that is half there
        return False
