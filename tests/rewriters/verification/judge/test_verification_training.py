"""What a module keeps from one call to the next, which one call does not show."""

from __future__ import annotations

import runpy
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from verification_snippets import verify_here

from npufix.rewriters.verification import Job
from npufix.rewriters.verification.verdict import Status

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

MODULE = """
import torch
from torch import nn

class Scale(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.register_buffer("seen", torch.zeros(()))
        self.eps = eps

    def forward(self, x):
        {}
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * scale
"""
DOUBLE = "scale = self.weight * 2"
# Right in the first call; later it takes the weights of then.
STALE = """if getattr(self, "_kept", None) is None:
            self._kept = (self.weight * 2).detach()
        scale = self._kept + (self.weight * 2 - (self.weight * 2).detach())"""
SUM = "scale = self.weight + self.weight"


def job(new: str) -> Job:
    first, last = 14, 13 + len(new.splitlines())
    original, patched = MODULE.format(DOUBLE), MODULE.format(new)
    lines = tuple(range(first, last + 1))
    return Job("/user/scale.py", "/user", original, patched, "Scale.forward", (first,), lines)


def test_what_is_kept_from_the_first_call_is_seen_in_the_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale, right = verify_here([job(STALE), job(SUM)])
    assert right.status is Status.EQUIVALENT, right
    assert any(measure.what == "self.weight after 3 steps" for measure in right.measures)
    assert stale.status is Status.REFUTED, stale
    assert "result in step 2" in stale.reason
    assert "3 optimiser steps" in stale.counterexample
    program = tmp_path / "wrong.py"
    program.write_text(stale.script, encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(program), run_name="__main__")
    said = capsys.readouterr()
    assert (end.value.code, said.err) == (1, "")
    assert "result in step 2" in said.out


def test_a_program_opens_the_model_that_an_object_holds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch

    from npufix.rewriters.verification.judge.programs.replay import show, state_of

    def step(*, clears: bool) -> dict[str, object]:
        model = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(model.weight)
        trainer = SimpleNamespace(model=model, optimizer=torch.optim.SGD(model.parameters()))
        for _ in range(2):
            if clears:
                model.zero_grad()
            (model.weight * 3).sum().backward()
        model.bias = None
        return state_of(Opaque(trainer))

    class Opaque:
        def __init__(self, kept: SimpleNamespace) -> None:
            vars(self).update(vars(kept))

    assert show(step(clears=True), step(clears=True), "self.model", 0.0) == 0
    capsys.readouterr()
    assert show(step(clears=True), step(clears=False), "self.model", 0.0) == 1
    assert capsys.readouterr().out.startswith("self.model.weight.grad\n")


@pytest.mark.parametrize(("what", "said"), [("result", "result"), ("later", "result")])
def test_a_program_shows_what_differs_where_it_runs(
    capsys: pytest.CaptureFixture[str], what: str, said: str
) -> None:
    from npufix.rewriters.verification.judge.programs.replay import show

    assert show({"result": 1, "other": 2}, {"result": 3, "other": 2}, what, 0.0) == 1
    assert capsys.readouterr().out.startswith(f"{said}\n")
    assert show({"result": 1}, {"result": 1}, what, 0.0) == 0
