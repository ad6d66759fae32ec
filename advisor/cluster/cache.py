"""What was read of ranks before, in the user's cache folder: a second look is instant.

An entry is found by the content of the files that it was made of and by the version of the
readers, and carries a checksum: a damaged one is as good as none. That nothing can be kept, in a
home that cannot be written, is no error.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from npufix.profiling_parsers.cluster import fingerprint
from npufix.rewriters.write.user_folders import cache_folder, drop_the_oldest, write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MOST_BYTES = 256 << 20
_THREADS = 8
"""To read many small files of a file system that is far away."""
SUMMARY, DETAIL, CHECK = "summary", "detail", "check"


class RankCache:
    """A folder with a file for each rank; ``enabled`` is whether it is to be used at all."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._folder = cache_folder("ranks") if enabled else None
        self._keys: dict[tuple[Path, str], str] = {}
        self._written = False

    def known(self, dumps: Sequence[Path], kind: str) -> list[bytes | None]:
        """Return what is kept of each dump, ``None`` for what is not."""
        if self._folder is None:
            return [None] * len(dumps)
        if len(dumps) < _THREADS:
            return [self._read(dump, kind) for dump in dumps]
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(lambda dump: self._read(dump, kind), dumps))

    def keep(self, dump: Path, kind: str, data: bytes) -> None:
        """Keep what was read of a dump, unless its files have changed meanwhile."""
        before = self._keys.get((dump, kind))
        if self._folder is None or before is None or self._key(dump, kind) != before:
            return
        with contextlib.suppress(OSError):
            write_whole(self._folder / before, data)
            self._written = True

    def trim(self) -> None:
        """Drop the entries that were written first, if there are too many."""
        if self._folder is None or not self._written:
            return
        with contextlib.suppress(OSError):
            drop_the_oldest(self._folder, _MOST_BYTES)

    def _read(self, dump: Path, kind: str) -> bytes | None:
        key = self._key(dump, kind)
        if key is None or self._folder is None:
            return None
        try:
            return (self._folder / key).read_bytes()
        except OSError:
            return None

    def _key(self, dump: Path, kind: str) -> str | None:
        small = fingerprint.of_small_files(dump) if kind == SUMMARY else None
        found = small or fingerprint.of_everything(dump)
        if found is None:
            return None
        key = f"{found}.{kind}"
        self._keys.setdefault((dump, kind), key)
        return key
