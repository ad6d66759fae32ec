"""The events of a trace file, in lists of a few thousand, in bounded memory.

The file is read in chunks. A chunk is cut at what looks like the border of two events and is
decoded whole: if it is a valid JSON array then the border was real, because a chunk starts at an
event and a cut inside a string or a nested array leaves something open. Otherwise the chunk is
scanned token by token for the events that end in it.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES = 2 << 20
_LARGEST_EVENT = 16 << 20
"""An "event" longer than this is damage, such as a quote that is never closed."""

_OPENING = re.compile(rb"(?:\s*\xef\xbb\xbf)?\s*(?:\[|\{.*?\"traceEvents\"\s*:\s*\[)", re.DOTALL)
_BORDERS = (b'}, {"', b'},{"', b'},\n{"', b"},\n  {\n")  # the last is Kineto's
# A string ends at its quote or, cut off, at the end of the data, never in between.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)|[\[\]{}]', re.DOTALL)


class Event(msgspec.Struct, gc=False):
    """A trace event; anything may stand anywhere in the file, so nothing is typed.

    A float is the text that stands in the file.
    """

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


# A float keeps the digits that stand there: an epoch time in microseconds has too many for it.
_EVENT = msgspec.json.Decoder(Event, float_hook=str)
_EVENTS = msgspec.json.Decoder(list[Event], float_hook=str)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class EventStream:
    """Iterate over the lists of events of a trace; then ``cut`` and ``malformed`` tell the loss.

    ``cut`` is the byte (of the unpacked text) at which a trace stops being readable, ``None`` for
    a complete trace.
    ``malformed`` counts the events left out before. ``text`` is the last list as it stands in the
    file, events with commas between them.
    """

    def __init__(self, file: IO[bytes], chunk_bytes: int = _CHUNK_BYTES) -> None:
        self.cut: int | None = None
        self.malformed = 0
        self.text = b""
        self._file = file
        self._chunk_bytes = chunk_bytes

    def __iter__(self) -> Iterator[list[Event]]:
        buffer, closed, at_end = b"", False, False
        opened = in_object = False
        while not (closed or at_end or len(buffer) > _LARGEST_EVENT):
            chunk = self._file.read(self._chunk_bytes)
            at_end = not chunk
            buffer += chunk
            if not opened and (opening := _OPENING.match(buffer)) is not None:
                opened, buffer = True, buffer[opening.end() :]
                in_object = b"{" in opening.group()
            if opened:
                events, used, closed = self._decode(buffer, at_end=at_end)
                yield events
                buffer = buffer[used:] if closed else buffer[used:].lstrip(b", \r\n\t")
        if not closed or self._goes_on(buffer, in_object=in_object):
            self.cut = self._file.tell() - len(buffer)

    def _goes_on(self, rest: bytes, *, in_object: bool) -> bool:
        """Tell whether there is more behind the end of the events: a bracket in what is damaged.

        Behind the events of Kineto come other keys, or the end of the object.
        """
        follows = (rest + self._file.read(self._chunk_bytes)).lstrip()[:1]
        return bool(follows) and not (in_object and follows in b",}")

    def _decode(self, buffer: bytes, *, at_end: bool) -> tuple[list[Event], int, bool]:
        """Return the events of ``buffer``, the bytes they took, and whether the array ended."""
        text = buffer.rstrip() if at_end else buffer[: _last_border(buffer)]
        is_whole = text.endswith(b"]") if at_end else bool(text)
        if not is_whole:
            return self._decode_scanned(buffer)
        try:
            events = _EVENTS.decode(b"[" + text + (b"" if at_end else b"]"))
        except _UNDECODABLE:
            return self._decode_scanned(buffer)
        self.text = text[:-1] if at_end else text
        return events, len(text), at_end

    def _decode_scanned(self, buffer: bytes) -> tuple[list[Event], int, bool]:
        events: list[Event] = []
        texts: list[bytes] = []
        used, closed = 0, False
        for start, end in _objects(buffer):
            if start < 0:
                used, closed = end, True
                break
            try:
                events.append(_EVENT.decode(buffer[start:end]))
                texts.append(buffer[start:end])
            except _UNDECODABLE:
                self.malformed += 1
            used = end
        self.text = b",".join(texts)
        return events, used, closed


def _last_border(buffer: bytes) -> int:
    """Return the end of the last object that seems to be followed by another, 0 if none does."""
    return next((at for at in map(buffer.rfind, _BORDERS) if at >= 0), -1) + 1


def _objects(buffer: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each complete object of an open array, then -1 and where it ends."""
    depth = start = 0
    for token in _TOKEN.finditer(buffer):
        bracket = buffer[token.start()]
        if bracket in b"{[":
            start = start if depth else token.start()
            depth += 1
        elif bracket in b"}]":
            depth -= 1
            if depth < 0:
                yield -1, token.end()
                return
            if depth == 0:
                yield start, token.end()
