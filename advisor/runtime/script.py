"""Running a script or a module as Python does, with the changes of the rules."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from npufix.advisor.runtime.process.switches import SwitchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, TracebackType

    from npufix.advisor.runtime.process.hook import Hook

INTERRUPTED = 130
_FAILED = 1
_MAIN = "__main__"


def read_script(path: Path) -> bytes:
    """Return what a script holds.

    Raises:
        SwitchError: there is no such script.

    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SwitchError(f"{path}: {error.strerror}", "name the script to run") from error


def run_script(path: Path, arguments: Sequence[str], hook: Hook | None) -> int:
    """Run ``python PATH ARGUMENTS`` in this process; return its exit status.

    Raises:
        SwitchError: there is no such script.
        SystemExit: the script raised it.

    """
    data = read_script(path)
    absolute = os.path.abspath(path)  # noqa: PTH100 - links stay, as in Python
    sys.argv = [str(path), *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(path.resolve().parent)
    module = ModuleType(_MAIN)
    vars(module).update(
        __file__=absolute,
        __cached__=None,
        __builtins__=__builtins__,
        __loader__=SourceFileLoader(_MAIN, absolute),
        __annotations__={},
    )
    sys.modules[_MAIN] = module

    def execute() -> None:
        exec(_code(absolute, data, hook), vars(module))  # noqa: S102 - that is what it is for

    return _guard(execute, absolute)


def run_module(name: str, arguments: Sequence[str]) -> int:
    """Run ``python -m NAME ARGUMENTS`` in this process; return its exit status."""
    sys.argv = [name, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path.cwd())

    def execute() -> None:
        runpy.run_module(name, run_name=_MAIN, alter_sys=True)

    return _guard(execute, "")


def _code(path: str, data: bytes, hook: Hook | None) -> CodeType:
    """Return the code of the script, with its changes."""
    code = compile(data, path, "exec", dont_inherit=True)  # what is wrong with it comes out here
    found = None if hook is None else hook.rewritten(_MAIN, path, data)
    return code if found is None or found.code is None else found.code


def _guard(execute: object, path: str) -> int:
    """Run a program; what it does not catch is shown without the frames of this one."""
    try:
        execute()  # type: ignore[operator] # a function without arguments
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        _show(error, path)
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - Python itself would show it like this
        _show(error, path)
        return _FAILED
    return 0


def _show(error: BaseException, path: str) -> None:
    trace = error.__traceback__
    while trace is not None and not _is_program(trace, path):
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.excepthook(type(error), error, trace)


def _is_program(trace: TracebackType, path: str) -> bool:
    """Tell whether a frame belongs to the program, not to what runs it."""
    name = trace.tb_frame.f_code.co_filename
    if path:
        return name == path
    return name not in {__file__, runpy.__file__} and "runpy" not in name
