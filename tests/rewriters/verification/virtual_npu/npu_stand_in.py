"""A child of the ground ``npu`` whose device is the virtual NPU; tests start it.

It becomes a virtual NPU first and then runs the child's own code: to that, the device is one of
those that torch_npu offers. Events of the virtual NPU measure nothing, so here they do.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from npufix.rewriters.verification.sandbox.messages import Start
from npufix.rewriters.verification.virtual_npu import environment, virtual_npu
from npufix.rewriters.verification.workers.child import main


class Event:
    """Measures by the clock of the host, on which the virtual NPU computes."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) * 1000


if __name__ == "__main__":
    start = msgspec.json.decode(sys.argv[1], type=Start)
    if start.ground != "npu":
        main(sys.argv[1])
        sys.exit()
    os.environ.update(environment(os.environ))
    assert not start.forks
    said = os.dup(1)
    os.dup2(2, 1)
    with virtual_npu("A2", stubs=Path(start.stubs)):
        os.dup2(said, 1)
        import torch

        npu: Any = torch.npu  # type: ignore[attr-defined]
        npu.Event = Event
        main(sys.argv[1])
