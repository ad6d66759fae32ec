"""JSON of anything: names of files may hold any byte, JSON may not."""

from __future__ import annotations

from typing import Any

import msgspec


def indented(made: object) -> str:
    """Return JSON, indented by two; a byte that is no text is written out."""
    return msgspec.json.format(encoded(made), indent=2).decode()


def encoded(made: object) -> bytes:
    """Return JSON in one line."""
    try:
        return msgspec.json.encode(made)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole(msgspec.to_builtins(made)))


def _whole(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON whose texts can be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, (list, tuple)) else value
