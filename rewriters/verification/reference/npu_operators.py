"""A stand-in for torch_npu: the real operator schemas in front of reference kernels on CPU.

The schemas of ``schemas.json`` were read from 17 torch_npu wheels (not from its documentation,
which names arguments differently). To add an operator, add its schemas there and one module to
``kernels``.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
import sys
import types
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch

from npufix.rewriters.verification import kernels
from npufix.rewriters.verification.kernels.common import NoReferenceKernelError, note_kernel
from npufix.rewriters.verification.reference import (
    driving_functions,
    einops_functions,
    flash_functions,
    fused_optimizers,
    mindspeed_functions,
    scatter_functions,
)  # fmt: skip
from npufix.rewriters.verification.reference.autograd import differentiable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PACKAGE = __package__ or ""


class OperatorTable(msgspec.Struct, frozen=True):
    """Which operator has which schema in which version."""

    operators: dict[str, dict[str, list[str]]]
    versions: list[str]


class _Installed(NamedTuple):
    library: Any
    schemas: dict[str, str]


_installed: list[_Installed] = []


@cache
def read_table() -> OperatorTable:
    """Return the recorded schemas."""
    return msgspec.json.decode(
        files(_PACKAGE).joinpath("schemas.json").read_bytes(), type=OperatorTable
    )


def _key(version: str) -> tuple[int, int, int, int]:
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:.*?post(\d+))?", version)
    if found is None:
        raise ValueError(f"{version!r} is no version of torch_npu")
    major, minor, patch, post = (int(part or 0) for part in found.groups())
    return major, minor, patch, post


def find_recorded_version(wanted: str, versions: list[str]) -> str:
    """Return the recorded version that stands for ``wanted``: the newest if that is unknown.

    The post release matters more than the torch version (2.7.1 has 320 operators, 2.7.1.post11
    has 412), so the nearest post release of the same version wins, then the nearest older one.
    """
    ordered = sorted(versions, key=_key)
    if not re.match(r"\d+\.\d+", wanted):
        return ordered[-1]
    key = _key(wanted)
    same = [v for v in ordered if _key(v)[:3] == key[:3]]
    if same:
        return min(same, key=lambda v: abs(_key(v)[3] - key[3]))
    older = [v for v in ordered if _key(v) <= key]
    return older[-1] if older else ordered[0]


def schemas_of(version: str, known: OperatorTable) -> dict[str, str]:
    """Return the schema of each operator that this recorded version has."""
    return {
        name: schema
        for name, by_schema in known.operators.items()
        for schema, having in by_schema.items()
        if version in having
    }


@cache
def _read_schemas(wanted: str) -> tuple[str, dict[str, str]]:
    """Return the recorded version that stands for one, and its schemas: nobody may change them."""
    recorded = find_recorded_version(wanted, read_table().versions)
    return recorded, schemas_of(recorded, read_table())


def install(version: str = "") -> types.ModuleType:
    """Put the stand-in for this version of torch_npu into ``sys.modules`` and return it."""
    recorded, schemas = _read_schemas(version)
    if not _installed or _installed[-1].schemas != schemas:
        while _installed:
            _installed.pop().library._destroy()  # noqa: SLF001 - the only way to change a schema
        # torch.library has no annotations.
        library: Any = torch.library.Library("npu", "DEF")  # type: ignore[no-untyped-call] # torch has no annotations
        for name, schema in schemas.items():
            library.define(schema)
            _implement(library, name, recorded)
        _installed.append(_Installed(library, schemas))
    module = _stand_in(recorded, schemas)
    sys.modules["torch_npu"] = module
    sys.modules["torch_npu.optim"] = module.optim
    sys.modules.update(mindspeed_functions.modules())
    if "mx_driving" not in sys.modules:  # the real one knows more
        sys.modules.update(driving_functions.modules())
    _stand_in_for_absent({**scatter_functions.modules(), **flash_functions.modules()})
    stand_in_for_einops()
    return module


def stand_in_for_einops() -> None:
    """Have einops, which runs wherever torch does, if it is not installed."""
    _stand_in_for_absent(einops_functions.modules())


def _stand_in_for_absent(made: Mapping[str, types.ModuleType]) -> None:
    """Put modules of packages that are not installed into ``sys.modules``."""
    absent = {
        name
        for name in {dotted.partition(".")[0] for dotted in made}
        if name not in sys.modules and importlib.util.find_spec(name) is None
    }
    sys.modules.update({n: m for n, m in made.items() if n.partition(".")[0] in absent})


def have_is_npu() -> None:
    """Give tensors the attribute that torch_npu gives them."""
    if not hasattr(torch.Tensor, "is_npu"):
        torch.Tensor.is_npu = property(lambda _: False)  # type: ignore[attr-defined] # as it does


def _implement(library: Any, name: str, version: str) -> None:  # noqa: ANN401 - torch.library has no annotations
    # An overload has the kernel of its operator.
    kernel = importlib.import_module(f"{kernels.__name__}.{name.partition('.')[0]}")

    def counted(*arguments: object, **keywords: object) -> object:
        note_kernel(name.partition(".")[0])
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - one operator, not its parts
            return kernel.forward(*arguments, **keywords)

    library.impl(name, counted, "CPU")
    # Without a kernel for autograd, gradients are lost as quietly here as on the device.
    silent = getattr(kernel, "BACKWARD", "") == "silent"
    if not silent and version not in getattr(kernel, "SILENT_IN", ()):
        library.impl(name, differentiable(name, kernel), "Autograd")


def _stand_in(version: str, schemas: Mapping[str, str]) -> types.ModuleType:
    module = types.ModuleType("torch_npu", "A stand-in by npufix: reference kernels on CPU.")
    # find_spec("torch_npu") is how libraries ask whether it is installed.
    module.__spec__ = importlib.machinery.ModuleSpec("torch_npu", None)

    def attribute(name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in schemas:
            operator: Callable[..., Any] = getattr(torch.ops.npu, name)
            return operator
        if name in read_table().operators:
            raise AttributeError(f"torch_npu {version} has no operator {name!r}")
        raise NoReferenceKernelError(f"there is no reference kernel for torch_npu.{name}")

    optim = fused_optimizers.module()
    module.__dict__.update(__getattr__=attribute, __version__=version, optim=optim)
    return module
