"""What was found in all of a source tree, kept for the next time that all of it is as it was."""

from __future__ import annotations

import hashlib
import io
import os
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from npufix.advisor.project.kept.found import Pickler, Unpickler
from npufix.advisor.project.source_tree import SourceFile, digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from npufix.advisor.project.scanning import Search
    from npufix.advisor.project.source_tree import SourceTree

T = TypeVar("T")


class KeptTree:
    """One entry of a ``Search``'s store: for all files of a tree, and what is asked of them."""

    def __init__(self, tree: SourceTree, search: Search, asked: str) -> None:
        self._tree = tree
        self._search = search
        self._asked = asked

    @cached_property
    def _key(self) -> tuple[bytes, ...]:
        tree, settings = self._tree, self._tree.configuration
        chosen = sorted(settings.allow), sorted(settings.select), settings.everywhere
        ignored = sorted((glob, *sorted(names)) for glob, names in settings.per_file_ignores)
        named = str(tree.given), str(tree.root), sorted(map(str, tree.named))
        whole = hashlib.sha256(repr((chosen, ignored, named)).encode("utf-8", "surrogateescape"))
        for name, file in sorted(tree.files.items()):
            text = f"{name}\n{file.line_width}\n{file.sha256}\n"
            whole.update(text.encode("utf-8", "surrogateescape"))
        return b"tree", self._asked.encode(), self._search.asked, whole.digest()

    def get(self, kind: type[T]) -> T | None:
        """Return what was found in this tree, ``None`` where that is not known."""
        store = self._search.store
        data = None if store is None else store.get(*self._key)
        try:
            if data is None:
                return None
            elsewhere, found = _Unpickler(io.BytesIO(data), self._search, self._tree.files).load()
            same = all(digest_of(path) == digest for path, digest in elsewhere.items())
        except Exception:  # noqa: BLE001 - whatever somebody else has put there
            return None
        return found if same and isinstance(found, kind) else None

    def put(self, found: object, unread: AbstractSet[str]) -> None:
        """Keep what was found, if it is known what else that depends on.

        ``unread`` are files that are not valid Python, which depend on nothing.
        """
        elsewhere = self._read_elsewhere(unread)
        if self._search.store is None or elsewhere is None:
            return
        buffer = io.BytesIO()
        _Pickler(buffer, self._search.packer, "").dump((elsewhere, found))
        self._search.store.put(buffer.getvalue(), *self._key)

    def _read_elsewhere(self, unread: AbstractSet[str]) -> dict[str, str | None] | None:
        """Return the digests of the modules that files of the tree have read outside of it."""
        own = {os.path.realpath(file.path) for file in self._tree.files.values()}
        found: dict[str, str | None] = {}
        for name, file in self._tree.files.items():
            read = () if name in unread else self._search.list_read(file)
            if read is None:
                return None
            paths = (str(path) for module in read if (path := file.neighbour_path(module)))
            found |= {path: digest_of(path) for path in paths if path not in own}
        return found


class _Pickler(Pickler):
    def persistent_id(self, obj: object) -> object:
        return obj.relative if isinstance(obj, SourceFile) else super().persistent_id(obj)


class _Unpickler(Unpickler):
    def __init__(self, file: io.BytesIO, search: Search, files: Mapping[str, SourceFile]) -> None:
        super().__init__(file, search.packer, "")
        self._files = files

    def persistent_load(self, pid: object) -> object:
        return self._files[pid] if isinstance(pid, str) else super().persistent_load(pid)
