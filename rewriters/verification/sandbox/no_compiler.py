"""Torch without its compiler, which nothing is compiled with here.

Functions of torch that are not to be compiled import it when they are called first: with the first
operator of a virtual NPU. That takes a second of each process, and a little of every call.
``TORCHDYNAMO_DISABLE`` switches the compiler off, and has it imported nevertheless.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F")
_MODULE, _MARK = "torch._compile", "_disable_dynamo"


def leave_out_compiler() -> None:
    """Have torch, which is not imported yet, mark functions as not to be compiled by leaving them.

    Where torch has no such module, or another one, it stays as it is.
    """
    found = importlib.util.find_spec("torch") if "torch" not in sys.modules else None
    if found is None or found.origin is None:
        return
    path = Path(found.origin).with_name("_compile.py")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if not path.is_file() or spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, _MARK):
        setattr(module, _MARK, _leave)
        sys.modules[_MODULE] = module


def _leave(function: F | None = None, recursive: bool = True) -> F | Callable[[F], F]:  # noqa: ARG001, FBT001, FBT002 - as torch calls it
    if function is not None:
        return function
    return lambda given: given
