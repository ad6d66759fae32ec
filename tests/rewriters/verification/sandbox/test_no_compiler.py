"""A child does without the compiler of torch, whatever it calls first."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys
from npufix.rewriters.verification.sandbox.no_compiler import is_left_out, leave_out_compiler

assert not is_left_out()
leave_out_compiler()
import torch

w = torch.ones(2, requires_grad=True)
for kind in (torch.optim.AdamW, torch.optim.SGD):
    optimizer = kind([w], lr=0.5)
    (w * w).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert is_left_out() and "torch._dynamo" not in sys.modules
assert not torch.equal(w, torch.ones(2))
compiled = torch.compile(lambda x: x + 1, backend="eager")
assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
print("done")
"""


def test_optimizers_step_without_it_and_what_asks_for_it_gets_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr
