"""The user's source files."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import string
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.project.configuration import EVERYTHING, Configuration, find_line_width
from npufix.reports.report import Problem
from npufix.rewriters.edit.statements.programs.files import ENDINGS, may_have_settings
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Answers = tuple[str | None, Mapping[str, bytes]]
    """The digest of a module, and what it answers to each question: see ``asking``."""

_SKIPPED = frozenset(
    {"__pycache__", "build", "dist", "env", "node_modules", "site-packages", "venv"}
)
_MAX_FILE_BYTES = 16 << 20
_MAX_SETTINGS_BYTES = 100_000
_MAX_NEIGHBOUR_BYTES = 2_000_000
_LONGEST_HEAD = 1000
_UTF8 = ("utf-8", "utf-8-sig")
_ASCII = string.printable


class _TooLargeError(Exception):
    """A file that no person has written."""


@lru_cache(maxsize=256)
def _package(folder: Path) -> Path:
    """Return the outermost package that a folder belongs to, itself if it is in none."""
    while (folder / "__init__.py").exists() and (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return folder


@lru_cache(maxsize=4096)
def _home(folder: str) -> tuple[Path, Path]:
    """Return a folder without links in it ("." has no parent), and its outermost package."""
    found = Path(folder).resolve()
    return found, _package(found)


def without_links(path: Path) -> str:
    """Return where a file is, whatever links lead to its folder."""
    return os.path.join(_home(os.path.dirname(path))[0], path.name)  # noqa: PTH118, PTH120 - faster


@lru_cache(maxsize=1 << 16)
def _module_path(place: str, module: str) -> str | None:
    """Return where a module is that a file in a folder imports, if it is in its package."""
    name = module.lstrip(".")
    up = len(module) - len(name)
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    folder, top = _home(place)
    if up:
        for _ in range(up - 1):
            if folder == top:
                return None
            folder = folder.parent
    elif name.partition(".")[0] == top.name and (top / "__init__.py").exists():
        folder = top.parent
    else:
        return None
    return _inside(os.path.join(folder, *name.split(".")) + ".py", top)  # noqa: PTH118 - faster


@lru_cache(maxsize=1 << 16)
def _inside(path: str, top: Path) -> str | None:
    """Return a path if it is below a folder: not so if it leads through a link to elsewhere."""
    return path if os.path.realpath(path).startswith(f"{_home(str(top))[0]}{os.sep}") else None


@lru_cache(maxsize=32)
def _text(path: str, changed: int) -> str:  # noqa: ARG001 - a changed file is another one
    return Path(path).read_text("utf-8")


@lru_cache(maxsize=1 << 16)
def _digest(path: str, changed: int) -> str:  # noqa: ARG001 - same
    data = Path(path).read_bytes()
    data.decode()  # to fail where its text cannot be had either
    return hashlib.sha256(data).hexdigest()


def digest_of(path: str) -> str | None:
    """Return the digest of a neighbour, ``None`` if none can be read there."""
    return _read_small(path, _digest)


def _read_small(path: str, read: Callable[[str, int], str]) -> str | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - faster
        return None if status.st_size > _MAX_NEIGHBOUR_BYTES else read(path, status.st_mtime_ns)
    except (OSError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file: its bytes, and its text as Python reads it, line ends kept.

    Those that start or configure a run count beside Python: scripts of the shell, YAML.
    """

    path: Path
    relative: str
    """Below the source root, with forward slashes."""
    data: bytes
    text: str
    encoding: str

    @property
    def is_python(self) -> bool:
        """Tell whether it is no script of the shell and no YAML."""
        return not self.relative.endswith(ENDINGS)

    @property
    def line_width(self) -> int | None:
        """How long a line may be, as far as the project says so."""
        return find_line_width(self.path.parent.absolute())

    @property
    def sha256(self) -> str:
        """Return the digest of the file as it is on disk."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def _folder(self) -> str:
        return os.path.dirname(self.path)  # noqa: PTH120 - a text is looked up sooner than a path

    def neighbour(self, module: str) -> str | None:
        """Return the text of a module of the same package, if there is one.

        It is called as in an ``import``: ``.configuration_llama``, ``..llama.modeling_llama``,
        ``package.layers``. Nothing outside the outermost package of this file is read.
        """
        return self._of_neighbour(module, _text)

    def neighbour_digest(self, module: str) -> str | None:
        """Return the digest of what ``neighbour`` gives, ``None`` if that is nothing."""
        return self._of_neighbour(module, _digest)

    def ask_neighbour(self, module: str, questions: Iterable[str]) -> Answers:
        """Return the digest of a module, and of its answers to some questions."""
        from npufix.rewriters.graph.modules.asking import answer

        text, digest = self.neighbour(module), self.neighbour_digest(module)
        return digest, {} if text is None else {what: answer(text, what) for what in questions}

    def answers(self, asked: tuple[str, Answers]) -> bool:
        """Tell whether a module would answer today as it has answered before."""
        module, (digest, told) = asked
        now = self.neighbour_digest(module)
        if now == digest or now is None or digest is None:
            return now == digest
        return self.ask_neighbour(module, told)[1] == told

    def _of_neighbour(self, module: str, read: Callable[[str, int], str]) -> str | None:
        path = _module_path(self._folder, module)
        return None if path is None else _read_small(path, read)

    def neighbour_path(self, module: str) -> Path | None:
        """Return where a module is, called as for ``neighbour``; it need not be there."""
        path = _module_path(self._folder, module)
        return None if path is None else Path(path)

    def encode(self, text: str) -> bytes:
        """Return a new text of this file as bytes."""
        return text.encode(self.encoding)


class SourceError(UserError):
    """The source root cannot be read: ``message`` and ``remedy``."""


@dataclass(frozen=True)
class SourceTree:
    """The Python files below a folder (or one file), and what starts and configures them."""

    given: Path
    """What the user named."""
    root: Path
    files: Mapping[str, SourceFile]
    problems: tuple[Problem, ...]
    configuration: Configuration = EVERYTHING
    named: frozenset[Path] = frozenset()
    """Files that were named one by one: who calls what is in them need not be in the tree."""


def read_source_tree(root: Path, configuration: Configuration | None = None) -> SourceTree:
    """Read every Python file below ``root``; hidden folders and environments are left out.

    So is what the configuration excludes, unless it is the one file that was named.

    Raises:
        SourceError: there is nothing to read.

    """
    configuration = configuration or EVERYTHING
    base = root if root.is_dir() else root.parent
    files, problems = _read_below(root, base, configuration, keep=root)
    if not files and not problems:
        raise SourceError(f"no Python file below {root}", "give the folder of your program")
    return SourceTree(root, base, files, tuple(problems), configuration)


def read_source_trees(
    roots: Sequence[Path], configuration: Configuration | None = None, *, exclude_named: bool
) -> SourceTree:
    """Read the Python files of several folders and files, as one tree.

    Their paths are those below the current folder, as the user (or pre-commit) gave them.

    With ``exclude_named`` the configuration also leaves out files that were named, and nothing is
    no error: whoever names the files (pre-commit) does not know it.

    Raises:
        SourceError: there is nothing to read.

    """
    if len(roots) == 1 and not exclude_named:
        return read_source_tree(roots[0], configuration)
    configuration = configuration or EVERYTHING
    common = find_shared_folder(roots)
    base = Path() if common.resolve().is_relative_to(Path.cwd()) else common
    files: dict[str, SourceFile] = {}
    problems: list[Problem] = []
    for root in roots:
        more, wrong = _read_below(root, base, configuration, keep=None if exclude_named else root)
        files |= more
        problems += [problem for problem in wrong if problem not in problems]
    if not files and not problems and not exclude_named:
        raise SourceError("no Python file in there", "give the folders of your program")
    given = roots[0] if len(roots) == 1 else common
    named = frozenset(root for root in roots if not root.is_dir())
    return SourceTree(given, base, files, tuple(problems), configuration, named)


def find_shared_folder(roots: Sequence[Path]) -> Path:
    """Return the folder that files and folders share, as the user would name it."""
    folders = [root if root.is_dir() else root.parent for root in roots]
    if len(set(folders)) == 1:
        return folders[0]
    # Links stay as the user named them.
    common = Path(os.path.commonpath([Path.cwd() / folder for folder in folders]))
    return common.relative_to(Path.cwd()) if common.is_relative_to(Path.cwd()) else common


def _read_below(
    root: Path, base: Path, configuration: Configuration, keep: Path | None
) -> tuple[dict[str, SourceFile], list[Problem]]:
    """Return the files of one folder (or one file) by their path below ``base``."""
    if not root.exists():
        from npufix.profiling_parsers.discover import nearest

        remedy = nearest(root) or "give the folder that holds your Python files"
        raise SourceError(f"no source at {root}", remedy)
    files: dict[str, SourceFile] = {}
    problems: list[Problem] = []
    for path in [root] if root.is_file() else _python_files(root):
        relative = Path(os.path.relpath(path, base)).as_posix()
        if path != keep and configuration.exclude and configuration.excludes(path.resolve()):
            continue
        if relative.endswith(ENDINGS):
            files |= _read_settings(path, relative)
            continue
        try:
            files[relative] = _read(path, relative)
        except _TooLargeError:
            what, remedy = f"larger than {_MAX_FILE_BYTES >> 20} MiB", "add it to exclude"
            problems.append(Problem(relative, what, remedy, damaged=True))
        except OSError as error:
            what, remedy = f"cannot be read: {error.strerror}", "check its permissions"
            problems.append(Problem(relative, what, remedy, damaged=True))
        except (SyntaxError, UnicodeDecodeError, LookupError, ValueError) as error:
            what, remedy = f"cannot be decoded: {error}", "save it as UTF-8"
            problems.append(Problem(relative, what, remedy, damaged=True))
    return files, problems


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            f
            for f in folders
            if not f.startswith(".")
            and f not in _SKIPPED
            and not (Path(folder, f) / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = Path(folder, name)
            # A link to a file is that file twice, and no patch can change a link.
            if name.endswith((".py", *ENDINGS)) and path.is_file() and not path.is_symlink():
                yield path


def _read(path: Path, relative: str) -> SourceFile:
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise _TooLargeError
    data = path.read_bytes()
    encoding = _encoding(data)
    text = data.decode(encoding)
    if encoding not in _UTF8 and not _is_reversible(encoding, data, text):
        raise ValueError(f"a change could not be written in {encoding}")
    return SourceFile(path, relative, data, text, encoding)


def _read_settings(path: Path, relative: str) -> dict[str, SourceFile]:
    """Return a file that is no Python by its name, nothing if it sets nothing or is data."""
    try:
        if path.stat().st_size > _MAX_SETTINGS_BYTES:
            return {}
        data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return (
        {relative: SourceFile(path, relative, data, text, "utf-8")}
        if may_have_settings(text)
        else {}
    )


def _encoding(data: bytes) -> str:
    first, second, *_ = [*data[:_LONGEST_HEAD].split(b"\n", 2), b"", b""]
    marked = data.startswith(codecs.BOM_UTF8) or b"coding" in first or b"coding" in second
    if not marked and data.count(b"\n", 0, _LONGEST_HEAD) > 1:
        return "utf-8"
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]


def _is_reversible(encoding: str, data: bytes, text: str) -> bool:
    """Tell whether what is not changed stays as it is, and what rules write can be written."""
    ascii_only = _ASCII.encode(encoding) == _ASCII.encode("ascii")
    return ascii_only and text.encode(encoding) == data
