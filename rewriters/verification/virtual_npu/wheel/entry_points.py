"""How functions of the ACL runtime are declared, and what those do that nobody wrote."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_int, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUCCESS = 0
NO_SUCH_DEVICE = 107001
"""ACL_ERROR_RT_INVALID_DEVICEID."""
NOT_SUPPORTED = 207000
"""ACL_ERROR_RT_FEATURE_NOT_SUPPORT."""
OUT_OF_MEMORY = 207001
"""ACL_ERROR_RT_MEMORY_ALLOCATION."""
REFUSED = 561103
"""ACLNN_ERR_INNER_NULLPTR: what a kernel says that does not run."""

_DECLARED = "npufix_entry_point"
_NOTHING_TO_DO = (
    "Msprof",
    "aclAppLog",
    "aclDestroy",
    "aclFinalize",
    "aclInit",
    "aclSet",
    "aclopDestroy",
    "aclopSet",
    "aclprof",
    "aclrtDestroy",
    "aclrtRecord",
    "aclrtReset",
    "aclrtSet",
    "aclrtStreamWait",
    "aclrtSynchronize",
)
"""Functions whose work has happened when they are called: everything here is synchronous."""
_OPTIONAL = (
    "aclDestroyAclOpExecutor",
    "aclrtDestroyStreamForce",
    "aclrtSetDeviceSatMode",
    "aclrtSetOpExecuteTimeOut",
    "aclrtSetOpWaitTimeout",
    "aclrtSetStreamFailureMode",
    "aclrtSetStreamOverflowSwitch",
    "aclrtSetSysParamOpt",
    "aclrtSynchronizeDevice",
    "aclrtSynchronizeDeviceWithTimeout",
    "aclrtSynchronizeStreamWithTimeout",
    "aclrtCtxSetSysParamOpt",
    "aclSetCompileopt",
)
"""Those of them that torch_npu looks up by name. It does without the others."""


DIRECT = {
    "aclnnEmbeddingDenseBackward": "ttnnbt",
    "aclnnLogicalNot": "tt",
    "aclnnTriu": "tnt",
}
"""Kernels launched outside of operators in some versions, with what they are given before the
size of their workspace is known: tensors, numbers, booleans."""
_KINDS = {"t": c_void_p, "n": c_int64, "b": c_bool}


class DeviceTensor(NamedTuple):
    """A tensor as a kernel is given it."""

    shape: tuple[int, ...]
    dtype: int
    strides: tuple[int, ...]
    offset: int
    data: int


class EntryPoint(NamedTuple):
    """A function of the runtime: its name, its C signature, the method that does its work."""

    name: str
    signature: Any
    method: str


def entry(*names: str, takes: tuple[Any, ...] = (), gives: Any = c_int) -> Callable[..., Any]:  # noqa: ANN401 - ctypes types
    """Declare a method as the functions of these names.

    ``takes`` may leave out last arguments: in both calling conventions they stay unread.
    """

    def declare(method: Callable[..., Any]) -> Callable[..., Any]:
        signature = ctypes.CFUNCTYPE(gives, *takes)
        setattr(method, _DECLARED, [EntryPoint(n, signature, method.__name__) for n in names])
        return method

    return declare


def list_declared(runtime: type) -> Iterator[EntryPoint]:
    """Yield the functions that a class declares."""
    for method in vars(runtime).values():
        yield from getattr(method, _DECLARED, ())


def describe_preparation(kernel: str) -> Any:  # noqa: ANN401 - as above
    """Return the signature of the function that prepares a kernel of ``DIRECT``, and a status."""
    return ctypes.CFUNCTYPE(c_int, *(_KINDS[kind] for kind in DIRECT[kernel]))


def initial_result(name: str) -> int:
    """Return what a function returns that has no method."""
    return SUCCESS if name.startswith(_NOTHING_TO_DO) or name.startswith("_Z") else NOT_SUPPORTED


def list_optional(runtime: type) -> frozenset[str]:
    """Return the names to offer to torch_npu when it looks them up."""
    return frozenset(point.name for point in list_declared(runtime)) | set(_OPTIONAL)


def store(address: int | None, value: float, kind: Any = ctypes.c_int64) -> int:  # noqa: ANN401 - a ctypes type
    """Write a result where the caller wants it."""
    if address:
        kind.from_address(address).value = value
    return SUCCESS


def read_string(address: int) -> str:
    """Return the C string at an address."""
    return ctypes.string_at(c_void_p(address)).decode(errors="replace")
