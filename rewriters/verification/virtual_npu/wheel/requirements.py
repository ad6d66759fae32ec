"""What an installed torch_npu looks for in CANN: libraries, symbols, kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.verification.virtual_npu.wheel import elf_reader
from npufix.rewriters.verification.virtual_npu.wheel.errors import VirtualNpuError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from npufix.rewriters.verification.virtual_npu.wheel.elf_reader import SharedObject
    from npufix.rewriters.verification.virtual_npu.wheel.wheels import Wheels

_OF_CPYTHON = re.compile(r"_?Py[A-Z_]")
_OF_TORCH = re.compile(r"_ZT?[A-Z]*N?K?(?:2at|3c10|5torch|6caffe2)")
_LOOKED_UP = rb"acl[A-Za-z0-9_]+"
WORKSPACE = "GetWorkspaceSize"
"""What the function is called that prepares a kernel, after the kernel's name."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """What CANN would supply."""

    libraries: tuple[str, ...]
    linked: tuple[str, ...]
    """Symbols that must be there for the libraries of torch_npu to load."""
    looked_up: tuple[str, ...]
    """Functions that torch_npu looks up by name when it needs them."""
    kernels: tuple[str, ...]
    """``aclnnRmsNorm``: those of them that launch something."""


def read_requirements(wheels: Wheels) -> Requirements:
    """Read what the libraries of torch_npu need and neither it nor torch has."""
    own, others = _link(wheels)
    machines = {library.machine for library in own.values()}
    if machines != {wheels.machine}:
        raise VirtualNpuError(
            "the libraries of torch_npu are for another processor", str(wheels.torch_npu.folder)
        )
    defined = {
        symbol.name for library in (*own.values(), *others.values()) for symbol in library.defined
    }
    linked = {
        symbol.name
        for library in own.values()
        for symbol in library.undefined
        # What has a version is of the C and C++ runtimes.
        if not symbol.version
        and not symbol.weak
        and symbol.name not in defined
        and not _OF_CPYTHON.match(symbol.name)
    }
    _check_match(linked, wheels)
    libraries = {
        name
        for library in own.values()
        for name in library.needed
        # Those of the system have their version in the name: libc.so.6.
        if name.endswith(".so") and name not in own and name not in others
    }
    names = _names(wheels)
    kernels = {
        name.removesuffix(WORKSPACE)
        for name in names
        if name.endswith(WORKSPACE) and name.removesuffix(WORKSPACE) in names
    }
    return Requirements(
        tuple(sorted(libraries)),
        tuple(sorted(linked)),
        tuple(sorted(names - linked)),
        tuple(sorted(kernels)),
    )


def _link(wheels: Wheels) -> tuple[Mapping[str, SharedObject], Mapping[str, SharedObject]]:
    """Return the libraries of torch_npu that are loaded on import, and those of torch they use."""
    own_paths = {path.name: path for path in wheels.own_libraries()}
    torch_paths = {path.name: path for path in wheels.torch_libraries()}
    wanted = [name for name in own_paths if name.startswith("_C")]
    if not wanted:
        raise VirtualNpuError("torch_npu has no _C extension", str(wheels.torch_npu.folder))
    own: dict[str, SharedObject] = {}
    others: dict[str, SharedObject] = {}
    while wanted:
        name = wanted.pop()
        paths, found = (own_paths, own) if name in own_paths else (torch_paths, others)
        if name in paths and name not in found:
            found[name] = elf_reader.read(paths[name])
            wanted += found[name].needed
    return own, others


def _check_match(linked: Collection[str], wheels: Wheels) -> None:
    strangers = sorted(name for name in linked if _OF_TORCH.match(name))
    if strangers:
        raise VirtualNpuError(
            f"torch_npu {wheels.torch_npu.version} was built for another torch than "
            f"{wheels.torch.version}: {len(strangers)} symbols are missing, {strangers[0]} first",
            str(wheels.torch.folder),
            "install the torch that torch_npu asks for",
        )


def _names(wheels: Wheels) -> frozenset[str]:
    library: Path = wheels.torch_npu.folder / "lib" / "libtorch_npu.so"
    if not library.is_file():
        raise VirtualNpuError("torch_npu has no libtorch_npu.so", str(library.parent))
    return elf_reader.strings(library, _LOOKED_UP)
