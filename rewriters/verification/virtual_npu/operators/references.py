"""Find what computes an operator on the host."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification import kernels
from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    ShapeRefusedError,
    note_kernel,
)
from npufix.rewriters.verification.virtual_npu.operators.backward_formulas import FORMULAS
from npufix.rewriters.verification.virtual_npu.operators.derivatives import DERIVATIVES, derive
from npufix.rewriters.verification.virtual_npu.operators.expanded_gradients import EXPANDED
from npufix.rewriters.verification.virtual_npu.operators.torch_only import TORCH_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

_SAME_KERNEL = {"npu_fusion_attention_v3": "npu_fusion_attention"}
"""Operators that differ from another only in how they hand back random state."""


def refuse_crash(operator: Any, positional: Sequence[object]) -> None:  # noqa: ANN401 - torch has no annotation for one
    """Refuse what ends the process inside some versions of torch_npu, before it launches."""
    if operator.name() == "npu::npu_rotary_mul" and positional:
        x = positional[0]
        if isinstance(x, torch.Tensor) and x.dim() and x.shape[-1] == 1:
            raise ShapeRefusedError("npu_rotary_mul: the last dimension is 1, which has no halves")


def find_reference(operator: Any, result: object) -> Callable[..., object]:  # noqa: ANN401 - torch has no annotation for one
    """Return what computes an operator from host tensors, called as the operator is.

    ``result`` is what the operator itself returned: its shapes are the right ones.
    """
    name = operator._schema.name.partition("::")[2]  # noqa: SLF001 - the public way
    if name in EXPANDED:
        return partial(EXPANDED[name], result)
    if name in TORCH_ONLY:
        return TORCH_ONLY[name]
    if operator.namespace == "aten":
        chosen: Callable[..., object] = operator
        return chosen
    if name in FORMULAS:
        return FORMULAS[name]

    def run(*args: object, **kwargs: object) -> object:
        given = _arguments(operator, args, kwargs)
        if name in DERIVATIVES:
            derivative = DERIVATIVES[name]
            return derive(derivative, _kernel(derivative.of).forward, given)
        return _forward(operator, _SAME_KERNEL.get(name, name), given)

    return run


def _forward(
    operator: Any,  # noqa: ANN401 - as above
    name: str,
    given: Mapping[str, object],
) -> object:
    kernel = _kernel(name)
    note_kernel(name)
    parameters = inspect.signature(kernel.forward).parameters
    by_name = {a.name for a in operator._schema.arguments if a.kwarg_only}  # noqa: SLF001 - as above
    # By position: the modules take the arguments in the order of the schema, some names differ.
    positional = [value for argument, value in given.items() if argument not in by_name]
    values = positional[: len(parameters)]
    keywords = {key: value for key, value in given.items() if key in by_name & parameters.keys()}
    computed: object = kernel.forward(*values, **keywords)
    return computed


def _arguments(
    operator: Any,  # noqa: ANN401 - as above
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> dict[str, object]:
    """Return every argument by name, in the order of the schema."""
    schema = operator._schema.arguments  # noqa: SLF001 - as above
    given = {argument.name: value for argument, value in zip(schema, args, strict=False)}
    return {
        argument.name: given.get(argument.name, kwargs.get(argument.name, argument.default_value))
        for argument in schema
    }


@cache
def _kernel(name: str) -> ModuleType:
    known = {module.name for module in pkgutil.iter_modules(kernels.__path__)}
    if name not in known or not name.startswith("npu_"):
        raise NoReferenceKernelError(f"there is no reference kernel for {name}")
    return importlib.import_module(f"{kernels.__name__}.{name}")
