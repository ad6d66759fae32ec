"""What in a text says whose it is, and what stands there instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.advisor.project.user_frames import is_user_code
from npufix.profiling_parsers.profile import CallSite

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.advisor.redact.pseudonyms import Pseudonyms

_PART = (
    r"(?:[^\s\"'<>|:;,()\[\]{}\\/*?=&#%]"
    r"|\\u(?!002[fF])[0-9a-fA-F]{4}|%(?!2[fF])[0-9A-Fa-f]{2})+"
)
_SLASH = r"(?:\\{0,2}/|\\u002[fF]|%2[fF]|&\#x2[fF];|&\#47;)"
"""As it is, and as JSON, addresses and HTML may write it."""
_ENCODED_SLASH = re.compile(r"\\u002[fF]|%2[fF]|&#x2[fF];|&#47;")
_FRAME = re.compile(r"(?:(?<=[\"\n;])|(?<=\\n)|\A)[^\S\n]*(/[^\"\n;()]{2,4096})(?=\(\d+\):)")
"""A path of a call stack, which may hold blanks: up to its line."""
_POSIX = re.compile(
    rf"(?:\bfile:{_SLASH}(?={_SLASH})|(?<![\w.~%/\\:-])/(?=/)|(?<![\w.~%/\\-]))"
    rf"(?:~[\w.-]*)?(?:{_SLASH}{{1,4}}{_PART}){{2,}}/?"
)
_WINDOWS = re.compile(rf"(?<![A-Za-z])[A-Za-z]:(?:[\\/]{{1,4}}{_PART})+")
_SHARE = re.compile(rf"(?<![\w\\:])(?:\\\\){{1,2}}\w[\w.$-]*(?:\\{{1,2}}{_PART})+")
"""Of Windows: ``\\\\server\\share``."""
_RELATIVE = re.compile(r"(?<![\w./\\-])(?:[\w.-]+/)+[\w.-]+\.py\b")
_URL = re.compile(
    r"\b(?!file:)([a-z][a-z0-9+.-]{1,9}://)([^\s\"'<>/\\]+)([^\s\"'<>]*)", re.IGNORECASE
)
_PUBLIC = re.compile(
    r"(?:.*\.)?(?:w3\.org|github\.com|hiascend\.com|huaweicloud\.com|pytorch\.org|python\.org"
    r"|gitee\.com|perfetto\.dev|oasis-open\.org|schemastore\.org|json-schema\.org)",
    re.IGNORECASE,
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IP4 = re.compile(rf"(?<![A-Za-z0-9.])(?:{_OCTET}\.){{3}}{_OCTET}(?![A-Za-z0-9]|\.\d)")
_VERSION = re.compile(
    r"(?:version|release|torch|cann|driver|firmware)[\w\"' :=-]*\Z", re.IGNORECASE
)
_IP6 = re.compile(
    r"(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
    r"|(?=(?:[0-9a-f]*:){4}|(?:fe80|f[cd][0-9a-f]{2}|[23][0-9a-f]{3}):)[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,5}::(?:[0-9a-f]{1,4}:?){0,6})(?![\w:])",
    re.IGNORECASE,
)
_MAC = re.compile(
    r"(?<![\w:-])[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}(?![\w:-])",
    re.IGNORECASE,
)
_UUID = re.compile(r"(?<!\w)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?!\w)", re.IGNORECASE)
_EMAIL = re.compile(
    r"(?<![\w.+-])[\w.+-]+(?:@|%40|\\u0040)[\w-]+(?:\.[\w-]+)+(?::(?!\d+\b)[\w./~-]+)?",
    re.IGNORECASE,
)
"""Also ``git@host:folder/repository``."""
_ASSIGNED = re.compile(
    r"(?<![\w-])((?:(?:host_?name|(?:user|login|log|worker|node|pod|job)_?name|user|master_addr)="
    r"|--(?:master[_-]addr|host(?:name)?|user)[ =]))([^\s\"'<>\\,;&=(){}\[\]]{1,200})",
    re.IGNORECASE,
)
"""In a command line, or an environment that was printed."""
_MACHINE = re.compile(
    r"\bip-\d{1,3}(?:-\d{1,3}){3}\b(?:\.[\w-]+)*"
    r"|(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.(?:svc\.cluster\.local|compute\.internal|localdomain|lan)\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\b(?:gh[pousr]_\w{20,}|hf_\w{10,}|A[KS]IA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+)\b"
)
_SECRET = re.compile(
    r"(\\{0,2}\"\w*(?:token|secret|passw(?:or)?d|credentials?|api_?key|access_?key)\\{0,2}\""
    r"\s*:\s*)(\\{0,2}\")([^\"\\]{1,4096})",
    re.IGNORECASE,
)
_KEYED = re.compile(
    r"(\\{0,2}\"(?:host_?name|host_?uid|worker_?name|user_?name|user|login|logname"
    r"|[\w]*job_?(?:id|name)|container_?(?:id|name)|pod_?(?:id|name|ip)|master_addr|node_?name"
    r"|serial_?(?:no|number)?)\\{0,2}\"\s*:\s*)(\\{0,2}\"|(?=\d))([^\"\\,}\]]{1,200})",
    re.IGNORECASE,
)
_PLACE = re.compile(r"(\"(?:source|dump|root|folder)\"\s*:\s*\")([^\"\\]*/[^\"\\]*)(?=\")")
"""Folders in a report, which may be relative."""
_HOME = re.compile(rf"(?:home|Users)(?:{_SLASH}|\\{{1,2}})+({_PART})")
_KEPT_FROM = re.compile(r"(?:site-packages|dist-packages|lib/python[\d.]+)(?:/|$)")


def learn(text: str, names: Pseudonyms) -> None:
    """Note the hosts and users that a text names, to find them elsewhere."""
    for found in _HOME.finditer(text):
        names.learn("user", found[1])
    for found in _KEYED.finditer(text):
        key = found[1].lower()
        if "uid" not in key and not found[3].isdigit() and not _IP4.fullmatch(found[3]):
            names.learn(_kind(key), found[3])
    for found in _ASSIGNED.finditer(text):
        if not _IP4.fullmatch(found[2]):
            names.learn(_kind(found[1].lower()), found[2])


def kind_of(key: str) -> str:
    """Return what the value of a key says, "" if it is nobody's: of a table of names and values."""
    shown = f'"{key}": "'
    if _KEYED.match(f"{shown}x"):
        return _kind(key.lower())
    return "secret" if _SECRET.match(f"{shown}x") else ""


