"""Which files of the user a file imports, and those that they import."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<of>[\w.]+)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n]*)"
    r"|import[ \t]+(?P<modules>[^\n]*))",
    re.MULTILINE,
)
_MOST_FILES = 400
_MOST_BYTES = 2_000_000


def leads_to_another(path: Path, texts: Mapping[Path, tuple[str, str]], root: Path) -> bool:
    """Tell whether the imports of a file lead to another one of ``texts``, over any others.

    ``texts`` holds both versions of the files of a change.
    """
    if len(texts) == 1:
        return False
    queue, seen = [path], {path}
    while queue and len(seen) < _MOST_FILES:
        current = queue.pop()
        if current in texts and current != path:
            return True
        for text in texts.get(current, ()) or _read(current):
            new = [p for p in _find_imported(text, current, root, texts) if p not in seen]
            seen.update(new)
            queue += new
    return bool(queue)  # too many to follow


def _read(path: Path) -> tuple[str, ...]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return ()
        return (path.read_text("utf-8", "replace"),)
    except OSError:
        return ()


def _find_imported(
    text: str, path: Path, root: Path, texts: Mapping[Path, tuple[str, str]]
) -> Iterator[Path]:
    """Yield the files that the import statements of a text may mean."""
    for found in _IMPORTS.finditer(text):
        if found["of"] is None:
            modules = [part.split()[0] for part in found["modules"].split(",") if part.split()]
        else:
            names = re.findall(r"(\w+)(?:\s+as\s+\w+)?", found["names"].partition("#")[0])
            dot = "" if found["of"].endswith(".") else "."
            modules = [found["of"], *(f"{found['of']}{dot}{name}" for name in names)]
        for module in modules:
            yield from _files(module, path, root, texts)


def _files(
    module: str, path: Path, root: Path, texts: Mapping[Path, tuple[str, str]]
) -> Iterator[Path]:
    """Yield the files that run when a module is imported."""
    name = module.lstrip(".")
    up = len(module) - len(name)
    parts = [part for part in name.split(".") if part]
    starts = [path.parents[up - 1]] if 0 < up <= len(path.parents) else _starts(path, root)
    for start in starts:
        for count in range(1, len(parts) + 1):
            place = start.joinpath(*parts[:count])
            for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
                if file in texts or file.is_file():
                    yield file


def _starts(path: Path, root: Path) -> list[Path]:
    """Return the folders that absolute imports may start from."""
    inside = [folder for folder in path.parents if folder.is_relative_to(root)]
    return [*inside, *root.parents[:1]] if (root / "__init__.py").exists() else inside
