"""Configurations that are read by keys, or hold further ones."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.changed_programs import verdict

if TYPE_CHECKING:
    from pathlib import Path

BY_KEYS = """
class Norm(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.eps = config.get("eps", 1e-6)
        self.rounds = config["model"]["rounds"]
        self.weight = torch.nn.Parameter(torch.ones(config["hidden_size"]))

    def forward(self, x):
        for _ in range(self.rounds):
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * self.weight
"""
HELD = """
class Mlp(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        model = cfg.model
        self.fc = torch.nn.Linear(model.dim, model.mlp.hidden)
        self.act = "silu" if cfg.use_silu is False else "gelu"

    def forward(self, x):
        return F.silu(self.fc(x)) if self.act == "silu" else F.gelu(self.fc(x))
"""
OF_A_FUNCTION = """
def loss(x, y, cfg):
    if cfg["train"]["use_log"]:
        x = x.log()
    return ((x - y) ** 2).sum() * cfg["weight_scale"]
"""


@pytest.mark.parametrize(
    ("text", "old", "right", "wrong"),
    [
        (BY_KEYS, "x.pow(2)", "(x * x)", "x.abs()"),
        (HELD, "F.silu(self.fc(x)) if", "torch.nn.functional.silu(self.fc(x)) if", "self.fc(x) if"),
        (OF_A_FUNCTION, "** 2).sum()", "** 2).sum(dtype=None)", "** 2).mean()"),
    ],
)
def test_a_configuration_is_read_by_keys(  # noqa: PLR0913, PLR0917 - what and where
    text: str,
    old: str,
    right: str,
    wrong: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = verdict(text, (old, right))
    assert kept.status.value == "equivalent", kept.reason
    refuted = verdict(text, (old, wrong))
    assert refuted.status.value == "refuted", refuted.reason
    assert "stand-in configuration" in refuted.reason
    program = tmp_path / "wrong.py"
    program.write_text(refuted.script)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(program), run_name="__main__")
    assert end.value.code == 1
    assert "differ" in capsys.readouterr().out


OF_A_BATCH = """
class Peaks:
    def __init__(self, key: str = "pixel_values", largest: bool = True):
        self.key, self.largest = key, largest

    def __call__(self, batch, scores):
        values = batch[self.key] * scores.view(-1, 1)
        return values.amax(1) if self.largest else values.amin(1)
"""


def test_a_batch_is_read_by_the_key_of_its_object() -> None:
    right, wrong = ("values.amax(1)", "values.max(1).values"), ("values.amax(1)", "values.mean(1)")
    assert verdict(OF_A_BATCH, right).status.value == "equivalent"
    refuted = verdict(OF_A_BATCH, wrong)
    assert refuted.status.value == "refuted"
    assert "batch={'pixel_values': float" in refuted.reason, refuted.reason


SCHEDULE = """
class Schedule:
    def __init__(self, count: int = 16, kind: str = "epsilon"):
        self.shares = torch.linspace(0.9, 0.1, count)
        self.count, self.kind, self.steps = count, kind, None

    def set_steps(self, steps: int):
        self.steps = steps

    def step(self, out, t: int, sample):
        share = self.shares[t - self.count // self.steps]
        if self.kind == "epsilon":
            return sample - share * out
        elif self.kind == "v":
            return share * sample - out
        raise ValueError(self.kind)
"""


def test_a_branch_of_a_setting_is_reached_after_other_calls() -> None:
    found = verdict(SCHEDULE, ("share * sample - out", "share * sample + out"))
    assert found.status.name == "REFUTED", found
    assert "kind='v'" in found.reason
    assert "set_steps" in found.reason


GUARD = """
class Guard:
    def __init__(self, patience: int = 2):
        self.patience, self.bad = patience, 0

    def check(self, loss):
        if not torch.isfinite(loss).all():
            self.bad += 1
            if self.bad > self.patience:
                raise FloatingPointError(f"{self.bad} in a row")
            return torch.zeros_like(loss)
        self.bad = 0
        return loss
"""


def test_bad_numbers_follow_each_other() -> None:
    found = verdict(GUARD, ("self.bad > self.patience", "self.bad >= self.patience"))
    assert found.status.name == "REFUTED", found
    assert verdict(GUARD, ("self.bad += 1", "self.bad = self.bad + 1")).status.name == "EQUIVALENT"


HALVES = """
def in_halves(model, x, limit: int = 2):
    try:
        return model(x)
    except RuntimeError:
        if limit == 0 or x.shape[0] < 2:
            raise
        half = x.shape[0] // 2
        return torch.cat([in_halves(model, part, limit - 1) for part in (x[:half], x[half:])])
"""


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("except RuntimeError", "except Exception", "REFUTED"),
        ("x.shape[0] // 2", "len(x) // 2", "EQUIVALENT"),
    ],
)
def test_what_a_model_raises_is_handled_as_before(old: str, new: str, status: str) -> None:
    found = verdict(HALVES, (old, new))
    assert found.status.name == status, found