def _kind(key: str) -> str:
    if "user" in key or "log" in key:
        return "user"
    return "job" if "job" in key else "host"


def redact(text: str, names: Pseudonyms) -> str:
    """Return a text without what says whose it is; its lines stay what they are."""

    def counted(kind: str, make: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
        def replaced(found: re.Match[str]) -> str:
            new = make(found)
            if new != found[0]:
                names.count(kind)
            return new

        return replaced

    text = _KEYED.sub(counted("id", lambda m: _replace_keyed(m, names)), text)
    text = _SECRET.sub(counted("secret", lambda m: m[1] + m[2] + names.of("secret", m[3])), text)
    text = _TOKEN.sub(counted("secret", lambda m: names.of("secret", m[0])), text)
    text = _ASSIGNED.sub(counted("id", lambda m: _replace_assigned(m, names)), text)
    text = _PLACE.sub(counted("path", lambda m: m[1] + path(m[2], names)), text)
    text = _URL.sub(counted("address", lambda m: _url(m, names)), text)
    text = _EMAIL.sub(counted("mail address", lambda m: names.of("mail", m[0])), text)
    text = _FRAME.sub(counted("path", lambda m: m[0].replace(m[1], path(m[1], names))), text)
    for pattern in (_WINDOWS, _SHARE, _POSIX):
        text = pattern.sub(counted("path", lambda m: path(m[0], names)), text)
    text = _RELATIVE.sub(counted("path", lambda m: _relative(m[0], names)), text)
    text = _MACHINE.sub(counted("host", lambda m: names.of("host", m[0])), text)
    text = _UUID.sub(counted("UUID", lambda m: _uuid(m[0], names)), text)
    text = _MAC.sub(counted("MAC address", lambda m: _mac(m, names)), text)
    text = _IP6.sub(counted("IP address", lambda m: _ip6(m[0], names)), text)
    text = _IP4.sub(counted("IP address", lambda m: _ip4(m, names)), text)
    known = compile_known_names(names)
    if known is not None:
        text = known.sub(lambda m: _replace_known(m[0], names), text)
    return text


def _replace_known(word: str, names: Pseudonyms) -> str:
    kind = names.names[word.lower()]
    names.count(kind)
    return names.of(kind, word)


def compile_known_names(names: Pseudonyms) -> re.Pattern[str] | None:
    """Return what finds the hosts and users that were noted."""
    if not names.names:
        return None
    longest_first = sorted(names.names, key=len, reverse=True)
    words = "|".join(re.escape(name) for name in longest_first)
    return re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE)


