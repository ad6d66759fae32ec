"""The grounds that a verdict may stand on, and which of them this machine offers.

The one place that knows how the child process of a ground is started.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from npufix.rewriters.verification.sandbox.limits import environment
from npufix.rewriters.verification.virtual_npu import (
    VirtualNpuError,
    find_wheels,
    prepare,
    soc_name,
)
from npufix.rewriters.verification.virtual_npu import (
    environment as virtual_environment,
)
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from npufix.rewriters.verification.workers.machine import Machine

    _Lack: TypeAlias = tuple[str, str] | None

AUTO = "auto"
_NO_TORCH_NPU = "torch_npu is not installed"


class Backend(str, Enum):
    """What ran; ``none`` is the ground of a verdict for which nothing could run."""

    NPU = "npu"
    """A real device with its own kernels."""
    VIRTUAL_NPU = "virtual-npu"
    """The real torch_npu on a machine without CANN: its own checks, reference kernels below."""
    REFERENCE = "reference"
    """torch on CPU; operators of torch_npu are reference kernels behind their real schemas."""
    NONE = "none"


_IN_ORDER = (Backend.NPU, Backend.VIRTUAL_NPU, Backend.REFERENCE)
_BUILT = frozenset({Backend.NPU, Backend.VIRTUAL_NPU, Backend.REFERENCE})
"""The grounds that ``child.begin`` can set up."""


class BackendError(UserError):
    """The ground that was asked for is not to be had here."""


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """Whether a ground is to be had on a machine."""

    ground: Backend
    missing: str = ""
    """What keeps it from being used; empty if nothing does."""
    remedy: str = ""

    @property
    def usable(self) -> bool:
        """Whether a verification can run on it."""
        return not self.missing


def check_backends(machine: Machine) -> tuple[BackendStatus, ...]:
    """Return all grounds, the one that says most first."""
    return tuple(_standing(ground, machine) for ground in _IN_ORDER)


def choose_backend(machine: Machine, wanted: str = AUTO) -> Backend:
    """Return the ground to use.

    Raises:
        GroundError: the machine does not offer it.

    """
    every = check_backends(machine)
    usable = [standing.ground for standing in every if standing.usable]
    if wanted == AUTO:
        return usable[0] if usable else Backend.NONE
    standing = next(s for s in every if s.ground.value == wanted)
    if not standing.usable:
        raise BackendError(f"--on {wanted}: {standing.missing}", standing.remedy)
    return standing.ground


def prepare_backend(ground: Backend, wanted: str, chip: str) -> tuple[Backend, str]:
    """Return the ground to use, and the folder of the libraries for a virtual NPU.

    Where these cannot be made the folder is empty: every verdict, found on another ground, says
    what went wrong on this one.

    Raises:
        GroundError: it was asked for and cannot be made.

    """
    if ground is not Backend.VIRTUAL_NPU:
        return ground, ""
    try:
        soc_name(chip)
        return ground, str(prepare(find_wheels()))
    except VirtualNpuError as error:
        if wanted != AUTO:
            raise BackendError(f"--on {wanted}: {error}", "use --on reference") from None
        return ground, ""


def try_virtual_npu(machine: Machine) -> Machine:
    """Return the machine with what it says when the libraries for a virtual NPU are made."""
    if not _standing(Backend.VIRTUAL_NPU, machine).usable:
        return machine
    try:
        prepare(find_wheels())
    except VirtualNpuError as error:
        return replace(machine, no_virtual_npu=str(error))
    return machine


def child_environment(ground: Backend, parent: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the environment of the child process that verifies on ``ground``.

    The child gets the name of the ground as an argument and sets it up in ``child.begin``.
    """
    if ground not in _BUILT:
        raise BackendError(f"no verification on {ground.value}", "use --on reference")
    own = environment(parent, home, device=ground is Backend.NPU)
    return virtual_environment(own) if ground is Backend.VIRTUAL_NPU else own


def _standing(ground: Backend, machine: Machine) -> BackendStatus:
    needed = {
        Backend.NPU: _npu,
        Backend.VIRTUAL_NPU: _virtual_npu,
        Backend.REFERENCE: _torch,
    }
    lack = _torch(machine) or needed[ground](machine)
    if lack is None and ground not in _BUILT:
        lack = "this version of npufix does not verify on it yet", "use --on reference"
    return BackendStatus(ground) if lack is None else BackendStatus(ground, *lack)


def _torch(machine: Machine) -> _Lack:
    return None if machine.torch else ("torch is not installed", "pip install 'npufix[verify]'")


def _npu(machine: Machine) -> _Lack:
    if not machine.devices:
        return "no NPU (/dev/davinci*)", "use a machine with an Ascend NPU and its driver"
    if not machine.torch_npu:
        return _NO_TORCH_NPU, _get_torch_npu(machine)
    if not machine.cann:
        return "CANN is not installed", "install the CANN toolkit and the kernels of your chip"
    if not machine.cann_loaded:
        return "the environment of CANN is not set", f"source {machine.cann}/set_env.sh"
    return None


def _virtual_npu(machine: Machine) -> _Lack:
    if not machine.system.startswith("Linux"):
        return f"torch_npu is not made for {machine.system}", "use Linux"
    if not machine.torch_npu:
        return _NO_TORCH_NPU, _get_torch_npu(machine)
    if machine.no_virtual_npu:
        return machine.no_virtual_npu, "use --on reference until then"
    return None


def _get_torch_npu(machine: Machine) -> str:
    release = machine.torch.partition("+")[0]
    return f"pip install torch-npu=={release}, if there is one, or the pair of another release"
