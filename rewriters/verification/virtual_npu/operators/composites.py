"""Operators that torch composes of others, and the wheel implements itself.

With a kernel but no autograd formula of their own they get their gradient from what the kernel
calls. A dispatch mode sees such an operator as a whole, without gradient. Where the kernel launches
something itself, as ``isclose`` does, there is no gradient to get.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.rewriters.verification.virtual_npu.recorder import Recorder

_DEVICE, _AUTOGRAD, _COMPOSED = "PrivateUse1", "AutogradPrivateUse1", "CompositeImplicitAutograd"
_FORMULA = "Autograd"
_LAUNCHING = frozenset({"aten::isfinite", "aten::one_hot", "aten::where"})
"""Their kernels launch in some versions, where no reference reaches; they have no gradient."""
_DECOMPOSED = ("aten::fill_diagonal_",)
"""Whose gradient calls the kernel that launches: what torch composes them of has its own."""
_OF_OTHERS = ("npu::dropout_with_byte_mask",)
"""Operators of torch_npu that have no formula either and call one that has."""


def register_composites(recorder: Recorder) -> object:
    """Register for each of them what to do where autograd would act; keep the result alive."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call] # as above
    own: Any = torch.library.Library("npu", "IMPL")  # type: ignore[no-untyped-call] # as above
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - the only way to ask
    names = torch._C._dispatch_get_registrations_for_dispatch_key(_DEVICE)  # noqa: SLF001 - as above
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one_hot is overridden
        for name in sorted(names):
            found = name.startswith("aten::") and _operator(name)
            if not found or not has(name, _COMPOSED):
                continue
            launching = name in _LAUNCHING
            if launching or not (has(name, _AUTOGRAD) or has(name, _FORMULA)):
                run = _composite(found, recorder, launching=launching)
                library.impl(name.removeprefix("aten::"), run, _AUTOGRAD)
        for name in _DECOMPOSED:
            if name in names:
                decompose = _operator(name).decompose
                library.impl(name.removeprefix("aten::"), decompose, _AUTOGRAD)
        for name in _OF_OTHERS:
            if name in names:
                found = getattr(torch.ops.npu, name.removeprefix("npu::")).default
                own.impl(name.removeprefix("npu::"), _composite(found, recorder), _AUTOGRAD)
    return library, own


def _operator(name: str) -> Any:  # noqa: ANN401 - torch has no annotation for one
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base, None), overload or "default", None)


def _composite(
    operator: Any,  # noqa: ANN401 - as above
    recorder: Recorder,
    *,
    launching: bool = False,
) -> Callable[..., object]:
    key = torch._C.DispatchKey.PrivateUse1  # noqa: SLF001 - torch's name for such devices

    def run(*args: object, **kwargs: object) -> object:
        values, _ = tree_flatten((args, kwargs))
        wanted = (
            not launching
            and torch.is_grad_enabled()
            and any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
        )
        result: object
        if wanted:
            refused = recorder.refused
            try:
                result = operator._op_dk(key, *args, **kwargs)  # noqa: SLF001 - the way that torch 2.1 to 2.14 share
            except RuntimeError:
                if recorder.refused == refused:
                    raise
            else:
                return result
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - to the dispatch mode
            result = operator(*args, **kwargs)
        return result

    return run
