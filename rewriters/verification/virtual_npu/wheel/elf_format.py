"""The ELF64 little-endian format: what the reader and the writer both have to know.

Field by field as in the System V ABI; the structures are named as there.
"""

from __future__ import annotations

from struct import Struct

EHDR = Struct("<16sHHIQQQIHHHHHH")
"""e_ident, type, machine, version, entry, phoff, shoff, flags, ehsize, phentsize, phnum, shentsize,
shnum, shstrndx."""
PHDR = Struct("<IIQQQQQQ")
"""p_type, flags, offset, vaddr, paddr, filesz, memsz, align."""
DYN = Struct("<QQ")
"""d_tag, value."""
SYM = Struct("<IBBHQQ")
"""st_name, info, other, shndx, value, size."""
RELA = Struct("<QQq")
"""r_offset, info, addend."""
VERNEED = Struct("<HHIII")
"""vn_version, cnt, file, aux, next."""
VERNAUX = Struct("<IHHII")
"""vna_hash, flags, other, name, next."""
VERDEF = Struct("<HHHHIII")
"""vd_version, flags, ndx, cnt, hash, aux, next."""
VERDAUX = Struct("<II")
"""vda_name, next."""

IDENT = b"\x7fELF\x02\x01\x01" + bytes(9)
"""ELFCLASS64, ELFDATA2LSB, EV_CURRENT, ELFOSABI_NONE."""
ET_DYN = 3
EM_X86_64 = 62
EM_AARCH64 = 183
MACHINES = {"x86_64": EM_X86_64, "aarch64": EM_AARCH64}
"""By the name that ``platform.machine()`` gives them on Linux."""

PT_LOAD = 1
PT_DYNAMIC = 2
PT_GNU_STACK = 0x6474E551
PF_X, PF_W, PF_R = 1, 2, 4

DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB = 0, 1, 4, 5, 6
DT_RELA, DT_RELASZ, DT_RELAENT, DT_STRSZ, DT_SYMENT, DT_SONAME = 7, 8, 9, 10, 11, 14
DT_GNU_HASH, DT_VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFFC, 0x6FFFFFFD
DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF

STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 1, 2, 10
STT_OBJECT, STT_FUNC = 1, 2


def sysv_hash(name: str) -> int:
    """Return the hash of a symbol name in DT_HASH."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value
