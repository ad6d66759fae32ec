"""Files that may be packed with gzip, read up to where they are cut or damaged."""

from __future__ import annotations

import io
import zlib
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

_MAGIC = b"\x1f\x8b"
_WITH_GZIP_HEADER = 31
_BLOCK_BYTES = 1 << 16
_MOST_TIMES, _FREE_BYTES = 300, 1 << 30
"""Traces pack to a tenth or a thirtieth; what unpacks to far more than that never ends."""


class UnpackedFile(io.BufferedReader):
    """The text of a file, packed or not, whatever its name says; ``OSError`` if it cannot be read.

    A packed file ends where it is cut or damaged: what was unpacked before is read, without an
    error, so that the reader of the text sees a text that is cut.
    """

    def __init__(self, path: Path) -> None:
        """Open the file."""
        file = path.open("rb", buffering=0)
        self.packed = file.read(len(_MAGIC)) == _MAGIC
        file.seek(0)
        self._opened = file
        self._text = _Unpacked(file) if self.packed else file
        super().__init__(self._text, _BLOCK_BYTES)

    @property
    def bytes_read(self) -> int:
        """How much of the file, packed as it may be, was read."""
        return self._opened.tell()

    @property
    def damage(self) -> str | None:
        """Why the file ended early, None if it has not."""
        return self._text.damage if isinstance(self._text, _Unpacked) else None


class _Unpacked(io.RawIOBase):
    """The text of a gzip file. ``gzip`` itself loses what it unpacked before an error."""

    def __init__(self, file: IO[bytes]) -> None:
        self.damage: str | None = None
        self._file = file
        self._member = zlib.decompressobj(_WITH_GZIP_HEADER)
        self._packed, self._begun = b"", False
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Buffer) -> int:
        target = memoryview(buffer).cast("B")
        text = self._next(len(target))
        target[: len(text)] = text
        self._position += len(text)
        return len(text)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _next(self, most: int) -> bytes:
        """Return the next bytes of the text, none at its end."""
        if self._position > _FREE_BYTES + _MOST_TIMES * self._file.tell():
            self.damage = f"it unpacks to more than {_MOST_TIMES} times its size"
            return b""
        while True:
            if self._member.eof:  # a file may hold several members, one after the other
                self._packed = self._member.unused_data
                self._member, self._begun = zlib.decompressobj(_WITH_GZIP_HEADER), False
            if not self._begun:  # a file may be filled up with zeros
                self._packed = self._packed.lstrip(b"\0")
            self._packed = self._packed or self._file.read(_BLOCK_BYTES)
            before = self._member.copy()
            try:
                text = self._member.decompress(self._packed, min(most, _BLOCK_BYTES))
            except zlib.error as error:  # takes along what was unpacked in it: ask for less
                self._member, most = before, min(most, _BLOCK_BYTES) // 2
                if not most:
                    self.damage = f"the file cannot be read further ({error})"
                    return b""
                continue
            at_end = not self._packed
            self._begun = self._begun or not at_end
            self._packed = self._member.unconsumed_tail
            if at_end and self._begun and not (text or self._member.eof):
                self.damage = "the gzip file is cut off"
            if text or at_end:
                return text
