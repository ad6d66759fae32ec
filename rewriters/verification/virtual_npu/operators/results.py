"""Put what was computed where the device has its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from npufix.rewriters.verification.virtual_npu.host_memory import (
    DEVICE,
    collect,
    host_view,
    on_device,
)
from npufix.rewriters.verification.virtual_npu.operators.torch_only import OPAQUE
from npufix.rewriters.verification.virtual_npu.wheel.errors import ReferenceDisagreesError

if TYPE_CHECKING:
    from collections.abc import Sequence


def store_results(operator: Any, result: object, computed: object) -> object:  # noqa: ANN401 - torch has no annotation for one
    """Return the device's own results, filled with what the reference returned."""
    if isinstance(result, torch.Tensor):
        return _stored_tensor(operator, result, computed)
    if isinstance(result, tuple | list):
        others = list(computed) if isinstance(computed, tuple | list) else [computed]
        others += [None] * (len(result) - len(others))
        pairs = zip(result, others, strict=False)
        # A number among other results is random state: the device's own is right.
        return type(result)(
            [
                store_results(operator, own, other) if isinstance(own, torch.Tensor) else own
                for own, other in pairs
            ]
        )
    return computed


def spoil(values: object) -> None:
    """Make results that nobody computed unmistakable."""
    for tensor in collect(values, on_device):
        host_view(tensor).fill_(float("nan") if tensor.is_floating_point() else 0)


def _stored_tensor(operator: Any, result: torch.Tensor, computed: object) -> torch.Tensor:  # noqa: ANN401 - as above
    if not isinstance(computed, torch.Tensor):
        spoil(result)
        return result
    if result.shape != computed.shape:
        if operator.namespace == "aten" and result.numel() == computed.numel():
            computed = computed.reshape(result.shape)
        elif torch.Tag.dynamic_output_shape in operator.tags or _name(operator) == "aten::where":
            # The wheel reads the shape of such a result from a kernel that never ran.
            result = torch.empty(computed.shape, dtype=result.dtype, device=result.device)
        elif _name(operator) in OPAQUE:
            memory = host_view(result).flatten().view(torch.uint8)
            content = computed.contiguous().flatten().view(torch.uint8)
            memory[: content.numel()] = content
            return result
        elif computed.numel() == 0 or _stands_for_none(operator, result):
            spoil(result)  # a result that the host leaves out, or nobody asked for
            return result
        elif result.numel():
            raise _disagreement(operator, result, computed)
    if operator.namespace != "aten" and result.dtype != computed.dtype and result.numel():
        raise _disagreement(operator, result, computed)
    target = host_view(result) if on_device(result) else result
    if result.numel() and target.data_ptr() != computed.data_ptr():
        target.copy_(computed)
    return result


def _stands_for_none(operator: Any, result: torch.Tensor) -> bool:  # noqa: ANN401 - as above
    """Say whether this is what torch_npu 2.4 returns for a gradient that is not wanted."""
    return _name(operator) == "npu::npu_rotary_mul_backward" and result.shape == (1, 1, 1, 1)


def _name(operator: Any) -> str:  # noqa: ANN401 - as above
    name: str = operator._schema.name  # noqa: SLF001 - the public way
    return name


def _disagreement(
    operator: Any,  # noqa: ANN401 - as above
    result: torch.Tensor,
    computed: torch.Tensor,
) -> ReferenceDisagreesError:
    return ReferenceDisagreesError(
        f"{operator.name()} returns {tuple(result.shape)} {result.dtype}, "
        f"its reference {tuple(computed.shape)} {computed.dtype}"
    )


def move_to_device(values: object, written: Sequence[torch.Tensor]) -> object:
    """Return what the host returned as tensors on the device; ``written`` are there already."""

    def move(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        for own in written:
            if own.data_ptr() == value.data_ptr() and own.shape == value.shape:
                return own
        result = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE)
        host_view(result).copy_(value)
        return result

    return tree_map(move, values)
