"""The child's side: read jobs, write verdicts. The user's code runs here and only here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from npufix.rewriters.verification.job import Job
from npufix.rewriters.verification.sandbox import (
    guard_side_effects,
    limit_memory,
    separate_streams,
)


def main(memory_bytes: int) -> None:
    """Serve one verdict per line until the parent closes the pipe."""
    reading, writing = separate_streams()
    try:
        import torch  # noqa: PLC0415 — the streams must be safe before a library can print
    except ImportError as error:
        os.write(writing, msgspec.json.encode({"error": f"torch cannot be imported: {error}"}))
        os.write(writing, b"\n")
        return
    from npufix.rewriters.verification.site import verify_site  # noqa: PLC0415 — needs torch

    torch.set_num_threads(1)
    limit_memory(memory_bytes)
    guard_side_effects(str(Path.cwd()))
    os.write(writing, msgspec.json.encode({"torch": str(torch.__version__)}) + b"\n")
    with os.fdopen(reading, "rb") as jobs:
        for line in jobs:
            verdict = verify_site(msgspec.json.decode(line, type=Job))
            _write(writing, msgspec.json.encode(verdict) + b"\n")


def _write(writing: int, data: bytes) -> None:
    while data:
        data = data[os.write(writing, data) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
