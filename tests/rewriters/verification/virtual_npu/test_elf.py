"""The stub libraries: what the writer writes, the reader reads and the loader loads."""

from __future__ import annotations

import ctypes
import platform
import string
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.rewriters.verification.virtual_npu.wheel import elf_format as elf
from npufix.rewriters.verification.virtual_npu.wheel import elf_reader
from npufix.rewriters.verification.virtual_npu.wheel.elf_writer import (
    SLOTS,
    Function,
    shared_object,
)
from npufix.rewriters.verification.virtual_npu.wheel.errors import VirtualNpuError

_NATIVE = elf.MACHINES.get(platform.machine())
_LOADABLE = pytest.mark.skipif(
    sys.platform != "linux" or _NATIVE is None,
    reason="only Linux on x86-64 and aarch64 loads these libraries",
)
_NAMES = st.lists(
    st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=40).filter(
        lambda name: name != SLOTS
    ),
    unique=True,
    max_size=60,
)
_MACHINES = st.sampled_from(sorted(elf.MACHINES.values()))


@given(names=_NAMES, needed=_NAMES, machine=_MACHINES)
def test_the_reader_reads_what_the_writer_writes(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], needed: list[str], machine: int
) -> None:
    path = tmp_path_factory.mktemp("elf") / "libstub.so"
    functions = [Function(name, len(name)) for name in names]
    path.write_bytes(shared_object("libstub.so", machine, functions, needed))
    found = elf_reader.read(path)
    assert found.machine == machine
    assert found.soname == "libstub.so"
    assert found.needed == tuple(needed)
    assert found.undefined == ()
    assert [symbol.name for symbol in found.defined] == [*names, SLOTS]


@pytest.mark.parametrize("machine", elf.MACHINES.values())
def test_segments_fit_pages_of_64_kib(machine: int) -> None:
    data = shared_object("libstub.so", machine, [Function(f"f{i}") for i in range(5000)])
    count = elf.EHDR.unpack_from(data)[10]
    headers = [elf.PHDR.unpack_from(data, elf.EHDR.size + i * elf.PHDR.size) for i in range(count)]
    loaded = [header for header in headers if header[0] == elf.PT_LOAD]
    assert len(loaded) == 2
    for _, flags, offset, address, _, size, memory, alignment in loaded:
        assert alignment == 0x10000
        assert offset % alignment == address % alignment
        assert size == memory
        assert not (flags & elf.PF_W and flags & elf.PF_X)
    (first, second) = loaded
    assert first[3] + first[5] <= second[3]


def test_a_result_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="2\\*\\*31"):
        shared_object("libstub.so", elf.EM_X86_64, [Function("f", -1)])


@_LOADABLE
def test_loaded_functions_return_their_number_until_their_slot_is_changed(tmp_path: Path) -> None:
    assert _NATIVE is not None
    path = tmp_path / "libstub.so"
    functions = [Function(f"number_{i}", i * 40_009) for i in range(3000)]
    path.write_bytes(shared_object("libstub.so", _NATIVE, functions))
    library = ctypes.CDLL(str(path))
    assert [library[f.name]() for f in functions] == [f.returns for f in functions]

    slots = (ctypes.c_uint64 * len(functions)).in_dll(library, SLOTS)
    double = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda value: 2 * value)
    slots[7] = ctypes.cast(double, ctypes.c_void_p).value or 0
    assert library.number_7(21) == 42
    assert library.number_8() == 8 * 40_009


@_LOADABLE
def test_a_library_without_functions_finds_them_in_the_one_it_needs(tmp_path: Path) -> None:
    assert _NATIVE is not None
    main, other = tmp_path / "libnpufixmain.so", tmp_path / "libnpufixother.so"
    main.write_bytes(shared_object(main.name, _NATIVE, [Function("npufix_answer", 42)]))
    other.write_bytes(shared_object(other.name, _NATIVE, needed=[main.name]))
    kept = ctypes.CDLL(str(main), mode=ctypes.RTLD_GLOBAL)
    assert ctypes.CDLL(str(other)).npufix_answer() == kept.npufix_answer() == 42


@_LOADABLE
def test_versions_of_a_real_library_are_read() -> None:
    import _ctypes

    found = elf_reader.read(Path(_ctypes.__file__))
    assert found.machine == _NATIVE
    assert any(symbol.version.startswith("GLIBC") for symbol in found.undefined)
    assert any(s.name.startswith("PyInit_") and not s.version for s in found.defined)
    assert "libc.so.6" in found.needed


def test_strings_are_those_that_match_entirely(tmp_path: Path) -> None:
    path = tmp_path / "libstub.so"
    names = ["aclnnAdd", "aclnnAddGetWorkspaceSize", "not_aclnnMul"]
    path.write_bytes(shared_object("l.so", elf.EM_X86_64, [Function(name) for name in names]))
    assert elf_reader.strings(path, rb"aclnn[A-Z]\w*") == {"aclnnAdd", "aclnnAddGetWorkspaceSize"}


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF" + bytes(200)])
def test_what_is_no_shared_object_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(content)
    with pytest.raises(VirtualNpuError, match=r"ELF64.*broken\.so"):
        elf_reader.read(path)


@given(value=st.integers(0, 2**31 - 1), count=st.integers(1, 40), which=st.integers(0, 39))
def test_the_code_for_aarch64_runs(value: int, count: int, which: int) -> None:
    unicorn = pytest.importorskip("unicorn", reason="unicorn emulates aarch64")
    arm64_const = pytest.importorskip("unicorn.arm64_const", reason="unicorn emulates aarch64")

    functions = [Function(f"f{i}", value if i == which % count else 1) for i in range(count)]
    data = shared_object("l.so", elf.EM_AARCH64, functions)
    base, stop = 0x40_0000, 0x10_0000
    emulator = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    emulator.mem_map(base, -(-len(data) // 0x10000) * 0x10000)
    emulator.mem_map(stop, 0x1000)
    emulator.mem_write(base, data)
    tags = dict(_dynamic(data))
    for place in range(tags[elf.DT_RELA], tags[elf.DT_RELA] + tags[elf.DT_RELASZ], elf.RELA.size):
        slot, kind, target = elf.RELA.unpack_from(data, place)
        assert kind == 1027
        emulator.mem_write(base + slot, (base + target).to_bytes(8, "little"))
    symbol = tags[elf.DT_SYMTAB] + (1 + which % count) * elf.SYM.size
    emulator.reg_write(arm64_const.UC_ARM64_REG_LR, stop)
    emulator.emu_start(base + elf.SYM.unpack_from(data, symbol)[4], stop)
    assert emulator.reg_read(arm64_const.UC_ARM64_REG_X0) == value


def _dynamic(data: bytes) -> list[tuple[int, int]]:
    headers = [elf.PHDR.unpack_from(data, elf.EHDR.size + i * elf.PHDR.size) for i in range(4)]
    table = next(header for header in headers if header[0] == elf.PT_DYNAMIC)
    return list(elf.DYN.iter_unpack(data[table[2] : table[2] + table[5]]))
