"""The other files of a change, in the version that belongs to the code that runs."""

from __future__ import annotations

import inspect
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


class TextLoader(SourceLoader):
    """Imports a text as if it were the file."""

    def __init__(self, path: str, text: str) -> None:
        """Take the text that stands for a file."""
        self._path = path
        self._text = text

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002 - the interface of a loader
        """Return the path of the file."""
        return self._path

    def get_data(self, path: str | bytes) -> bytes:  # noqa: ARG002 - same
        """Return the text."""
        return self._text.encode()


class TextFinder(MetaPathFinder):
    """Finds texts where files of these paths would be found."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Take the texts by path."""
        self.texts = texts

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - the interface of a finder
    ) -> ModuleSpec | None:
        """Return the module of that name if it is one of the texts."""
        last = fullname.rpartition(".")[2]
        for folder in sys.path if path is None else path:
            for name in (f"{last}.py", f"{last}/__init__.py"):
                file = str(Path(folder, name))
                if file in self.texts:
                    loader = TextLoader(file, self.texts[file])
                    inside = [str(Path(file).parent)] if name.endswith("__init__.py") else None
                    return spec_from_file_location(
                        fullname, file, loader=loader, submodule_search_locations=inside
                    )
        return None


class World:
    """The user's modules in one version: texts in place of files, and what they imported."""

    def __init__(self, texts: Mapping[str, str], folders: Sequence[str]) -> None:
        """Take the texts by path, and the folders that hold the user's code."""
        self._finder = TextFinder(texts)
        self._folders = tuple(f"{Path(folder).resolve()}/" for folder in folders)
        self._modules: dict[str, ModuleType] = {}
        self._others: dict[str, ModuleType] = {}
        self._depth = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have these modules instead of those of the same folders, in the block."""
        if self._depth or not self._finder.texts:
            yield
            return
        outside = self._take()
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self._finder)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            sys.meta_path.remove(self._finder)
            self._modules = self._take()
            sys.modules.update(outside)

    def _take(self) -> dict[str, ModuleType]:
        """Forget what was imported from the folders, and return it."""
        found = {}
        for name, module in list(sys.modules.items()):
            if self._others.get(name) is module or name.startswith("npufix"):
                continue
            known = getattr(module, "__dict__", {})
            file = str(known.get("__file__") or next(iter(known.get("__path__") or ()), ""))
            if file.startswith(self._folders) and "-packages" not in file:
                found[name] = sys.modules.pop(name)
            else:
                self._others[name] = module
        return found


def find_text(path: Path) -> str | None:
    """Return the text that stands for a file now, if one does."""
    finders = (finder for finder in sys.meta_path if isinstance(finder, TextFinder))
    texts = (finder.texts.get(str(path)) for finder in finders)
    return next((text for text in texts if text is not None), None)


_PROGRAM = '''
from contextlib import contextmanager
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.util import spec_from_file_location
from pathlib import Path

{classes}

# The other files of the change, before and after it.
OTHERS = {{
{others}}}


def in_its_world(text, name):
    """Run one version with its own version of the other files."""
    version = name != "original"
    texts = {{path: texts[version] for path, texts in OTHERS.items() if texts[version] is not None}}
    with World(texts, {folders!r}).entered():
        return run(text, name)
'''


def write_program_part(
    others: Mapping[str, tuple[str | None, str | None]], folders: Sequence[str]
) -> str:
    """Return the part of a counterexample that gives each version its own other files."""
    source = inspect.getsource(sys.modules[__name__])
    classes = source[source.index("class TextLoader") : source.index("def find_text")].rstrip()
    lines = "".join(f"    {path!r}: {texts!r},\n" for path, texts in others.items())
    return _PROGRAM.format(classes=classes, others=lines, folders=tuple(folders))
