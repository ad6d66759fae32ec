"""``npufix run``: a program from its start to what is said at its end."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.runtime import children
from npufix.advisor.runtime.api import print_at_exit
from npufix.advisor.runtime.process.applying import apply
from npufix.advisor.runtime.script import read_script, run_module, run_script

if TYPE_CHECKING:
    from npufix.advisor.runtime.process.applying import Applied
    from npufix.advisor.runtime.process.switches import Switches

_IS_VIRTUAL = "NPUFIX_VIRTUAL_NPU"
VIRTUAL = "virtual-npu"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user typed."""

    program: str
    arguments: tuple[str, ...]
    said: Switches
    as_module: bool = False
    on: str = "auto"
    chip: str = "A2"
    verify: bool = False
    steps: int | None = None
    json_file: Path | None = None
    quiet: bool = False


def run(wanted: RunRequest) -> int:
    """Run a program and return its exit status.

    Raises:
        SwitchError: a switch means nothing, or there is no such program.
        GroundError: this machine is no virtual NPU.

    """
    wanted.said.selection()  # a typing error is to be seen before anything runs
    if wanted.on == VIRTUAL and os.environ.get(_IS_VIRTUAL) != "1":
        _become_virtual(wanted.chip)
    if not wanted.as_module:
        read_script(Path(wanted.program))
    folder = Path.cwd() if wanted.as_module else Path(wanted.program).resolve().parent
    with ExitStack() as around:
        if wanted.on == VIRTUAL:
            from npufix.rewriters.verification.virtual_npu import virtual_npu

            around.enter_context(virtual_npu(wanted.chip))
        applied = apply(
            wanted.said, wanted.on, project=folder, verify=wanted.verify, chip=wanted.chip
        )
        if applied.hook is not None:
            children.inherit(wanted.said, wanted.on, folder)
        if wanted.steps is not None:
            from npufix.advisor.runtime.measuring import measure

            around.enter_context(measure(applied, wanted.steps, virtual=wanted.on == VIRTUAL))
        print_at_exit(applied, wanted.json_file, quiet=wanted.quiet)
        return _run(wanted, applied)


def _run(wanted: RunRequest, applied: Applied) -> int:
    if wanted.as_module:
        return run_module(wanted.program, wanted.arguments)
    return run_script(Path(wanted.program), wanted.arguments, applied.hook)


def _become_virtual(chip: str) -> None:
    """Start this very command again, in the environment that a virtual NPU needs."""
    from npufix.rewriters.verification import virtual_npu
    from npufix.rewriters.verification.workers.backends import choose_backend, prepare_backend
    from npufix.rewriters.verification.workers.machine import survey

    prepare_backend(choose_backend(survey(), VIRTUAL), VIRTUAL, chip)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(  # noqa: S606 - without a shell, as wanted
        sys.executable, [sys.executable, *sys.orig_argv[1:]], virtual_npu.environment(os.environ)
    )
