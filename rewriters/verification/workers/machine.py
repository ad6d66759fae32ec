"""What this machine has of what a verification may run on; torch is looked at, never imported."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.rewriters.verification.virtual_npu import VirtualNpuError
from npufix.rewriters.verification.virtual_npu.wheel import wheels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_CANN_FOLDERS = ("ascend-toolkit/latest", "cann", "latest", "nnrt/latest")
_VERSION_FILES = ("version.cfg", "*/ascend_toolkit_install.info", "ascend_toolkit_install.info")
_DEVICES = Path("/dev")
_IMPORTS_BACKENDS = (2, 5)
"""The release of torch from which on it imports torch_npu by itself."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An empty text is something that is not there."""

    python: str
    system: str
    """``Linux x86_64``."""
    torch: str = ""
    torch_npu: str = ""
    no_virtual_npu: str = ""
    """Why the installed torch_npu makes no virtual NPU."""
    wanted_torch: str = ""
    """The version of torch that the installed torch_npu is made for."""
    cann: str = ""
    """The folder of CANN."""
    cann_version: str = ""
    cann_loaded: bool = False
    """Whether its environment is set, as by ``set_env.sh``."""
    devices: int = 0

    @property
    def breaks_import(self) -> bool:
        """Whether ``import torch`` fails without ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``."""
        return bool(
            self.torch
            and self.torch_npu
            and not self.cann_loaded
            and _release(self.torch) >= _IMPORTS_BACKENDS
        )


def survey(variables: Mapping[str, str] = os.environ) -> Machine:
    """Look at this machine."""
    folder = next(_cann_folders(variables), None)
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=find_installed("torch") or ("unknown version" if find_spec("torch") else ""),
        torch_npu=find_installed("torch-npu"),
        no_virtual_npu=_no_virtual_npu(),
        wanted_torch=_find_wanted_torch(),
        cann="" if folder is None else str(folder),
        cann_version="" if folder is None else _cann_version(folder),
        cann_loaded=any(variables.get(name) for name in _CANN_VARIABLES),
        devices=sum(1 for _ in _DEVICES.glob("davinci[0-9]*")),
    )


def find_installed(name: str) -> str:
    """Return the version of a package, empty if it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _no_virtual_npu() -> str:
    try:
        wheels.find_wheels()
    except VirtualNpuError as error:
        return str(error)
    return ""


def _find_wanted_torch() -> str:
    try:
        needed = importlib.metadata.requires("torch-npu") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    exact = (re.match(r"torch\s*\(?==\s*(\d+(\.\d+)*)", text) for text in needed)
    return next((found.group(1) for found in exact if found), "")


def _cann_folders(variables: Mapping[str, str]) -> Iterator[Path]:
    named = [Path(variables[name]) for name in _CANN_VARIABLES if variables.get(name)]
    roots = [Path("/usr/local/Ascend"), Path(variables.get("HOME", "/"), "Ascend")]
    usual = [root / name for root in roots for name in _CANN_FOLDERS]
    yield from (folder for folder in (*named, *usual) if folder.is_dir())


def _cann_version(folder: Path) -> str:
    for pattern in _VERSION_FILES:
        for path in sorted(folder.glob(pattern)):
            found = re.search(r"version\W+([\d.]+\w*)", path.read_text("utf-8", "replace"))
            if found:
                return found.group(1)
    return ""
