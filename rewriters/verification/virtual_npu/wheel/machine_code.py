"""The few instructions of a stub: jump through a slot, return a number."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.virtual_npu.wheel import elf_format as elf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENTRY = 16
"""Every piece of code takes as many bytes."""
_PAGE_BITS = 12


class Machine(NamedTuple):
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


CODE: Mapping[int, Machine] = {
    elf.EM_X86_64: Machine(8, _x86_64_jump, _x86_64_give),
    elf.EM_AARCH64: Machine(1027, _aarch64_jump, _aarch64_give),
}
"""By the machine number in an ELF header."""