def path(text: str, names: Pseudonyms) -> str:
    """Return a path whose folders have pseudonyms; from ``site-packages`` on it stays."""
    if text.lstrip("~").replace("\\/", "/").startswith(("/redacted/", "/proc/", "/dev/", "/sys/")):
        return text
    text = _ENCODED_SLASH.sub("/", text).removeprefix("file:")
    whole = text.replace("\\\\/", "/").replace("\\/", "/").replace("\\\\", "/").replace("\\", "/")
    if "\\u" in text:
        whole = re.sub(r"/u(?=[0-9a-fA-F]{4})", r"\\u", whole)
    kept = _KEPT_FROM.search(whole)
    if kept:
        return "/redacted/" + whole[kept.start() :]
    *folders, last = whole.rstrip("/").split("/")
    below = [names.folder(part) for part in folders if part and part != "~" and part[-1:] != ":"]
    # A file keeps its name, a folder does not.
    end = last if re.fullmatch(r"[\w.-]+\.\w{1,8}", last) else names.folder(last)
    return "/".join(["/redacted", *below, end])


def _relative(text: str, names: Pseudonyms) -> str:
    if not is_user_code(CallSite(text, 0, "")) or text.startswith("redacted/"):
        return text
    *folders, last = text.split("/")
    # What git puts before the names of a patch stays.
    shown = [part if part in {"a", "b"} else names.folder(part) for part in folders]
    return "/".join([*shown, last])


def _replace_keyed(found: re.Match[str], names: Pseudonyms) -> str:
    key, quote, value = found[1], found[2], found[3]
    if not quote:
        return f"{key}{names.number('number', value)}"
    if _IP4.fullmatch(value):
        return found[0]
    known = names.names.get(value.strip().lower())
    return f"{key}{quote}{names.of(known or 'id', value.strip())}"


def _replace_assigned(found: re.Match[str], names: Pseudonyms) -> str:
    value = found[2]
    if _IP4.match(value) or value.startswith(("$", "%")):
        return found[0]
    return found[1] + names.of(names.names.get(value.lower()) or "id", value)


def _url(found: re.Match[str], names: Pseudonyms) -> str:
    if _PUBLIC.fullmatch(found[2].partition(":")[0]):
        return found[0]
    return f"{found[1]}{names.of('address', found[2] + found[3])}"


def _ip4(found: re.Match[str], names: Pseudonyms) -> str:
    value = found[0]
    before = found.string[max(0, found.start() - 40) : found.start()]
    if value in {"127.0.0.1", "0.0.0.0"} or _VERSION.search(before):  # noqa: S104 - only compared
        return value
    number = names.number("IP address", value)
    return f"198.18.{number >> 8 & 255}.{number & 255}"


def _ip6(value: str, names: Pseudonyms) -> str:
    return f"2001:db8::{names.number('IPv6 address', value.lower()):x}"


def _mac(found: re.Match[str], names: Pseudonyms) -> str:
    number = names.number("MAC address", found[0].lower())
    return found[1].join(
        ["02", "00", "00", "00", f"{number >> 8 & 255:02x}", f"{number & 255:02x}"]
    )


def _uuid(value: str, names: Pseudonyms) -> str:
    return f"00000000-0000-4000-8000-{names.number('UUID', value.lower()):012x}"
