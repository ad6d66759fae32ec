"""The campaign of mutations asks on larger inputs, without the judge, whether versions differ."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.mutations import larger

TEXT = "import torch\n\ndef f(x: torch.Tensor):\n    return x.sum(-1)\n"


def question(patched: str) -> dict[str, Any]:
    lines = {"lines_original": [4], "lines_patched": [4], "by_hand": True}
    own = {"path": "/user/m.py", "root": "/user", "qualname": "f"}
    return {**own, **lines, "original": TEXT, "patched": patched}


def test_what_differs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert larger.ask(question(TEXT.replace("-1", "0"))).startswith("result")
    assert not larger.ask(question(TEXT.replace("x.sum(-1)", "torch.sum(x, dim=-1)")))


def test_a_check_that_fails_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(RuntimeError):
        larger.ask({"path": "/user/m.py"})
