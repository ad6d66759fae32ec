"""Generate the libraries that stand in for CANN, once per wheel, and keep them."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.rewriters.verification.virtual_npu.loading import KERNELS, MAIN
from npufix.rewriters.verification.virtual_npu.runtime import HostRuntime
from npufix.rewriters.verification.virtual_npu.wheel.elf_writer import Function, shared_object
from npufix.rewriters.verification.virtual_npu.wheel.entry_points import (
    initial_result,
    list_optional,
)
from npufix.rewriters.verification.virtual_npu.wheel.errors import VirtualNpuError
from npufix.rewriters.verification.virtual_npu.wheel.requirements import (
    WORKSPACE,
    read_requirements,
)
from npufix.rewriters.write.user_folders import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.verification.virtual_npu.wheel.requirements import Requirements
    from npufix.rewriters.verification.virtual_npu.wheel.wheels import Wheels

_OPENED = "libopapi.so"
"""Opened by name, so that no table of the wheel mentions it."""
_FORMAT = "1"


def prepare(wheels: Wheels, cache: Path | None = None) -> Path:
    """Return the folder with the libraries for these wheels; write it if it is not there yet."""
    folder = (cache or cache_folder("virtual_npu")) / _key(wheels)
    if not (folder / MAIN).is_file():
        _write(folder, _files(read_requirements(wheels), wheels.machine))
    return folder


def _key(wheels: Wheels) -> str:
    """Return a name for the content of the libraries, and for what we make of it."""
    digest = hashlib.blake2b(digest_size=16)
    ours = (_FORMAT, wheels.torch.version, *sorted(list_optional(HostRuntime)))
    digest.update(" ".join(ours).encode())
    for path in wheels.own_libraries():
        digest.update(f"\n{path.name}\n".encode())
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise VirtualNpuError(f"cannot be read: {error.strerror}", str(path)) from None
    return f"{wheels.torch_npu.version}-{digest.hexdigest()}"


def _files(needed: Requirements, machine: int) -> Mapping[str, bytes]:
    offered = set(needed.looked_up) & list_optional(HostRuntime)
    launching = {name for kernel in needed.kernels for name in (kernel, kernel + WORKSPACE)}
    functions = [Function(name, initial_result(name)) for name in needed.linked]
    functions += [Function(name) for name in sorted((offered | launching) - set(needed.linked))]
    others = {*needed.libraries, _OPENED} - {MAIN}
    files = {name: shared_object(name, machine, needed=[MAIN]) for name in sorted(others)}
    files[MAIN] = shared_object(MAIN, machine, functions)
    files[KERNELS] = "\n".join(needed.kernels).encode()
    return files


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all or nothing, whoever else is writing the same."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    except OSError as error:
        raise _cannot_be_written(error, folder) from None
    try:
        for name, content in files.items():
            (unfinished / name).write_bytes(content)
        unfinished.rename(folder)
    except OSError as error:
        if not (folder / MAIN).is_file():  # else another process was faster
            raise _cannot_be_written(error, folder) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _cannot_be_written(error: OSError, folder: Path) -> VirtualNpuError:
    return VirtualNpuError(
        f"the stub libraries cannot be written: {error.strerror}",
        str(folder.parent),
        "make room there, or set XDG_CACHE_HOME to a folder that is yours",
    )
