"""Find the installed torch and torch_npu, without importing either."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from npufix.rewriters.verification.virtual_npu.wheel.elf_format import MACHINES
from npufix.rewriters.verification.virtual_npu.wheel.errors import VirtualNpuError

_OWN_ALLOCATOR_KEY = (2, 14)
"""From here on a CUDA build of torch and torch_npu both register one setting, and abort."""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    folder: Path
    version: str

    @property
    def release(self) -> tuple[int, ...]:
        """The numbers of the release, without post releases and local builds."""
        found = re.match(r"\d+(\.\d+)*", self.version)
        return tuple(map(int, found.group().split(".")))[:3] if found else ()


@dataclass(frozen=True, slots=True)
class Wheels:
    """The two packages that make a virtual NPU."""

    torch: Package
    torch_npu: Package
    machine: int
    """As in the header of ELF files."""

    def own_libraries(self) -> list[Path]:
        """Return the shared objects of torch_npu."""
        folder = self.torch_npu.folder
        return sorted([*folder.glob("_C*.so"), *(folder / "lib").glob("*.so")])

    def torch_libraries(self) -> list[Path]:
        """Return the shared objects that come with torch."""
        folder = self.torch.folder
        found = [*(folder / "lib").glob("*.so*"), *(folder.parent / "torch.libs").glob("*.so*")]
        return sorted(path for path in found if path.is_file() and not path.is_symlink())


def find_wheels() -> Wheels:
    """Return the wheels of this environment.

    Raises:
        VirtualNpuError: they make no virtual NPU; it says why.

    """
    machine = MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        here = f"{sys.platform} on {platform.machine()}"
        raise VirtualNpuError("torch_npu exists for Linux on x86-64 and aarch64 only", here)
    torch = _package("torch", "pip install torch")
    torch_npu = _package("torch_npu", f"pip install torch-npu=={torch.version.partition('+')[0]}")
    if torch.release != torch_npu.release:
        wanted = ".".join(map(str, torch_npu.release))
        raise VirtualNpuError(
            f"torch_npu {torch_npu.version} is not for torch {torch.version}",
            str(torch_npu.folder),
            f"pip install torch=={wanted}",
        )
    if torch.release >= _OWN_ALLOCATOR_KEY and _is_for_cuda(torch):
        raise VirtualNpuError(
            f"torch_npu {torch_npu.version} does not load with a CUDA build of torch",
            str(torch.folder),
            "install the CPU build, from https://download.pytorch.org/whl/cpu",
        )
    return Wheels(torch, torch_npu, machine)


def _package(name: str, hint: str) -> Package:
    # Not importlib.util.find_spec, which would find a stand-in in sys.modules.
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None:
        raise VirtualNpuError(f"{name} is not installed", sys.prefix, hint)
    folder = Path(spec.origin).parent
    try:
        return Package(folder, version(name))
    except PackageNotFoundError:
        raise VirtualNpuError(f"{name} has no metadata", str(folder), hint) from None


def _is_for_cuda(torch: Package) -> bool:
    text = (torch.folder / "version.py").read_text(encoding="utf-8")
    return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None
