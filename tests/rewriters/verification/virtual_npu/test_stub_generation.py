"""The stub libraries of an installation: found, generated once, or refused with a reason."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from npufix.rewriters.verification.virtual_npu import VirtualNpuError, Wheels, find_wheels, prepare
from npufix.rewriters.verification.virtual_npu.loading import KERNELS, MAIN
from npufix.rewriters.verification.virtual_npu.wheel import elf_format, elf_reader, wheels
from npufix.rewriters.verification.virtual_npu.wheel.elf_writer import Function, shared_object
from npufix.rewriters.verification.virtual_npu.wheel.wheels import Package

if TYPE_CHECKING:
    from pathlib import Path

_MACHINE = elf_format.EM_X86_64
_KERNEL = "aclnnRmsNorm"


@pytest.fixture
def fake(tmp_path: Path) -> Wheels:
    """Return wheels whose libraries need CANN, but nothing else."""
    torch, torch_npu = tmp_path / "torch", tmp_path / "torch_npu"
    for package in (torch, torch_npu):
        (package / "lib").mkdir(parents=True)
    names = [_KERNEL, f"{_KERNEL}GetWorkspaceSize", "aclrtMallocAlign32"]
    needed = ["libascendcl.so", "libhccl.so", "libc.so.6"]
    main = shared_object("libtorch_npu.so", _MACHINE, list(map(Function, names)), needed)
    (torch_npu / "lib" / "libtorch_npu.so").write_bytes(main)
    (torch_npu / "_C.so").write_bytes(shared_object("_C.so", _MACHINE, needed=["libtorch_npu.so"]))
    return Wheels(Package(torch, "2.13.0"), Package(torch_npu, "2.13.0"), _MACHINE)


def test_what_is_missing_is_written(fake: Wheels, tmp_path: Path) -> None:
    folder = prepare(fake, tmp_path / "cache")
    libraries = {path.name for path in folder.glob("*.so")}
    assert libraries == {MAIN, "libhccl.so", "libopapi.so"}
    names = {symbol.name for symbol in elf_reader.read(folder / MAIN).defined}
    assert {_KERNEL, f"{_KERNEL}GetWorkspaceSize", "aclrtMallocAlign32"} <= names
    assert elf_reader.read(folder / "libhccl.so").needed == (MAIN,)
    assert (folder / KERNELS).read_text() == _KERNEL


def test_nothing_is_generated_twice(fake: Wheels, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare(fake, cache)
    written = (first / MAIN).stat().st_mtime_ns
    assert prepare(fake, cache) == first
    assert (first / MAIN).stat().st_mtime_ns == written
    assert [path.name for path in cache.iterdir()] == [first.name]


def test_other_libraries_have_other_stubs(fake: Wheels, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare(fake, cache)
    library = fake.torch_npu.folder / "lib" / "libtorch_npu.so"
    library.write_bytes(shared_object("libtorch_npu.so", _MACHINE, needed=["libascendcl.so"]))
    second = prepare(fake, cache)
    assert second != first
    assert (second / KERNELS).read_text() == ""


def test_a_cache_that_cannot_be_written_is_named(fake: Wheels, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(VirtualNpuError, match="XDG_CACHE_HOME"):
        prepare(fake, file / "cache")


def test_a_full_disk_is_named_and_leaves_nothing(
    fake: Wheels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(VirtualNpuError, match=r"No space left.*make room"):
        prepare(fake, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_at_once_write_the_same(fake: Wheels, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: prepare(fake, cache), range(8)))
    assert [path.name for path in cache.iterdir()] == [folder.name for folder in folders]


def test_a_library_that_was_cut_off_is_named(fake: Wheels, tmp_path: Path) -> None:
    library = fake.torch_npu.folder / "lib" / "libtorch_npu.so"
    library.write_bytes(library.read_bytes()[:2000])
    with pytest.raises(VirtualNpuError, match=r"ends too early.*libtorch_npu\.so.*install"):
        prepare(fake, tmp_path / "cache")


def test_libraries_for_another_processor_are_refused(fake: Wheels, tmp_path: Path) -> None:
    other = Wheels(fake.torch, fake.torch_npu, elf_format.EM_AARCH64)
    with pytest.raises(VirtualNpuError, match="another processor"):
        prepare(other, tmp_path / "cache")


def test_a_wheel_without_its_extension_is_refused(fake: Wheels, tmp_path: Path) -> None:
    (fake.torch_npu.folder / "_C.so").unlink()
    with pytest.raises(VirtualNpuError, match="_C extension"):
        prepare(fake, tmp_path / "cache")


@pytest.mark.parametrize(
    ("torch", "torch_npu", "reason"),
    [
        ("2.13.0+cpu", None, "torch_npu is not installed"),
        ("2.6.0", "2.7.1.post2", r"torch_npu 2\.7\.1\.post2 is not for torch 2\.6\.0"),
        ("2.14.0", "2.14.0", "does not load with a CUDA build"),
    ],
)
def test_installations_that_make_no_virtual_npu_say_why(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    torch: str,
    torch_npu: str | None,
    reason: str,
) -> None:
    _install(tmp_path, "torch", torch)
    (tmp_path / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    if torch_npu:
        _install(tmp_path, "torch_npu", torch_npu)
    monkeypatch.setattr(wheels.sys, "platform", "linux")
    monkeypatch.setattr(wheels.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(wheels.sys, "path", [str(tmp_path)])
    with pytest.raises(VirtualNpuError, match=reason):
        find_wheels()


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.sys, "platform", "darwin")
    with pytest.raises(VirtualNpuError, match="Linux"):
        find_wheels()


def _install(folder: Path, name: str, version: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
