"""Where the host would wait for the device: counted on the host, as if all tensors were there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable

_WAITING = {
    "_local_scalar_dense": "item",
    "_unique2": "unique",
    "bincount": "bincount",
    "equal": "equal",
    "masked_select": "masked_select",
    "nonzero": "nonzero",
    "unique_consecutive": "unique",
    "unique_dim": "unique",
}
"""Operators below autograd whose value, or whose shape, the host needs before it goes on."""
_INDEXING = frozenset({"_index_put_impl_", "index", "index_put", "index_put_"})
_BOOLEAN = frozenset({torch.bool, torch.uint8})
_READS = {torch.Tensor.cpu: "cpu", torch.Tensor.numpy: "numpy", torch.Tensor.tolist: "tolist"}
"""What reads a tensor of the host without any operator."""
_ON_HOST = "_npufix_on_host"


class CountOperators(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch does not annotate it
    """Takes down operators that the host waits for, in order: ``item``, ``nonzero``."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # same
        self.names = names

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator returns
        keywords = kwargs or {}
        name = func._schema.name.rpartition("::")[2]  # noqa: SLF001 - how operators are told apart
        if name in _INDEXING:
            # each boolean index is turned into positions, whose number the host has to know
            boolean = [i for i in args[1] if i is not None and i.dtype in _BOOLEAN]
            self.names += ["nonzero"] * len(boolean)
        elif name == "repeat_interleave" and keywords.get("output_size") is None:
            self.names.append(name)
        elif name in _WAITING:
            self.names.append(_WAITING[name])
        return func(*args, **keywords)


class CountReads(TorchFunctionMode):
    """Takes down what hands a whole tensor to the host: ``tolist``, ``cpu``, ``numpy``."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the torch function returns
        keywords = kwargs or {}
        name = _READS.get(func, "")
        if func is torch.Tensor.to and "cpu" in map(str, (*args[1:], *keywords.values())):
            name = "cpu"
        before = len(self.names)
        made = func(*args, **keywords)
        if args and getattr(args[0], _ON_HOST, False):
            del self.names[before:]  # ``x.cpu().sum().item()`` waits once
        elif name:
            self.names.append(name)
        else:
            return made
        if isinstance(made, torch.Tensor):
            made = made.view_as(made)  # ``x.cpu()`` of a tensor of the host is ``x``
            setattr(made, _ON_HOST, True)
        return made
