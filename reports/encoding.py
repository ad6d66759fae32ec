"""JSON of anything: names of files may hold any byte, JSON may not."""

from __future__ import annotations

import re
from typing import Any

import msgspec

# Outside of texts JSON holds none of them.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""What steers a terminal, or turns the order of what is shown around."""


def encode_indented(made: object) -> str:
    """Return JSON, indented by two; a byte that is no text is written out."""
    return msgspec.json.format(encode(made), indent=2).decode()


def encode(made: object) -> bytes:
    """Return JSON in one line; what would steer a terminal that shows it is written as a number."""
    try:
        data = msgspec.json.encode(made)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_whole(msgspec.to_builtins(made)))
    if data.isascii() and b"\x7f" not in data:
        return data
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


def _whole(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON whose texts can be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, (list, tuple)) else value


def without_mark(text: str | bytes) -> str | bytes:
    """Return a text without the byte order mark that editors on Windows put before it."""
    if isinstance(text, bytes):
        return text.removeprefix(b"\xef\xbb\xbf")
    return text.removeprefix("\ufeff")
