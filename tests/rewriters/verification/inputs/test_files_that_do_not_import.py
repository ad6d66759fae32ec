"""Packages that cannot be imported here: what is verified is taken out of their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from npufix.advisor.verify.changed_functions import find_touched
from npufix.rewriters.verification import Job
from npufix.rewriters.verification.judge.verify_function import verify_function
from npufix.rewriters.verification.verdict import Status, Verdict

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "__init__.py": "import not_installed\nfrom .ops import *\n",
    "ops/__init__.py": "from .wide import *\nfrom .scales import *\n",
    "ops/wide.py": """
import not_installed
from .scales import scale

@not_installed.compiled
def widen(x):
    return scale(x) + 1
""",
    "ops/scales.py": """
from . import wide
from . import numbers as n
from .numbers import BACKEND

def scale(x):
    assert n.BACKEND is BACKEND is None
    return x * n.FACTOR

def narrow(x):
    return wide.widen(x) - 1
""",
    "ops/documented.py": """
import not_installed
from not_installed import PreTrainedConfig, strict

def documented(text):
    raise ImportError(not_installed.compiled(text))

def field(default):
    return not_installed.as_field(default)

@documented("sizes")
@strict
class ScaleConfig(PreTrainedConfig):
    factor: float = 0.25
    other: float = field(2.0)
""",
    "ops/numbers.py": """
import not_installed

FACTOR = 2.5
BACKEND = None

def late(x):
    return x.tanh()

def lost(x):
    return not_installed.kernel(x)
""",
}
MODEL = """
import torch
import not_installed
from not_installed import HAS_KERNEL, is_kernel_available
from torch import nn
from . import ops
from .ops.documented import ScaleConfig, documented
from .ops import narrow, widen
import kit.ops.scales as scales

def f(x):
    from .ops.numbers import late
    y = torch.sigmoid(x) * x
    return ops.narrow(late(widen(narrow(y)))) + scales.scale(y)

@documented("a layer")
class H(nn.Module):
    def __init__(self, config: ScaleConfig):
        super().__init__()
        self.factor = config.factor

    @documented("a call")
    def forward(self, x):
        if is_kernel_available() or HAS_KERNEL:
            return x
        y = torch.sigmoid(x) * x
        return y * self.factor

def g(x):
    return ops.numbers.lost(torch.sigmoid(x) * x)
"""


TRAINED = """
import torch
import pytorch_lightning as pl
from not_installed import HubMixin, layers

class L(pl.LightningModule, HubMixin, tags=["gated"]):
    def __init__(self, width: int, factor: float = 0.5):
        super().__init__()
        pl.seed_everything(width)
        self.save_hyperparameters(ignore="factor")
        self.layer = torch.nn.Linear(self.hparams.width, 3)
        self.norm = layers.LastNorm(3)

    def forward(self, x):
        y = torch.sigmoid(x) * x
        self.log("mean", y.mean())
        y = self.norm(self.layer(y)) if self.norm.use_scale is False else y
        return y.to(self.device)
"""
GATE = "torch.sigmoid(x) * x"


def judge(folder: Path, name: str, new: str) -> Verdict:
    """Verify another text for the gate of ``f`` or ``g``, within a package."""
    text = TRAINED if name.startswith("L.") else MODEL
    for path, written in {**FILES, "model.py": text}.items():
        place = folder / "kit" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(written, encoding="utf-8")
    start = text.index(f"def {name}(" if name.islower() else f"class {name[0]}(")
    after = text[:start] + text[start:].replace(GATE, new, 1)
    (one,) = find_touched(text, after)
    lines = one.lines_original, one.lines_changed
    path = str(folder / "kit" / "model.py")
    return verify_function(Job(path, str(folder), text, after, name, *lines)).verdict


def test_modules_and_names_from_everywhere_are_taken_out_of_files(tmp_path: Path) -> None:
    right = judge(tmp_path, "f", "torch.nn.functional.silu(x)")
    assert right.status is Status.EQUIVALENT, right.reason
    wrong = judge(tmp_path, "f", "torch.nn.functional.silu(x * 1.01)")
    assert wrong.status is Status.REFUTED, wrong


def test_decorators_that_fail_are_left_out_and_what_is_missing_is_not_available(
    tmp_path: Path,
) -> None:
    right = judge(tmp_path, "H.forward", "torch.nn.functional.silu(x)")
    assert right.status is Status.EQUIVALENT, right.reason
    assert "taken for False" in right.ground
    wrong = judge(tmp_path, "H.forward", "torch.nn.functional.silu(x * 1.01)")
    assert wrong.status is Status.REFUTED, wrong


def test_what_is_really_missing_is_named(tmp_path: Path) -> None:
    verdict = judge(tmp_path, "g", "torch.nn.functional.silu(x)")
    assert verdict.status is Status.NOT_VERIFIED, verdict
    assert "not_installed" in verdict.reason


@pytest.mark.parametrize(
    ("new", "status"),
    [
        ("torch.nn.functional.silu(x)", Status.EQUIVALENT),
        # what is logged alone is another
        (
            f"{GATE}\n        self.log('mean', y[0])\n        return self.norm(self.layer(y))",
            Status.REFUTED,
        ),
        # a layer that is missing may take the numbers of a row together
        (
            (
                f"{GATE}\n        self.log('mean', y.mean())\n        y = self.layer(y)\n"
                "        return torch.cat([self.norm(y[..., :2]), self.norm(y[..., 2:])], -1)"
            ),
            Status.REFUTED,
        ),
    ],
)
def test_a_base_class_of_lightning_keeps_settings(tmp_path: Path, new: str, status: Status) -> None:
    found = judge(tmp_path, "L.forward", new)
    assert found.status is status, found
    assert "layers of not_installed" in found.ground  # of which a layer is made
