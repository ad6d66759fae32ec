"""What stands before and after the events of a Kineto trace: the machine and the settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from npufix.profiling_parsers.profile import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.profiling_parsers.kineto.events import KinetoTrace

Header = dict[str, Any]

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARRAY_END = re.compile(rb"\]\s*(?=[,}])")
_LAST_EVENT = b'"ph"'


def read_header(trace: KinetoTrace) -> Header:
    """Return the keys beside ``traceEvents``; those that cannot be read are left out."""
    return _before(trace.head) | _after(trace.tail)


def _before(head: bytes) -> Header:
    events = _EVENTS.search(head)
    if events is None:
        return {}
    text = head[: events.start()].decode("utf-8-sig", errors="replace").rstrip().rstrip(",")
    return _decode(text.encode() + b"}") or {}


def _after(tail: bytes) -> Header:
    """Return the keys after the array: what follows the first bracket that makes it an object."""
    last = tail[max(tail.rfind(_LAST_EVENT), 0) :]
    for end in _ARRAY_END.finditer(last):
        header = _decode(b'{"":0' + last[end.end() :])
        if header is not None:
            return header
    return {}


def _decode(text: bytes) -> Header | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def base_ns(header: Header) -> int:
    """Return the moment from which the trace counts, 0 for one that counts from the epoch."""
    base = header.get("baseTimeNanoseconds")
    return base if type(base) is int and 0 <= base < 1 << 62 else 0


def read_environment(header: Header, device: int) -> Environment:
    """Return what is known of the machine; ``device`` is the one that ran most, -1 for none."""
    ranks = header.get("distributedInfo")
    ranks = ranks if isinstance(ranks, dict) else {}
    return Environment(
        rank=_number(ranks, "rank"),
        world_size=_number(ranks, "world_size"),
        torch=_text(header, "pytorch_version") or _text(header, "torch_version"),
        chip=_chip(header, device),
        with_stack=_flag(header, "with_stack"),
        record_shapes=_flag(header, "record_shapes"),
    )


def has_devices(header: Header) -> bool:
    """Tell whether the profiled machine has a GPU."""
    return bool(header.get("deviceProperties"))


def _chip(header: Header, device: int) -> str | None:
    found = header.get("deviceProperties")
    properties = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    if device < 0 or not properties:
        return None
    of_device = [one for one in properties if one.get("id") == device]
    return _text((of_device or properties)[0], "name")


def _flag(header: Header, key: str) -> bool | None:
    value = header.get(key)
    return bool(value) if type(value) in (int, bool) else None


def _number(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    if type(value) is str and value.isdecimal() and len(value) < len(str(1 << 62)):
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if type(value) is str and value else None
