"""What one call of a version has called: modules, and functions of the user's file."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from npufix.rewriters.verification.calls.device import compute_on_device
from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from npufix.rewriters.verification.inputs.target import CallCase, Target


def list_repeated(original: Target, patched: Target, case: CallCase) -> list[str]:
    """Return what the patched version calls more often, in words; what is new in it not."""
    before, after = _count(original, case), _count(patched, case)
    if before is None or after is None:
        return []
    names = {name for version in (original, patched) for name in _own_functions(version)}
    shared = _own_functions(original) & _own_functions(patched)
    return [
        f"{name} {after[name]} times instead of {before[name]}"
        for name in sorted(after)
        if after[name] > before[name] and (name in shared or name not in names)
    ]


@runs_with_target
def _count(target: Target, case: CallCase) -> Counter[str] | None:
    """Count the calls of modules by their class and of functions by their name."""
    found: Counter[str] = Counter()

    def called(module: torch.nn.Module, _arguments: object) -> None:
        found[f"a {type(module).__name__}"] += 1

    def run() -> None:
        prepared = target.prepare(case, torch.float32)
        seed_everything(case.seed)
        hook = register_module_forward_pre_hook(called)
        try:
            with _counting(found, target.loaded.filename):
                prepared.call(prepared.arguments)
        finally:
            hook.remove()

    with compute_on_device(on_npu=target.on_npu):
        return None if try_call(run, CALL_S).error else found


@contextmanager
def _counting(found: Counter[str], filename: str) -> Iterator[None]:
    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == filename:
            found[frame.f_code.co_name] += not frame.f_code.co_name.startswith("<")

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(previous)


@runs_with_target
def _own_functions(target: Target) -> set[str]:
    """Return the names of the functions and methods of the module, but for the one itself."""
    found: set[str] = set()
    for name, value in target.loaded.namespace.items():
        code = getattr(value, "__code__", None)
        if code is not None and code.co_filename == target.loaded.filename:
            found.add(name)
        if isinstance(value, type) and value.__module__ == target.loaded.namespace.get("__name__"):
            found |= {n for n, item in vars(value).items() if hasattr(item, "__code__")}
    return found - {target.name}
