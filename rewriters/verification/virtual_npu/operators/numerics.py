"""Compute on the host what torch_npu launches on the device.

Below autograd every operator comes by here. The wheel's own C++ runs first: it checks the
arguments, allocates the results, launches. If it launched nothing, its results are complete:
they were copied or allocated by functions that do work. Otherwise a reference computes them,
from the same memory into the same memory.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npufix.rewriters.verification.kernels.common import NoReferenceKernelError
from npufix.rewriters.verification.virtual_npu.host_memory import (
    LOW_PRECISION,
    collect,
    host_arguments,
    host_view,
    involves_device,
    on_device,
    widen,
)
from npufix.rewriters.verification.virtual_npu.operators.random_numbers import (
    draw_from,
    find_generator,
    read_state,
)
from npufix.rewriters.verification.virtual_npu.operators.references import (
    find_reference,
    refuse_crash,
)
from npufix.rewriters.verification.virtual_npu.operators.results import (
    move_to_device,
    spoil,
    store_results,
)
from npufix.rewriters.verification.virtual_npu.wheel.errors import UncoveredLaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.verification.virtual_npu.recorder import Recorder

NOT_RETURNED = object()
"""The result of an operator that gave up because nothing was computed."""
_TOO_NARROW = "not implemented for '"
_STATISTICS = frozenset({"invstd", "mean", "rstd", "save_invstd", "save_mean", "save_var"})
"""Arguments that the device keeps in float32, whatever the dtype of the others."""
_OF_THE_WHEEL = frozenset({"aten", "atb", "npu"})
"""Namespaces whose operators the wheel has kernels for; those of others consist of them."""
_KERNELS_OF_PARTS = ("PrivateUse1", "CompositeExplicitAutograd", "CompositeImplicitAutograd")


class Numerics(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotations
    """While it is active, operators on the device compute."""

    def __init__(self, recorder: Recorder, *, strict: bool) -> None:
        """With ``strict`` off, what no reference computes becomes NaN instead of an error."""
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self._recorder = recorder
        self._strict = strict

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch has no annotation for an operator
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the operator, and compute it if it is one of the device."""
        keywords = kwargs or {}
        if func.namespace not in _OF_THE_WHEEL:
            return self._run_parts(func, args, keywords)
        if func.namespace == "aten" and not involves_device((*args, *keywords.values())):
            return func(*args, **keywords)  # of the host, like half of what a verification does
        return self._run(_Call(func, args, keywords))

    def _run(self, call: _Call) -> object:
        """Run the operator of the wheel, then compute what it launched."""
        func, args = call.operator, call.positional
        if func.namespace == "npu":
            refuse_crash(func, args)
        before = [(tensor, host_view(tensor).clone()) for tensor in call.written()]
        generator = find_generator(func, (args, call.keywords))
        state = read_state(generator)
        launched: list[str] = []
        try:
            with self._recorder.running(func.name(), launched):
                result = func(*args, **call.keywords)
        except RuntimeError:
            # A check of its own, unless it read what its launches would have computed: then
            # the host, which checks the same, decides.
            if not launched or func.namespace != "aten":
                raise
            result = NOT_RETURNED
        if not launched:
            return result
        for tensor, content in before:
            if tensor.shape == content.shape:  # else it was resized, and holds nothing
                host_view(tensor).copy_(content)
        then = read_state(generator)
        try:
            with draw_from(() if then == state else state, then):
                computed = call.on_host(result)
        except (NoReferenceKernelError, NotImplementedError) as reason:
            self._not_computed(call, launched, str(reason))
            spoil([result, *call.written()])
            return result
        if result is NOT_RETURNED:
            return move_to_device(computed, call.written())
        return store_results(func, result, computed)

    def _run_parts(
        self,
        operator: Any,  # noqa: ANN401 - as above
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """Run an operator that is written in others, as ``torch.library.custom_op`` makes them."""
        for key in _KERNELS_OF_PARTS:
            if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key):  # noqa: SLF001 - the only way to ask
                with self:  # past this mode to the kernel, whose parts come by here again
                    return operator._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)  # noqa: SLF001 - as above
        return operator(*args, **kwargs)

    def _not_computed(self, call: _Call, launched: Sequence[str], reason: str) -> None:
        if self._strict:
            kernels = ", ".join(dict.fromkeys(launched))
            line = reason.partition("\n")[0]
            raise UncoveredLaunchError(
                f"{call.operator.name()} launches {kernels}, which no reference kernel computes: "
                f"{line}"
            ) from None


@cache
def _list_written(operator: Any) -> tuple[tuple[int, str], ...]:  # noqa: ANN401 - as above
    """Return place and name of each argument that an operator writes to."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(operator._schema.arguments)  # noqa: SLF001 - the public way
        if argument.alias_info is not None and argument.alias_info.is_write
    )


class _Call(NamedTuple):
    """An operator and what it is called with."""

    operator: Any
    positional: Sequence[object]
    keywords: Mapping[str, object]

    def written(self) -> list[torch.Tensor]:
        """Return the device tensors that it writes to, as its schema says."""
        found: list[torch.Tensor] = []
        for place, name in _list_written(self.operator):
            given = place < len(self.positional)
            value = self.positional[place] if given else self.keywords.get(name)
            found += collect(value, on_device)
        return found

    def on_host(self, result: object) -> object:
        """Run its reference, on the memory of the device."""
        compute = find_reference(self.operator, result)
        positional = host_arguments(list(self.positional))
        keywords = host_arguments(dict(self.keywords))
        if not self._is_wide_inside(result):
            try:
                return compute(*positional, **keywords)
            except RuntimeError as error:
                if _TOO_NARROW not in str(error):
                    raise
        # Compute in float32, round the results.
        clones: list[tuple[torch.Tensor, torch.Tensor]] = []
        computed = compute(*widen(positional, clones), **widen(keywords, clones))
        for own, wide in clones:
            own.copy_(wide)
        return computed

    def _is_wide_inside(self, result: object) -> bool:
        """Say whether the device has statistics in float32 that the host would keep narrow."""
        if self.operator.namespace != "aten":
            return False
        given = collect([*self.positional, *self.keywords.values()], on_device)
        narrow = {tensor.dtype for tensor in given} & LOW_PRECISION
        if len(narrow) != 1:  # of two, the host says what it says
            return False
        named = {argument.name for argument in self.operator._schema.arguments}  # noqa: SLF001 - as above
        if named & _STATISTICS:
            return True
        made = collect(result, on_device)
        return any(tensor.dtype == torch.float32 for tensor in made)
