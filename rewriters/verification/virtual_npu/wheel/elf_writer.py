"""Write a shared object of stubs, without compiler or linker.

Each function jumps through a slot of its own. At first the slot leads to code that returns a
fixed number; whoever has loaded the library can point it somewhere else. What
``shared_object("libascendcl.so", EM_X86_64, [Function("aclInit", 0)])`` lays out, in this order:

- headers, symbols (``aclInit``, ``npufix_slots``), their hash table and their names;
- relocations: slot i points to the code that returns the number of function i;
- code, 16 bytes each: ``aclInit: jmp *slot_0``, then ``mov $0, %rax; ret`` for each number;
- from the next page on, writable: the dynamic section, then the slots.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.virtual_npu.wheel import elf_format as elf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ENTRY = 16
"""Every piece of code takes as many bytes."""
_PAGE_BITS = 12


class Processor(NamedTuple):
    """A processor: how it jumps and returns, and its relocation to the load address."""

    relative: int
    """R_*_RELATIVE."""
    jump: Callable[[int, int], bytes]
    """Code at an address that jumps to where the slot at another address points."""
    give: Callable[[int], bytes]
    """Code that returns a number from 0 to 2**31 - 1."""


def _x86_64_jump(here: int, slot: int) -> bytes:
    jmp = b"\xff\x25"  # jmp *slot(%rip), relative to the end of its six bytes
    return (jmp + struct.pack("<i", slot - (here + 6))).ljust(ENTRY, b"\xcc")


def _x86_64_give(value: int) -> bytes:
    mov, ret = b"\x48\xc7\xc0", b"\xc3"  # mov $value,%rax; ret
    return (mov + struct.pack("<i", value) + ret).ljust(ENTRY, b"\xcc")


def _aarch64_jump(here: int, slot: int) -> bytes:
    pages = (slot >> _PAGE_BITS) - (here >> _PAGE_BITS)
    adrp = 0x90000010 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5  # adrp x16, slot
    ldr = 0xF9400210 | (slot & 0xFFF) >> 3 << 10  # ldr x16, [x16, #:lo12:slot]
    br, nop = 0xD61F0200, 0xD503201F  # br x16
    return struct.pack("<IIII", adrp, ldr, br, nop)


def _aarch64_give(value: int) -> bytes:
    movz = 0xD2800000 | (value & 0xFFFF) << 5  # movz x0, #low
    movk = 0xF2A00000 | (value >> 16 & 0xFFFF) << 5  # movk x0, #high, lsl #16
    ret, nop = 0xD65F03C0, 0xD503201F
    return struct.pack("<IIII", movz, movk, ret, nop)


CODE: Mapping[int, Processor] = {
    elf.EM_X86_64: Processor(8, _x86_64_jump, _x86_64_give),
    elf.EM_AARCH64: Processor(1027, _aarch64_jump, _aarch64_give),
}
"""By the machine number in an ELF header."""


SLOTS = "npufix_slots"
"""The symbol of the first slot; the others follow in the order of the functions."""
_PAGE = 0x10000  # kernels for aarch64 may use pages of 64 KiB
_SLOT = 8
_HEADERS = 4
_SECTION = 1  # any number but SHN_UNDEF: there are no sections
_LARGEST = 2**31 - 1


class Function(NamedTuple):
    """A function to define, and what it returns until its slot is changed."""

    name: str
    returns: int = 0


def shared_object(
    soname: str, machine: int, functions: Sequence[Function] = (), needed: Sequence[str] = ()
) -> bytes:
    """Return the file of a shared object that defines ``functions`` and needs other libraries."""
    if any(not 0 <= function.returns <= _LARGEST for function in functions):
        raise ValueError("a stub returns a number from 0 to 2**31 - 1")
    return _Image(soname, machine, functions, needed).file()


class _Strings:
    """A string table in the making."""

    def __init__(self) -> None:
        self.data = bytearray(1)
        self._places: dict[str, int] = {}

    def add(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._places[text]


class _Image:
    """Two segments: headers, tables and code; then the dynamic section and the slots.

    Addresses are file offsets.
    """

    def __init__(
        self, soname: str, machine: int, functions: Sequence[Function], needed: Sequence[str]
    ) -> None:
        self._machine = machine
        self._functions = functions
        self._strings = _Strings()
        self._soname = self._strings.add(soname)
        self._needed = [self._strings.add(name) for name in needed]
        self._symbols = [function.name for function in functions] + [SLOTS]
        self._names = [self._strings.add(name) for name in self._symbols]
        self._returns = sorted({function.returns for function in functions})
        self._lay_out()

    def _lay_out(self) -> None:
        count = len(self._functions)
        self._symtab = elf.EHDR.size + _HEADERS * elf.PHDR.size
        self._hash = self._symtab + (1 + len(self._symbols)) * elf.SYM.size
        self._strtab = self._hash + len(self._hash_table())
        self._rela = _align(self._strtab + len(self._strings.data), 8)
        self._text = _align(self._rela + count * elf.RELA.size, ENTRY)
        self._results = self._text + count * ENTRY
        self._text_end = self._results + len(self._returns) * ENTRY
        self._dynamic = _align(self._text_end, _PAGE)
        self._slots = self._dynamic + len(self._dynamic_table()) * elf.DYN.size
        self._end = self._slots + count * _SLOT

    def file(self) -> bytes:
        image = bytearray(self._end)
        for place, content in (
            (0, self._header() + self._program_headers()),
            (self._symtab, self._symbol_table()),
            (self._hash, self._hash_table()),
            (self._strtab, self._strings.data),
            (self._rela, self._relocations()),
            (self._text, self._code()),
            (self._dynamic, b"".join(elf.DYN.pack(*entry) for entry in self._dynamic_table())),
        ):
            image[place : place + len(content)] = content
        return bytes(image)

    def _header(self) -> bytes:
        size = elf.EHDR.size
        tail = (size, elf.PHDR.size, _HEADERS, 0, 0, 0)
        return elf.EHDR.pack(elf.IDENT, elf.ET_DYN, self._machine, 1, 0, size, 0, 0, *tail)

    def _program_headers(self) -> bytes:
        read, write, execute = elf.PF_R, elf.PF_W, elf.PF_X
        headers = (
            (elf.PT_LOAD, read | execute, 0, self._text_end, _PAGE),
            (elf.PT_LOAD, read | write, self._dynamic, self._end - self._dynamic, _PAGE),
            (elf.PT_DYNAMIC, read | write, self._dynamic, self._slots - self._dynamic, _SLOT),
            (elf.PT_GNU_STACK, read | write, 0, 0, 16),
        )
        return b"".join(
            elf.PHDR.pack(kind, flags, start, start, start, size, size, alignment)
            for kind, flags, start, size, alignment in headers
        )

    def _symbol_table(self) -> bytes:
        function = elf.STB_GLOBAL << 4 | elf.STT_FUNC
        entries = [
            (name, function, 0, _SECTION, self._text + i * ENTRY, ENTRY)
            for i, name in enumerate(self._names[:-1])
        ]
        variable = elf.STB_GLOBAL << 4 | elf.STT_OBJECT
        size = len(self._functions) * _SLOT
        entries.append((self._names[-1], variable, 0, _SECTION, self._slots, size))
        return bytes(elf.SYM.size) + b"".join(elf.SYM.pack(*entry) for entry in entries)

    def _hash_table(self) -> bytes:
        count = 1 + len(self._symbols)
        buckets = [0] * max(1, count // 2)
        chains = [0] * count
        for index, name in enumerate(self._symbols, 1):
            bucket = elf.sysv_hash(name) % len(buckets)
            chains[index], buckets[bucket] = buckets[bucket], index
        words = [len(buckets), count, *buckets, *chains]
        return struct.pack(f"<{len(words)}I", *words)

    def _relocations(self) -> bytes:
        """Return what makes each slot point to the code that returns its number."""
        kind = CODE[self._machine].relative
        return b"".join(
            elf.RELA.pack(
                self._slots + i * _SLOT,
                kind,
                self._results + self._returns.index(function.returns) * ENTRY,
            )
            for i, function in enumerate(self._functions)
        )

    def _code(self) -> bytes:
        machine = CODE[self._machine]
        jumps = (
            machine.jump(self._text + i * ENTRY, self._slots + i * _SLOT)
            for i in range(len(self._functions))
        )
        return b"".join(jumps) + b"".join(map(machine.give, self._returns))

    def _dynamic_table(self) -> list[tuple[int, int]]:
        return [
            (elf.DT_SONAME, self._soname),
            *((elf.DT_NEEDED, name) for name in self._needed),
            (elf.DT_HASH, self._hash),
            (elf.DT_STRTAB, self._strtab),
            (elf.DT_SYMTAB, self._symtab),
            (elf.DT_STRSZ, len(self._strings.data)),
            (elf.DT_SYMENT, elf.SYM.size),
            (elf.DT_RELA, self._rela),
            (elf.DT_RELASZ, len(self._functions) * elf.RELA.size),
            (elf.DT_RELAENT, elf.RELA.size),
            (elf.DT_NULL, 0),
        ]


def _align(size: int, to: int) -> int:
    return -(-size // to) * to
