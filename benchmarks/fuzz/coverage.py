"""Which lines of npufix an input reaches: what reaches new ones is worth changing further."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import npufix.profiling_parsers

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

_ROOT = str(Path(npufix.profiling_parsers.__file__).parents[1])


class Coverage:
    """The lines reached so far. A function of which all are known is not watched any more."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self._missing: dict[CodeType, set[int]] = {}
        self._ours: dict[str, bool] = {}

    def watch(self, run: Callable[[], Any]) -> int:
        """Run something, and return how many lines it was the first to reach."""
        known, before = len(self.lines), sys.gettrace()
        sys.settrace(self._call)
        try:
            run()
        finally:
            sys.settrace(before)
        return len(self.lines) - known

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:  # noqa: ANN401 - of settrace
        code = frame.f_code
        missing = self._missing.get(code)
        if missing is None:
            name = code.co_filename
            if name not in self._ours:
                self._ours[name] = name.startswith(_ROOT) and "benchmarks" not in name
            lines = {line for _, _, line in code.co_lines() if line} if self._ours[name] else set()
            self._missing[code] = missing = lines
        if not missing:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401 - of settrace
        if event == "line":
            code, line = frame.f_code, frame.f_lineno
            missing = self._missing[code]
            if line in missing:
                missing.discard(line)
                self.lines.add((code.co_filename, line))
        return self._line
