"""The bytes of a Kineto trace, and what tells it from any other JSON file."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING

from npufix.profiling_parsers.trace.unpacked import UnpackedFile

if TYPE_CHECKING:
    from pathlib import Path

_END_BYTES = 1 << 20
"""More than the settings before and after the events take, lists of all ranks included."""
_MOST_AFTER_EVENTS = 64 << 20
_PIECE_BYTES = 1 << 20
_SNIFFED_BYTES = (1 << 16, 1 << 20, 4 << 20)

_OPENS_OBJECT = re.compile(rb"(?:\s*\xef\xbb\xbf)?\s*[\[{]")
_ASCEND = re.compile(
    rb'"(?:Ascend Hardware|CANN|Overlap Analysis|async_npu|async_task_queue|HostToDevice'
    rb'|AI Core Freq|Stars Soc Info|Physic Stream Id)"'
)
_KINETO_EVENT = re.compile(
    rb'"(?:External id|external id|Ev Idx|Record function id|Trace iteration)"\s*:'
    rb'|"cat"\s*:\s*"(?:Operator|Kernel|Runtime|Memcpy|Memset|kernel|cuda_runtime|cuda_driver'
    rb'|gpu_memcpy|gpu_memset|ac2g|mtia_ccp_events|xpu_runtime)"'
)
_KINETO_SETTINGS = re.compile(rb'"(?:schemaVersion|deviceProperties)"\s*:')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:')
_OF_TRACE = re.compile(rb'"(?:traceEvents|ph|schemaVersion|deviceProperties|distributedInfo)"\s*:')
"""What stands at the beginning of any trace: a file without need not be read further."""


class TraceFile:
    """A file that ends where it can no longer be read, and keeps its first and last bytes."""

    def __init__(self, path: Path) -> None:
        self.head = b""
        self.tail = b""
        self._file = UnpackedFile(path)
        self._position = 0
        self._fault: str | None = None

    @property
    def packed(self) -> bool:
        """Whether the file is packed with gzip."""
        return self._file.packed

    @property
    def damage(self) -> str | None:
        """Why the file ended early, None if it has not."""
        return self._fault or self._file.damage

    def close(self) -> None:
        """Close the file; what it kept stays."""
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes of the unpacked text, fewer only at its end."""
        try:
            data = self._file.read(size)
        except OSError as error:
            self._fault = f"the file cannot be read further ({error})"
            return b""
        self._position += len(data)
        if len(self.head) < _END_BYTES:
            self.head += data[: _END_BYTES - len(self.head)]
        self.tail = (self.tail + data)[-_END_BYTES:]
        return data

    def tell(self) -> int:
        """Return the position in the unpacked text."""
        return self._position

    def finish(self) -> None:
        """Read what stands after the events, so that ``tail`` holds it and gzip checks its sum."""
        end = self._position + _MOST_AFTER_EVENTS
        while self._position < end and self.read(_PIECE_BYTES):
            pass


def is_kineto(path: Path) -> bool:
    """Tell a trace of torch.profiler from Ascend's trace_view.json and from any other file.

    Looks at the first 4 MiB at most; a file that cannot be read is none.
    """
    try:
        with closing(TraceFile(path)) as file:
            text = b""
            for size in _SNIFFED_BYTES:
                text += file.read(size - len(text))
                found = _verdict(text)
                if found is not None or len(text) < size:
                    return bool(found)
    except OSError:
        pass
    return False


def _verdict(text: bytes) -> bool | None:
    """Return what ``text``, the start of a file, tells; None if more is needed."""
    if _OPENS_OBJECT.match(text) is None or _OF_TRACE.search(text) is None:
        return False
    if _ASCEND.search(text) is not None:
        return False
    if _KINETO_EVENT.search(text) is not None:
        return True
    is_trace = _KINETO_SETTINGS.search(text) and _EVENTS_KEY.search(text)
    return True if is_trace else None
