"""What a dump says about its job: the groups of ranks, the machine, when it was recorded."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from typing import TYPE_CHECKING

import msgspec

from npufix.profiling_parsers.cluster.grouping import number_texts
from npufix.profiling_parsers.cluster.summary import members_text, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.cluster.summary import Table

_METADATA = "profiler_metadata.json"
_FOLDER = re.compile(r"(.+)_[0-9]{1,10}_([0-9]{14})[0-9]*(?:_ascend_(?:pt|ms))?")
_SHORT_ROLES = frozenset({"tp", "pp", "dp", "ep", "cp", "mp"})
_PRIMES = (29, 131)
_WORD = 0xFFFFFFFF


class _Group(msgspec.Struct):
    group_name: str = ""
    global_ranks: list[int] = []


class _Metadata(msgspec.Struct):
    parallel_group_info: dict[str, _Group] = {}


class _End(msgspec.Struct):
    collectionTimeEnd: int = 0  # noqa: N815 - the profiler's name


class _Info(msgspec.Struct):
    end_info: _End = msgspec.field(default_factory=_End)


def read_groups(dump: Path) -> Table:
    """Return the table ``groups``; a file that is missing or says something else says nothing."""
    try:
        data = (dump / _METADATA).read_bytes()
        return groups_table(msgspec.json.decode(data, type=_Metadata).parallel_group_info)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return table_of("groups", {"group": ([], []), "role": ([], []), "members": ([], [])})


def groups_in(stated: object) -> Table | None:
    """Return the table ``groups`` of a parallel_group_info; ``None`` if it is none."""
    try:
        return groups_table(msgspec.convert(stated, type=dict[str, _Group]))
    except msgspec.ValidationError:
        return None


def groups_table(groups: dict[str, _Group]) -> Table:
    """Return the table ``groups``: the name as collectives have it, what it is for, who is in."""
    return table_of(
        "groups",
        {
            "group": number_texts([collective_group(name) for name in groups]),
            "role": number_texts([_role(group.group_name) for group in groups.values()]),
            "members": number_texts(
                [members_text(group.global_ranks) for group in groups.values()]
            ),
        },
    )


def collective_group(name: str) -> str:
    """Return how collectives call a group of this name: two hashes, one behind the other."""
    if name.isdecimal():
        return name
    hashes = [0, 0]
    for letter in name:
        hashes = [
            (value * prime + ord(letter)) & _WORD
            for value, prime in zip(hashes, _PRIMES, strict=True)
        ]
    return str(hashes[0] << 32 | hashes[1])


def find_end_of_recording(dump: Path, rank: int | None) -> tuple[int, bool]:
    """Return when the recording ended, since the epoch; 0 if the dump does not say.

    Also return whether that is the time of the machine, of whose time zone nothing is known.
    """
    named = dump / f"profiler_info_{rank}.json"
    files = [named] if named.exists() else sorted(dump.glob("profiler_info*.json"))[:1]
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, IndexError):
        info = msgspec.json.decode(files[0].read_bytes(), type=_Info)
        if info.end_info.collectionTimeEnd > 0:
            return info.end_info.collectionTimeEnd, False
    named_by = _FOLDER.fullmatch(dump.name)
    try:
        return (_epoch_ns(named_by[2]) if named_by else 0), True
    except ValueError:
        return 0, True


def host_of(dump: Path) -> str:
    """Return the machine that the profiler puts into the name of a folder, "" if it is renamed."""
    found = _FOLDER.fullmatch(dump.name)
    return found[1] if found else ""


def _epoch_ns(stamp: str) -> int:
    # In the time zone of the machine, which the dump does not say: good enough to tell runs apart.
    moment = dt.datetime.strptime(stamp, "%Y%m%d%H%M%S").replace(tzinfo=dt.timezone.utc)
    return int(moment.timestamp()) * 1_000_000_000


def _role(name: str) -> str:
    """Return ``dp`` for ``DP``, ``dp3`` and ``dp_3``; any other name stands as it was given.

    Programs that number their groups give each a name of its own; they do the same work.
    """
    bare = name.lower().rstrip("0123456789").rstrip("_-")
    return bare if bare in _SHORT_ROLES else name
