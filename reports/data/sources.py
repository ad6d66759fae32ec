"""Where the files of findings are: what servers link to is relative to the repository."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from urllib.parse import quote

_SCRIPTS = ("train.py", "main.py", "run.py", "pretrain.py", "finetune.py")
_CONFIGURATIONS = ("npufix.toml", "pyproject.toml")


@dataclass(frozen=True)
class Sources:
    """The folder that the paths of findings are relative to; ``None`` where none was given."""

    root: Path | None = None

    @cached_property
    def repository(self) -> Path:
        """Return the folder that servers show: that with ``.git``, else the current one."""
        start = (self.root or Path()).resolve()
        for folder in (start, *start.parents):
            if (folder / ".git").exists():
                return folder
        here = Path.cwd()
        return here if start.is_relative_to(here) else start

    def relative(self, path: str) -> str:
        """Return the path of a finding from the repository on, "" if it is not in there."""
        if not path:
            return ""
        whole = Path(os.path.normpath((self.root or Path()).resolve() / path))
        if not whole.is_relative_to(self.repository) or not _is_here(whole):
            return ""
        return whole.relative_to(self.repository).as_posix()

    def uri(self, path: str) -> str:
        """Return a relative path of the repository as a URI reference."""
        return quote(os.fsencode(path), safe="/-._~!$&'()*+,;=@")

    def lines(self, path: str) -> tuple[str, ...]:
        """Return the lines of a file of the repository with their ends; empty if unreadable."""
        return _lines(self.repository / path) if path else ()

    @cached_property
    def fallback(self) -> str:
        """Return a file that stands for the run as a whole, "" if there is none.

        The configuration, else the script that starts the program: a server that links every
        finding to a line refuses those that have none.
        """
        if self.root is None:
            return ""
        start = self.root.resolve()
        above = [f for f in (start, *start.parents) if f.is_relative_to(self.repository)]
        wanted = [f / name for f in above for name in _CONFIGURATIONS]
        wanted += [f / name for f in above for name in _SCRIPTS]
        found = next((path for path in wanted if path.is_file()), None)
        return "" if found is None else found.relative_to(self.repository).as_posix()


def utf16(text: str) -> int:
    """Return the length of a text in UTF-16 code units, as SARIF and editors count columns."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


@lru_cache(maxsize=4096)
def _is_here(path: Path) -> bool:
    return path.is_file()


@lru_cache(maxsize=64)
def _lines(path: Path) -> tuple[str, ...]:
    import tokenize

    try:
        data = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)
        text = data.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError):
        return ()
    parts = text.split("\n")
    return (*(f"{part}\n" for part in parts[:-1]), *parts[-1:])
