"""Run a Python file on a virtual NPU, and list what it launched.

``python -m npufix.rewriters.verification.virtual_npu [--chip A2] [--launches FILE] SCRIPT ...``
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import runpy
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from npufix.rewriters.verification.virtual_npu.chips import SOC
from npufix.rewriters.verification.virtual_npu.device import environment, virtual_npu
from npufix.rewriters.verification.virtual_npu.wheel.errors import VirtualNpuError


def main(arguments: list[str]) -> int:
    """Run the script in a child process, or here if this is the child."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__)
    parser.add_argument("--chip", default="A2", help=f"one of {', '.join(SOC)}, or Ascend...")
    parser.add_argument("--launches", type=Path, help="write the launches to this file as JSON")
    parser.add_argument("--lenient", action="store_true", help="NaN for what nothing computes")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not options.here:
        command = [sys.executable, "-m", __package__ or "", "--here", *arguments]
        return subprocess.run(command, env=environment(os.environ), check=False).returncode  # noqa: S603 - ourselves
    sys.argv = [options.script, *options.arguments]
    try:
        with virtual_npu(options.chip, strict=not options.lenient) as device:
            runpy.run_path(options.script, run_name="__main__")
    except VirtualNpuError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 2
    if options.launches is not None:
        options.launches.write_text(json.dumps([x._asdict() for x in device.launches()]))
    return 0


def _leave(status: int) -> NoReturn:
    """End as Python does, but without the destructors of native libraries.

    Of some hundred processes one aborts in them, with all its work done: a thread of torch_npu
    still runs when what holds it goes.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # noqa: SLF001 - no other name
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever reads it may have gone
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
