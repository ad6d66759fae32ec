"""Read the dynamic tables of a shared object: what it needs, defines, and leaves undefined."""

from __future__ import annotations

import mmap
import re
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct, error, unpack_from
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.virtual_npu.wheel import elf_format as elf
from npufix.rewriters.verification.virtual_npu.wheel.errors import VirtualNpuError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_HIDDEN_VERSION = 0x8000
_FIRST_VERSION = 2
"""Smaller version indices mean local and unversioned."""
_WORD = Struct("<I")


class Symbol(NamedTuple):
    """A name in the dynamic symbol table."""

    name: str
    version: str = ""
    """``GLIBC_2.17``; empty if unversioned."""
    weak: bool = False


@dataclass(frozen=True, slots=True)
class SharedObject:
    """What the loader reads of a shared object."""

    machine: int
    soname: str
    needed: tuple[str, ...]
    undefined: tuple[Symbol, ...]
    defined: tuple[Symbol, ...]


def read(path: Path) -> SharedObject:
    """Read the dynamic tables of the file."""
    with _map(path) as data:
        return _Reader(data).shared_object()


def strings(path: Path, pattern: bytes) -> frozenset[str]:
    """Return the NUL-terminated strings in read-only data that match ``pattern`` entirely."""
    wanted = re.compile(rb"(?<=\0)(?:" + pattern + rb")(?=\0)")
    with _map(path) as data:
        return frozenset(
            found.group().decode()
            for segment in _Reader(data).segments
            if segment.kind == elf.PT_LOAD and not segment.flags & elf.PF_W
            for found in wanted.finditer(data, segment.offset, segment.offset + segment.size)
        )


@contextmanager
def _map(path: Path) -> Iterator[mmap.mmap]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except (error, ValueError, IndexError, KeyError) as fault:
        broken = "it ends too early" if isinstance(fault, error) else str(fault)
        raise VirtualNpuError(
            f"not a readable ELF64 shared object: {broken}",
            str(path),
            "install its package again",
        ) from None
    except OSError as fault:
        raise VirtualNpuError(f"cannot be read: {fault.strerror}", str(path)) from None


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    size: int


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        ident, kind, self.machine, _, _, phoff, *_, phentsize, phnum, _, _, _ = (
            elf.EHDR.unpack_from(data)
        )
        if ident[:6] != elf.IDENT[:6] or kind != elf.ET_DYN:
            raise ValueError("no 64-bit little-endian shared object")
        self.segments = [self._segment(phoff + i * phentsize) for i in range(phnum)]
        self._tags, self._needed = self._dynamic()
        self._strtab = self._offset(self._tags[elf.DT_STRTAB])

    def shared_object(self) -> SharedObject:
        soname = self._tags.get(elf.DT_SONAME)
        undefined, defined = self._symbols()
        return SharedObject(
            self.machine,
            "" if soname is None else self._string(soname),
            tuple(self._string(name) for name in self._needed),
            tuple(undefined),
            tuple(defined),
        )

    def _segment(self, place: int) -> _Segment:
        kind, flags, offset, address, _, size, _, _ = elf.PHDR.unpack_from(self._data, place)
        return _Segment(kind, flags, offset, address, size)

    def _dynamic(self) -> tuple[Mapping[int, int], Sequence[int]]:
        tags: dict[int, int] = {}
        needed: list[int] = []
        table = next((s for s in self.segments if s.kind == elf.PT_DYNAMIC), None)
        if table is None:
            raise ValueError("no dynamic segment")
        for place in range(table.offset, table.offset + table.size, elf.DYN.size):
            tag, value = elf.DYN.unpack_from(self._data, place)
            if tag == elf.DT_NULL:
                break
            if tag == elf.DT_NEEDED:
                needed.append(value)
            else:
                tags[tag] = value
        return tags, needed

    def _offset(self, address: int) -> int:
        for segment in self.segments:
            inside = address - segment.address
            if segment.kind == elf.PT_LOAD and 0 <= inside < segment.size:
                return segment.offset + inside
        raise ValueError(f"address {address:#x} is in no segment")

    def _string(self, index: int) -> str:
        start = self._strtab + index
        end = self._data.find(b"\0", start)
        if end < 0:
            raise ValueError("a string has no end")
        return self._data[start:end].decode()

    def _symbols(self) -> tuple[list[Symbol], list[Symbol]]:
        undefined: list[Symbol] = []
        defined: list[Symbol] = []
        count = self._symbol_count()
        table = self._offset(self._tags[elf.DT_SYMTAB])
        versions = self._versions(count)
        names = {**self._needed_versions(), **self._defined_versions()}
        entries = elf.SYM.iter_unpack(self._data[table : table + count * elf.SYM.size])
        for (name, info, _, section, _, _), version in zip(entries, versions, strict=True):
            binding = info >> 4
            if not name or binding not in {elf.STB_GLOBAL, elf.STB_WEAK, elf.STB_GNU_UNIQUE}:
                continue
            symbol = Symbol(self._string(name), names.get(version, ""), binding == elf.STB_WEAK)
            (defined if section else undefined).append(symbol)
        return undefined, defined

    def _symbol_count(self) -> int:
        if elf.DT_HASH in self._tags:
            _, count = unpack_from("<II", self._data, self._offset(self._tags[elf.DT_HASH]))
            return int(count)
        # DT_GNU_HASH does not say: the end of the chain of the last bucket does.
        start = self._offset(self._tags[elf.DT_GNU_HASH])
        buckets, first, bloom, _ = unpack_from("<IIII", self._data, start)
        table = start + 16 + bloom * 8
        last: int = max(unpack_from(f"<{buckets}I", self._data, table), default=0)
        if last < first:
            return int(first)
        chains = table + buckets * _WORD.size
        while not _WORD.unpack_from(self._data, chains + (last - first) * _WORD.size)[0] & 1:
            last += 1
        return last + 1

    def _versions(self, count: int) -> Sequence[int]:
        if elf.DT_VERSYM not in self._tags:
            return [0] * count
        raw = unpack_from(f"<{count}H", self._data, self._offset(self._tags[elf.DT_VERSYM]))
        return [version & ~_HIDDEN_VERSION for version in raw]

    def _needed_versions(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for place in self._chain(elf.DT_VERNEED, elf.DT_VERNEEDNUM, elf.VERNEED):
            _, count, _, auxiliary, _ = elf.VERNEED.unpack_from(self._data, place)
            entry = place + auxiliary
            for _ in range(count):
                _, _, index, name, following = elf.VERNAUX.unpack_from(self._data, entry)
                found[index & ~_HIDDEN_VERSION] = self._string(name)
                entry += following
        return found

    def _defined_versions(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for place in self._chain(elf.DT_VERDEF, elf.DT_VERDEFNUM, elf.VERDEF):
            _, _, index, _, _, auxiliary, _ = elf.VERDEF.unpack_from(self._data, place)
            name, _ = elf.VERDAUX.unpack_from(self._data, place + auxiliary)
            if index >= _FIRST_VERSION:  # the first one names the file itself
                found[index] = self._string(name)
        return found

    def _chain(self, start: int, number: int, entry: Struct) -> Iterator[int]:
        """Yield where each entry is of a table whose last field leads to the next entry."""
        if start not in self._tags:
            return
        place = self._offset(self._tags[start])
        for _ in range(self._tags[number]):
            yield place
            following = entry.unpack_from(self._data, place)[-1]
            if not following:
                return
            place += following
