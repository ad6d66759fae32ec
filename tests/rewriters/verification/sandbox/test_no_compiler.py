"""A child does without the compiler of torch, whatever it calls first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys
from npufix.rewriters.verification.sandbox.no_compiler import leave_out_compiler

leave_out_compiler()
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Counting(TorchDispatchMode):
    calls = 0
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.calls += 1
        return function(*arguments, **(keywords or {}))

with Counting() as counting:
    torch.ones(2) + 1
assert counting.calls and "torch._dynamo" not in sys.modules
w = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.5)
(w * w).sum().backward()
optimizer.step()
assert torch.equal(w, torch.zeros(2))
compiled = torch.compile(lambda x: x + 1, backend="eager")
assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
print("done")
"""


def test_operators_do_without_it_and_what_asks_for_it_gets_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},  # as in a child
    )
    assert done.stdout == "done\n", done.stderr
