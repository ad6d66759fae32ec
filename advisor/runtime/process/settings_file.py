"""Reading the top level of a YAML file of settings: what npufix needs of it, without a library.

Training programs keep their settings in flat files (``use_fused_rope: false``). What is nested or
written in another way belongs to them, and is passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.advisor.runtime.process.switches import SwitchError

if TYPE_CHECKING:
    from pathlib import Path

_KEY = re.compile(r"^(?P<quote>['\"]?)(?P<key>[\w.-]+)(?P=quote)\s*:(?:\s+(?P<value>.*))?$")
_ITEM = re.compile(r"^\s*-\s+(?P<value>.+)$")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def read(path: Path) -> dict[str, object]:
    """Return the keys of the top level: booleans, texts and lists of texts.

    Raises:
        SwitchError: it cannot be read.

    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise SwitchError(f"{path}: {error.strerror}", "name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise SwitchError(f"{path}: it is no text", "save it as UTF-8") from error
    found: dict[str, object] = {}
    key = ""
    for raw in lines:
        line = _strip_comment(raw).rstrip()
        if (item := _ITEM.match(line)) and key:
            items = found[key] if isinstance(found[key], list) else []
            found[key] = [*items, _text(item["value"])]  # type: ignore[misc] # a list, as asked
        elif match := _KEY.match(line):
            key = match["key"]
            found[key] = _value(match["value"] or "")
    return found


def _strip_comment(line: str) -> str:
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at]
    return line


def _value(text: str) -> object:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        return [_text(part) for part in text[1:-1].split(",") if part.strip()]
    return _WORDS.get(text.lower(), _text(text))


def _text(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
