"""The other files of a change, in the version that belongs to the code that is loaded."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _Text(SourceLoader):
    """Imports a text as if it were the file."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002 - the interface of a loader
        return self._path

    def get_data(self, path: str | bytes) -> bytes:  # noqa: ARG002 - same
        return self._text.encode()


class _Finder(MetaPathFinder):
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - the interface of a finder
    ) -> ModuleSpec | None:
        last = fullname.rpartition(".")[2]
        for folder in sys.path if path is None else path:
            for name in (f"{last}.py", f"{last}/__init__.py"):
                file = str(Path(folder, name))
                if file in self._texts:
                    loader = _Text(file, self._texts[file])
                    inside = [str(Path(file).parent)] if name.endswith("__init__.py") else None
                    return spec_from_file_location(
                        fullname, file, loader=loader, submodule_search_locations=inside
                    )
        return None


@contextmanager
def overlaid(texts: Mapping[str, str], folders: Sequence[Path]) -> Iterator[None]:
    """Import these texts in place of the files, in the block; ``folders`` hold the user's code.

    What was imported from the folders is forgotten before and after, so that no module keeps
    another version than the block's.
    """
    if not texts:
        yield
        return
    finder = _Finder(texts)
    _forget(folders)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget(folders)


def _forget(folders: Sequence[Path]) -> None:
    inside = tuple(f"{folder.resolve()}/" for folder in folders)
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None) or "")
        if file.startswith(inside) and "-packages" not in file and not name.startswith("npufix"):
            del sys.modules[name]
