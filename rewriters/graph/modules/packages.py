"""Which package a file belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def package_of(path: Path) -> tuple[str, Path]:
    """Return the dotted package of a file ("" if none) and the folder that holds the package."""
    parts: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").exists() and folder != folder.parent:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder
