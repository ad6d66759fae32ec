"""The child's side: read jobs, write verdicts. The user's code runs here and only here."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from npufix.rewriters.verification.sandbox.guard import guard_side_effects
from npufix.rewriters.verification.sandbox.job_folders import remove
from npufix.rewriters.verification.sandbox.limits import (
    limit_resources,
    separate_streams,
)
from npufix.rewriters.verification.sandbox.messages import Greeting, Question, Reply, Start
from npufix.rewriters.verification.sandbox.no_compiler import leave_out_compiler
from npufix.rewriters.verification.virtual_npu import VirtualNpuError, virtual_npu
from npufix.rewriters.verification.virtual_npu.chips import family
from npufix.rewriters.verification.workers.backends import Backend


def main(text: str) -> None:
    """Serve one answer per line until the parent closes the pipe."""
    # Nothing that torch makes while it is imported is garbage.
    gc.disable()
    start = msgspec.json.decode(text, type=Start)
    reading, writing = separate_streams()
    home = Path.cwd()
    with suppress(BrokenPipeError):  # the parent was ended: nobody else tidies up
        _answer(start, reading, writing)
    remove(home)


def _answer(start: Start, reading: int, writing: int) -> None:
    leave_out_compiler()
    try:
        begin(start)
        import torch
    except (ImportError, NotImplementedError, OSError, RuntimeError, VirtualNpuError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        _send(writing, Greeting(error=f"it cannot be set up: {reason}"))
        return
    torch.set_num_threads(1)
    with suppress(ImportError):  # each call seeds it: imported once for all forks
        importlib.import_module("numpy.random")
    from npufix.rewriters.verification.judge.verify_function import verify_function

    _send(writing, Greeting(torch=str(torch.__version__)))
    if start.forks:
        from npufix.rewriters.verification.inputs.load import list_own_files
        from npufix.rewriters.verification.sandbox.fork_server import ForkServer

        list_own_files()
        ForkServer(
            reading,
            writing,
            start,
            lambda question: verify_function(question.job, start.ground),
            _after_fork,
        ).serve()
    else:
        _serve_here(start, reading, writing)


def begin(start: Start) -> None:
    """Set up what the code runs on, before anything of the user is imported."""
    if start.ground == Backend.VIRTUAL_NPU.value:
        with virtual_npu(start.chip, stubs=Path(start.stubs), forks=start.forks) as device:
            from npufix.rewriters.verification.calls.device import use_device

            use_device(device)
    elif start.ground == Backend.NPU.value:
        from npufix.rewriters.verification.calls.device import take_device

        take_device()
    elif start.ground == Backend.REFERENCE.value:
        from npufix.rewriters.verification.kernels.common import set_chip
        from npufix.rewriters.verification.reference import npu_operators

        set_chip(family(start.chip))
        # Each job installs the operators of its own version: mostly, they are these.
        npu_operators.install()
    else:
        raise NotImplementedError(f"no child for the ground {start.ground}")
    import torch

    from npufix.rewriters.verification.calls.named_device import understand
    from npufix.rewriters.verification.reference import checked_operators

    checked_operators.install()
    if not torch.cuda.is_available():
        understand("cuda", *(["npu"] if start.ground == Backend.REFERENCE.value else []))


def _after_fork() -> None:
    """Have the device of this process know that it is another one."""
    from npufix.rewriters.verification.calls.device import is_virtual

    if is_virtual():
        from npufix.rewriters.verification.virtual_npu import current_device

        current_device().after_fork()


def _serve_here(start: Start, reading: int, writing: int) -> None:
    """Verify one job after the other in this process."""
    gc.enable()
    from npufix.rewriters.verification.calls.device import is_broken, is_device
    from npufix.rewriters.verification.judge.verify_function import verify_function

    if not is_device():  # the driver of a device maps all of its memory
        limit_resources(start.memory_bytes)
    guard_side_effects(str(Path.cwd()), processes=is_device())
    with os.fdopen(reading, "rb") as questions:
        for line in questions:
            question = msgspec.json.decode(line, type=Question)
            answer = verify_function(question.job, start.ground)
            spent = is_broken()
            _send(writing, Reply(question.number, answer, spent=spent))
            if spent:
                return


def _send(writing: int, message: Greeting | Reply) -> None:
    data = msgspec.json.encode(message) + b"\n"
    while data:
        data = data[os.write(writing, data) :]


if __name__ == "__main__":
    main(sys.argv[1])
