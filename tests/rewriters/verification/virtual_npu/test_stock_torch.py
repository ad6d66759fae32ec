"""What stock torch asks of the device: norms, products, dropout, checks, draws, user operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npufix.rewriters.verification.virtual_npu import VirtualNpuError, find_wheels

_HERE = Path(__file__).parent
_PROGRAMS = ("running_stock_torch.py", "running_operators.py")


@pytest.mark.parametrize("program", _PROGRAMS)
def test_nothing_differs(program: str) -> None:
    try:
        find_wheels()
    except VirtualNpuError as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, "-m", "npufix.rewriters.verification.virtual_npu", str(_HERE / program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found
    assert {name: said for name, said in found.items() if said} == {}
