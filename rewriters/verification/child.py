"""The child's side: read jobs, write verdicts. The user's code runs here and only here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from npufix.rewriters.verification.grounds import Ground
from npufix.rewriters.verification.job import Job
from npufix.rewriters.verification.sandbox import (
    guard_side_effects,
    limit_memory,
    separate_streams,
)
from npufix.rewriters.verification.virtual_npu import VirtualNpuError, virtual_npu


def main(memory_bytes: int, ground: str, chip: str, stubs: str) -> None:
    """Serve one answer per line until the parent closes the pipe."""
    reading, writing = separate_streams()
    try:
        begin(ground, chip, stubs)
        import torch  # noqa: PLC0415 — the streams must be safe before a library can print
    except (ImportError, NotImplementedError, VirtualNpuError) as error:
        os.write(writing, msgspec.json.encode({"error": f"it cannot be set up: {error}"}))
        os.write(writing, b"\n")
        return
    from npufix.rewriters.verification.site import verify_site  # noqa: PLC0415 — needs torch

    torch.set_num_threads(1)
    limit_memory(memory_bytes)
    guard_side_effects(str(Path.cwd()))
    os.write(writing, msgspec.json.encode({"torch": str(torch.__version__)}) + b"\n")
    with os.fdopen(reading, "rb") as jobs:
        for line in jobs:
            answer = verify_site(msgspec.json.decode(line, type=Job), ground)
            _write(writing, msgspec.json.encode(answer) + b"\n")


def begin(ground: str, chip: str, stubs: str) -> None:
    """Set up what the code runs on, before torch is imported.

    The reference kernels need nothing: each job installs the operators of its own version.
    """
    if ground == Ground.VIRTUAL_NPU.value:
        with virtual_npu(chip, stubs=Path(stubs)) as device:
            from npufix.rewriters.verification.place import become  # noqa: PLC0415 — needs torch

            become(device, chip)
    elif ground != Ground.REFERENCE.value:
        raise NotImplementedError(f"no child for the ground {ground}")


def _write(writing: int, data: bytes) -> None:
    while data:
        data = data[os.write(writing, data) :]


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:5])
